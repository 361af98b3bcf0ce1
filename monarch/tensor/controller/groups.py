"""RemoteProcessGroup: a group of processes as the controller names it, and what it becomes in a remote function."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch.tensor.controller import misuse
from monarch.tensor.worker.groups import DropGroup, arrive

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import DeviceMesh

_numbers = itertools.count(1)


class RemoteProcessGroup:
    """The processes of a mesh along some of its dimensions, as an argument of remote functions.

    `mesh.process_group(dims)` makes one; each is apart from all others. In the function it is a torch ProcessGroup of
    the ranks that differ from this one in `dims` alone, and torch.distributed works with it as `group=`; ranks there
    (`src`, `dst`) are those of the engine's mesh. Its connections are made when it is first used, one set for each
    stream. It does not replace the default group that a program may have made in that process; where there is none,
    `torch.distributed.get_rank()` in the function is the rank in the engine's mesh.

    A function that fails on one rank with a group among its arguments closes it there: functions of other ranks that
    wait in it fail too, and it cannot be used again. So does the end of a process, and a wait of more than five
    minutes.
    """

    def __init__(self, mesh: DeviceMesh, dims: str | Sequence[str]) -> None:
        self._dims = dims_of(mesh, dims)
        self._mesh = mesh
        self._number = next(_numbers)
        self._dropped = ""

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions along which its processes lie."""
        return self._dims

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh whose processes are in the group."""
        return self._mesh

    @property
    def dropped(self) -> bool:
        """True if `drop()` was called."""
        return bool(self._dropped)

    def size(self) -> int:
        """Returns how many processes a group has."""
        size: int = self._mesh.size(self._dims)
        return size

    def drop(self) -> None:
        """Closes its connections when everything issued so far is done. Using it later is a TypeError that shows this
        line."""
        if self._dropped:
            return
        self._dropped = misuse.here()
        engine = self._mesh.client
        if engine.ended:
            return
        streams = engine.streams
        leaving = len(self._mesh) * len(streams)
        for stream in streams:
            engine.do(self._mesh.place(stream), DropGroup(self._label(), engine.stream_number(stream), leaving), (), 0)

    def _label(self) -> str:
        return f"group {self._number}"

    def __hash__(self) -> int:
        self._check()  # calls are known by their arguments: one that was made before does not pickle them again
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def _check(self) -> None:
        if self._dropped:
            raise TypeError(f"{self!r} was dropped, and cannot be used any more. It is dropped at:\n{self._dropped}")

    def __reduce__(self) -> tuple[object, ...]:
        self._check()
        mesh = self._mesh
        return arrive, (self._label(), mesh.names, tuple(mesh.sizes.values()), tuple(mesh.processes), self._dims)

    def __repr__(self) -> str:
        return f"<RemoteProcessGroup(dims={self._dims}, mesh={self._mesh}{', dropped' if self._dropped else ''})>"


def dims_of(mesh: DeviceMesh, dims: str | Sequence[str]) -> tuple[str, ...]:
    """`dims` as a tuple; all of the mesh's for an empty one. KeyError for one it does not have, ValueError for a
    repeated one."""
    wanted = (dims,) if isinstance(dims, str) else tuple(dims)
    for name in wanted:
        if name not in mesh.names:
            raise KeyError(f"the mesh has no dimension {name!r}: its dimensions are {mesh.names}")
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"a dimension is named twice: {wanted}")
    return wanted or tuple(mesh.names)
