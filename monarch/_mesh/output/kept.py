"""The last lines of each process's output, for `monarch logs`: kept by its host agent, also after its end. Pure.

Bounds: `LINES` lines and `SIZE` characters a process; of ended processes the last `ENDED` ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

LINES = 2_000
SIZE = 1 << 18
ENDED = 64
LARGEST = 1 << 20  # characters of lines in one answer; the last ones


class Line(msgspec.Struct, frozen=True, array_like=True):
    """`number`: counts the lines of the process, from 1. `at`: seconds since the epoch, on its host. `stream`: 1 or 2."""

    number: int
    at: float
    stream: int
    text: str


class OutputRequest(msgspec.Struct, frozen=True):
    """The lines that are wanted. `mesh`: the name of a mesh, None for all; `ranks` likewise. `after`: of each process
    (by its key) only lines with higher numbers. `since`: not older than that. `lines`: at most the last so many of a
    process; 0 asks only which there are."""

    mesh: str | None = None
    ranks: list[int] | None = None
    after: dict[str, int] = {}
    since: float | None = None
    lines: int = LINES


class OutputPage(msgspec.Struct, frozen=True):
    """The lines that one process has written. `key` names it and its incarnation; `whole`: stdout is kept too, not only
    stderr; `file`: where all of it is. `missed`: lines after the one asked for that are no longer kept. `last`: the
    number of the last line."""

    key: str
    address: str
    mesh: str
    rank: int
    ended: bool
    whole: bool
    file: str
    missed: int
    last: int
    lines: list[Line]


class KeptOutput:
    """The lines that are kept of one process."""

    def __init__(self, address: str, incarnation: int, mesh: str, rank: int, whole: bool, file: str) -> None:
        self.key = f"{address}~{incarnation}"
        self.address = address
        self.mesh = mesh
        self.rank = rank
        self.whole = whole
        self.file = file
        self.ended = False
        self._lines: deque[tuple[int, float, int, str]] = deque()  # as Line, which takes longer to make
        self._size = 0
        self._last = 0

    def take(self, stream: int, lines: Iterable[str], now: float) -> None:
        kept, number, size = self._lines, self._last, self._size
        for text in lines:
            number += 1
            kept.append((number, now, stream, text))
            size += len(text)
        while len(kept) > LINES or size > SIZE:
            size -= len(kept.popleft()[3])
        self._last, self._size = number, size

    def tell(self, wanted: OutputRequest, room: int) -> OutputPage:
        after = wanted.after.get(self.key)
        chosen: list[Line] = []
        for line in reversed(self._lines):
            number, at, _, text = line
            if (after is not None and number <= after) or len(chosen) >= wanted.lines:
                break
            if wanted.since is not None and at < wanted.since:
                break
            room -= len(text)
            if room < 0:
                break
            chosen.append(Line(*line))
        first = self._lines[0][0] if self._lines else self._last + 1
        missed = max(0, first - after - 1) if after is not None else 0
        return OutputPage(
            self.key, self.address, self.mesh, self.rank, self.ended, self.whole, self.file, missed, self._last,
            chosen[::-1],
        )  # fmt: skip


class KeptOutputs:
    """The lines that are kept of a host's processes."""

    def __init__(self) -> None:
        self._running: dict[str, KeptOutput] = {}
        self._ended: deque[KeptOutput] = deque(maxlen=ENDED)

    def add(self, kept: KeptOutput) -> None:
        self._running[kept.key] = kept

    def end(self, kept: KeptOutput) -> None:
        kept.ended = True
        if self._running.pop(kept.key, None) is not None:
            self._ended.append(kept)

    def tell(self, wanted: OutputRequest) -> list[OutputPage]:
        """Returns the lines of every process that is meant, within LARGEST in all."""
        chosen = [
            kept
            for kept in [*self._ended, *self._running.values()]
            if wanted.mesh in (None, kept.mesh) and (wanted.ranks is None or kept.rank in wanted.ranks)
        ]
        share = LARGEST // max(1, len(chosen))
        return [kept.tell(wanted, share) for kept in chosen]
