"""Answers questions about a program that runs: its tree of hosts, processes and actors, its settings, its stacks.

`start()` serves them over HTTP (docs/admin.md); `monarch tui` (`screen/`) shows them, with or without that server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.admin.starting import Admin, spawn_admin, start

__all__ = ["Admin", "spawn_admin", "start"]


def __getattr__(name: str) -> Any:
    """The public names need the runtime; what asks programs from outside does not."""
    if name in __all__:
        import monarch.admin.starting

        return getattr(monarch.admin.starting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
