"""The process that acts for this machine, for packages that tell the kernel about the program's processes."""

from __future__ import annotations

from monarch._runtime.context import here

__all__ = ["agent_pid"]


def agent_pid() -> int:
    """Returns the pid of this process's host agent; in a client the one that it has started. 0 in a cluster in memory."""
    return here().agent_pid
