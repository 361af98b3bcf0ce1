from __future__ import annotations

import pickle
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._shape.slice import NDSlice, Slice

DENSE = NDSlice(offset=0, sizes=[2, 3], strides=[3, 1])
# Not an arithmetic progression: two rows of two out of three columns.
CORNER = NDSlice(offset=1, sizes=[2, 2], strides=[3, 1])
SCALAR = NDSlice(offset=5, sizes=[], strides=[])
NOTHING = NDSlice(offset=0, sizes=[2, 0, 3], strides=[0, 3, 1])


@st.composite
def slices(draw: st.DrawFn) -> NDSlice:
    """Returns what the constructor admits: strides that nest, with gaps, in any order of the dimensions."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    strides = [0] * len(sizes)
    stride = draw(st.integers(1, 3))
    for dim in order:
        strides[dim] = stride
        stride *= sizes[dim] * draw(st.integers(1, 2))
    return NDSlice(offset=draw(st.integers(0, 9)), sizes=sizes, strides=strides)


def by_definition(s: NDSlice) -> list[int]:
    """The values in row-major order, worked out the long way."""
    coordinates = product(*map(range, s.sizes))
    return [s.offset + sum(c * stride for c, stride in zip(at, s.strides, strict=True)) for at in coordinates]


def test_slice_is_the_public_name_of_ndslice() -> None:
    assert Slice is NDSlice


def test_arguments_are_keywords() -> None:
    with pytest.raises(TypeError):
        NDSlice(0, [2], [1])  # type: ignore[call-arg]


def test_properties() -> None:
    assert (CORNER.offset, CORNER.sizes, CORNER.strides, CORNER.ndim) == (1, [2, 2], [3, 1], 2)
    CORNER.sizes.append(9)
    CORNER.strides.append(9)
    assert (CORNER.sizes, CORNER.strides) == ([2, 2], [3, 1])


def test_without_dimensions_there_is_one_element() -> None:
    assert (len(SCALAR), list(SCALAR), SCALAR.get(0), SCALAR.index(5)) == (1, [5], 5, 0)
    assert SCALAR.coordinates(5) == []
    assert SCALAR.nditem([]) == 5


def test_a_dimension_of_size_zero_leaves_nothing() -> None:
    assert (len(NOTHING), list(NOTHING), NOTHING[:]) == (0, [], ())
    assert 0 not in NOTHING
    assert NDSlice.new_row_major([2, 0, 3]) == NOTHING
    assert pickle.loads(pickle.dumps(NOTHING)) == NOTHING
    with pytest.raises(ValueError, match="index 0 out of range 0"):
        NOTHING.get(0)


# Which strides are admitted


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ([2, 3], [3, 1]),
        ([2, 3], [1, 2]),  # any order
        ([3], [7]),
        ([4, 3], [6, 2]),
        ([1, 3], [1, 1]),  # equal strides, but one of the sizes is 1
        ([3, 1], [1, 1]),
        ([2, 1], [3, 1]),
        ([1], [1]),
    ],
)
def test_strides_that_nest(sizes: list[int], strides: list[int]) -> None:
    s = NDSlice(offset=0, sizes=sizes, strides=strides)
    assert len(set(s)) == len(s)


@pytest.mark.parametrize(
    ("sizes", "strides", "message"),
    [
        ([2, 2], [3, 2], "nonrectangular shape"),
        ([1, 3], [3, 2], "nonrectangular shape"),
        ([2, 2], [1, 1], "nonunique strides"),
        ([2, 3], [2, 1], "stride 2 must be larger than size of previous space 3"),
        ([3], [0], "stride 0 must be larger than size of previous space 1"),
        ([2, 3], [3], "invalid dims: expected 2, got 1"),
        ([], [1], "invalid dims: expected 0, got 1"),
    ],
)
def test_strides_that_do_not(sizes: list[int], strides: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NDSlice(offset=0, sizes=sizes, strides=strides)


@pytest.mark.parametrize(
    ("offset", "sizes", "strides"),
    [(-1, [1], [1]), (0, [-1], [1]), (0, [1], [-1])],
    ids=["offset", "size", "stride"],
)
def test_negative_numbers_are_refused(offset: int, sizes: list[int], strides: list[int]) -> None:
    with pytest.raises(OverflowError, match="negative"):
        NDSlice(offset=offset, sizes=sizes, strides=strides)


def test_only_integers_are_taken() -> None:
    with pytest.raises(TypeError):
        NDSlice(offset=0, sizes=[3], strides=[1.5])  # type: ignore[list-item]


# Index to value


def test_values_at_slices_of_indices() -> None:
    assert DENSE[1:100] == (1, 2, 3, 4, 5)
    assert DENSE[-2:] == (4, 5)
    assert DENSE[::2] == (0, 2, 4)
    assert CORNER[1:3] == (2, 4)
    assert DENSE[4:2] == ()


@pytest.mark.parametrize("s", [DENSE, CORNER])
def test_an_index_beyond_the_end(s: NDSlice) -> None:
    beyond = len(s)
    with pytest.raises(IndexError, match=f"index {beyond} out of range {beyond}"):
        s[beyond]
    with pytest.raises(ValueError, match=f"index {beyond} out of range {beyond}"):
        s.get(beyond)


@pytest.mark.parametrize("s", [DENSE, CORNER])
def test_indices_that_do_not_count_from_the_front(s: NDSlice) -> None:
    with pytest.raises(TypeError, match="negative"):
        s[-1]
    with pytest.raises(TypeError, match="negative"):
        s.get(-1)
    with pytest.raises(IndexError, match="positive step"):
        s[::-1]
    with pytest.raises(TypeError):
        s["0"]  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        s.get(1.0)  # type: ignore[arg-type]


def test_nditem_checks_how_many_coordinates_and_not_their_bounds() -> None:
    assert DENSE.nditem([1, 2]) == 5
    assert CORNER.nditem((1, 1)) == 5
    assert DENSE.nditem([5, 5]) == 20
    with pytest.raises(IndexError, match="invalid dims: expected 2, got 1"):
        DENSE.nditem([5])


# Value to index


@pytest.mark.parametrize(("s", "absent"), [(DENSE, 9), (DENSE, -1), (CORNER, 0), (CORNER, 3), (CORNER, 6)])
def test_a_value_that_is_not_there(s: NDSlice, absent: int) -> None:
    assert absent not in s
    for ask in (s.index, s.coordinates):
        with pytest.raises(ValueError, match=f"value {absent} not in slice"):
            ask(absent)


def test_what_is_no_integer_is_not_in_a_slice() -> None:
    assert "a" not in DENSE
    assert 1.0 not in DENSE
    assert None not in CORNER


# Identity


def test_equality_and_hash_are_structural() -> None:
    same = NDSlice(offset=1, sizes=(2, 2), strides=(3, 1))
    assert same == CORNER
    assert hash(same) == hash(CORNER)
    assert NDSlice(offset=0, sizes=[2, 2], strides=[3, 1]) != CORNER
    assert NDSlice(offset=1, sizes=[2, 2], strides=[4, 1]) != CORNER
    # The same values, arranged otherwise.
    assert NDSlice(offset=0, sizes=[6], strides=[1]) != DENSE
    assert DENSE != [0, 1, 2, 3, 4, 5]


def test_repr() -> None:
    assert repr(DENSE) == str(DENSE) == "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"


def test_new_row_major() -> None:
    assert NDSlice.new_row_major([2, 3]) == DENSE
    assert NDSlice.new_row_major([]) == NDSlice(offset=0, sizes=[], strides=[])


# Covers


@pytest.mark.parametrize(
    ("ranks", "cover"),
    [
        ([], []),
        ([5], [(5, 1, 1)]),
        ([1, 2, 4, 5, 6], [(1, 2, 1), (4, 3, 1)]),
        ([6, 5, 4, 2, 1], [(1, 2, 1), (4, 3, 1)]),
        ([0, 2, 4], [(0, 3, 2)]),
        ([1, 2, 4, 6], [(1, 2, 1), (4, 2, 2)]),
        ([1, 4, 5, 6], [(1, 2, 3), (5, 2, 1)]),
        ([2, 2, 3], [(2, 1, 1), (2, 2, 1)]),
    ],
)
def test_from_list_covers_greedily(ranks: list[int], cover: list[tuple[int, int, int]]) -> None:
    assert NDSlice.from_list(ranks) == [
        NDSlice(offset=offset, sizes=[size], strides=[stride]) for offset, size, stride in cover
    ]


@given(st.lists(st.integers(0, 40), max_size=20))
def test_from_list_has_exactly_the_ranks_given(ranks: list[int]) -> None:
    assert Counter(value for s in NDSlice.from_list(ranks) for value in s) == Counter(ranks)


# Laws


@given(slices())
def test_iteration_follows_the_definition(s: NDSlice) -> None:
    values = by_definition(s)
    assert list(s) == values
    assert len(s) == len(values)
    assert [s.get(index) for index in range(len(s))] == values
    assert s[:] == tuple(values)


@given(slices())
def test_index_is_the_inverse_of_get(s: NDSlice) -> None:
    assert [s.index(s.get(index)) for index in range(len(s))] == list(range(len(s)))


@given(slices())
def test_nditem_is_the_inverse_of_coordinates(s: NDSlice) -> None:
    assert [s.coordinates(value) for value in s] == [list(at) for at in product(*map(range, s.sizes))]
    assert [s.nditem(s.coordinates(value)) for value in s] == list(s)


@given(slices())
def test_membership_agrees_with_iteration(s: NDSlice) -> None:
    values = set(s)
    assert len(values) == len(s)
    assert {value for value in range(-2, max(values) + 3) if value in s} == values


@given(slices(), st.slices(30))
def test_slicing_indices_agrees_with_slicing_the_list(s: NDSlice, part: slice) -> None:
    if part.step is not None and part.step < 0:
        with pytest.raises(IndexError):
            s[part]
    else:
        assert s[part] == tuple(list(s)[part])


@given(slices(), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_slice_survives_pickling(s: NDSlice, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(s, protocol))
    assert again == s
    assert list(again) == list(s)
