"""A directory of every host, in one directory of this machine. See docs/mounts.md."""

from __future__ import annotations

from monarch.remotemount.gather import GatherMount, gather_mount

__all__ = ["GatherMount", "gather_mount"]
