"""Switches of the actor API that programs set by assignment, in the process they are to hold for."""

from __future__ import annotations

#: Whether log messages begin with `[actor=<who>] `. Looked up at every message.
prefix_python_logs_with_actor = True
