"""The shape of a tree of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.casts.tree import arrange, depth, split
from monarch._wire.message import PlanHost


@given(st.integers(0, 300), st.integers(1, 20))
def test_parts_are_contiguous_nearly_equal_and_at_most_as_many_as_the_width(count: int, width: int) -> None:
    parts = split(count, width)
    assert [place for part in parts for place in part] == list(range(count))
    assert len(parts) == min(count, width)
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[0] - sizes[-1] <= 1


def longest_way(count: int, width: int) -> int:
    """Counted on the tree itself."""
    return max((1 + longest_way(len(part) - 1, width) for part in split(count, width)), default=0)


@given(st.integers(0, 200), st.integers(1, 8))
def test_the_depth_is_that_of_the_deepest_host(count: int, width: int) -> None:
    assert depth(count, width) == longest_way(count, width)


@pytest.mark.parametrize(
    ("count", "width", "levels"),
    [(0, 16, 0), (16, 16, 1), (17, 16, 2), (272, 16, 2), (273, 16, 3), (4368, 16, 3), (5, 1, 5)],
)
def test_the_depth_grows_with_the_logarithm_of_the_hosts(count: int, width: int, levels: int) -> None:
    assert depth(count, width) == levels


def test_a_tree_without_width_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        split(3, 0)


def test_hosts_stand_in_the_order_of_their_ranks_but_the_own_one_first() -> None:
    addresses = ["a/m.0", "b/m.1", "c/m.2", "b/m.3", "a/m.4"]
    assert arrange("c", addresses) == [
        PlanHost("c", ["m.2"], [2]),
        PlanHost("a", ["m.0", "m.4"], [0, 4]),
        PlanHost("b", ["m.1", "m.3"], [1, 3]),
    ]
    assert [host.host for host in arrange("elsewhere", addresses)] == ["a", "b", "c"]
    assert arrange("a", []) == []
