"""The two actors a process may have for its buffers.

`Manager` belongs to an owner: it answers those who cannot reach its memory, and drops what others ask it to. `Mover`
belongs to those who ask: it runs, on a thread and loop of its own, what has to wait for another process, so that no
actor of the program's waits. Both are made by the first use.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

from monarch._errors import RDMAReadOnlyError
from monarch.actor import Actor, concurrent_endpoint, endpoint, process_service
from monarch.rdma.backends.local import memmove
from monarch.rdma.memory import memory_of
from monarch.rdma.registry import registry

Work = Callable[[], Coroutine[Any, Any, None]]


class Manager(Actor):
    """Reads, writes and drops buffers of its process for others. Requests come over the runtime's authenticated
    connections.
    """

    _is_system_actor = True

    @endpoint
    def read(self, number: int, token: int, offset: int, size: int) -> Any:
        """The bytes as they are now. Raises BufferDroppedError."""
        with registry().using(number, token) as region:
            _check(region.memory.size, offset, size)
            copied = bytearray(size)  # what is still to be written to a socket must not change, nor outlive a drop
            memmove(memory_of(copied).address, region.memory.address + offset, size)
        return pickle.PickleBuffer(copied)

    @endpoint
    def write(self, number: int, token: int, offset: int, data: Any) -> None:
        """Raises BufferDroppedError."""
        view = memoryview(data)
        with registry().using(number, token) as region:
            _check(region.memory.size, offset, view.nbytes)
            if not region.memory.writable:
                raise RDMAReadOnlyError(f"buffer {number} is read-only")
            memmove(region.memory.address + offset, memory_of(view).address, view.nbytes)

    @endpoint
    def drop(self, number: int, token: int) -> bool:
        """Whether the memory has been let go of; False while a write is still under way."""
        return registry().drop(number, token)


def _check(size: int, offset: int, count: int) -> None:
    """A request's range: it comes from another process, so it is not taken on trust."""
    if offset < 0 or count < 0 or offset + count > size:
        raise ValueError(f"bytes {offset} to {offset + count} do not lie in a buffer of {size}")


_work: dict[int, Work] = {}
_keys = itertools.count()


class Mover(Actor):
    """Runs coroutines of this process, many at a time."""

    _is_system_actor = True

    @concurrent_endpoint
    async def run(self, key: int) -> None:
        work = _work.pop(key, None)
        if work is not None:
            await work()


def service() -> Any:
    """This process's Manager, as a mesh of one that may be sent anywhere."""
    return process_service("rdma", Manager)


def start(work: Work) -> None:
    """Runs `work()` in this process's Mover. It must not raise. Needs a context: an actor, the client, or
    `bind_context`.
    """
    key = next(_keys)
    _work[key] = work
    try:
        process_service("rdma-mover", Mover).run.broadcast(key)
    except BaseException:
        _work.pop(key, None)
        raise
