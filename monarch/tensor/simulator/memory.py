"""Memory of one device in simulated time: what was allocated and freed, how much there was at most."""

from __future__ import annotations

from typing import NamedTuple

LIMIT = 1 << 18  # changes that are kept one by one; beyond it the earlier half is only summed up


class Change(NamedTuple):
    """`nbytes` of buffer `buffer` come at `time` (nanoseconds), or go when negative. `ident`: the command that did
    it."""

    time: int
    buffer: int
    nbytes: int
    ident: int


class Ledger:
    """The allocations of one device since the last `turn`.

    Changes may come out of order in time, because streams run beside each other; those of one buffer may not. Beyond
    LIMIT changes the earlier half is summed up: a change that comes for that time later counts from its end on.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.live: dict[int, int] = {}  # bytes by buffer
        self._before = 0  # bytes there were before `changes`
        self._peak = 0  # the most before `changes`

    def add(self, time: int, buffer: int, nbytes: int, ident: int = 0) -> None:
        """`buffer` has `nbytes` more from `time` on."""
        self.live[buffer] = self.live.get(buffer, 0) + nbytes
        self._note(Change(time, buffer, nbytes, ident))

    def free(self, time: int, buffer: int, ident: int = 0) -> None:
        """`buffer` is gone at `time`. Nothing happens when it is not there."""
        nbytes = self.live.pop(buffer, None)
        if nbytes is not None:
            self._note(Change(time, buffer, -nbytes, ident))

    def _note(self, change: Change) -> None:
        self.changes.append(change)
        if len(self.changes) > LIMIT:
            self.changes.sort(key=_time)
            early, self.changes = self.changes[: LIMIT // 2], self.changes[LIMIT // 2 :]
            self._before, self._peak = _run(early, self._before, self._peak)

    def timeline(self) -> list[tuple[int, int]]:
        """(time, bytes from then on), in order, one entry for each time at which there was a change."""
        found: dict[int, int] = {}
        total = self._before
        for change in sorted(self.changes, key=_time):
            total += change.nbytes
            found[change.time] = total
        return list(found.items())

    def peak(self) -> int:
        """The most bytes there were at any time since the last turn, what was there then included."""
        return _run(sorted(self.changes, key=_time), self._before, max(self._peak, self._before))[1]

    def turn(self) -> None:
        """What there is now is the beginning."""
        self.changes = []
        self._before = self._peak = sum(self.live.values())

    def copy(self) -> Ledger:
        """The same for a device whose ways part from this one's."""
        made = Ledger()
        made.changes, made.live = list(self.changes), dict(self.live)
        made._before, made._peak = self._before, self._peak
        return made


def _time(change: Change) -> int:
    return change.time


def _run(changes: list[Change], total: int, peak: int) -> tuple[int, int]:
    """(bytes after, the most on the way) of changes in order of time; those of one moment count together."""
    for place, change in enumerate(changes):
        total += change.nbytes
        if place + 1 == len(changes) or changes[place + 1].time != change.time:
            peak = max(peak, total)
    return total, peak
