"""The bytes of a part of a tensor. Pure: shapes and offsets in, runs of bytes out."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Range = tuple[int, int]  # from, to (exclusive)
Piece = tuple[int, int, int]  # offset in a buffer, local address, size; all in bytes


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` parts of dimension `dim`, cut as torch.chunk and DTensor's Shard(dim) cut it: every part
    has ceil(size / count) rows, the last ones fewer or none. A negative `dim` counts from the end.
    """

    dim: int
    index: int
    count: int


def ranges_of(shape: Sequence[int], spec: Any) -> tuple[Range, ...]:
    """Returns what `spec` takes of each dimension: a Shard, a slice, or a tuple of slices for the leading dimensions.

    Slices mean what they mean to torch: negative positions count from the end, what lies outside is cut off. A step
    other than 1, a dimension too many and anything that is no slice are ValueError.
    """
    if isinstance(spec, Shard):
        return _shard(shape, spec)
    slices = spec if isinstance(spec, tuple) else (spec,)
    if len(slices) > len(shape):
        raise ValueError(f"{len(slices)} slices for {len(shape)} dimensions")
    full = [*slices, *[slice(None)] * (len(shape) - len(slices))]
    return tuple(_range(size, part) for size, part in zip(shape, full, strict=True))


def _range(size: int, part: Any) -> Range:
    if not isinstance(part, slice):
        raise ValueError(f"invalid part {part!r}: expected a slice, such as slice(0, 512) or slice(None)")
    start, stop, step = part.indices(size)
    if step != 1:
        raise ValueError(f"invalid part {part!r}: only slices with step 1 can be read")
    return start, max(start, stop)


def _shard(shape: Sequence[int], shard: Shard) -> tuple[Range, ...]:
    dim, index, count = map(operator.index, (shard.dim, shard.index, shard.count))
    if not -len(shape) <= dim < len(shape) or not 0 <= index < count:
        raise ValueError(
            f"invalid {shard!r} of shape {tuple(shape)}: expected a dimension of it and 0 <= index < count"
        )
    dim %= len(shape)
    size = shape[dim]
    wide = -(-size // count)
    mine = (min(size, index * wide), min(size, (index + 1) * wide))
    return tuple(mine if i == dim else (0, size) for i, size in enumerate(shape))


def shape_of(ranges: Iterable[Range]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in ranges)


def ranges_after(size: int, splits: Iterable[tuple[int, int, int]]) -> list[Range]:
    """Returns which indices of a dimension of `size` are left to one rank, after the splits of a DTensor's placements.

    A split is (parts, which one, factor). The factor is 1, but for the splits that FSDP2 makes of what a tensor-parallel
    plan has split along the same dimension: torch's _StridedShard cuts it into so many parts first, and takes its own
    of each. Ranges that follow one another are one; there is none when nothing is left.
    """
    left = [(0, size)]
    for count, index, factor in splits:
        taken: list[Range] = []
        for outer in range(factor):
            taken += _chunk(_chunk(left, factor, outer), count, index)
        left = taken
    result: list[Range] = []
    for start, stop in left:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def _chunk(ranges: list[Range], count: int, index: int) -> list[Range]:
    """Part `index` of `count`, as torch.chunk cuts it, of the indices in `ranges`."""
    wide = -(-sum(stop - start for start, stop in ranges) // count)
    low, high, result, before = index * wide, (index + 1) * wide, [], 0
    for start, stop in ranges:
        first, last = max(low - before, 0), min(high - before, stop - start)
        if first < last:
            result.append((start + first, start + last))
        before += stop - start
    return result


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same copies, neighbours on both sides made one; each once, in the order of the buffer."""
    result: list[Piece] = []
    for offset, address, size in sorted(set(pieces)):
        if result:
            last, there, before = result[-1]
            if last + before == offset and there + before == address:
                result[-1] = (last, there, before + size)
                continue
        result.append((offset, address, size))
    return result


class Span(NamedTuple):
    """Consecutive bytes of a buffer that hold all of `pieces`, and perhaps more."""

    offset: int
    size: int
    pieces: list[Piece]


def spans(pieces: Sequence[Piece], gap: int, limit: int) -> list[Span]:
    """Pieces in the order of the buffer, put together where fewer than `gap` bytes that nobody wants lie between two of
    them and the whole stays within `limit` bytes.
    """
    result: list[Span] = []
    for piece in pieces:
        offset, _, size = piece
        if result:
            last = result[-1]
            end = max(last.offset + last.size, offset + size)
            if offset - (last.offset + last.size) < gap and end - last.offset <= limit:
                result[-1] = Span(last.offset, end - last.offset, [*last.pieces, piece])
                continue
        result.append(Span(offset, size, [piece]))
    return result


def covering(extents: Iterable[tuple[Any, int, int]]) -> list[tuple[int, int]]:
    """Address ranges to register for (storage, address, size) of tensors: of each storage the bytes from its first to
    its last, none that lies within another.
    """
    wide: dict[Any, tuple[int, int]] = {}
    for storage, address, size in extents:
        low, high = wide.get(storage, (address, address))
        wide[storage] = (min(low, address), max(high, address + size))
    result: list[tuple[int, int]] = []
    for low, high in sorted(wide.values(), key=lambda one: (one[0], -one[1])):
        if not result or high > result[-1][1]:
            result.append((low, high))
    return result
