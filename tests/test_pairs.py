from __future__ import annotations

import itertools

import pytest

from tests.support.pairs import pairs


@pytest.mark.parametrize("sizes", [(6, 6, 3), (3, 5, 5), (2, 5, 3), (1, 4, 2), (3, 3, 3), (2, 2, 7)])
def test_every_two_values_meet(sizes: tuple[int, int, int]) -> None:
    axes = [[(axis, value) for value in range(size)] for axis, size in enumerate(sizes)]
    cases = pairs(*axes)
    assert all(case[axis] in axes[axis] for case in cases for axis in range(3))
    for one, other in itertools.combinations(range(3), 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == set(itertools.product(axes[one], axes[other]))
    assert len(set(cases)) == len(cases) == sorted(sizes)[-1] * sorted(sizes)[-2]
