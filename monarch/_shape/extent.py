"""Labels with sizes, and one coordinate inside them.

A Point is made for every message an actor handles, so it stores a rank and the extent it shares with its
neighbours; coordinates are computed when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from operator import index as as_int
from typing import TYPE_CHECKING, NoReturn, SupportsIndex

from monarch._shape.refusals import arithmetic

if TYPE_CHECKING:
    from monarch._shape.region import Region


class UnknownDimensionError(ValueError, KeyError):
    """A label that names no dimension. Both a ValueError and a KeyError: guard a lookup by either."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would put the whole sentence in quotes.
        return ", ".join(map(str, self.args))


def list_dimensions(labels: Iterable[str], missing: object = "") -> str:
    """The end of a sentence about a label that is not there (`missing`): which ones are, and which one may be meant."""
    import difflib  # for this alone

    known = list(labels)
    near = difflib.get_close_matches(missing, known, 1) if isinstance(missing, str) else []
    names = ", ".join(map(repr, known))
    text = f"the dimensions are {names}" if names else "there are no dimensions"
    return f"{text}. Did you mean {near[0]!r}?" if near else text


def unknown_dimension(label: object, labels: Iterable[str]) -> UnknownDimensionError:
    """The error for looking up `label` among `labels`."""
    return UnknownDimensionError(f"Dimension {label!r} not found: {list_dimensions(labels, label)}")


def row_major_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns how far apart neighbours along each dimension are when the last dimension varies fastest."""
    strides = []
    stride = 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    strides.reverse()
    return tuple(strides)


def natural(values: Iterable[SupportsIndex], what: str) -> tuple[int, ...]:
    """`values` as plain ints. TypeError for what is no integer, OverflowError for a negative one."""
    numbers = tuple(map(as_int, values))
    if numbers and min(numbers) < 0:
        raise OverflowError(f"{what} must not be negative: {list(numbers)}")
    return numbers


class Extent(Mapping[str, int]):
    """Ordered dimension labels and their sizes: an immutable mapping from label to size.

    Equal only to another Extent with the same labels and sizes in the same order; not hashable. An extent
    without dimensions has one element, and is falsy because it is an empty mapping.

    Raises ValueError when `labels` and `sizes` differ in length, OverflowError for a negative size, TypeError
    for a size that is no integer or a plain string given as the labels.
    """

    __slots__ = ("_labels", "_nelements", "_sizes", "_strides")

    def __init__(self, labels: Sequence[str], sizes: Sequence[SupportsIndex]) -> None:
        if isinstance(labels, str):
            raise TypeError(f"labels must be a sequence of names, not the string {labels!r}: write [{labels!r}]")
        self._labels = tuple(labels)
        self._sizes = natural(sizes, "the sizes of an extent")
        if len(self._labels) != len(self._sizes):
            raise ValueError(
                f"label/sizes dimension mismatch: {len(self._labels)} != {len(self._sizes)} "
                f"(labels {list(self._labels)}, sizes {list(self._sizes)})"
            )
        self._nelements = prod(self._sizes)
        self._strides = row_major_strides(self._sizes)

    @property
    def labels(self) -> list[str]:
        """The labels in order; a fresh list."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """The sizes in order; a fresh list."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """The product of the sizes; 1 without dimensions."""
        return self._nelements

    @property
    def region(self) -> Region:
        """The dense row-major region of this extent, from rank 0."""
        # A region has an extent and an extent has a region: one of the two files must look up the other late.
        # This way an extent works however it came into the process, with nothing to register first.
        from monarch._shape.region import Region
        from monarch._shape.slice import NDSlice

        return Region(self._labels, NDSlice.new_row_major(self._sizes))

    def _key(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Returns what two equal extents share, hashable: for caches."""
        return self._labels, self._sizes

    def __getitem__(self, label: str) -> int:
        """The size of `label`; UnknownDimensionError when there is no such dimension."""
        return self._sizes[self._dim(label)]

    def _dim(self, label: str) -> int:
        try:
            return self._labels.index(label)
        except ValueError:
            raise unknown_dimension(label, self._labels) from None

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __contains__(self, label: object) -> bool:
        return label in self._labels

    def keys(self) -> list[str]:  # type: ignore[override]  # programs index it
        """The labels in order; a fresh list."""
        return list(self._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extent):
            return NotImplemented
        return self is other or (self._sizes == other._sizes and self._labels == other._labels)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{label}: {size}" for label, size in zip(self._labels, self._sizes, strict=True)) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return Extent, (self._labels, self._sizes)


class Point(Mapping[str, int]):
    """One coordinate of an extent: a mapping from label to coordinate, so `mesh.slice(**point)` selects it.

    `rank` is row-major within `extent`. A negative rank is an OverflowError. A rank beyond the extent is
    accepted here and is a ValueError ("out of range") when a coordinate, or the repr, is asked for. Equal
    only to another Point with the same rank and extent; not hashable. The point of an extent without
    dimensions is falsy: an empty mapping.
    """

    __slots__ = ("_extent", "_rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if rank < 0:
            raise OverflowError(f"the rank of a point must not be negative: {rank}")
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The row-major rank within `extent`."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The labels and sizes this is a coordinate of."""
        return self._extent

    def size(self, label: str) -> int:
        """The size of dimension `label`; UnknownDimensionError when there is no such dimension."""
        return self._extent[label]

    def __getitem__(self, label: str) -> int:
        """The coordinate along `label`; UnknownDimensionError when there is no such dimension."""
        extent = self._extent
        dim = extent._dim(label)
        if self._rank >= extent._nelements:
            self._raise_out_of_range()
        return self._rank // extent._strides[dim] % extent._sizes[dim]

    def _raise_out_of_range(self) -> NoReturn:
        raise ValueError(
            f"out of range: the extent {self._extent!r} has {self._extent.nelements} ranks; "
            f"it does not contain rank {self._rank}"
        )

    def __len__(self) -> int:
        return len(self._extent._labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._extent._labels)

    def __contains__(self, label: object) -> bool:
        return label in self._extent._labels

    def keys(self) -> list[str]:  # type: ignore[override]  # as for Extent
        """The labels in order; a fresh list."""
        return list(self._extent._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self._rank == other._rank and self._extent == other._extent

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        extent = self._extent
        if self._rank >= extent._nelements:
            self._raise_out_of_range()
        parts = zip(extent._labels, extent._strides, extent._sizes, strict=True)
        return "{" + ", ".join(f"{label!r}: {self._rank // n % size}/{size}" for label, n, size in parts) + "}"

    def __reduce__(self) -> tuple[object, ...]:
        return Point, (self._rank, self._extent)


def _not_a_number(point: Point, mistake: str) -> str:
    of_label = f", its coordinate along {next(iter(point))!r} is [{next(iter(point))!r}]" if len(point) else ""
    return f"{mistake}: a Point is a coordinate of a mesh. Its number is .rank{of_label}"


for _name, _method in arithmetic(_not_a_number).items():
    setattr(Point, _name, _method)
