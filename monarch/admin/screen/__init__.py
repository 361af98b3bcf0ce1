"""The terminal screen: the tree of a running program, what each node is, and where it is stuck. `monarch tui` shows it."""
