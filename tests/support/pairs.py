"""Cases of tests with several parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases of three axes in which every two values of different axes meet, instead of their whole product.

    Of 6, 6 and 3 values these are 36 cases, not 108: what goes wrong does so for one value or for two together.
    """
    order = sorted(range(3), key=lambda axis: -len(axes[axis]))
    first, second, third = (axes[axis] for axis in order)
    cases = []
    for i, one in enumerate(first):
        for j, two in enumerate(second):
            found = dict(zip(order, (one, two, third[(i + j) % len(third)]), strict=True))
            cases.append(tuple(found[axis] for axis in range(3)))
    return cases
