"""Numbers of one measurement, without I/O: quantiles, ratios side by side, and whether an aim is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median


@dataclass(frozen=True)
class Unit:
    """How a figure is shown and which way is better. Figures are kept in SI: s, 1/s, B/s, B, or a plain
    count.
    """

    si: str
    shown: str
    scale: float
    digits: int
    higher_is_better: bool = False

    def show(self, value: float | None) -> str:
        """`value` (SI) as text in this unit, "-" for None."""
        return "-" if value is None else f"{value * self.scale:,.{self.digits}f}"


MICROSECONDS = Unit("s", "µs", 1e6, 1)
MILLISECONDS = Unit("s", "ms", 1e3, 2)
SECONDS = Unit("s", "s", 1.0, 3)
KILO_PER_SECOND = Unit("1/s", "k/s", 1e-3, 1, higher_is_better=True)
GIGABYTES_PER_SECOND = Unit("B/s", "GB/s", 1e-9, 2, higher_is_better=True)
MEGABYTES = Unit("B", "MB", 1e-6, 2)
COUNT = Unit("count", "count", 1.0, 0)


@dataclass(frozen=True)
class Summary:
    """What is kept of a contender's samples of one measure. `p50` is the median of the rounds' medians (so
    a disturbed round moves it little); the other figures pool all rounds, or the other percentiles, too, are medians of
    those of the rounds.
    """

    n: int
    p50: float
    p90: float
    p99: float
    p999: float
    low: float
    high: float
    rounds: tuple[float, ...]


def quantile(values: Sequence[float], q: float) -> float:
    """The `q`-quantile (0 <= q <= 1) by linear interpolation between order statistics.

    Raises ValueError when `values` is empty or `q` is out of range."""
    if not values or not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile needs at least one value and 0 <= q <= 1, got {len(values)} values and q={q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(rounds: Sequence[Sequence[float]], tail_by_round: bool = False) -> Summary | None:
    """Summary of samples given per round; None when no round has any. A "p99" is the slow tail for times;
    for rates it is merely the high end, and the report leaves it out. `tail_by_round` is for rounds with so many samples
    that each has a tail of its own.
    """
    filled = [sorted(samples) for samples in rounds if samples]
    if not filled:
        return None
    pooled = sorted(chain.from_iterable(filled))
    medians = tuple(median(samples) for samples in filled)
    tails = filled if tail_by_round else [pooled]
    tail = [median(quantile(samples, q) for samples in tails) for q in (0.9, 0.99, 0.999)]
    return Summary(len(pooled), median(medians), *tail, pooled[0], pooled[-1], medians)


def paired_ratio(over: Mapping[int, Sequence[float]], under: Mapping[int, Sequence[float]]) -> float | None:
    """Median over rounds of median(over) / median(under), taken only from rounds in which both ran.

    Rounds are the unit of comparison because the machine's speed drifts between them more than within one."""
    ratios = [
        median(over[round_]) / median(under[round_])
        for round_ in over
        if over[round_] and under.get(round_) and median(under[round_]) > 0
    ]
    return median(ratios) if ratios else None


@dataclass(frozen=True)
class Aim:
    """A bound for our figure. `against` is None (the figure itself, SI), "p50" (a multiple of our median), "floor" (our
    cost as a multiple of the floor's) or a peer's name (how many times better than the peer we are; below 1 it may be
    better).
    """

    bound: float
    against: str | None = None
    statistic: str = "p50"

    def text(self, unit: Unit) -> str:
        """The aim as a reader would write it."""
        if self.against == "floor":
            return f"<= {self.bound:g}x floor"
        if self.against == "p50":
            return f"{self.statistic} <= {self.bound:g}x p50"
        if self.against is not None and self.bound < 1:
            return f"<= {1 / self.bound:g}x {self.against}"
        if self.against is not None:
            return f">= {self.bound:g}x better than {self.against}"
        sign = ">=" if unit.higher_is_better else "<="
        prefix = "" if self.statistic == "p50" else f"{self.statistic} "
        return f"{prefix}{sign} {self.bound * unit.scale:g} {unit.shown}"

    def met(self, unit: Unit, ours: Summary | None, cost: float | None, gains: Mapping[str, float]) -> bool | None:
        """True or False, or None when what it compares with was not measured.

        `cost` is our cost over the floor's; `gains` says, per peer, how many times better we are."""
        if ours is None:
            return None
        if self.against == "floor":
            return None if cost is None else cost <= self.bound
        value = ours.p99 if self.statistic == "p99" else ours.p50
        if self.against == "p50":
            return value <= self.bound * ours.p50
        if self.against is not None:
            return None if self.against not in gains else gains[self.against] >= self.bound
        return value >= self.bound if unit.higher_is_better else value <= self.bound
