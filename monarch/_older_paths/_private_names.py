"""Names that libraries import from inside of the package and that have no public equal."""

from __future__ import annotations

import contextvars
import io
import logging
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle

from monarch._mesh.meshes.attach import local_hosts
from monarch._mesh.process.context import Context, context
from monarch._runtime.context import Current, current, home, root_of
from monarch.actor import Extent, HostMesh, this_host

_NOTHING: Any = object()

# What a pod runs: a host of a job, until a client shuts it down.
_WORKER_BOOTSTRAP_SCRIPT = """\
import os
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=f"tcp://*:{os.environ.get('MONARCH_PORT', '26600')}")
"""


class ContextVariable:
    """The Context of the running code, in the form of a `contextvars.ContextVar`: what `context()` gives, without starting a
    client."""

    name = "monarch_context"

    def get(self, default: Any = _NOTHING) -> Any:
        """Returns the Context. `default`, or LookupError without one, in a program that has not begun to be a client, and in
        threads of an actor's process that belong to no actor."""
        proc = home()
        if current.get() is not None or (proc is not None and root_of(proc) is not None):
            return context()
        if default is _NOTHING:
            raise LookupError(self)
        return default

    def set(self, value: Context | None) -> contextvars.Token[Current | None]:
        """Runs what follows in that Context; None: as the client. Returns what `reset` takes."""
        return current.set(None if value is None else value._running)

    def reset(self, token: contextvars.Token[Current | None]) -> None:
        current.reset(token)


_context = ContextVariable()


class FrozenBuffer(io.BytesIO):
    """The bytes of a pickle, for reading; its length is what has not been read yet."""

    def __len__(self) -> int:
        return len(self.getbuffer()) - self.tell()


class FlattenedBytes(bytearray):
    """The pickle that `flatten` makes."""

    def write(self, data: bytes) -> int:
        self += data
        return len(data)

    def freeze(self) -> FrozenBuffer:
        return FrozenBuffer(self)


class _Taking(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out of a pickle what a filter accepts."""

    def __init__(self, file: io.BytesIO, accepts: Callable[[Any], bool]) -> None:
        super().__init__(file)
        self.taken: list[Any] = []
        self._accepts = accepts
        self._places: dict[int, int] = {}  # by id: what is taken stays alive in `taken`

    def persistent_id(self, obj: Any) -> int | None:
        if not self._accepts(obj):
            return None
        place = self._places.setdefault(id(obj), len(self.taken))
        if place == len(self.taken):
            self.taken.append(obj)
        return place


class _Putting(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, values: Iterable[Any]) -> None:
        super().__init__(data)
        self._values = list(values)

    def persistent_load(self, pid: Any) -> Any:
        return self._values[pid]


def flatten(obj: Any, filter: Callable[[Any], bool]) -> tuple[list[Any], FlattenedBytes]:
    """Pickles an object without those parts of it that `filter` accepts. Returns these, each once, and the pickle.

    `filter` is asked of every object that is reached, the whole one first. Types are reduced as the table of `copyreg` says,
    which programs may add to, and else as cloudpickle does it.
    """
    file = io.BytesIO()
    pickler = _Taking(file, filter)
    pickler.dump(obj)
    return pickler.taken, FlattenedBytes(file.getbuffer())


def unflatten(data: bytes | bytearray | memoryview | FrozenBuffer, values: Iterable[Any]) -> Any:
    """Returns the object that `flatten` took apart, with `values` where its own parts were. Runs what the pickle says: `data`
    must come from somebody whose code may run here. IndexError when there are too few values."""
    return _Putting(data if isinstance(data, FrozenBuffer) else io.BytesIO(data), values).load()


def create_local_host_mesh(extent: Extent | None = None) -> HostMesh:
    """Returns hosts on this machine, which end with this program: as many as `extent` has places, in its dimensions.
    Without one, and for one without dimensions, it is `this_host()`."""
    if extent is None or not extent.labels:
        return this_host()
    hosts = local_hosts("local", extent.nelements)
    *outer, last = extent.labels
    if outer:
        sizes = dict(zip(extent.labels, extent.sizes, strict=True))
        return hosts.split(hosts=extent.labels, **{label: sizes[label] for label in outer})
    return hosts if last == "hosts" else hosts.rename(hosts=last)


def host_mesh_from_store(store: Any, *, name: str = "monarch_worker", **options: Any) -> HostMesh | None:
    """Returns the hosts of a program whose ranks meet in a torch.distributed store, on rank 0; None on the others. Every rank
    calls it; the options and errors are those of `monarch.job.spmd.StoreJob.from_store`."""
    from monarch.job.spmd import StoreJob

    job = StoreJob.from_store(store, name=name, **options)
    return None if job is None else getattr(job.state(), name)


class TracingForwarder(logging.Handler):
    """A handler that does nothing: the trace hears of every record of this process without one."""

    def emit(self, record: logging.LogRecord) -> None:
        pass
