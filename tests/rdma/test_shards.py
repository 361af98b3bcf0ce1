"""Tests of which bytes a part of a tensor is, and when what was read is whole. Pure."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma import Shard
from monarch.rdma.layout import block
from monarch.rdma.shards import covering, joined, ranges_of, shape_of, spans
from monarch.rdma.versions import Header, whole

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
ENDS = st.none() | st.integers(-8, 8)


@st.composite
def parts(draw: Any) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    shape = draw(SHAPES)
    count = draw(st.integers(0, len(shape)))
    return shape, tuple(slice(draw(ENDS), draw(ENDS)) for _ in range(count))


def runs(shape: tuple[int, ...], item: int, ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """(offset, size) of the bytes of a part that is read as a whole."""
    if not all(shape_of(ranges)):
        return []
    full = tuple((0, size) for size in shape)
    return [(there, size) for there, _, size in block(full, ranges, ranges, item).pieces()]


def taken(data: bytes, pieces: list[tuple[int, int]]) -> bytes:
    return b"".join(data[offset : offset + size] for offset, size in pieces)


@given(parts())
def test_a_part_has_the_bytes_and_the_shape_that_torch_gives_it(part: Any) -> None:
    shape, spec = part
    full = torch.arange(math.prod(shape), dtype=torch.int16).reshape(shape)
    wanted = full[spec] if spec else full
    ranges = ranges_of(shape, spec)
    assert shape_of(ranges) == tuple(wanted.shape)
    pieces = runs(shape, 2, ranges)
    assert taken(full.numpy().tobytes(), pieces) == wanted.contiguous().numpy().tobytes()
    assert all(size for _, size in pieces)
    assert all(one[0] + one[1] < two[0] for one, two in itertools.pairwise(pieces)), "as few as can be"


@given(st.integers(0, 20), st.integers(1, 8), st.integers(0, 2), st.data())
def test_shards_are_the_chunks_of_torch(size: int, count: int, dim: int, data: Any) -> None:
    shape = [2, 3, 2]
    shape[dim] = size
    full = torch.arange(math.prod(shape)).reshape(shape)
    chunks = list(full.chunk(count, dim))
    index = data.draw(st.integers(0, count - 1))
    negative = data.draw(st.booleans())
    ranges = ranges_of(shape, Shard(dim - 3 if negative else dim, index, count))
    mine = full[tuple(slice(*one) for one in ranges)]
    if index < len(chunks):
        assert torch.equal(mine, chunks[index])
    else:
        assert mine.numel() == 0


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (slice(0, 4, 2), "step 1"),
        (slice(None, None, -1), "step 1"),
        (3, "expected a slice"),
        ((slice(None), 1), "expected a slice"),
        ((slice(None),) * 3, "3 slices for 2 dimensions"),
        (Shard(2, 0, 1), "expected a dimension"),
        (Shard(0, 2, 2), "0 <= index < count"),
        (Shard(0, 0, 0), "0 <= index < count"),
    ],
)
def test_what_is_no_part_is_refused(spec: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ranges_of((4, 4), spec)


def test_rows_are_one_run_and_columns_one_a_row() -> None:
    assert runs((8, 4), 4, ranges_of((8, 4), slice(2, 5))) == [(32, 48)]
    assert runs((3, 4), 4, ranges_of((3, 4), (slice(None), slice(1, 3)))) == [(4, 8), (20, 8), (36, 8)]
    assert runs((), 8, ()) == [(0, 8)]


PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9)), max_size=12)


@given(PIECES)
def test_joined_pieces_copy_the_same_bytes(pieces: list[tuple[int, int, int]]) -> None:
    def pairs(some: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
        return {(offset + i, address + i) for offset, address, size in some for i in range(size)}

    result = joined(pieces)
    assert pairs(result) == pairs(pieces)
    assert len(result) <= len(set(pieces))


def test_neighbours_on_both_sides_are_one_piece() -> None:
    assert joined([(8, 108, 4), (0, 100, 8), (0, 100, 8), (12, 200, 4)]) == [(0, 100, 12), (12, 200, 4)]


@given(PIECES, st.integers(0, 10), st.integers(1, 40))
def test_spans_hold_their_pieces_and_little_else(pieces: list[tuple[int, int, int]], gap: int, limit: int) -> None:
    pieces = sorted(set(pieces))
    found = spans(pieces, gap, limit)
    assert [piece for span in found for piece in span.pieces] == pieces
    for span in found:
        assert all(span.offset <= at and at + size <= span.offset + span.size for at, _, size in span.pieces)
        assert span.size <= limit or len(span.pieces) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(1, 20)), max_size=12))
def test_what_is_registered_covers_everything_once_a_storage(extents: list[tuple[int, int, int]]) -> None:
    ranges = covering(extents)
    assert len(ranges) <= len({storage for storage, _, _ in extents})
    for _, address, size in extents:
        # The last range that begins before it holds it: that is how it is looked up.
        low, high = [one for one in ranges if one[0] <= address][-1]
        assert low <= address
        assert address + size <= high


# --- versions: a reader and an owner, one step at a time, in every order hypothesis thinks of

WEIGHTS = 3


class Owner:
    """Makes versions one store at a time."""

    def __init__(self, copies: int) -> None:
        self.begun = self.published = 0
        self.places = [[0] * WEIGHTS for _ in range(copies)]

    def steps(self) -> Any:
        while True:
            version = self.published + 1
            self.begun = version
            yield
            for i in range(WEIGHTS):
                self.places[version % len(self.places)][i] = version
                yield
            self.published = version
            yield


def read(owner: Owner) -> Any:
    """One attempt, a load at a time; returns (version, weights) or None."""
    copies = len(owner.places)
    begun = owner.begun
    yield
    header = Header(begun, owner.published)
    yield
    if not header.readable(copies):
        return None
    seen = []
    for i in range(WEIGHTS):
        seen.append(owner.places[header.published % copies][i])
        yield
    begun = owner.begun
    yield
    return (header.published, seen) if whole(header.published, Header(begun, owner.published), copies) else None


@given(st.sampled_from([1, 2]), st.lists(st.integers(0, 12), min_size=40, max_size=40))
def test_no_order_of_steps_shows_half_of_an_update(copies: int, between: list[int]) -> None:
    """`between`: how many steps the owner makes before each of the reader's."""
    owner = Owner(copies)
    steps = owner.steps()
    attempt = read(owner)
    for count in between:
        for _ in range(count):
            next(steps)
        try:
            next(attempt)
        except StopIteration as end:
            if end.value is not None:
                version, seen = end.value
                assert seen == [version] * WEIGHTS
            attempt = read(owner)


def test_with_two_places_one_update_does_not_disturb_a_reader() -> None:
    owner = Owner(2)
    steps, attempt = owner.steps(), read(owner)
    for _ in range(3):
        next(attempt)
    for _ in range(WEIGHTS + 2):
        next(steps)
    with pytest.raises(StopIteration) as end:
        while True:
            next(attempt)
    assert end.value.value == (0, [0] * WEIGHTS)


@given(st.integers(0, 2**33), st.sampled_from([1, 2]), st.data())
def test_a_counter_that_is_half_written_is_accepted_as_nothing_else(before: int, copies: int, data: Any) -> None:
    """Bytes of both values in any mixture."""
    old, new = before.to_bytes(8, "little"), (before + 1).to_bytes(8, "little")
    chosen = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))
    mixed = int.from_bytes(bytes(b if take else a for a, b, take in zip(old, new, chosen, strict=True)), "little")
    if mixed in (before, before + 1):
        return
    for real in (before, before + 1):
        assert not Header(real, mixed).readable(copies)
        assert not Header(mixed, real).readable(copies)
        assert not whole(real, Header(mixed, real), copies)
