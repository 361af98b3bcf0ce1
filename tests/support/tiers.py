"""Which cases of a test `make test` runs.

Every test is part of `make test-all`, but for those marked `slow` and `device`, which have targets of their own. What is
marked `full`, a module, a test or a case of one, is left out of `make test`: that proves every promise once, in a few
minutes; the other ways to the same, and what has to take long, are for `make test-all`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

full = pytest.mark.full
slow = pytest.mark.slow


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
    """As `first_of`, but in every run are the first case and each `nth` after it."""
    return [case if number % nth == 0 else in_full(case) for number, case in enumerate(cases)]
