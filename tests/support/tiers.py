"""The cases of a test that `make test` runs.

Every test is part of `make test-all`, but for those marked `slow` and those that need something of their own (`device`,
`lab`, `browser`, `ray`), which have targets of their own. What is marked `full`, a module, a test or a case of one, is left
out of `make test`: that proves every promise once, in under four minutes on two cores. Nearly all of that time are cases with
real processes. What is decided is proven in memory, by all its cases; of each way through real processes `make test` runs
one. The others are for `make test-all`, and what goes on for long, and most seeds, for `make test-slow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

full = pytest.mark.full
slow = pytest.mark.slow

# As many cases with real processes `make test` runs at most: tests/test_tiers.py.
MOST_WITH_PROCESSES = 944

# The fixtures that start processes or programs, by the folder of their tests ("": of all but those in IN_MEMORY, where names
# mean what the cluster in memory has). Who asks for one, whatever is in between, gets the marker `procs`.
STARTING = {
    "": {"hosts", "scripts"},
    "dashboard": {"observer"},
    "debugger": {"own", "running"},
    "job": {"jobs", "monarch"},
    "kube": {"cluster", "operated"},
    "netns": {"lab"},
    "procs": {"proc", "procs2", "procs4", "running", "spawn_procs", "terminal"},
    "rdma": {"fresh", "shared_procs"},
    "tensor": {"procs", "square"},
    "trace": {"program"},
}
IN_MEMORY = {"testing"}
COUNTED = pytest.StashKey[Counter[str]]()  # of what was collected: how many of each file count
_APART = {"slow", "device", "lab", "browser", "ray", "models"}


def mark_processes(item: pytest.Item, folder: str) -> None:
    """`folder`: that of the test, in tests."""
    starting = STARTING.get(folder, set()) | (set() if folder in IN_MEMORY else STARTING[""])
    if not starting.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.procs)


def counts(item: pytest.Item) -> bool:
    """True if `make test` runs it, and it uses real processes."""
    marks = {mark.name for mark in item.iter_markers()}
    return "procs" in marks and marks.isdisjoint({"full", *_APART})


def may_last(item: pytest.Item) -> bool:
    """True if `make test-all` does not run it."""
    return any(mark.name in _APART for mark in item.iter_markers())


def first_of(cases: Iterable[Any], quick: int = 1, full: int | None = None) -> list[Any]:
    """For `parametrize`: the first case, or the first `quick`, in every run, the others only in `make test-all`; from number
    `full` on only in `make test-slow`.

    A case is one value, a tuple of the values of several parameters, or a `pytest.param` of them.
    """
    return [
        case if number < quick else _marked(case, slow) if full is not None and number >= full else in_full(case)
        for number, case in enumerate(cases)
    ]


def in_full(case: Any) -> Any:
    """The case, only in `make test-all`."""
    return _marked(case, full)


def _marked(case: Any, mark: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*case.marks, mark], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)


def every_nth(cases: Iterable[Any], nth: int) -> list[Any]:
    """Runs as `first_of`, but in every run are the first case and each `nth` after it."""
    return [case if number % nth == 0 else in_full(case) for number, case in enumerate(cases)]
