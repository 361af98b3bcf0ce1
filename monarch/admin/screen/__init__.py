"""The terminal screen: the ranks of a running program, and its tree, and where it is stuck. `monarch tui` shows it."""
