"""A question a benchmark answers, as data: what is run, what is measured, what we aim for. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from _stats import COUNT, KILO_PER_SECOND, MICROSECONDS, Aim, Unit

# Which script under workloads/ a contender runs, unless the run names others. Ours and torchmonarch have the
# same public API, so they run the same file.
SCRIPTS: Mapping[str, str] = {
    "socket": "floor.py",
    "floor": "floor.py",
    "ours": "monarch_api.py",
    "torchmonarch": "monarch_api.py",
    "ray": "ray_api.py",
}
DEFAULT_CONTENDERS = ("floor", "ours", "torchmonarch", "ray")


@dataclass(frozen=True)
class Column:
    """A figure to stand beside a measure's: the workload prints it as "KEY SUFFIX", once a round. Where there are several
    suffixes, the figures are joined by "+".
    """

    title: str
    unit: Unit
    suffixes: tuple[str, ...]


# What a call costs the two processes that talk to each other: client + the actor's.
CALL_COLUMNS = (
    Column("k calls/s", KILO_PER_SECOND, ("rate",)),
    Column("CPU µs", replace(MICROSECONDS, digits=0), ("client cpu", "actor cpu")),
    Column("switches", replace(COUNT, digits=1), ("client switches", "actor switches")),
)


@dataclass(frozen=True)
class Measure:
    """One figure that a run yields. `key` is the name under which the workload prints its samples (SI
    units). `tail` shows more percentiles, each the median of the rounds'; `columns` is what stands beside them.
    """

    name: str
    key: str
    unit: Unit
    aims: tuple[Aim, ...] = ()
    tail: bool = False
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Run:
    """One workload, run once a round by each contender in a process of its own.

    `params` goes to the workload as JSON; `quick` overrides entries of it under --quick. `needs_torch` skips
    contenders for which torch cannot be had. `in_quick=False` leaves the run out under --quick."""

    workload: str
    measures: tuple[Measure, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    contenders: tuple[str, ...] = DEFAULT_CONTENDERS
    scripts: Mapping[str, str] = field(default_factory=lambda: SCRIPTS)
    needs_torch: bool = False
    in_quick: bool = True
    timeout_s: float = 120.0


@dataclass(frozen=True)
class Question:
    """A titled list of runs. `rounds` fixes their number for figures that do not vary (sizes on disk)."""

    name: str
    title: str
    runs: tuple[Run, ...]
    rounds: int | None = None
