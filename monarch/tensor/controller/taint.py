"""The commands between ranks that a value depends on.

A failure on one rank reaches the others only through such commands (collectives, moves): they take part with other data, so
that their peers go on, and what they give is not to be trusted. A fetch of a value asks every rank of every such
command that the value depends on and that is not known to have gone well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch.tensor.controller.stream import MAIN

if TYPE_CHECKING:
    from monarch.tensor.controller.stream_placement import StreamPlacement

REMEMBERED = 1 << 16  # commands known to have gone badly; of earlier ones every rank has the failure itself


class Taint:
    """One command between ranks: `ident`, and the `place` (mesh and stream) whose ranks can tell how it went; and those its
    inputs depend on. Immutable, but for `parents` and `good` when the command is known to have gone well."""

    __slots__ = ("good", "ident", "parents", "place")

    def __init__(self, ident: int, place: StreamPlacement | None, parents: tuple[Taint, ...]) -> None:
        self.ident = ident
        self.place = place
        self.parents = parents
        self.good = False


def merge(first: Taint | None, second: Taint | None) -> Taint | None:
    """Returns what depends on both: one of them where that says it all, else a node without a command of its own
    (ident -1)."""
    if first is None or first is second or first.good:
        return second if second is None or not second.good else None
    if second is None or second.good or second in first.parents:
        return first
    if first in second.parents:
        return second
    return Taint(-1, None, (first, second))


def unconfirmed(taints: Iterable[Taint | None]) -> list[Taint]:
    """Every command the values depend on that is not known to have gone well."""
    found: list[Taint] = []
    seen: set[int] = set()
    open_ = [taint for taint in taints if taint is not None]
    while open_:
        taint = open_.pop()
        if id(taint) in seen or taint.good:
            continue
        seen.add(id(taint))
        if taint.ident >= 0:
            found.append(taint)
        open_.extend(taint.parents)
    return found


class Taints:
    """The commands between ranks of one engine whose end is not known yet. Commands of the main stream are known to be done
    when every rank has said so, and with them those of other streams that it waited for; the rest stay open."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, Taint]] = deque()  # and the command of the main stream that comes behind it
        self._bad: deque[int] = deque(maxlen=REMEMBERED)
        self._known_bad: set[int] = set()

    def issued(self, ident: int, place: StreamPlacement, parents: Iterable[Taint | None]) -> Taint:
        """The taint of a command that was just issued at `place`. Idents grow."""
        kept = dict.fromkeys(parent for parent in parents if parent is not None and not parent.good)
        taint = Taint(ident, place, tuple(kept))
        if place.stream is MAIN:
            self._open.append((ident, taint))
        return taint

    def follow(self, taint: Taint, ident: int) -> None:
        """Command `ident`, the latest, lets the main stream wait for the one of `taint`, which ran on another stream."""
        self._open.append((ident, taint))

    def bad(self, ident: int) -> None:
        """A rank took part in command `ident` with other data."""
        if len(self._bad) == REMEMBERED:
            self._known_bad.discard(self._bad[0])
        self._bad.append(ident)
        self._known_bad.add(ident)

    def done(self, before: int) -> None:
        """Every rank has done what the main stream had before ident `before`, and has told what went badly."""
        while self._open and self._open[0][0] < before:
            _, taint = self._open.popleft()
            taint.parents = tuple(parent for parent in taint.parents if unconfirmed([parent]))
            taint.good = not taint.parents and taint.ident not in self._known_bad
