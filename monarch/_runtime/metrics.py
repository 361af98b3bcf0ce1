"""Measurements of a process since they were last taken: a sum, a distribution or a value for each instrument and its
attributes. Bounded: beyond SERIES of them, what is measured under further attributes is counted and dropped. Of attributes
the first ATTRIBUTES count, with LONGEST characters of each name and value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice
from time import monotonic
from typing import Any

from monarch._linux.locks import Lock
from monarch._text import NAME_LIMIT, sendable, text_of

SERIES = 2_000
ATTRIBUTES = 32
LONGEST = 256
_MOST = 2**63 - 1  # of a sum: what a column holds
BOUNDS = (
    0.0,
    5.0,
    10.0,
    25.0,
    50.0,
    75.0,
    100.0,
    250.0,
    500.0,
    750.0,
    1e3,
    2.5e3,
    5e3,
    7.5e3,
    1e4,
)  # as OpenTelemetry's

Key = tuple[str, str, tuple[tuple[str, str], ...]]  # name, unit, attributes


class Distribution:
    __slots__ = ("count", "counts", "least", "most", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.least = float("inf")
        self.most = float("-inf")
        self.counts = [0] * (len(BOUNDS) + 1)

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        self.counts[bisect_left(BOUNDS, value)] += 1


class Metrics:
    """Counters and sums of one process. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._since = monotonic()
        self._sums: dict[tuple[Key, bool], int] = {}
        self._distributions: dict[Key, Distribution] = {}
        self._values: dict[Key, float] = {}
        self.dropped = 0

    def count(self, name: str, unit: str, amount: int, attributes: Mapping[Any, Any] | None, only_grows: bool) -> None:
        key = _key(name, unit, attributes), only_grows
        with self._lock:
            if self._has_room(key in self._sums):
                total = self._sums.get(key, 0) + amount
                if -_MOST <= total <= _MOST:
                    self._sums[key] = total
                else:
                    self.dropped += 1

    def observe(self, name: str, unit: str, value: float, attributes: Mapping[Any, Any] | None) -> None:
        key = _key(name, unit, attributes)
        with self._lock:
            known = self._distributions.get(key)
            if known is None:
                if not self._has_room(False):
                    return
                known = self._distributions[key] = Distribution()
            known.add(value)

    def set(self, name: str, unit: str, value: float, attributes: Mapping[Any, Any] | None) -> None:
        key = _key(name, unit, attributes)
        with self._lock:
            if self._has_room(key in self._values):
                self._values[key] = value

    def _has_room(self, known: bool) -> bool:
        if known or len(self._sums) + len(self._distributions) + len(self._values) < SERIES:
            return True
        self.dropped += 1
        return False

    def take(self) -> tuple[float, float, list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """(since, now, sums, distributions, values): what came since the last time; a value is told once for each change."""
        now = monotonic()
        with self._lock:
            since, self._since = self._since, now
            sums = [(*key, only_grows, amount) for (key, only_grows), amount in self._sums.items()]
            distributions = [
                (*key, found.count, found.sum, found.least, found.most, found.counts)
                for key, found in self._distributions.items()
            ]
            values = [(*key, value) for key, value in self._values.items()]
            self._sums, self._distributions, self._values = {}, {}, {}
        return since, now, sums, distributions, values


def _key(name: str, unit: str, attributes: Mapping[Any, Any] | None) -> Key:
    name, unit = _clean(name, NAME_LIMIT), _clean(unit, NAME_LIMIT)
    if not attributes:
        return name, unit, ()
    first = islice(attributes.items(), ATTRIBUTES)
    return name, unit, tuple(sorted((_clean(key, LONGEST), _clean(value, LONGEST)) for key, value in first))


def _clean(value: object, limit: int) -> str:
    """Returns its text, whatever that raises: the program measures on."""
    text = value if type(value) is str else text_of(value)
    return text if len(text) <= limit and text.isascii() else sendable(text, limit)
