from __future__ import annotations

import pickle
from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._shape.extent import Extent, Point, UnknownDimensionError
from monarch._shape.region import Region
from monarch._shape.slice import NDSlice

HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 3])
EMPTY = Extent([], [])


@st.composite
def extents(draw: st.DrawFn, min_size: int = 0) -> Extent:
    sizes = draw(st.lists(st.integers(min_size, 4), max_size=4))
    return Extent(list("abcd"[: len(sizes)]), sizes)


def keywords(**given: Any) -> dict[str, Any]:
    return given


# Extent


def test_labels_and_sizes_are_fresh_lists() -> None:
    HOSTS_GPUS.labels.append("more")
    HOSTS_GPUS.sizes.append(9)
    assert HOSTS_GPUS.labels == ["hosts", "gpus"]
    assert HOSTS_GPUS.sizes == [2, 3]


@pytest.mark.parametrize(("sizes", "nelements"), [([], 1), ([2, 3], 6), ([5], 5), ([2, 0], 0)])
def test_nelements_is_the_product(sizes: list[int], nelements: int) -> None:
    assert Extent(list("ab"[: len(sizes)]), sizes).nelements == nelements


def test_region_is_dense_from_zero() -> None:
    expected = Region(["hosts", "gpus"], NDSlice(offset=0, sizes=[2, 3], strides=[3, 1]))
    assert HOSTS_GPUS.region == expected
    assert EMPTY.region.as_shape().ranks() == [0]


def test_an_extent_is_a_mapping_from_label_to_size() -> None:
    assert isinstance(HOSTS_GPUS, Mapping)
    assert HOSTS_GPUS["gpus"] == 3
    assert len(HOSTS_GPUS) == 2
    assert list(HOSTS_GPUS) == ["hosts", "gpus"]
    assert HOSTS_GPUS.keys() == ["hosts", "gpus"]
    assert list(HOSTS_GPUS.values()) == [2, 3]
    assert list(HOSTS_GPUS.items()) == [("hosts", 2), ("gpus", 3)]
    assert HOSTS_GPUS.get("gpus") == 3
    assert HOSTS_GPUS.get("nope") is None
    assert HOSTS_GPUS.get("nope", 7) == 7
    assert "hosts" in HOSTS_GPUS
    assert "nope" not in HOSTS_GPUS
    assert dict(HOSTS_GPUS) == {"hosts": 2, "gpus": 3}
    assert keywords(**HOSTS_GPUS) == {"hosts": 2, "gpus": 3}


def test_an_extent_is_falsy_only_without_dimensions() -> None:
    assert HOSTS_GPUS
    assert not EMPTY


def test_equal_only_to_an_extent_with_the_same_labels_and_sizes_in_order() -> None:
    assert Extent(("hosts", "gpus"), (2, 3)) == HOSTS_GPUS
    assert Extent(["hosts", "gpus"], [2, 4]) != HOSTS_GPUS
    assert Extent(["hosts", "cpus"], [2, 3]) != HOSTS_GPUS
    assert Extent(["gpus", "hosts"], [3, 2]) != HOSTS_GPUS
    assert HOSTS_GPUS != {"hosts": 2, "gpus": 3}
    assert {"hosts": 2, "gpus": 3} != HOSTS_GPUS  # noqa: SIM300  # the other side is asked first


def test_extents_are_not_hashable_but_their_keys_are() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(HOSTS_GPUS)
    assert {HOSTS_GPUS._key(): 1}[Extent(["hosts", "gpus"], [2, 3])._key()] == 1
    assert HOSTS_GPUS._key() != Extent(["hosts", "gpus"], [3, 2])._key()


def test_repr_of_an_extent() -> None:
    assert repr(HOSTS_GPUS) == str(HOSTS_GPUS) == "{hosts: 2, gpus: 3}"
    assert repr(EMPTY) == "{}"


def test_labels_and_sizes_must_match() -> None:
    with pytest.raises(ValueError, match=r"label/sizes dimension mismatch: 1 != 2"):
        Extent(["a"], [1, 2])


def test_sizes_are_natural_numbers() -> None:
    with pytest.raises(OverflowError, match="negative"):
        Extent(["a"], [-1])
    with pytest.raises(TypeError):
        Extent(["a"], [1.5])  # type: ignore[list-item]


def test_a_string_is_no_sequence_of_labels() -> None:
    with pytest.raises(TypeError, match=r"write \['hosts'\]"):
        Extent("hosts", [2])


def test_duplicate_labels_are_accepted() -> None:
    assert Extent(["a", "a"], [2, 3])["a"] == 2


class Integer:
    """An integer of somebody else's, as numpy has them."""

    def __index__(self) -> int:
        return 3


def test_sizes_become_plain_ints() -> None:
    assert [type(size) for size in Extent(["a"], [Integer()]).sizes] == [int]


