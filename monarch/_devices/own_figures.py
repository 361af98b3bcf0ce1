"""The load and the memory of the device that this process uses, for whoever looks at the program while it runs.

Asking a driver may take seconds, or not come back where a device hangs: it is done on a thread of its own, by the libraries
that need no context on the device, and what was measured last is told meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch._devices import own_device, vendors
from monarch._devices.measures import Row, measure_of

_APART = 1.0  # seconds between two measurements at least


class DeviceFigures(NamedTuple):
    """`number`: as the process calls it (cuda:3 is 3). `load`: percent of the time in which it worked, None where the driver
    does not tell; `used`, `total`: bytes of the whole device, with what others use on it."""

    number: int
    load: float | None
    used: int
    total: int


class OwnFigures:
    """The figures of a process's device. `index`: the number of the device that it uses, None while it uses none. `find`:
    what measures that one; it may wait, and raise. `last` is called on one thread, and never waits."""

    def __init__(
        self,
        index: Callable[[], int | None],
        find: Callable[[int], Callable[[], Row] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._find = find
        self._clock = clock
        self._known: DeviceFigures | None = None
        self._measure: tuple[int, Callable[[], Row] | None] | None = None
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def last(self) -> DeviceFigures | None:
        """Returns what was measured last, and has it measured anew. None for a process that uses no device, for one that
        nobody can measure, and until the first measurement."""
        index = self._index()
        if index is None:
            return None
        if self._clock() >= self._due and (self._thread is None or not self._thread.is_alive()):
            self._due = self._clock() + _APART
            self._thread = threading.Thread(target=self.once, args=(index,), name="monarch-device", daemon=True)
            self._thread.start()
        known = self._known
        return known if known is not None and known.number == index else None

    def once(self, index: int) -> None:
        """Measures the device of that number. Waits for the driver."""
        try:
            if self._measure is None or self._measure[0] != index:
                self._measure = index, None  # looked for once: what it lacks does not come while it runs
                self._measure = index, self._find(index)
            measure = self._measure[1]
            row = None if measure is None else measure()
        except Exception:  # a driver or a library that fails is as good as none
            row = None
        self._known = (
            None
            if row is None
            else DeviceFigures(index, row["utilization_percent"], row["memory_used_bytes"], row["memory_total_bytes"])
        )


def _used_index() -> int | None:
    """The number of the device, once torch uses devices in this process."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return None
    return own_device.index()


def _found(index: int) -> Callable[[], Row] | None:
    return measure_of(vendors.addresses(os.environ)[index])


OWN = OwnFigures(_used_index, _found)
