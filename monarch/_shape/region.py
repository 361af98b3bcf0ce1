"""Labels on an NDSlice: a part of an extent, and which ranks of the whole it has.

A Shape is what programs build and cut; a Region is the same two facts as an identity, to ask where a rank of
the whole lies within the part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import index as as_int
from typing import SupportsIndex

from monarch._shape.extent import Extent, Point, unknown_dimension
from monarch._shape.slice import NDSlice


class _Labelled:
    """The common part of Shape and Region. Equal only within one class; not hashable."""

    __slots__ = ("_extent", "_labels", "_slice")

    def __init__(self, labels: Sequence[str], slice: NDSlice) -> None:
        if isinstance(labels, str):
            raise TypeError(f"labels must be a sequence of names, not the string {labels!r}: write [{labels!r}]")
        self._labels = tuple(labels)
        self._slice = slice
        self._extent: Extent | None = None
        if len(self._labels) != len(slice._sizes):
            raise ValueError(
                f"label slice dimension mismatch: {len(self._labels)} != {len(slice._sizes)} "
                f"(labels {list(self._labels)}, {slice!r})"
            )

    @property
    def labels(self) -> list[str]:
        """The labels in order; a fresh list."""
        return list(self._labels)

    @property
    def extent(self) -> Extent:
        """Labels and sizes, without where they lie. The same object each time."""
        if self._extent is None:
            self._extent = Extent(self._labels, self._slice._sizes)
        return self._extent

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Labelled) or type(self) is not type(other):
            return NotImplemented
        return self is other or (self._labels == other._labels and self._slice == other._slice)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = ", ".join(f'"{label}"' for label in self._labels)
        return f"{type(self).__name__} {{ labels: [{names}], slice: {self._slice!r} }}"

    def __str__(self) -> str:
        sizes = zip(self._labels, self._slice._sizes, strict=True)
        return "{" + ",".join(f"{label}={size}" for label, size in sizes) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._labels, self._slice)


class Shape(_Labelled):
    """A labelled NDSlice. `len` is the number of ranks. ValueError unless each dimension has a label."""

    __slots__ = ()

    @staticmethod
    def unity() -> Shape:
        """The shape without dimensions: one element, rank 0."""
        return Shape((), NDSlice.new_row_major(()))

    @property
    def ndslice(self) -> NDSlice:
        """The ranks of the whole that it has, without labels."""
        return self._slice

    @property
    def region(self) -> Region:
        """The same labels and ranks as a Region."""
        return Region(self._labels, self._slice)

    def ranks(self) -> list[int]:
        """The ranks of the whole that this shape has, in row-major order."""
        return list(self._slice)

    def coordinates(self, rank: SupportsIndex) -> dict[str, int]:
        """The coordinate of a rank of the whole, by label. ValueError when the rank is not in the shape."""
        return dict(zip(self._labels, self._slice.coordinates(rank), strict=True))

    def at(self, label: str, index: SupportsIndex) -> Shape:
        """The part where `label` is `index`, without that dimension.

        UnknownDimensionError, ValueError when `index` is out of range, OverflowError when it is negative.
        """
        return cut(self, {label: as_int(index)})

    def select(self, label: str, slice: slice) -> Shape:
        """The part where `label` lies in `slice`, read as Python reads slices; the dimension stays.

        UnknownDimensionError; ValueError when nothing is left, the step is not positive, or it leaves strides
        that do not nest (see `NDSlice`).
        """
        return cut(self, {label: slice})

    def index(self, /, **coordinates: SupportsIndex) -> Shape:
        """`at` for several labels at once."""
        return cut(self, {label: as_int(index) for label, index in coordinates.items()})

    def __len__(self) -> int:
        return len(self._slice)

    def parts(self) -> tuple[tuple[str, ...], int, tuple[int, ...], tuple[int, ...]]:
        """Labels, offset, sizes and strides, of which `received_shape` makes it anew."""
        part = self._slice
        return self._labels, part._offset, part._sizes, part._strides

    def __reduce__(self) -> tuple[object, ...]:
        return received_shape, self.parts()


@functools.lru_cache(512)
def received_shape(labels: tuple[str, ...], offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Shape:
    """The shape of a pickle. They arrive again and again, with each handle of a mesh."""
    return Shape(labels, NDSlice(offset=offset, sizes=sizes, strides=strides))


class Region(_Labelled):
    """A part of an extent: labels, and the ranks of the whole ("base ranks").

    ValueError when `labels` do not match the dimensions.
    """

    __slots__ = ()

    def slice(self) -> NDSlice:
        """Returns which base ranks, without labels."""
        return self._slice

    def as_shape(self) -> Shape:
        """The same labels and ranks as a Shape."""
        return Shape(self._labels, self._slice)

    def point_of_base_rank(self, rank: SupportsIndex) -> Point:
        """Returns where base rank `rank` lies within this region. ValueError when it is not part of it."""
        found = self._slice._find(as_int(rank))
        if found < 0:
            raise ValueError(
                f"out of range base rank: rank {rank} does not belong to the region {self}, {self._slice!r}"
            )
        return Point(found, self.extent)


def cut(shape: Shape, selection: Mapping[str, int | slice]) -> Shape:
    """The part of `shape` that `selection` names: an int drops its dimension, a slice keeps it.

    All dimensions are cut in one go, so only the result's strides have to nest and the order of `selection`
    does not matter. Raises as `Shape.at` and `Shape.select`.
    """
    for label in selection:
        if label not in shape._labels:
            raise unknown_dimension(label, shape._labels)
    whole = shape._slice
    offset = whole._offset
    labels, sizes, strides = [], [], []
    for label, size, stride in zip(shape._labels, whole._sizes, whole._strides, strict=True):
        chosen = selection.get(label)
        if chosen is None:
            start, count, step = 0, size, 1
        elif isinstance(chosen, slice):
            start, count, step = _steps(label, size, chosen)
        else:
            offset += _in_range(label, size, chosen) * stride
            continue
        offset += start * stride
        labels.append(label)
        sizes.append(count)
        strides.append(stride * step)
    return Shape(labels, NDSlice(offset=offset, sizes=sizes, strides=strides))


def _steps(label: str, size: int, chosen: slice) -> tuple[int, int, int]:
    """(first, how many, step) of a slice along a dimension."""
    start, stop, step = chosen.indices(size)
    if step < 0:
        raise ValueError(f"slice {chosen} of dimension {label!r} has a negative step: ranks only go forwards")
    count = len(range(start, stop, step))
    if not count:
        raise ValueError(f"empty range {start}:{stop}:{step} for dimension {label!r} of size {size}")
    return start, count, step


def _in_range(label: str, size: int, index: int) -> int:
    if index < 0:
        raise OverflowError(f"index {index} of dimension {label!r} is negative: count from 0 to {size - 1}")
    if index >= size:
        raise ValueError(f"index {index} out of range for dimension {label!r} of size {size}")
    return index
