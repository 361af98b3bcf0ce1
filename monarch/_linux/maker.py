"""The maker of a thing that ends, removes or sends something: a forked child has it as well, and it is not the child's."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

from monarch._errors import ForkedClientError


class Maker:
    """The process that made a thing. Unpickled, it is the process that reads it."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """False in a forked child of the process that made the thing."""
        return self.pid == os.getpid()

    def check(self, what: str) -> None:
        """Raises ForkedClientError, which names `what`, in a forked child."""
        if not self.is_here:
            raise ForkedClientError(
                f"{what} belongs to process {self.pid}, from which this process was made by os.fork: only that one can use "
                f"or end it. Do so there, or start processes that share nothing (this_host().spawn_procs(), or "
                f"multiprocessing with 'spawn')"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Maker, ()


def at_exit(end: Callable[[], object]) -> None:
    """`atexit.register`, and not in forked children, which would end what their parent uses."""
    maker = Maker()

    def run() -> None:
        if maker.is_here:
            end()

    atexit.register(run)
