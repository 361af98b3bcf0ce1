"""What becomes of a failure that reached the root and that nobody supervised: a hook that programs replace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def default_fault_hook(failure: Any) -> None:
    """What happens to a failure that nobody supervised: the program ends with status 1."""
    sys.exit(1)


def fault_hook() -> Callable[[Any], Any]:
    """`monarch.actor.unhandled_fault_hook` as it is now: programs replace it by assignment."""
    hook = getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", None)
    return hook if hook is not None else default_fault_hook
