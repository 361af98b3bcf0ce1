"""Cutting and relabelling, for anything that has a shape: hosts, processes, actors, values, devices.

Works out the new Shape and hands it to the mesh; what a mesh of that shape is, only the mesh knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import index as as_int
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from monarch._shape.extent import Extent, UnknownDimensionError, list_dimensions, row_major_strides
from monarch._shape.refusals import called_as
from monarch._shape.region import Shape, cut
from monarch._shape.slice import NDSlice

_Selector = SupportsIndex | slice


class MeshTrait(ABC):
    """A labelled array of ranks that can be cut and relabelled. `len` counts the ranks, not the dimensions.

    A mesh says which ranks it has (`_ndslice`), what its dimensions are called (`_labels`), and what it is in
    another shape over the same ranks (`_new_with_shape`).
    """

    @property
    @abstractmethod
    def _ndslice(self) -> NDSlice:
        """Returns which ranks of the root mesh this one has."""

    @property
    @abstractmethod
    def _labels(self) -> tuple[str, ...]:
        """One label a dimension of `_ndslice`."""

    @abstractmethod
    def _new_with_shape(self, shape: Shape) -> Self:
        """This mesh in `shape`, whose ranks are some or all of this mesh's."""

    def slice(self, /, **selection: _Selector) -> Self:
        """The part of the mesh at `selection`: an integer drops its dimension, a slice keeps it. Negative numbers count from
        the end, as in arrays: `mesh.slice(gpus=-1)`.

        The order of the dimensions stays, whatever the order of the keywords; without keywords this is the
        whole mesh.

        TypeError for a label the mesh does not have or a selector that is neither integer nor slice,
        IndexError for an integer outside [-size, size), ValueError for a slice that leaves nothing, goes
        backwards, or has a step the mesh's layout cannot express.
        """
        shape = _shape_of(self)
        return self._new_with_shape(cut(shape, _checked_selection(shape, selection)))

    def split(self, /, **dimensions: Sequence[str] | SupportsIndex) -> Self:
        """The same ranks with some dimensions broken into several.

        A keyword that is a dimension takes the names it becomes, outermost first; any other gives one of
        those names its size. One size a split dimension may be left out and is worked out from the rest:

            mesh.split(gpus=("node", "local"), local=4)

        ValueError for a plain string given as the names, more than one missing size, sizes whose product is
        not the dimension's, a size nobody uses, a keyword that is neither a dimension nor an integer, a name
        that is there twice, and, on a part of a mesh, parts whose strides do not nest (see `NDSlice`).
        """
        return self._new_with_shape(_split(_shape_of(self), dimensions))

    def flatten(self, name: str) -> Self:
        """The same ranks in one dimension called `name`; a mesh without dimensions becomes one of size 1.

        ValueError unless the mesh is dense: row-major strides for its own sizes, at any offset.
        """
        ndslice = self._ndslice
        dense = row_major_strides(ndslice._sizes)
        if ndslice._strides != dense:
            raise ValueError(
                f"cannot flatten sparse mesh: the strides of {self.extent!r} are {ndslice.strides}, "
                f"a dense mesh of these sizes has {list(dense)}; flatten before slicing"
            )
        return self._new_with_shape(
            Shape((name,), NDSlice(offset=ndslice._offset, sizes=(len(ndslice),), strides=(1,)))
        )

    def rename(self, /, **names: str) -> Self:
        """The same mesh with other labels: `mesh.rename(old="new")`.

        ValueError for a label the mesh does not have and for a name that is there twice.
        """
        return self.split(**{old: (new,) for old, new in names.items()})

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The number of ranks, of one dimension, or of several dimensions together.

        UnknownDimensionError (a KeyError) for a label the mesh does not have.
        """
        if dim is None:
            return len(self._ndslice)
        sizes = self.sizes
        names = (dim,) if isinstance(dim, str) else dim
        for name in names:
            if name not in sizes:
                raise UnknownDimensionError(
                    f"{type(self).__name__} {self.extent!r} does not have dimension {name!r}: {list_dimensions(sizes, name)}"
                )
        return prod(sizes[name] for name in names)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension by label, in order; a fresh dict."""
        return dict(zip(self._labels, self._ndslice._sizes, strict=True))

    @property
    def extent(self) -> Extent:
        """The labels and sizes of its dimensions, outermost first."""
        return Extent(self._labels, self._ndslice._sizes)

    def to_table(self) -> str:
        """The ranks as a table of `host[0].gpu[1]` cells, for people: one line for each coordinate of all but the last
        dimension."""
        labels = self._labels
        cells = [
            ".".join(f"{label}[{at}]" for label, at in zip(labels, self._ndslice.coordinates(rank), strict=True))
            or "[]"
            for rank in self._ndslice
        ]
        across = self._ndslice.sizes[-1] if labels else 1
        width = max(map(len, cells))
        rule = "+".join(["", *["-" * (width + 2)] * across, ""])
        lines = [rule]
        for start in range(0, len(cells), across):
            row = cells[start : start + across]
            lines += ["|" + "|".join(f" {cell:<{width}} " for cell in row) + "|", rule]
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self._ndslice)


class ShapedMesh(MeshTrait):
    """A mesh that keeps its shape as `_shape`."""

    _shape: Shape

    @property
    def _ndslice(self) -> NDSlice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    if not TYPE_CHECKING:  # type checkers shall find the mistake themselves
        slice = called_as(MeshTrait.slice, "mesh.slice(gpus=0) or mesh.slice(gpus=slice(0, 2))")

        def __getitem__(self, index: Any) -> Any:
            raise TypeError(_not_subscriptable(type(self).__name__, self.sizes, index))


