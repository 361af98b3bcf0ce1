"""The data of the page of metrics: what the program has logged of itself, and runs that were kept beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._linux.locks import Lock
from monarch._linux.private_files import UntrustedFileError
from monarch.dashboard.shared_answers import SharedAnswers
from monarch.telemetry import runs
from monarch.telemetry.curves import Curve, MetricCurves
from monarch.telemetry.store import Store

SHOWN = 40  # curves of one answer
POINTS = 240  # of one of them
COMPARED = 6  # runs


class MetricsData:
    """The curves of a store. Answers are shared by those who ask the same."""

    def __init__(self, store: Store, answers: SharedAnswers) -> None:
        self._store = store
        self._answers = answers
        self._lock = Lock()
        self._read: dict[str, tuple[float, MetricCurves]] = {}  # runs by name, as they were at a time

    def told(self, match: str = "", mesh: str | None = None, compared: Sequence[str] = ()) -> dict[str, Any]:
        """GET /api/metrics. Curves whose name has `match` in it, the first SHOWN; of the runs `compared` the same ones.
        ValueError for more than COMPARED of those, and for one that is none."""
        return self._answers.get(("metrics", match, mesh, tuple(compared)), lambda: self._told(match, mesh, compared))

    def _told(self, match: str, mesh: str | None, compared: Sequence[str]) -> dict[str, Any]:
        if len(compared) > COMPARED:
            raise ValueError(f"up to {COMPARED} runs are compared at a time, and these are {len(compared)}")
        found = runs.found_runs(self._store.runs) if self._store.runs else []
        own = self._store.curves
        return {
            "curves": self._shown(own, match, mesh),
            "names": own.names(),
            "left_out": own.left_out,
            "runs": [{"name": name, "updated_us": round(at * 1e6)} for name, at in found],
            "compared": [{"name": name, "curves": self._shown(self._run(name), match, mesh)} for name in compared],
        }

    def _shown(self, curves: MetricCurves, match: str, mesh: str | None) -> list[dict[str, Any]]:
        found = curves.told(match, mesh, most=SHOWN, points=POINTS, now=time.time())
        return [shown(curve) for curve in found]

    def _run(self, name: str) -> MetricCurves:
        """Reads it again when its file is another."""
        path = runs.path_of(self._store.runs, name)
        if not self._store.runs or not os.path.exists(path):
            raise ValueError(f"no run {name!r} was kept beside this one")
        written = os.stat(path).st_mtime
        with self._lock:
            known = self._read.get(name)
        if known is None or known[0] != written:
            made = MetricCurves()
            try:
                made.restore(runs.read_run(path).curves)
            except (UntrustedFileError, OSError) as exc:
                raise ValueError(str(exc)) from None
            known = (written, made)
            with self._lock:
                while len(self._read) >= COMPARED:
                    del self._read[next(iter(self._read))]
                self._read[name] = known
        return known[1]


def shown(curve: Curve) -> dict[str, Any]:
    """Returns it with numbers of eight digits: an answer has thousands."""
    made: dict[str, Any] = msgspec.structs.asdict(curve)
    for column in ("mean", "least", "most", "spread"):
        made[column] = [None if value is None else float(f"{value:.8g}") for value in made[column]]
    return made
