"""Answers questions about a program that runs: its tree of hosts, processes and actors, its settings, its stacks.

`start()` serves them over HTTP (docs/admin.md); `monarch tui` shows them, with or without that server.
"""

from __future__ import annotations

from monarch.admin.starting import Admin, spawn_admin, start

__all__ = ["Admin", "spawn_admin", "start"]
