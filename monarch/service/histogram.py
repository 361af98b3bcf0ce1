"""A histogram of durations in bounded memory."""

from __future__ import annotations

import math

_FIRST = 1e-5  # seconds: the end of the first bucket
_STEP = 2**0.25  # each bucket ends so much later than the one before: percentiles are right to a fifth
_BUCKETS = 120  # the last one ends after some three hours


class DurationHistogram:
    """Counts durations in buckets that grow, so that percentiles of any number of them take a kilobyte."""

    __slots__ = ("_counts", "count", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        index = 0 if seconds <= _FIRST else math.ceil(math.log(seconds / _FIRST, _STEP))
        self._counts[min(index, _BUCKETS - 1)] += 1
        self.count += 1
        self.total += seconds

    def percentile(self, percent: float) -> float | None:
        """Returns the duration, in seconds, that `percent` of all do not exceed (the end of its bucket); None without any."""
        if not self.count:
            return None
        wanted, seen = self.count * percent / 100, 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return float(_FIRST * _STEP**index)
        raise AssertionError("the counts are fewer than the count")
