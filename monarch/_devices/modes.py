"""Torch as this process has it, whatever the program has put in front of it.

A program may have a dispatch mode in its thread: an active mesh of distributed tensors is one, and takes every
`torch.empty` for its own. What moves bytes works on this process's tensors.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def active() -> bool:
    """Returns whether this thread has a dispatch mode. Never imports torch."""
    # Absent while another thread is still importing torch: no mode can be active then.
    count = getattr(getattr(sys.modules.get("torch"), "_C", None), "_len_torch_dispatch_stack", None)
    return count is not None and bool(count())


def locally(function: Callable[P, T]) -> Callable[P, T]:
    """Runs it without the dispatch modes that the thread has."""

    @functools.wraps(function)
    def without_modes(*args: P.args, **kwargs: P.kwargs) -> T:
        if not active():
            return function(*args, **kwargs)
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return function(*args, **kwargs)

    return without_modes
