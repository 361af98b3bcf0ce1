"""Answers questions about a program that runs: its tree of hosts, processes and actors, its settings, its stacks."""
