from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._shape.extent import Extent, Point, UnknownDimensionError
from monarch._shape.region import Region, Shape
from monarch._shape.slice import NDSlice

DENSE = Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 3]))


def table(shape: Shape) -> dict[tuple[int, ...], int]:
    """Rank by coordinate: what a shape means, with nothing clever in it."""
    return dict(zip(product(*map(range, shape.extent.sizes)), shape.ranks(), strict=True))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A dense shape of one to three dimensions, somewhere, its dimensions in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dense = NDSlice.new_row_major(sizes)
    order = draw(st.permutations(range(len(sizes))))
    labels = ["a", "b", "c"][: len(sizes)]
    return Shape(
        labels,
        NDSlice(
            offset=draw(st.integers(0, 7)),
            sizes=[dense.sizes[dim] for dim in order],
            strides=[dense.strides[dim] for dim in order],
        ),
    )


@st.composite
def shapes_and_labels(draw: st.DrawFn) -> tuple[Shape, int, str]:
    shape = draw(shapes())
    dim = draw(st.integers(0, len(shape.labels) - 1))
    return shape, dim, shape.labels[dim]


# What a shape says


def test_parts_of_a_shape() -> None:
    assert DENSE.labels == ["hosts", "gpus"]
    assert DENSE.ndslice == NDSlice.new_row_major([2, 3])
    assert DENSE.extent == Extent(["hosts", "gpus"], [2, 3])
    assert DENSE.region == Region(["hosts", "gpus"], NDSlice.new_row_major([2, 3]))
    assert DENSE.ranks() == [0, 1, 2, 3, 4, 5]
    assert len(DENSE) == 6
    DENSE.labels.append("more")
    assert DENSE.labels == ["hosts", "gpus"]


def test_coordinates_of_a_rank_of_the_whole() -> None:
    assert DENSE.coordinates(5) == {"hosts": 1, "gpus": 2}
    assert DENSE.at("hosts", 1).coordinates(5) == {"gpus": 2}
    with pytest.raises(ValueError, match="value 6 not in slice"):
        DENSE.coordinates(6)


def test_unity_is_one_element_without_dimensions() -> None:
    unity = Shape.unity()
    assert (unity.labels, unity.ranks(), len(unity)) == ([], [0], 1)


def test_how_a_shape_shows_itself() -> None:
    assert str(DENSE) == "{hosts=2,gpus=3}"
    assert repr(DENSE) == (
        'Shape { labels: ["hosts", "gpus"], slice: Slice { offset: 0, sizes: [2, 3], strides: [3, 1] } }'
    )
    assert (str(Shape.unity()), repr(Shape.unity())) == (
        "{}",
        "Shape { labels: [], slice: Slice { offset: 0, sizes: [], strides: [] } }",
    )


@pytest.mark.parametrize("kind", [Shape, Region])
def test_every_dimension_has_one_label(kind: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="label slice dimension mismatch: 1 != 2"):
        kind(["a"], NDSlice.new_row_major([2, 3]))
    with pytest.raises(TypeError, match=r"write \['ab'\]"):
        kind("ab", NDSlice.new_row_major([2, 3]))


@pytest.mark.parametrize("kind", [Shape, Region])
def test_equal_by_labels_and_slice_and_not_hashable(kind: Callable[..., Any]) -> None:
    one = kind(["a"], NDSlice(offset=0, sizes=[2], strides=[1]))
    assert one == kind(("a",), NDSlice(offset=0, sizes=[2], strides=[1]))
    assert one != kind(["b"], NDSlice(offset=0, sizes=[2], strides=[1]))
    assert one != kind(["a"], NDSlice(offset=1, sizes=[2], strides=[1]))
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_shape_is_not_its_region() -> None:
    assert DENSE.region != DENSE
    assert DENSE.region.as_shape() == DENSE


# Cutting


def test_at_drops_the_dimension() -> None:
    row = DENSE.at("hosts", 1)
    assert (row.labels, row.ranks()) == (["gpus"], [3, 4, 5])
    assert DENSE.at("gpus", 1).ranks() == [1, 4]


def test_select_keeps_the_dimension() -> None:
    last = DENSE.select("gpus", slice(-2, None))
    assert (last.labels, last.extent.sizes, last.ranks()) == (["hosts", "gpus"], [2, 2], [1, 2, 4, 5])
    assert DENSE.select("gpus", slice(1, 99)) == last
    assert DENSE.select("hosts", slice(1, 2)).extent == Extent(["hosts", "gpus"], [1, 3])


