"""A set of ranks: an offset, and a size and a stride for each dimension.

Element (i, j, ...) is offset + i * strides[0] + j * strides[1] + ... We call that number the element's value
and its place in row-major order its index. The constructor admits only strides that nest (see
`check_nesting`), so values are distinct and dividing by the strides, largest first, finds the index of a
value.

Nearly every mesh is an arithmetic progression (a whole mesh, some hosts of it, one column). Those are kept as
a builtin `range`, which answers everything in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import prod
from operator import index as as_int
from typing import NoReturn, SupportsIndex, overload

from monarch._shape.extent import natural, row_major_strides


class NDSlice:
    """An immutable affine map from the coordinates of a dense array to ranks.

    `len` is the product of the sizes, 1 without dimensions. Equality and hash are structural. A dimension of
    size 0 is allowed; then there are no elements and the strides mean nothing.

    Raises ValueError for sizes and strides that differ in length ("invalid dims") and for strides that do not
    nest, OverflowError for negative numbers, TypeError for what is no integer.
    """

    __slots__ = ("_len", "_nest", "_offset", "_range", "_sizes", "_strides")

    def __init__(
        self, *, offset: SupportsIndex, sizes: Sequence[SupportsIndex], strides: Sequence[SupportsIndex]
    ) -> None:
        self._offset = natural((offset,), "the offset of a slice")[0]
        self._sizes = natural(sizes, "the sizes of a slice")
        self._strides = natural(strides, "the strides of a slice")
        if len(self._sizes) != len(self._strides):
            raise ValueError(
                f"invalid dims: expected {len(self._sizes)}, got {len(self._strides)} "
                f"(sizes {list(self._sizes)}, strides {list(self._strides)})"
            )
        self._len = prod(self._sizes)
        if self._len:
            check_nesting(self._sizes, self._strides)
        self._range = _progression(self._offset, self._sizes, self._strides, self._len)
        self._nest = () if self._range is not None else _nest(self._sizes, self._strides)

    @classmethod
    def new_row_major(cls, sizes: Sequence[SupportsIndex]) -> NDSlice:
        """The dense slice of `sizes` from 0, the last dimension varying fastest."""
        numbers = natural(sizes, "the sizes of a slice")
        return cls(offset=0, sizes=numbers, strides=row_major_strides(numbers))

    @classmethod
    def from_list(cls, ranks: Iterable[SupportsIndex]) -> list[NDSlice]:
        """One-dimensional slices that together have exactly `ranks`, found greedily in ascending order.

        Each takes the next two ranks for its stride and goes on while that stride holds, so the cover is
        small but not always the smallest. A rank given twice is covered twice. No ranks, no slices.
        """
        ordered = sorted(natural(ranks, "ranks"))
        slices = []
        start = 0
        while start < len(ordered):
            end = start + 1
            stride = ordered[end] - ordered[start] if end < len(ordered) else 0
            if stride:
                while end < len(ordered) and ordered[end] - ordered[end - 1] == stride:
                    end += 1
            slices.append(cls(offset=ordered[start], sizes=(end - start,), strides=(stride or 1,)))
            start = end
        return slices

    @property
    def offset(self) -> int:
        """The value of the first element."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension; a fresh list."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """The distance of neighbours along each dimension; a fresh list."""
        return list(self._strides)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._sizes)

    def get(self, index: SupportsIndex) -> int:
        """The value at a row-major index. ValueError beyond the end, TypeError for a negative index."""
        number = as_int(index)
        if not 0 <= number < self._len:
            self._refuse_index(number, ValueError)
        return self._value(number)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> int | tuple[int, ...]:
        """The value at an index, or the tuple of values at a slice of indices.

        IndexError beyond the end and for a negative step, TypeError for a negative index.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(self._len)
            if step < 0:
                raise IndexError(f"a slice of an NDSlice needs a positive step, got {step}")
            return tuple(map(self._value, range(start, stop, step)))
        number = as_int(index)
        if not 0 <= number < self._len:
            self._refuse_index(number, IndexError)
        return self._value(number)

    def _refuse_index(self, index: int, error: type[ValueError | IndexError]) -> NoReturn:
        if index < 0:
            raise TypeError(f"index {index} is negative: an NDSlice counts from the front only, 0 to {self._len - 1}")
        raise error(f"index {index} out of range {self._len}")

    def _value(self, index: int) -> int:
        if self._range is not None:
            return self._range[index]
        value = self._offset
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            index, coordinate = divmod(index, size)
            value += coordinate * stride
        return value

    def index(self, value: SupportsIndex) -> int:
        """The row-major index of `value`: the inverse of `get`. ValueError when it is not in the slice."""
        found = self._find(as_int(value))
        if found < 0:
            raise ValueError(f"value {value} not in slice {self!r}")
        return found

    def _find(self, value: int) -> int:
        """The index of `value`, -1 when it is not here."""
        values = self._range
        if values is not None:
            return (value - self._offset) // values.step if value in values else -1
        rest = value - self._offset
        index = 0
        for stride, size, weight in self._nest:
            coordinate, rest = divmod(rest, stride)
            if not 0 <= coordinate < size:
                return -1
            index += coordinate * weight
        return index if rest == 0 else -1

    def coordinates(self, value: SupportsIndex) -> list[int]:
        """The coordinate of `value` along each dimension. ValueError when it is not in the slice."""
        index = self.index(value)
        coordinates = []
        for size in reversed(self._sizes):
            index, coordinate = divmod(index, size)
            coordinates.append(coordinate)
        coordinates.reverse()
        return coordinates

    def nditem(self, coordinates: Sequence[SupportsIndex]) -> int:
        """offset + dot(coordinates, strides).

        IndexError for the wrong number of coordinates, OverflowError for a negative one. That each lies
        within its dimension is not checked.
        """
        numbers = natural(coordinates, "coordinates")
        if len(numbers) != len(self._strides):
            raise IndexError(f"invalid dims: expected {len(self._strides)}, got {len(numbers)}")
        return self._offset + sum(c * stride for c, stride in zip(numbers, self._strides, strict=True))

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        """The values in row-major order of their coordinates."""
        if self._range is not None:
            return iter(self._range)
        return _row_major(self._offset, self._sizes, self._strides)

    def __contains__(self, value: object) -> bool:
        try:
            number = as_int(value)  # type: ignore[arg-type]  # anything may be asked for
        except TypeError:
            return False
        return self._find(number) >= 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NDSlice):
            return NotImplemented
        return self._offset == other._offset and self._sizes == other._sizes and self._strides == other._strides

    def __hash__(self) -> int:
        return hash((self._offset, self._sizes, self._strides))

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self._offset}, sizes: {list(self._sizes)}, strides: {list(self._strides)} }}"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self._offset, self._sizes, self._strides)


Slice = NDSlice


def check_nesting(sizes: Sequence[int], strides: Sequence[int]) -> None:
    """ValueError unless each dimension fits whole into one step of the next larger one.

    In the order of their strides: each stride is a multiple of the one before ("nonrectangular shape"), equal
    only when one of the two dimensions has size 1 ("nonunique strides"), and at least the space the one
    before spans.
    """
    inner_stride = inner_size = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if stride % inner_stride:
            raise ValueError(
                f"nonrectangular shape: stride {stride} is no multiple of stride {inner_stride} "
                f"(sizes {list(sizes)}, strides {list(strides)})"
            )
        if stride == inner_stride and size != 1 and inner_size != 1:
            raise ValueError(
                f"nonunique strides: two dimensions of more than one element have stride {stride} "
                f"(sizes {list(sizes)}, strides {list(strides)})"
            )
        space = inner_stride * inner_size
        if stride < space:
            raise ValueError(
                f"stride {stride} must be larger than size of previous space {space} "
                f"(sizes {list(sizes)}, strides {list(strides)})"
            )
        inner_stride, inner_size = stride, size


def _progression(offset: int, sizes: Sequence[int], strides: Sequence[int], count: int) -> range | None:
    """All values in row-major order as one range, where they are one."""
    if not count:
        return range(offset, offset)
    step = span = 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if not step:
            step = stride
        elif stride != span:
            return None
        span = size * stride
    step = step or 1
    return range(offset, offset + count * step, step)


def _nest(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(stride, size, weight in the index) of the dimensions that matter, the largest stride first."""
    dims = zip(strides, sizes, row_major_strides(sizes), strict=True)
    return tuple(sorted((dim for dim in dims if dim[1] != 1), reverse=True))


def _row_major(offset: int, sizes: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """The values of a slice that has elements and dimensions, a row (the last dimension) at a time."""
    starts = [offset]
    for size, stride in zip(sizes[:-1], strides[:-1], strict=True):
        steps = range(0, size * stride, stride)
        starts = [start + step for start in starts for step in steps]
    span, stride = sizes[-1] * strides[-1], strides[-1]
    return chain.from_iterable(range(start, start + span, stride) for start in starts)


def _restore(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> NDSlice:
    """Restores one for pickle, which cannot pass the constructor's keywords."""
    return NDSlice(offset=offset, sizes=sizes, strides=strides)
