"""A smaller program that breaks a rule as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.soak.program import Program


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Leaves operations out, as many at a time as possible, while `fails` says that what remains does.

    Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on Software
    Engineering 28(2), 2002), without the complements of the first half.
    """
    size = max(1, len(program.operations) // 2)
    while True:
        smaller = _without_some(program, size, fails)
        if smaller is not None:
            program = smaller
        elif size == 1:
            return program
        else:
            size //= 2


def _without_some(program: Program, size: int, fails: Callable[[Program], bool]) -> Program | None:
    """Without `size` operations in a row, from the end on; None when each is needed."""
    count = len(program.operations)
    for begin in range(count - size, -1, -size):
        rest = (*program.operations[:begin], *program.operations[begin + size :])
        smaller = dataclasses.replace(program, operations=rest)
        if rest and fails(smaller):
            return smaller
    return None
