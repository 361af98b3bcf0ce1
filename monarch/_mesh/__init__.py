"""Across many processes: hosts, procs and actors as arrays that a program slices and calls."""
