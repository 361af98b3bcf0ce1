"""Hostile input at the doors of a program: what is sent is drawn from a seed, and the process behind the door must go on as
before. `python -m tests.fuzz --help`.

A target is a module here with one entry point, `target(program)`, which gives a `Target`; its name stands in `TARGETS`.
"""

TARGETS = ("http", "sql", "debugger", "door")
