"""Things made once in a process, when first used. A forked child has none of its parent's: it makes its own, and never
closes its parent's, whose descriptors and registrations both share.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from monarch._devices.forked import never_free
from monarch._linux.locks import Lock

T = TypeVar("T")


class OncePerProcess(Generic[T]):
    """A variable of a module: `value` is None until `get` has made it."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.lock = Lock()  # held while it is made
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, make: Callable[[], T]) -> T:
        """Returns what `make` gave the first time that it did not raise."""
        with self.lock:
            if self.value is None:
                self.value = make()
            return self.value

    def replace(self, value: T | None) -> None:
        """Puts another value in its place; None: the next `get` makes one. For tests."""
        with self.lock:
            self.value = value

    def _after_fork(self) -> None:
        self.lock = Lock()
        if self.value is not None:
            never_free(self.value)
            self.value = None
