"""ValueMesh: one value a rank, sliced like any mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch._shape.extent import Extent, Point
from monarch._shape.refusals import arithmetic
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.view import ShapedMesh

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ValueMesh(ShapedMesh, Generic[T_co]):
    """The values of a `call`, in rank order, under the labels of the mesh that was called.

    Iterating yields `(Point, value)` pairs; Points are dense within this mesh. Every rank's value is an object of its own.
    Picklable when its values are.
    """

    def __init__(self, shape: Shape, values: list[T_co]) -> None:
        if not isinstance(values, list):
            raise TypeError(f"ValueMesh expects its values as a list, got {type(values).__name__}")
        if len(values) != len(shape.ndslice):
            raise ValueError(f"expected {len(shape.ndslice)} values for shape {shape}, got {len(values)}")
        self._shape = shape
        self._values = values

    @classmethod
    def from_indexed(cls, shape: Shape, values: Sequence[tuple[int, T]]) -> ValueMesh[T]:
        """Makes one from (rank, value) pairs in any order; the last one of a rank wins. ValueError when a rank has
        none."""
        count = len(shape.ndslice)
        found = dict(values)
        missing = [rank for rank in range(count) if rank not in found]
        if missing or len(found) > count:
            raise ValueError(f"expected {count} ranks, but contains {len(found)} (missing: {missing[:16]})")
        return ValueMesh(shape, [found[rank] for rank in range(count)])

    def _new_with_shape(self, shape: Shape) -> ValueMesh[T_co]:
        position = {rank: index for index, rank in enumerate(self._shape.ndslice)}
        return ValueMesh(shape, [self._values[position[rank]] for rank in shape.ndslice])

    def items(self) -> Iterator[tuple[Point, T_co]]:
        """Returns pairs (Point, value) in rank order."""
        extent = self.extent
        for rank, value in enumerate(self._values):
            yield Point(rank, extent), value

    def __iter__(self) -> Iterator[tuple[Point, T_co]]:
        return map(_PointAndValue, self.items())

    def values(self) -> list[T_co]:
        """The values in rank order; a fresh list."""
        return list(self._values)

    def item(self, **coordinates: int) -> T_co:
        """The value at one coordinate; every dimension must be given. Negative numbers count from the end.

        KeyError for missing or extra dimensions, IndexError out of range.
        """
        rank = 0
        for label, size in self.extent.items():
            try:
                index = coordinates.pop(label)
            except KeyError as exc:
                every = ", ".join(f"{name}=0" for name, _ in self.extent.items())
                exc.add_note(f"item takes an index of every dimension: item({every}); get(rank) takes a rank")
                unknown = [name for name in coordinates if name not in self.extent.labels]
                if unknown:
                    exc.add_note(f"there is no dimension {' or '.join(map(repr, unknown))}")
                raise
            if not 0 <= index < size:
                if not -size <= index < 0:
                    raise IndexError(f"index {index} of dimension {label!r} is out of range (size {size})")
                index += size
            rank = rank * size + index
        if coordinates:
            raise KeyError(f"item has extra dimensions: {list(coordinates)}")
        return self._values[rank]

    def get(self, rank: int) -> T_co:
        """The value of rank `rank`, counted in row-major order, from the end when it is negative. ValueError when there is
        none."""
        if not -len(self._values) <= rank < len(self._values):
            raise ValueError(f"index {rank} out of range (len={len(self._values)})")
        return self._values[rank]

    def __len__(self) -> int:
        return len(self._values)

    if not TYPE_CHECKING:

        def __getitem__(self, index: Any) -> Any:
            point = ", ".join(f"{label}=0" for label in self.extent)
            raise TypeError(
                f"'ValueMesh' object is not subscriptable: .values() is the list of all values in rank order, "
                f".item({point}) the value at one point, .get(0) that of one rank, .items() has (point, value) pairs"
            )

        def __getattr__(self, name: str) -> Any:
            mistake = f"'ValueMesh' object has no attribute {name!r}"
            raise AttributeError(mistake if name.startswith("_") else not_the_values(self, mistake))

    def __repr__(self) -> str:
        import pprint  # for people only, and slow to import

        body = pprint.pformat(tuple(self.items()))
        return f"ValueMesh({self.extent}):\n  " + body.replace("\n", "\n  ")

    def _repr_html_(self) -> str | None:
        """Draws the values by point for a notebook, shortened. Looks at no more of them than half a second allows."""
        from monarch import _html  # loaded when a notebook asks
        from monarch._short_reprs import short_texts

        return _html.drawn(lambda: _html.values(self.sizes, *short_texts(self._values), _html.summary(self._values)))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints it in IPython: as `repr` does, but of large values, and of many, only a part: a notebook keeps it."""
        from monarch._short_reprs import listed

        part = listed(list(self.items()))
        printer.text(repr(self) if part is None else f"ValueMesh({self.extent}):\n{part}")

    def __reduce__(self) -> Any:
        return ValueMesh, (self._shape, self._values)


def not_the_values(mesh: ValueMesh[Any], mistake: str) -> str:
    """The text for `mistake`, where a program takes a ValueMesh for a value in it."""
    if len(mesh) == 1:
        return (
            f"{mistake}: it holds the result of each rank called, and that of the only one is .get(0), or what call_one(...) "
            f"gives in place of call(...)"
        )
    point = ", ".join(f"{label}=0" for label in mesh.extent)
    return (
        f"{mistake}: it holds the result of each rank called: .values() is the list of all {len(mesh)}, .item({point}) the "
        f"one at a point"
    )


class _PointAndValue(tuple[Point, Any]):
    """A point and its value, which `sum(mesh)` would add to 0."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __radd__(self, other: Any) -> Any:
            raise TypeError(
                f"unsupported operand type(s) for +: {type(other).__name__!r} and a pair of point and value: iterating over "
                f"a ValueMesh gives such pairs. The values alone are .values(), as in sum(mesh.values())"
            )


for _name, _method in arithmetic(not_the_values).items():
    setattr(ValueMesh, _name, _method)


def dense(extent: Extent, values: list[Any]) -> ValueMesh[Any]:
    """A ValueMesh of `extent`, numbered from 0."""
    return ValueMesh(dense_shape(extent), values)


def dense_shape(extent: Extent) -> Shape:
    """Returns the shape of such a ValueMesh; any number of them may share it."""
    return Shape(extent.labels, NDSlice.new_row_major(extent.sizes))
