"""Tests of which bytes come from which owner, whatever the layouts. Pure; a tensor of its elements' numbers says what
is right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.layout import Balance, Block, Box, around, assign, block, common, shown, size_of
from monarch.rdma.shards import Shard, ranges_after, ranges_of
from monarch.rdma.versions import Header, agreed

ITEM = 4


@st.composite
def boxes(draw: Any, shape: tuple[int, ...]) -> Box:
    """A part of a tensor, perhaps an empty one."""
    ends = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in shape]
    return tuple((low, high) for low, high in ends)


@st.composite
def worlds(draw: Any) -> tuple[tuple[int, ...], list[Box], Box]:
    """The shape of a tensor, what its owners have, and what a reader wants."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    if draw(st.booleans()):
        count, dim = draw(st.integers(1, 4)), draw(st.integers(0, max(0, len(shape) - 1)))
        held = [ranges_of(shape, Shard(dim, i, count)) if shape else () for i in range(count)]
        held *= draw(st.integers(1, 2))  # replicas
    else:
        held = draw(st.lists(boxes(shape), min_size=1, max_size=6))
    return shape, held, draw(boxes(shape))


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(low, high) for low, high in box)))


def part_of(full: torch.Tensor, box: Box) -> torch.Tensor:
    return full[tuple(slice(low, high) for low, high in box)].contiguous()


@given(worlds())
def test_what_is_read_is_what_torch_slices_and_each_byte_moves_once(world: Any) -> None:
    shape, held, wanted = world
    full = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    memories = [bytes(part_of(full, box).numpy().tobytes()) for box in held]
    mine = bytearray(b"\xff" * (size_of(wanted) * ITEM))
    written = bytearray(len(mine))
    balance = Balance([False] * len(held), 3)
    parts, missing = assign(wanted, list(enumerate(held)), balance.pick)
    for owner, box in parts:
        for there, here, size in block(held[owner], wanted, box, ITEM).pieces():
            assert 0 <= there <= there + size <= len(memories[owner])
            mine[here : here + size] = memories[owner][there : there + size]
            for at in range(here, here + size):
                written[at] += 1
    assert max(written, default=0) <= 1, "no byte moves twice"
    left = cells(wanted).difference(*(cells(box) for box in held))
    assert set().union(*(cells(box) for box in missing)) == left
    assert sum(size_of(box) for box in missing) == len(left)
    expected = part_of(full, wanted).flatten().tolist()
    got = torch.frombuffer(mine, dtype=torch.int32).tolist() if mine else []
    order = list(itertools.product(*(range(low, high) for low, high in wanted)))
    for cell, number, value in zip(order, expected, got, strict=True):
        assert value == (-1 if cell in left else number)


