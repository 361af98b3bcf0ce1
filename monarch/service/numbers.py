"""The check of the numbers that programs give."""

from __future__ import annotations

import math
from typing import Any


def check_number(what: str, value: Any, least: float = 0, *, whole: bool = False, above: bool = False) -> None:
    """TypeError for what is no number (no whole one), ValueError for one that is less than `least`, or not `above` it."""
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{what} is {kind}, got {value!r}")
    if not (value > least if above else value >= least) or math.isinf(value):
        raise ValueError(f"{what} is {f'above {least:g}' if above else f'{least:g} or more'}, got {value!r}")