# The error for a label that is not there


@pytest.mark.parametrize("mapping", [HOSTS_GPUS, Point(4, HOSTS_GPUS)])
@pytest.mark.parametrize("error", [ValueError, KeyError, UnknownDimensionError])
def test_an_unknown_label_is_a_value_error_and_a_key_error(mapping: Mapping[str, int], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        mapping["nope"]
    assert str(caught.value) == "Dimension 'nope' not found: the dimensions are 'hosts', 'gpus'"


def test_an_unknown_label_where_there_are_no_dimensions() -> None:
    with pytest.raises(UnknownDimensionError, match="Dimension 'x' not found: there are no dimensions"):
        EMPTY["x"]


def test_an_unknown_dimension_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(UnknownDimensionError("Dimension 'x' not found")))
    assert type(error) is UnknownDimensionError
    assert str(error) == "Dimension 'x' not found"


# Point


def test_a_point_is_a_mapping_from_label_to_coordinate() -> None:
    point = Point(4, HOSTS_GPUS)
    assert isinstance(point, Mapping)
    assert point.rank == 4
    assert point.extent is HOSTS_GPUS
    assert point["hosts"] == 1
    assert point["gpus"] == 1
    assert point.size("gpus") == 3
    assert len(point) == 2
    assert list(point) == point.keys() == ["hosts", "gpus"]
    assert list(point.values()) == [1, 1]
    assert list(point.items()) == [("hosts", 1), ("gpus", 1)]
    assert point.get("gpus") == 1
    assert point.get("missing") is None
    assert "gpus" in point
    assert "missing" not in point
    assert keywords(**point) == {"hosts": 1, "gpus": 1}


def test_size_of_an_unknown_dimension() -> None:
    with pytest.raises(UnknownDimensionError, match="Dimension 'x' not found"):
        Point(0, HOSTS_GPUS).size("x")


def test_repr_of_a_point_shows_coordinate_and_size() -> None:
    assert repr(Point(4, HOSTS_GPUS)) == str(Point(4, HOSTS_GPUS)) == "{'hosts': 1/2, 'gpus': 1/3}"
    assert repr(Point(0, EMPTY)) == "{}"


def test_points_are_equal_by_rank_and_extent() -> None:
    assert Point(4, HOSTS_GPUS) == Point(4, Extent(["hosts", "gpus"], [2, 3]))
    assert Point(4, HOSTS_GPUS) != Point(3, HOSTS_GPUS)
    assert Point(4, HOSTS_GPUS) != Point(4, Extent(["hosts", "gpus"], [3, 2]))
    assert Point(4, HOSTS_GPUS) != {"hosts": 1, "gpus": 1}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(4, HOSTS_GPUS))


def test_a_rank_out_of_range_is_noticed_when_a_coordinate_is_asked_for() -> None:
    point = Point(6, HOSTS_GPUS)
    assert point.rank == 6
    assert point.size("gpus") == 3
    assert point.keys() == ["hosts", "gpus"]
    for ask in (lambda: point["gpus"], lambda: dict(point), lambda: repr(point), lambda: point.get("gpus")):
        with pytest.raises(ValueError, match=r"out of range.*6 ranks.*rank 6"):
            ask()
    with pytest.raises(ValueError, match="out of range"):
        repr(Point(1, EMPTY))
    with pytest.raises(ValueError, match="out of range"):
        Point(0, Extent(["a"], [0]))["a"]


def test_a_negative_rank_is_refused_at_once() -> None:
    with pytest.raises(OverflowError, match="-1"):
        Point(-1, HOSTS_GPUS)


def test_neither_has_a_dict_or_can_be_assigned_to() -> None:
    for value in (HOSTS_GPUS, Point(0, HOSTS_GPUS)):
        assert not hasattr(value, "__dict__")
    with pytest.raises(AttributeError):
        Point(0, HOSTS_GPUS).rank = 3  # type: ignore[misc]


@given(extents(min_size=1))
def test_points_count_their_coordinates_in_row_major_order(extent: Extent) -> None:
    counted = [tuple(Point(rank, extent).values()) for rank in range(extent.nelements)]
    assert counted == list(product(*map(range, extent.sizes)))


@given(extents(), st.integers(0, 300), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_both_survive_pickling(extent: Extent, rank: int, protocol: int) -> None:
    point = pickle.loads(pickle.dumps(Point(rank, extent), protocol))
    assert type(point) is Point
    assert point == Point(rank, extent)
    assert point.extent.nelements == prod(extent.sizes)


def test_pickling_writes_no_more_than_labels_sizes_and_rank() -> None:
    assert Point(4, HOSTS_GPUS).__reduce__() == (Point, (4, HOSTS_GPUS))
    assert HOSTS_GPUS.__reduce__() == (Extent, (("hosts", "gpus"), (2, 3)))
