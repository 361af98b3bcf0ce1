"""The limit of waits for what certainly comes, if nothing is broken."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

TIMEOUT = 300  # seconds: on a machine with much else to do a process may get no turn for a minute
GRACE = 8  # in which what is to end must be gone: 2 by the contract, at rest; those who look only now and then take 10


@contextmanager
def a_second_a_look(module: ModuleType) -> Iterator[None]:
    """Inside, a second passes whenever `module` looks at the clock: its limits end after so many looks, at any load."""
    seconds = itertools.count()
    with patch.object(module, "monotonic", lambda: float(next(seconds))):
        yield


def until(is_so: Callable[[], bool]) -> None:
    """Asks again and again, for what nobody tells of."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline
