"""Curves of what a program has logged (`monarch.metrics`), folded over its ranks as the rows come. Pure; any thread.

For each mesh and name a curve has points, each of the values of all ranks over as many steps as it is wide: mean, least and
most with their ranks, how far they are spread, how many were no finite number. Beyond POINTS of them it becomes twice as
wide. Bounds: CURVES curves (values of further ones are counted in `left_out`), of POINTS points each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from monarch._linux.locks import Lock

CURVES = 500
POINTS = 512
_SETTLES = 3.0  # seconds until a point has what all ranks have logged of it
_LEAST_RANKS = 4  # values that a point has, at least, if one of them is to be said to differ
_FAR, _FEWER = 5.0, 40.0  # spreads of the others by which a value differs; so many more where it is compared with one


class FoldedPoint:
    """The values of all ranks over some steps. `odd`: how many were NaN or infinite, of which `odd_rank` was the first."""

    __slots__ = ("at", "base", "count", "least", "least_rank", "most", "most_rank", "odd", "odd_rank", "squares", "sum")

    def __init__(self) -> None:
        self.count = self.odd = 0  # finite ones, and others
        self.base = self.sum = self.squares = 0.0  # sums of what values are above the first, which loses no digits
        self.least, self.most = math.inf, -math.inf
        self.least_rank = self.most_rank = self.odd_rank = -1
        self.at = 0.0  # seconds since the epoch, of the newest

    def add(self, value: float, rank: int, at: float) -> None:
        self.at = max(self.at, at)
        if not math.isfinite(value):
            self.odd += 1
            self.odd_rank = rank if self.odd_rank < 0 else self.odd_rank
            return
        if not self.count:
            self.base = value
        self.count += 1
        above = value - self.base
        self.sum += above
        self.squares += above * above
        if value < self.least:
            self.least, self.least_rank = value, rank
        if value > self.most:
            self.most, self.most_rank = value, rank

    def merge(self, other: FoldedPoint) -> None:
        """Adds what the other has."""
        self.at = max(self.at, other.at)
        if other.odd:
            self.odd += other.odd
            self.odd_rank = other.odd_rank if self.odd_rank < 0 else self.odd_rank
        if not other.count:
            return
        if not self.count:
            self.base = other.base
        apart = other.base - self.base
        self.sum += other.sum + other.count * apart
        self.squares += other.squares + 2 * apart * other.sum + other.count * apart * apart
        self.count += other.count
        if other.least < self.least:
            self.least, self.least_rank = other.least, other.least_rank
        if other.most > self.most:
            self.most, self.most_rank = other.most, other.most_rank

    @property
    def mean(self) -> float | None:
        """The mean; where sums are beyond what a float can be, the middle of least and most."""
        if not self.count:
            return None
        mean = self.base + self.sum / self.count
        return mean if math.isfinite(mean) else self.least / 2 + self.most / 2

    @property
    def spread(self) -> float:
        """The standard deviation. Where squares are beyond what a float can be, of values 1e154 apart: the most that it can
        be, half of what least and most are apart."""
        if not self.count:
            return 0.0
        return min(_deviation(self.count, self.sum, self.squares), self.most / 2 - self.least / 2)

    def differs(self) -> int:
        """Returns the rank whose value is far from what all others have, or is no finite number where theirs are; -1 if
        none is."""
        if self.odd and self.count >= self.odd:
            return self.odd_rank
        if self.count < _LEAST_RANKS:
            return -1
        others = self.count - 1
        far = []
        for value, rank in ((self.least, self.least_rank), (self.most, self.most_rank)):
            above = value - self.base
            mean = (self.sum - above) / others
            spread = _deviation(others, self.sum - above, self.squares - above * above)
            apart = abs(above - mean)
            noise = 1e-6 * max(abs(self.base), abs(value))  # of sums: the last digits of equal values
            if apart > (_FAR + _FEWER / others) * spread + noise:
                far.append((apart, rank))
        return max(far, default=(0.0, -1))[1]


def _deviation(count: int, total: float, squares: float) -> float:
    """Returns infinity where the sums are beyond what a float can be."""
    mean = total / count
    variance = squares / count - mean * mean  # ** would raise
    return math.sqrt(max(0.0, variance)) if math.isfinite(variance) else math.inf


class Curve(msgspec.Struct, frozen=True):
    """The points of one name in one mesh, a column for each thing that they have: `mean`, `least`, `most` are null where no
    value was a finite number, `odd` counts those; `differs` is the rank whose value is far from all others', -1 for none.
    A point is of `width` steps, from its `steps` on; `at` is when its last value was logged."""

    mesh: str
    name: str
    width: int
    steps: list[int]
    mean: list[float | None]
    least: list[float | None]
    most: list[float | None]
    least_rank: list[int]
    most_rank: list[int]
    spread: list[float]
    count: list[int]
    odd: list[int]
    odd_rank: list[int]
    differs: list[int]
    at: list[float]

    def standing_out(self) -> tuple[int, int]:
        """Returns the rank that differs at most of the points, and at how many; (-1, 0) where none does."""
        found = Counter(rank for rank in self.differs if rank >= 0).most_common(1)
        return found[0] if found else (-1, 0)


class _Growing:
    """A curve that grows."""

    def __init__(self) -> None:
        self.width = 1
        self.points: dict[int, FoldedPoint] = {}

    def point(self, step: int) -> FoldedPoint:
        found = self.points.get(step // self.width)
        if found is None:
            found = self.points[step // self.width] = FoldedPoint()
            if len(self.points) > POINTS:
                self.widen(POINTS)
                found = self.points[step // self.width]
        return found

    def widen(self, most: int) -> None:
        """Makes points wider until they are `most`."""
        while len(self.points) > most:
            self.width *= 2
            wide: dict[int, FoldedPoint] = {}
            for place, point in self.points.items():
                into = wide.get(place // 2)
                if into is None:
                    wide[place // 2] = point
                else:
                    into.merge(point)
            self.points = wide

    def copy(self) -> _Growing:
        made = _Growing()
        made.width = self.width
        for place, point in self.points.items():
            made.points[place] = into = FoldedPoint()
            into.merge(point)
        return made

    def told(self, mesh: str, name: str, now: float) -> Curve:
        places = sorted(self.points)
        if len(places) > 1:
            last, before = self.points[places[-1]], self.points[places[-2]]
            if now - last.at < _SETTLES and last.count + last.odd < before.count + before.odd:
                places.pop()  # other ranks have not logged it yet
        points = [self.points[place] for place in places]
        return Curve(
            mesh=mesh,
            name=name,
            width=self.width,
            steps=[place * self.width for place in places],
            mean=[point.mean for point in points],
            least=[point.least if point.count else None for point in points],
            most=[point.most if point.count else None for point in points],
            least_rank=[point.least_rank for point in points],
            most_rank=[point.most_rank for point in points],
            spread=[point.spread for point in points],
            count=[point.count for point in points],
            odd=[point.odd for point in points],
            odd_rank=[point.odd_rank for point in points],
            differs=[point.differs() for point in points],
            at=[round(point.at, 3) for point in points],
        )


class MetricCurves:
    """The curves of a program. `changes` grows with each that is made."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._curves: dict[tuple[str, str], _Growing] = {}
        self.changes = 0
        self.left_out = 0  # values of curves that were too many

    def add_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Adds rows of the kind "logged", as `batches` has them: they have been checked."""
        with self._lock:
            for name, value, step, mesh, rank, happened, *_, shift in rows:
                self._add(mesh, name, step, value, rank, happened + shift)

    def add(self, mesh: str, name: str, step: int, value: float, rank: int, at: float) -> None:
        with self._lock:
            self._add(mesh, name, step, value, rank, at)

    def _add(self, mesh: str, name: str, step: int, value: float, rank: int, at: float) -> None:
        growing = self._growing(mesh, name)
        if growing is None:
            self.left_out += 1
        else:
            growing.point(step).add(value, rank, at)
            self.changes += 1

    def _growing(self, mesh: str, name: str) -> _Growing | None:
        found = self._curves.get((mesh, name))
        if found is None and len(self._curves) < CURVES:
            found = self._curves[mesh, name] = _Growing()
        return found

    def restore(self, curves: Iterable[Curve]) -> None:
        """Adds what was kept of a run, or what SQL has folded: steps, widths and numbers are taken as they are."""
        with self._lock:
            for curve in curves:
                growing = self._growing(curve.mesh, curve.name)
                if growing is None:
                    self.left_out += len(curve.steps)
                    continue
                while growing.width < curve.width:
                    growing.width *= 2
                for number, step in enumerate(curve.steps):
                    growing.point(step).merge(_restored(curve, number))
                self.changes += 1

    def clear(self) -> None:
        with self._lock:
            self._curves.clear()
            self.changes += 1
            self.left_out = 0

    def names(self) -> list[tuple[str, str]]:
        """Returns mesh and name of each curve, in the order in which they came."""
        with self._lock:
            return list(self._curves)

    def told(
        self,
        text: str = "",
        mesh: str | None = None,
        *,
        most: int = CURVES,
        points: int = POINTS,
        now: float = math.inf,
    ) -> list[Curve]:
        """Returns the first `most` curves whose name has `text` in it, with at most `points` points each. `now`: seconds
        since the epoch, of somebody who looks: the newest point is left out while ranks are about to log it."""
        with self._lock:
            chosen = [
                (key, growing)
                for key, growing in self._curves.items()
                if text in key[1] and (mesh is None or mesh == key[0])
            ][:most]
            copies = [(key, growing.copy() if len(growing.points) > points else growing) for key, growing in chosen]
            for _, growing in copies:
                growing.widen(points)
            return [growing.told(*key, now) for key, growing in copies]


def _restored(curve: Curve, number: int) -> FoldedPoint:
    point = FoldedPoint()
    point.at, point.odd, point.odd_rank = curve.at[number], curve.odd[number], curve.odd_rank[number]
    mean, least, most = curve.mean[number], curve.least[number], curve.most[number]
    if mean is not None and least is not None and most is not None:
        point.count, point.base = curve.count[number], mean
        point.squares = curve.spread[number] * curve.spread[number] * curve.count[number]
        point.least, point.least_rank = least, curve.least_rank[number]
        point.most, point.most_rank = most, curve.most_rank[number]
    return point
