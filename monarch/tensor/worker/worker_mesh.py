"""A DeviceMesh as workers see it: which ranks it has, and where this one is among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from monarch.actor import Extent, Point
from monarch.tensor.worker import current


class WorkerDim:
    """One dimension seen from one rank: its coordinate `rank`, the `size`, and the ranks along it (`members`)."""

    __slots__ = ("members", "rank", "size")

    def __init__(self, rank: int, size: int, members: list[int]) -> None:
        self.rank = rank
        self.size = size
        self.members = members

    def __repr__(self) -> str:
        return f"WorkerDim(rank={self.rank}, size={self.size}, members={self.members})"


class WorkerMesh:
    """The ranks (of the engine's mesh) of a mesh, in row-major order of its dimensions."""

    def __init__(self, names: tuple[str, ...], sizes: tuple[int, ...], ranks: tuple[int, ...]) -> None:
        self.names = tuple(names)
        self.sizes = tuple(sizes)
        self.ranks = tuple(ranks)
        self._places = {rank: place for place, rank in enumerate(self.ranks)}
        # Process groups made for it, which end when the call that it was passed to fails.
        self.groups = current.opening()

    def has(self, rank: int) -> bool:
        return rank in self._places

    def along(self, rank: int, dims: tuple[str, ...]) -> list[int]:
        """The ranks that differ from `rank` at most in `dims`, in row-major order of `dims` as given."""
        extent = Extent(self.names, self.sizes)
        own = Point(self._places[rank], extent)
        ranks = [0]
        for name, size in zip(self.names, self.sizes, strict=True):
            if name not in dims:
                ranks = [base * size + own[name] for base in ranks]
            else:
                ranks = [base * size + index for base in ranks for index in range(size)]
        if tuple(sorted(dims, key=self.names.index)) == tuple(dims):
            return [self.ranks[place] for place in ranks]
        wanted = sorted(ranks, key=lambda place: [Point(place, extent)[name] for name in dims])
        return [self.ranks[place] for place in wanted]

    def dim(self, rank: int, name: str) -> WorkerDim:
        members = self.along(rank, (name,))
        return WorkerDim(members.index(rank), len(members), members)

    @cached_property
    def dims(self) -> Mapping[str, WorkerDim]:
        """Each dimension as this worker sees it. Inside a remote function only."""
        rank = current.worker().executor.rank
        return {name: self.dim(rank, name) for name in self.names}

    def __reduce__(self) -> tuple[object, ...]:
        return WorkerMesh, (self.names, self.sizes, self.ranks)

    def __repr__(self) -> str:
        return f"WorkerMesh(names={self.names}, sizes={self.sizes}, ranks={self.ranks})"
