"""The shape of a tree of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.casts.relay_state import split


@given(st.integers(0, 300), st.integers(1, 20))
def test_parts_are_contiguous_nearly_equal_and_at_most_as_many_as_the_width(count: int, width: int) -> None:
    parts = split(count, width)
    assert [place for part in parts for place in part] == list(range(count))
    assert len(parts) == min(count, width)
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[0] - sizes[-1] <= 1


def test_a_tree_without_width_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        split(3, 0)
