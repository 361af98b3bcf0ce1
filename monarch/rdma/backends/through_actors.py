"""The buffer is somewhere else: chunks through the owner's Manager, over the connections that messages take.

At most IN_FLIGHT chunks of `rdma_max_chunk_size_mb` MiB (at least 1) are on their way from or to a process at a time;
others wait their turn.
"""

from __future__ import annotations

import pickle
import weakref
from typing import TYPE_CHECKING, Any

from monarch._errors import OwnerEndedError, RDMAError
from monarch.actor import ActorError, SupervisionError
from monarch.config import settings
from monarch.rdma import manager
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import memmove, memory_of
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

IN_FLIGHT = 4
_MIB = 1 << 20


class ThroughActors:
    """Copies that the owner's Python code takes part in."""

    name = "actor"
    uses_network = True
    takes_devices = False

    def why_unavailable(self, handle: BufferHandle) -> str:
        if not settings.rdma_allow_tcp_fallback():
            return "rdma_allow_tcp_fallback is off: monarch.configure(rdma_allow_tcp_fallback=True) allows it"
        return ""

    def start(self, transfer: Transfer) -> None:
        if transfer.late():
            transfer.finish(transfer.timed_out())
            return
        manager.start(lambda: _run(transfer))


async def _run(transfer: Transfer) -> None:
    import asyncio

    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + transfer.left()):
            await _all_chunks(transfer)
    except TimeoutError:
        transfer.finish(transfer.timed_out())
    except BaseException as exc:
        transfer.finish(reason(exc, transfer.handle))
    else:
        transfer.finish()


async def _all_chunks(transfer: Transfer) -> None:
    import asyncio

    size = chunk_bytes()
    async with asyncio.TaskGroup() as group:
        for at in range(0, transfer.size, size):
            await _turns().acquire()
            task = group.create_task(_chunk(transfer, at, min(size, transfer.size - at)))
            task.add_done_callback(lambda _: _turns().release())


async def _chunk(transfer: Transfer, at: int, count: int) -> None:
    handle = transfer.handle
    ours, theirs = transfer.memory.address + at, transfer.offset + at
    if transfer.write:
        copied = bytearray(count)  # the program may change its memory, or end the transfer, before all is on the socket
        memmove(memory_of(copied).address, ours, count)
        await handle.service.write.call_one(handle.number, handle.token, theirs, pickle.PickleBuffer(copied))
        return
    data = await handle.service.read.call_one(handle.number, handle.token, theirs, count)
    memmove(ours, memory_of(data).address, count)


def chunk_bytes() -> int:
    """The setting's, but never more than half of what a message may hold."""
    size = max(1, settings.rdma_max_chunk_size_mb()) * _MIB
    limit = settings.codec_max_frame_length()
    return max(1, min(size, limit // 2)) if limit else size


_semaphores: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _turns() -> asyncio.Semaphore:
    """The Mover's: its loop has one."""
    import asyncio

    return _semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(IN_FLIGHT))


def reason(error: BaseException, handle: BufferHandle) -> BaseException:
    """Returns what went wrong, as the side that asked for the transfer should hear it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ActorError) and isinstance(error.exception, RDMAError):
        return error.exception
    if isinstance(error, SupervisionError):
        ended = OwnerEndedError(f"the owner of buffer {handle.number} has ended, its memory is gone: {error}")
        ended.__cause__ = error
        return ended
    return error


async def drop(handle: BufferHandle) -> None:
    """Has the owner drop it; done when no write is under way there any more, or when the owner has ended."""
    import asyncio

    pause = 0.001
    try:
        while not await handle.service.drop.call_one(handle.number, handle.token):
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)
    except SupervisionError:
        return
