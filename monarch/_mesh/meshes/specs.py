"""The common part of all views of one mesh: of processes a ProcSpec, of actors an ActorSpec.

Handles are sent again and again, and specs do not change: they are pickled once where they are sent from, as bytes within
other pickles, and read once where they arrive. The same bytes are the same object there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._mesh.actors.endpoint import EndpointProperty
from monarch._mesh.failures.ledger import process_failure
from monarch._runtime.functions import attribute_of
from monarch._shape.extent import Extent, Point
from monarch._shape.slice import NDSlice
from monarch._wire.address import proc_address
from monarch._wire.codec import decode, encode, importable
from monarch._wire.message import Failure, ProcEnded

if TYPE_CHECKING:
    from monarch._mesh.meshes.proc_mesh import ProcMesh

P = ParamSpec("P")
R = TypeVar("R")

KEPT = 128  # so many a process keeps of those that it has read, the last ones
MOST_BYTES = 1 << 16  # of one that is kept there: a class that travels by value may bring much along
# Hosts from which their addresses travel compressed: each process of a mesh gets those of all, and they have much in common.
MANY_HOSTS = 64


def make_pickle(build: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Makes the pickle of `build(*args)`. Raises what `encode` raises."""
    pickled, buffers = encode((build, args))
    return encode((_build, (pickled, [bytes(buffer) for buffer in buffers])))[0] if buffers else pickled


def kept(read: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of a pickle, its first argument, and of others that tell equal from unequal."""
    remembered = functools.lru_cache(KEPT)(read)

    @functools.wraps(read)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> R:
        return (remembered if len(args[0]) <= MOST_BYTES else read)(*args, **kwargs)  # type: ignore[arg-type]

    return bounded


def _build(pickled: bytes, buffers: Sequence[bytes] = ()) -> Any:
    build, args = decode(pickled, buffers)
    return build(*args)


@kept
def read_pickle(pickled: bytes) -> Any:
    """Reads the object. Runs the sender's pickle: only for bytes that came within a message of an authenticated peer."""
    return _build(pickled)


class ProcSpec:
    """The facts that every view of one proc mesh shares. Process r is the r % n-th of host r // n, n being processes a
    host."""

    __slots__ = ("_pickled", "addresses", "executable", "hosts", "labels", "name", "sizes", "stopped", "uid")

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
        self._pickled: bytes | None = None

    def pickled(self) -> bytes:
        if self._pickled is None:
            if len(self.hosts) < MANY_HOSTS:
                args = (self.uid, self.name, self.hosts, self.labels, self.sizes, self.executable)
                self._pickled = make_pickle(ProcSpec, args)
            else:
                import zlib  # few meshes are that large

                packed = zlib.compress("\n".join(self.hosts).encode())
                self._pickled = make_pickle(
                    _unpack, (self.uid, self.name, packed, self.labels, self.sizes, self.executable)
                )
        return self._pickled


def _unpack(
    uid: str, name: str, packed: bytes, labels: Sequence[str], sizes: Sequence[int], executable: str
) -> ProcSpec:
    import zlib

    return ProcSpec(uid, name, zlib.decompress(packed).decode().split("\n"), labels, sizes, executable)


_SHADOWED = ("restart", "healthy")  # methods of ActorMesh that came after programs had such endpoints


class ActorSpec:
    """The facts that every view of one actor mesh shares. `addresses[r]` is the process of the actor with rank r."""

    __slots__ = ("_pickled", "addresses", "cls", "creator", "key", "name", "proc_mesh", "shadowing")

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
        self._pickled: tuple[bool, bytes] | None = None

    def pickled(self) -> bytes:
        by_name = importable(self.cls.__module__)  # programs may change that
        if self._pickled is None or self._pickled[0] is not by_name:
            args = (self.key, self.name, self.cls, self.proc_mesh, self.creator)
            self._pickled = by_name, make_pickle(ActorSpec, args)
        return self._pickled[1]

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

    @property
    def procs_stopped(self) -> bool:
        """True if this process owns the processes and has ordered them to stop."""
        return self.proc_mesh._spec.stopped

    def failure_of(self, address: str, ended: ProcEnded) -> Failure:
        ranks = [rank for rank, there in enumerate(self.addresses) if there == address]
        return process_failure(self, ended, ranks)


def display_name(creator: str, cls: type, name: str, point: Point) -> str:
    shown = f"{cls.__module__}.{cls.__qualname__} {name}"
    if len(point):
        shown += repr(point)
    return f"{creator}.<{shown}>"