@given(st.data())
def test_a_box_without_a_part_of_it(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    box, other = data.draw(boxes(shape)), data.draw(boxes(shape))
    part = common(box, other)
    assert cells(part) == cells(box) & cells(other) if part else not cells(box) & cells(other)
    if part:
        rest = around(box, part)
        assert sum(map(size_of, rest)) == size_of(box) - size_of(part)
        assert set().union(*map(cells, rest)) == cells(box) - cells(part)


@given(worlds(), st.integers(1, 40))
def test_a_block_that_is_cut_copies_the_same_bytes(world: Any, limit: int) -> None:
    _, held, wanted = world
    for theirs in held:
        part = common(theirs, wanted)
        if part is None:
            continue
        whole = block(theirs, wanted, part, ITEM)
        cut = list(whole.cut(limit))
        assert all(one.total <= limit for one in cut)

        def pairs(blocks: Sequence[Block]) -> list[tuple[int, int]]:
            every = (piece for one in blocks for piece in one.pieces())
            return sorted((there + i, here + i) for there, here, size in every for i in range(size))

        assert pairs(cut) == pairs([whole])
        assert whole.total == size_of(part) * ITEM


def test_runs_are_as_long_as_they_can_be() -> None:
    rows, columns = ((0, 4), (0, 8)), ((0, 8), (2, 6))
    assert block(((0, 8), (0, 8)), rows, rows, 4) == Block(0, 0, 128)
    assert block(((4, 8), (0, 8)), ((0, 8), (0, 8)), ((4, 8), (0, 8)), 4) == Block(0, 128, 128)
    assert block(((0, 8), (0, 8)), columns, columns, 4) == Block(8, 0, 16, (8,), (32,), (16,))
    assert block((), (), (), 8) == Block(0, 0, 8)


def test_replicas_share_the_work() -> None:
    held = [(owner, ((0, 8),)) for owner in range(4)]
    for turn in range(4):
        balance = Balance([False] * 4, turn)
        given = [assign(((0, 8),), held, balance.pick)[0][0].owner for _ in range(8)]
        assert sorted(given) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert given[0] == turn, "readers begin with different ones"
    near = Balance([False, False, True, False], 0)
    assert {assign(((0, 8),), held, near.pick)[0][0].owner for _ in range(8)} == {2}


def test_overlapping_parts_are_cut_no_more_than_needed() -> None:
    held = [(0, ((0, 6),)), (1, ((4, 10),)), (2, ((5, 6),))]
    parts, missing = assign(((0, 12),), held, Balance([False] * 3, 0).pick)
    assert [(one.owner, one.box) for one in parts] == [(0, ((0, 6),)), (1, ((6, 10),))]
    assert missing == [((10, 12),)]
    assert shown(missing[0]) == "[10:12]"


# --- what a DTensor's placements leave to a rank


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 3))
def test_splits_are_the_chunks_of_torch(size: int, first: int, second: int) -> None:
    full = torch.arange(size)
    for i, j in itertools.product(range(first), range(second)):
        one = (*full.chunk(first), *[full[:0]] * first)[i]
        two = (*one.chunk(second), *[full[:0]] * second)[j]
        ranges = ranges_after(size, [(first, i, 1), (second, j, 1)])
        assert [x for low, high in ranges for x in range(low, high)] == two.tolist()
        assert len(ranges) <= 1


@pytest.mark.parametrize(("index", "cells"), [((0, 0), [0, 2]), ((0, 1), [1, 3]), ((1, 0), [4, 6]), ((1, 1), [5, 7])])
def test_strided_shards_are_those_of_torch(index: tuple[int, int], cells: list[int]) -> None:
    """The example in torch's _compute_local_shape_and_global_offset: Shard(0), then _StridedShard(0, split_factor=2)."""
    ranges = ranges_after(8, [(2, index[0], 1), (2, index[1], 2)])
    assert [x for low, high in ranges for x in range(low, high)] == cells


def test_fsdp_over_tensor_parallel_lies_together() -> None:
    """FSDP2 over a tensor parallel plan: _StridedShard over the outer dimension of the mesh, then Shard."""
    seen = [ranges_after(16, [(2, outer, 2), (2, inner, 1)]) for outer in range(2) for inner in range(2)]
    assert seen == [[(0, 4)], [(8, 12)], [(4, 8)], [(12, 16)]]


# --- one version of several owners


@pytest.mark.parametrize(
    ("owners", "version"),
    [
        ([((3, 3), 1)], 3),
        ([((4, 3), 1)], None),
        ([((3, 3), 1), ((3, 3), 1)], 3),
        ([((3, 3), 1), ((4, 4), 1)], None),
        ([((3, 3), 2), ((4, 4), 2)], 3),  # the other copy is still version 3
        ([((3, 3), 2), ((5, 4), 2)], None),  # and is being written to
        ([((4, 3), 2), ((4, 4), 2)], 3),
        ([((3, 3), 1), ((4, 4), 2)], 3),
        ([((0, 0), 2), ((2, 2), 2)], None),
        ([((2, 3), 1), ((3, 3), 1)], None),  # counters that were read half-written
    ],
)
def test_a_version_counts_if_all_owners_have_it(owners: Any, version: int | None) -> None:
    assert agreed([(Header(*counters), copies) for counters, copies in owners]) == version
