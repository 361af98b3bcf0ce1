"""What a running program tells of itself: the questions that every process answers, also while user code is stuck."""
