"""The common part of all views of one mesh: of processes a ProcSpec, of actors an ActorSpec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch._mesh.actors.endpoint import EndpointProperty
from monarch._mesh.failures.ledger import process_failure
from monarch._runtime.functions import attribute_of
from monarch._shape.extent import Extent, Point
from monarch._shape.slice import NDSlice
from monarch._wire.address import proc_address
from monarch._wire.message import Failure, ProcEnded

if TYPE_CHECKING:
    from monarch._mesh.meshes.proc_mesh import ProcMesh


class ProcSpec:
    """The facts that every view of one proc mesh shares. Process r is the r % n-th of host r // n, n being processes a
    host."""

    __slots__ = ("addresses", "executable", "hosts", "labels", "name", "sizes", "stopped", "uid")

    def __init__(
        self,
        uid: str,
        name: str,
        hosts: Sequence[str],
        labels: Sequence[str],
        sizes: Sequence[int],
        executable: str = "",
    ) -> None:
        self.uid = uid
        self.name = name
        self.hosts = tuple(hosts)
        self.labels = tuple(labels)
        self.sizes = tuple(sizes)
        self.executable = executable
        self.stopped = False
        count = len(NDSlice.new_row_major(self.sizes))
        per_host = count // len(self.hosts)
        self.addresses = [proc_address(self.hosts[rank // per_host], uid, rank) for rank in range(count)]


_SHADOWED = ("restart", "healthy")  # methods of ActorMesh that came after programs had such endpoints


class ActorSpec:
    """The facts that every view of one actor mesh shares. `addresses[r]` is the process of the actor with rank r."""

    __slots__ = ("addresses", "cls", "creator", "key", "name", "proc_mesh", "shadowing")

    def __init__(self, key: str, name: str, cls: type, proc_mesh: ProcMesh, creator: str) -> None:
        self.key = key
        self.name = name
        self.cls = cls
        self.proc_mesh = proc_mesh
        self.creator = creator
        self.addresses: Sequence[str] = proc_mesh._addresses()
        # Programs may have endpoints of these names: theirs count, and ours are ActorMesh.restart(mesh) and the like.
        found = [(name, attribute_of(cls, name)) for name in _SHADOWED]
        self.shadowing = [(name, prop) for name, prop in found if isinstance(prop, EndpointProperty)]

    def display(self, rank: int) -> str:
        """`<root>.<module.Class name{'gpus': 1/2}>`, as reports name an actor."""
        return display_name(self.creator, self.cls, self.name, Point(rank, self.extent))

    @property
    def mesh_name(self) -> str:
        """Unique: the name given to `spawn`, and the mesh's key."""
        return f"{self.name}-{self.key}"

    @property
    def extent(self) -> Extent:
        return self.proc_mesh.extent

    def failure_of(self, address: str, ended: ProcEnded) -> Failure:
        ranks = [rank for rank, there in enumerate(self.addresses) if there == address]
        return process_failure(self, ended, ranks)


def display_name(creator: str, cls: type, name: str, point: Point) -> str:
    shown = f"{cls.__module__}.{cls.__qualname__} {name}"
    if len(point):
        shown += repr(point)
    return f"{creator}.<{shown}>"
