"""The end of a failure that reached the root and that nobody supervised: a hook that programs replace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def default_fault_hook(failure: Any) -> None:
    """Ends the program with status 1, for a failure that reached the root client and that nobody handled.

    A program replaces it by assignment: `monarch.actor.unhandled_fault_hook = mine`. It is called with the MeshFailure,
    in the client's process, on a thread of the runtime. When it returns, the failure is handled: nothing is printed,
    and the program goes on. When it raises, whatever that is, the report goes to stderr and the main thread gets an
    UnhandledFaultError.
    """
    sys.exit(1)


def fault_hook() -> Callable[[Any], Any]:
    """`monarch.actor.unhandled_fault_hook` as it is now: programs replace it by assignment."""
    hook = getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", None)
    return hook if hook is not None else default_fault_hook
