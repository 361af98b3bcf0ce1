"""The part of a whole tensor that each process of a mesh has: pure arithmetic on shapes.

A placement says which dimension of the tensor each dimension of the mesh divides, as `{"tp": 0}`; along dimensions of the
mesh that it does not name, each process has the same. All parts are of one size, as the local tensors of a distributed
tensor are. Where two dimensions of the mesh divide one of the tensor, the outer one of the mesh does so first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

Placement = Mapping[str, int]  # dimension of the mesh -> dimension of the tensor
Part = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins in the whole, and its shape


def checked(placement: str | Placement, dim: int, names: Sequence[str]) -> dict[str, int]:
    """The placement that `placement` means: itself, or the name of one dimension of the mesh, which divides `dim`.
    KeyError for a dimension that the mesh does not have, TypeError for what is no placement."""
    found = {placement: dim} if isinstance(placement, str) else placement
    if not isinstance(found, Mapping) or not all(type(number) is int for number in found.values()):
        raise TypeError(
            f"{placement!r} is no placement: give the name of a dimension of the mesh, or a dict from these to dimensions of "
            f'the tensor, as {{"tp": 0}}'
        )
    for name in found:
        if name not in names:
            raise KeyError(f"the mesh has no dimension {name!r}: its dimensions are {tuple(names)}")
    return {name: found[name] for name in names if name in found}


def divisors(placement: Placement, sizes: Mapping[str, int], dims: int, what: str) -> list[int]:
    """Into how many pieces each of the tensor's `dims` dimensions is divided. ValueError for one that `what` does not
    have."""
    counts = [1] * dims
    for name, dim in placement.items():
        if not -dims <= dim < dims:
            raise ValueError(f"{what} has {dims} dimensions, and mesh dimension {name!r} was to divide dimension {dim}")
        counts[dim] *= sizes[name]
    return counts


def local_shape(
    shape: Sequence[int], placement: Placement, sizes: Mapping[str, int], what: str = "the tensor"
) -> tuple[int, ...]:
    """The shape of each part of a whole of shape `shape`. ValueError where it cannot be divided evenly."""
    counts = divisors(placement, sizes, len(shape), what)
    for dim, (length, count) in enumerate(zip(shape, counts, strict=True)):
        if length % count:
            raise ValueError(
                f"{what} has shape {tuple(shape)}, and dimension {dim} cannot be divided into {count} equal parts: the "
                f"local tensors of a distributed tensor are of one shape. Pad it, or leave out the last {length % count}"
            )
    return tuple(length // count for length, count in zip(shape, counts, strict=True))


def whole_shape(
    local: Sequence[int], placement: Placement, sizes: Mapping[str, int], what: str = "the tensor"
) -> tuple[int, ...]:
    """The shape of the whole whose parts have shape `local`."""
    counts = divisors(placement, sizes, len(local), what)
    return tuple(length * count for length, count in zip(local, counts, strict=True))


def part(local: Sequence[int], placement: Placement, sizes: Mapping[str, int], coordinate: Mapping[str, int]) -> Part:
    """Returns what the process at `coordinate` has of a whole whose parts have shape `local`."""
    index = [0] * len(local)
    for name, size in sizes.items():
        if name in placement:
            index[placement[name]] = index[placement[name]] * size + coordinate[name]
    return tuple(number * length for number, length in zip(index, local, strict=True)), tuple(local)


def coordinates(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields the coordinates of a mesh, in row-major order."""
    for numbers in product(*(range(size) for size in sizes.values())):
        yield dict(zip(sizes, numbers, strict=True))


def holders(placement: Placement, sizes: Mapping[str, int]) -> dict[tuple[int, ...], list[int]]:
    """The processes that have the same part, by where along the mesh dimensions of the placement they are; processes as
    places in the mesh, in row-major order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place, coordinate in enumerate(coordinates(sizes)):
        found.setdefault(tuple(coordinate[name] for name in placement), []).append(place)
    return found


def writers(tensors: Iterable[tuple[Placement, int]], sizes: Mapping[str, int]) -> list[list[bool]]:
    """Decides for each of `tensors`, by placement and bytes of a part, which processes write theirs, so that each
    part is written once and the processes write about as much as each other: of those that have it, the one with the
    least so far."""
    count = 1
    for size in sizes.values():
        count *= size
    load = [0] * count
    found = []
    for placement, nbytes in tensors:
        chosen = [False] * count
        for places in holders(placement, sizes).values():
            least = min(places, key=lambda place: load[place])
            chosen[least] = True
            load[least] += nbytes
        found.append(chosen)
    return found
