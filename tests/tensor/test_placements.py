"""Tests of which part of a tensor each process has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.tensor import placements

SIZES = {"dp": 2, "tp": 3}


@given(st.data())
def test_parts_make_up_the_whole(data: st.DataObject) -> None:
    sizes = data.draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1))
    local = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    placement = data.draw(st.dictionaries(st.sampled_from(sorted(sizes)), st.integers(-len(local), len(local) - 1)))
    placement = placements.checked(placement, 0, list(sizes))
    whole = placements.whole_shape(local, placement, sizes)
    assert placements.local_shape(whole, placement, sizes) == tuple(local)
    count = np.zeros(whole, dtype=int)
    where = list(placements.coordinates(sizes))
    for places in placements.holders(placement, sizes).values():
        (begin, shape) = placements.part(local, placement, sizes, where[places[0]])
        count[tuple(slice(start, start + length) for start, length in zip(begin, shape, strict=True))] += 1
        assert all(placements.part(local, placement, sizes, where[other]) == (begin, shape) for other in places)
    assert (count == 1).all()


def test_the_outer_dimension_of_the_mesh_divides_first() -> None:
    placement = placements.checked({"tp": 0, "dp": 0}, 0, list(SIZES))
    begins = [placements.part((4,), placement, SIZES, where)[0][0] for where in placements.coordinates(SIZES)]
    assert begins == [0, 4, 8, 12, 16, 20]


@given(st.lists(st.tuples(st.sampled_from([{}, {"dp": 0}, {"tp": 0}, {"dp": 0, "tp": 0}]), st.integers(1, 100))))
def test_each_part_has_one_writer(tensors: list[tuple[dict[str, int], int]]) -> None:
    found = placements.writers(tensors, SIZES)
    for (placement, _), chosen in zip(tensors, found, strict=True):
        for places in placements.holders(placement, SIZES).values():
            assert sum(chosen[place] for place in places) == 1


def test_what_all_have_is_written_by_all_in_turn() -> None:
    chosen = placements.writers([({}, 10)] * 12, SIZES)
    assert [sum(each[place] for each in chosen) for place in range(6)] == [2] * 6


@pytest.mark.parametrize(
    ("placement", "error", "text"),
    [
        ("pp", KeyError, "no dimension 'pp': its dimensions are"),
        (3, TypeError, "no placement"),
        ({"tp": "0"}, TypeError, "no placement"),
    ],
)
def test_what_is_no_placement(placement: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        placements.checked(placement, 0, list(SIZES))  # type: ignore[arg-type]


def test_what_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\), and dimension 0 cannot be divided into 3 equal parts"):
        placements.local_shape((4,), {"tp": 0}, SIZES)
    with pytest.raises(ValueError, match="has 1 dimensions, and mesh dimension 'tp' was to divide dimension 1"):
        placements.local_shape((4,), {"tp": 1}, SIZES)