def _shape_of(mesh: MeshTrait) -> Shape:
    return Shape(mesh._labels, mesh._ndslice)


def _checked_selection(shape: Shape, selection: Mapping[str, _Selector]) -> dict[str, int | slice]:
    """Returns what `cut` takes, with the errors that `MeshTrait.slice` promises."""
    sizes = dict(zip(shape._labels, shape._slice._sizes, strict=True))
    checked: dict[str, int | slice] = {}
    for label, chosen in selection.items():
        if label not in sizes:
            raise TypeError(f"Shape does not have dimension labeled {label!r}: {list_dimensions(sizes, label)}")
        if isinstance(chosen, slice):
            checked[label] = chosen
            continue
        try:
            index = as_int(chosen)
        except TypeError:
            raise TypeError(
                f"{label}={chosen!r}: a dimension is cut with an integer or a slice, not {type(chosen).__name__}"
            ) from None
        size = sizes[label]
        if not 0 <= index < size:
            if not -size <= index < 0:
                raise IndexError(f"index out of range: {label}={index}, but dimension {label!r} has size {size}")
            index += size
        checked[label] = index
    return checked


def _split(shape: Shape, dimensions: Mapping[str, Sequence[str] | SupportsIndex]) -> Shape:
    names, constraints = _names_and_sizes(shape, dimensions)
    unused = set(constraints)
    labels: list[str] = []
    sizes: list[int] = []
    strides: list[int] = []
    whole = shape._slice
    for label, size, stride in zip(shape._labels, whole._sizes, whole._strides, strict=True):
        parts = names.get(label)
        if parts is None:
            labels.append(label)
            sizes.append(size)
            strides.append(stride)
            continue
        counts = _part_sizes(label, size, parts, constraints)
        labels += parts
        sizes += counts
        strides += [stride * inner for inner in row_major_strides(counts)]
        unused.difference_update(parts)
    if unused:
        listed = tuple(name for name in constraints if name in unused)
        raise ValueError(f"unused size constraints: {listed}: no dimension is split into these names")
    for name in _repeated(labels):
        raise ValueError(f"Duplicate dimension name {name!r}: the result would have the dimensions {labels}")
    return Shape(labels, NDSlice(offset=whole._offset, sizes=sizes, strides=strides))


def _names_and_sizes(
    shape: Shape, dimensions: Mapping[str, Sequence[str] | SupportsIndex]
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """The keywords of `split` by what they are: new names of a dimension, or the size of a new name."""
    names: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for key, value in dimensions.items():
        if key in shape._labels:
            names[key] = _new_names(key, value)
        elif isinstance(value, SupportsIndex):
            sizes[key] = as_int(value)
            if sizes[key] < 1:
                raise ValueError(f"{key}={sizes[key]}: the size of a new dimension must be at least 1")
        else:
            raise UnknownDimensionError(
                f"{key!r} is not an existing dim. Expected an integer size constraint on a new dim, "
                f"got {value!r}: {list_dimensions(shape._labels)}"
            )
    return names, sizes


def _new_names(label: str, value: Sequence[str] | SupportsIndex) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f"expected a sequence of dimensions, but got {value!r}: write {label}=({value!r},)")
    if not isinstance(value, Sequence):
        raise ValueError(
            f"expected a sequence of dimensions for the existing dimension {label!r}, but got {value!r}; "
            f"sizes are given to new names only"
        )
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"expected names for the existing dimension {label!r}, but got {name!r}")
    return names


def _part_sizes(label: str, size: int, parts: tuple[str, ...], constraints: Mapping[str, int]) -> list[int]:
    """The sizes of the names a dimension becomes, the missing one worked out."""
    missing = [name for name in parts if name not in constraints]
    if len(missing) > 1:
        raise ValueError(
            f"Cannot infer size of {parts} because {' and '.join(missing)} have unknown size. "
            f"Specify all but one as arguments, e.g. {missing[-1]}={size}"
        )
    known = prod(constraints[name] for name in parts if name in constraints)
    if size % known or (not missing and size != known):
        shown = tuple(constraints.get(name, "?") for name in parts)
        raise ValueError(f"Dimension {label!r} of size {size} is not evenly divided by {parts} with sizes {shown}")
    return [constraints.get(name, size // known) for name in parts]


def _repeated(labels: Sequence[str]) -> Iterator[str]:
    seen = set()
    for label in labels:
        if label in seen:
            yield label
        seen.add(label)


def _not_subscriptable(kind: str, sizes: Mapping[str, int], index: object) -> str:
    """Returns what is said of `mesh[index]`, and of iterating, where Python asks for index 0 first."""
    mistake = f"'{kind}' object is not subscriptable, nor iterable"
    if not sizes:
        return f"{mistake}: it has no dimensions and is one rank; use it as it is"
    shown = ", ".join(f"{label}: {size}" for label, size in sizes.items())
    part = ", ".join(f"{label}={at!r}" for label, at in _coordinates(sizes, index).items())
    return f"{mistake}: its dimensions have names, {{{shown}}}. A part of it is .slice({part})"


def _coordinates(sizes: Mapping[str, int], index: object) -> dict[str, object]:
    """Returns what was probably meant: the index along the only dimension, or the rank, else the first rank."""
    if isinstance(index, slice) and len(sizes) == 1:
        return dict.fromkeys(sizes, index)
    if isinstance(index, tuple) and len(index) == len(sizes):
        return dict(zip(sizes, index, strict=True))
    rank = index if isinstance(index, int) else 0
    found: dict[str, object] = {}
    for label, size in reversed(list(sizes.items())):
        rank, found[label] = divmod(rank, size)
    return {label: found[label] for label in sizes}
