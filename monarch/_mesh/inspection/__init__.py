"""Questions to a running program: those that every process answers, also while user code is stuck."""
