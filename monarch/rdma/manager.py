"""The two actors a process may have for its buffers.

`Manager` belongs to an owner: it answers those who cannot reach its memory, and drops what others ask it to. `Mover`
belongs to those who ask: it runs, on a thread and loop of its own, what has to wait for another process, so that no
actor of the program's waits. Both are made by the first use.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from monarch._errors import RDMAReadOnlyError
from monarch.actor import Actor, Future, Promise, concurrent_endpoint, endpoint
from monarch.actor.lowlevel import process_service
from monarch.rdma import device_copies
from monarch.rdma.buffer_handle import Owner
from monarch.rdma.lending import borrowing, lending
from monarch.rdma.local_memory import memmove, memory_of
from monarch.rdma.registry import registry

T = TypeVar("T")
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
            if region.memory.device is None:
                memmove(memory_of(copied).address, region.memory.address + offset, size)
            else:
                device_copies.copy(memory_of(copied), 0, region.memory, offset, size)
        return pickle.PickleBuffer(copied)

    @endpoint
    def write(self, number: int, token: int, offset: int, data: Any) -> None:
        """Raises BufferDroppedError."""
        view = memoryview(data)
        with registry().using(number, token) as region:
            _check(region.memory.size, offset, view.nbytes)
            if not region.memory.writable:
                raise RDMAReadOnlyError(f"buffer {number} is read-only")
            if region.memory.device is None:
                memmove(region.memory.address + offset, memory_of(view).address, view.nbytes)
            else:
                device_copies.copy(region.memory, offset, memory_of(view), 0, view.nbytes)

    @endpoint
    def verbs(self, request: Any) -> Any:
        """Tells another process what its devices need to reach a buffer: see `backends/ibverbs/control_messages.py`."""
        from monarch.rdma.backends.ibverbs import responder

        return responder.answer(request)

    @endpoint
    def drop(self, number: int, token: int) -> bool:
        """True if the memory has been released; False while a write is still under way."""
        dropped = registry().drop(number, token)
        tell_borrowers()
        return dropped

    @endpoint
    def lend_storage(self, number: int, token: int, borrower: Any, who: Owner) -> tuple[Any, ...]:
        """Returns what the process `who`, whose Manager `borrower` is, opens the storage of a buffer on a device with;
        once.

        Raises BufferDroppedError, NotLentError.
        """
        with registry().using(number, token) as region:
            return lending.give(region.memory, borrower, who)

    @endpoint
    def close_storage(self, owner: Owner, storage: int, lender: Any) -> None:
        """Closes a storage in which that process, whose Manager `lender` is, has dropped everything."""
        borrowing.close(owner, storage)
        lender.storage_closed.broadcast(registry().owner, storage)

    @endpoint
    def storage_closed(self, who: Owner, storage: int) -> None:
        """Hears that another process has closed a storage of this one's."""
        lending.closed(who, storage)


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


def tell_borrowers() -> None:
    """Has processes close the storages of devices in which nothing is registered any more. Does not wait for them."""
    for storage, borrower in lending.over():
        try:
            borrower.close_storage.broadcast(registry().owner, storage, service())
        except Exception as exc:  # it has ended, and with it what it had open
            logging.getLogger("monarch").debug("a borrower of storage %d was not told of its end: %s", storage, exc)


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


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Runs `work()` in this process's Mover; the Future has what it gives or raises. Needs a context, as `start` does."""
    promise: Promise[T] = Promise()

    async def settle() -> None:
        try:
            promise.set(await work())
        except BaseException as exc:
            promise.fail(exc)

    start(settle)
    return promise.future
