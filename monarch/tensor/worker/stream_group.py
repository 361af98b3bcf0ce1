"""The torch ProcessGroup that a remote function gets: behind it, one group for each stream that uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from monarch._devices import torch_versions
from monarch._linux.locks import Lock
from monarch.tensor.failures import GroupLost
from monarch.tensor.worker import current
from monarch.tensor.worker.process_groups import groups_of

if TYPE_CHECKING:
    from monarch.tensor.worker.worker_actor import TensorWorker

_BACKENDS = {"cpu": dist.ProcessGroup.BackendType.GLOO, "cuda": dist.ProcessGroup.BackendType.NCCL}

# Torch's tables are for one thread, and several streams may meet their first groups at once.
_registering = Lock()


class StreamGroup(dist.ProcessGroup):
    """A ProcessGroup over the ranks `members` of the engine's mesh, known to torch.distributed.

    Calls go to a group of the stream in whose thread they are made; those of other threads (of autograd) to that of
    the stream which used it first. It is connected by its first call.
    """

    def __init__(self, worker: TensorWorker, label: str, members: tuple[int, ...]) -> None:
        super().__init__(members.index(worker.executor.rank), len(members))
        self._worker = worker
        self._label = label
        self._members = members
        self._streams: dict[int, dist.ProcessGroup] = {}
        self._lock = Lock()
        self._lost = ""
        self._on_devices = torch.cuda.is_available()
        self._title = f"{worker.services[1]} {label} {'.'.join(map(str, members))}"

    @property
    def group_name(self) -> str:
        return self._title

    @property
    def group_desc(self) -> str:
        return self._label

    def register(self) -> None:
        """Makes it known to torch.distributed, unless it is: `destroy_process_group()` of a program forgets all groups."""
        with _registering:
            _make_room_for_world(self._worker)
            if self not in c10d._world.pg_map:
                store = dist.PrefixStore(self._label, groups_of(self._worker)._store)
                ranks = {rank: place for place, rank in enumerate(self._members)}
                config = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
                name = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                torch_versions.register_group(self, name, store, self._title, config, ranks)

    def begun(self) -> int:
        """Returns how many collectives this rank has begun in it, for a look into a program that is stuck. Makes no
        connection."""
        return sum(group._get_sequence_number_for_group() for group in list(self._streams.values()))

    def lose(self, why: str) -> None:
        """Closes its connections; later calls raise GroupLost(why)."""
        with self._lock:
            self._lost = self._lost or why
            self._streams = {}
        groups_of(self._worker).shun(self._label, self._members, why)

    def leave(self, stream: int) -> None:
        """Closes what the group has for one stream, where it will not be used any more."""
        with self._lock:
            self._streams.pop(stream, None)
        groups_of(self._worker).lose(self._label, "the group was dropped", self._members, stream)

    def close(self) -> None:
        """Closes all its connections, and torch.distributed forgets it. The engine has ended."""
        with self._lock:
            self._lost = self._lost or "the tensor engine has ended"
            self._streams = {}
        _unregister(self)

    def _inner(self) -> Any:
        try:
            stream = current.stream()
        except RuntimeError:
            stream = next(iter(self._streams), 0)
        inner = self._streams.get(stream)
        if inner is None:
            with self._lock:
                if self._lost:
                    raise GroupLost(f"this process group cannot be used any more: {self._lost}")
            inner = self._make(stream)
            with self._lock:
                inner = self._streams.setdefault(stream, inner)
        return inner

    def _make(self, stream: int) -> Any:
        groups = groups_of(self._worker)
        store = dist.PrefixStore(self._label, groups._store)
        made = dist.ProcessGroup(store, self.rank(), self.size())
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        made._set_default_backend(_BACKENDS[devices[-1]])
        for device in devices:
            backend = groups.backend(self._label, self._members, stream, device)
            backend._set_sequence_number_for_group()
            made._register_backend(torch.device(device), _BACKENDS[device], getattr(backend, "_backend", backend))
        made._set_group_name(f"{self._title} {stream}")
        return made


def _forward(name: str) -> Callable[..., Any]:
    def forward(self: StreamGroup, *args: object, **kwargs: object) -> Any:
        made = getattr(self._inner(), name)(*args, **kwargs)
        if self._on_devices and isinstance(made, dist.Work):
            groups_of(self._worker).unfinished.add(made, f"{name} of ranks {list(self._members)}")
        return made

    forward.__name__ = name
    return forward


_OWN = {"rank", "size", "name", "boxed", "unbox", "group_name", "group_desc", "abort", "shutdown", "BackendType"}
for _name in dir(dist.ProcessGroup):
    _private = _name.startswith("_") and _name not in (
        "_allgather_base", "_reduce_scatter_base", "_start_coalescing", "_end_coalescing", "_get_backend",
        "_get_sequence_number_for_group", "_set_sequence_number_for_group",
    )  # fmt: skip
    if not _private and _name not in _OWN and callable(getattr(dist.ProcessGroup, _name)):
        setattr(StreamGroup, _name, _forward(_name))


class Arrived(dict[tuple[str, tuple[int, ...]], StreamGroup]):
    """The groups of a worker by label and members; they end with it."""

    def close(self) -> None:
        for group in self.values():
            group.close()
        self.clear()


def _unregister(group: object) -> None:
    world = c10d._world
    if group not in world.pg_map:
        return
    name = world.pg_names.pop(group)
    tag = world.pg_to_tag.pop(group, None)
    if tag is not None and group in world.tags_to_pg.get(tag, []):
        world.tags_to_pg[tag].remove(group)
    for table in (world.pg_map, world.pg_group_ranks, world.pg_backend_config):
        table.pop(group, None)
    c10d._unregister_process_group(name)


# --- the default group ----------------------------------------------------------------------------------------


class _Here(threading.local):
    world: Any = None


_here = _Here()


class _World(c10d._World):
    """torch's own table of groups, where a thread of a stream has a stand-in for the default group if the process has none:
    `get_rank(group)` and DeviceMesh ask it for this process's rank. It knows ranks, and connects nobody."""

    @property
    def default_pg(self) -> Any:
        return self._default_pg if self._default_pg is not None else _here.world

    @default_pg.setter
    def default_pg(self, value: object) -> None:
        self._default_pg = value


class _Stands:
    """The stand-in of one worker; ends with it."""

    def __init__(self, group: object) -> None:
        self.group = group

    def close(self) -> None:
        _unregister(self.group)


def _make_room_for_world(worker: TensorWorker) -> None:
    world = c10d._world
    if type(world) is c10d._World:
        world.__class__ = _World
    if _here.world is None:
        extras = worker.executor.extras
        if "world" not in extras:
            store = dist.PrefixStore("world", groups_of(worker)._store)
            extras["world"] = _Stands(dist.ProcessGroup(store, worker.executor.rank, worker.ranks))
        _here.world = extras["world"].group
    if _here.world not in world.pg_map:
        store = dist.PrefixStore("world", groups_of(worker)._store)
        ranks = {rank: rank for rank in range(worker.ranks)}
        _here.world._set_group_desc("monarch")
        torch_versions.register_group(_here.world, "gloo", store, f"{worker.services[1]} world", "cpu:gloo", ranks)
