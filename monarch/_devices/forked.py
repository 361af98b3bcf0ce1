"""The memory of its parent's devices that a forked child has and must never free."""

from __future__ import annotations

import ctypes
from typing import Any


def never_free(*things: Any) -> None:
    """Keeps them alive to the very end of this process, past the end of its interpreter.

    A forked child cannot use its parent's devices. To free pinned memory there records an event, to close memory of another
    process unmaps it and tells that process so: both fail in the driver and end the child, or disturb the parent.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