def test_index_takes_several_labels() -> None:
    assert DENSE.index(gpus=2, hosts=1).ranks() == [5]
    assert DENSE.index(hosts=1) == DENSE.at("hosts", 1)
    assert DENSE.index() == DENSE


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: DENSE.at("x", 0), UnknownDimensionError, "Dimension 'x' not found: .* 'hosts', 'gpus'"),
        (lambda: DENSE.select("x", slice(1)), UnknownDimensionError, "Dimension 'x' not found"),
        (lambda: DENSE.index(x=0), UnknownDimensionError, "Dimension 'x' not found"),
        (lambda: DENSE.at("hosts", 2), ValueError, "index 2 out of range for dimension 'hosts' of size 2"),
        (lambda: DENSE.index(gpus=3), ValueError, "index 3 out of range for dimension 'gpus' of size 3"),
        (lambda: DENSE.at("hosts", -1), OverflowError, "index -1 of dimension 'hosts' is negative"),
        (lambda: DENSE.select("gpus", slice(2, 1)), ValueError, "empty range 2:1:1 for dimension 'gpus'"),
        (lambda: DENSE.select("gpus", slice(3, 9)), ValueError, "empty range 3:3:1"),
        (lambda: DENSE.select("gpus", slice(None, None, -1)), ValueError, "negative step"),
        (lambda: DENSE.select("gpus", slice(0, 2, 0)), ValueError, "step cannot be zero"),
        (lambda: DENSE.select("gpus", slice(0, 3, 2)), ValueError, "nonrectangular shape"),
    ],
)
def test_cuts_that_are_refused(ask: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask()


def test_a_step_is_legal_when_the_strides_still_nest() -> None:
    wide = Shape(["hosts", "gpus"], NDSlice.new_row_major([4, 6]))
    even = wide.select("gpus", slice(0, 6, 2))
    assert even.ndslice == NDSlice(offset=0, sizes=[4, 3], strides=[6, 2])
    assert even.ranks() == [rank for rank in range(24) if rank % 2 == 0]
    assert DENSE.select("hosts", slice(0, 2, 2)).ranks() == [0, 1, 2]


def test_a_dimension_of_size_zero_can_stand_beside_a_cut() -> None:
    nothing = Shape(["a", "b"], NDSlice.new_row_major([2, 0]))
    assert nothing.at("a", 1).extent == Extent(["b"], [0])
    with pytest.raises(ValueError, match="empty range"):
        nothing.select("b", slice(None))


@given(shapes_and_labels(), st.data())
def test_at_keeps_the_ranks_with_that_coordinate(cut: tuple[Shape, int, str], data: st.DataObject) -> None:
    shape, dim, label = cut
    index = data.draw(st.integers(0, shape.extent[label] - 1))
    expected = {at[:dim] + at[dim + 1 :]: rank for at, rank in table(shape).items() if at[dim] == index}
    assert table(shape.at(label, index)) == expected


@given(shapes_and_labels(), st.data())
def test_select_keeps_the_ranks_with_those_coordinates(cut: tuple[Shape, int, str], data: st.DataObject) -> None:
    shape, dim, label = cut
    size = shape.extent[label]
    chosen = range(size)[data.draw(st.slices(size).filter(lambda s: s.step is None or s.step == 1))]
    if not chosen:
        with pytest.raises(ValueError, match="empty range"):
            shape.select(label, slice(chosen.start, chosen.stop))
        return
    expected = {
        (*at[:dim], chosen.index(at[dim]), *at[dim + 1 :]): rank
        for at, rank in table(shape).items()
        if at[dim] in chosen
    }
    assert table(shape.select(label, slice(chosen.start, chosen.stop))) == expected


@given(shapes_and_labels(), st.integers(1, 6))
def test_a_step_is_refused_or_right(cut: tuple[Shape, int, str], step: int) -> None:
    shape, dim, label = cut
    try:
        part = shape.select(label, slice(None, None, step))
    except ValueError as refused:
        assert "stride" in str(refused)
        assert step > 1
        return
    assert part.ranks() == [rank for at, rank in table(shape).items() if at[dim] % step == 0]


@given(shapes())
def test_indexing_every_dimension_finds_the_rank(shape: Shape) -> None:
    for rank in shape.ranks():
        assert shape.index(**shape.coordinates(rank)).ranks() == [rank]


# Region


def test_parts_of_a_region() -> None:
    region = Region(["hosts", "gpus"], NDSlice.new_row_major([2, 3]))
    assert region.labels == ["hosts", "gpus"]
    assert region.slice() == NDSlice.new_row_major([2, 3])
    assert region.extent == Extent(["hosts", "gpus"], [2, 3])
    assert region.as_shape() == DENSE


def test_where_a_base_rank_lies_within_a_region() -> None:
    region = DENSE.select("gpus", slice(1, 3)).region
    assert region.point_of_base_rank(4) == Point(2, Extent(["hosts", "gpus"], [2, 2]))
    for outside in (0, 3, 6, -1):
        with pytest.raises(ValueError, match=f"rank {outside} does not belong to the region"):
            region.point_of_base_rank(outside)


@given(shapes())
def test_base_ranks_are_numbered_in_row_major_order(shape: Shape) -> None:
    points = [shape.region.point_of_base_rank(rank) for rank in shape.ranks()]
    assert [point.rank for point in points] == list(range(len(shape)))
    assert [dict(point) for point in points] == [shape.coordinates(rank) for rank in shape.ranks()]


@given(shapes(), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_both_survive_pickling(shape: Shape, protocol: int) -> None:
    for value in (shape, shape.region):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert type(again) is type(value)
        assert again == value
        assert again.extent == value.extent
