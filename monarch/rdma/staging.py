"""Memory of a device on a path that moves the host's memory only: piece by piece, through pinned memory.

On the side that asks, two pieces of a transfer are under way at a time, each a transfer of its own by the path: while one
is on its way, the other is copied to or from the device. At most STAGED transfers of a process do that at a time, the
others wait their turn, their timeouts running. The owner's side of it is in `backends/tcp/device_server.py` and `manager`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._devices.memory import Wait, interface
from monarch._devices.pinned import PIECE, Piece
from monarch.rdma import copying, manager
from monarch.rdma.backends import Backend
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

STAGED = 8


def start(backend: Backend, transfer: Transfer) -> None:
    """Has the backend, which knows the host's memory only, do a transfer whose local memory is a device's.

    Needs a context, as `manager.start` does.
    """
    if transfer.late():
        transfer.finish(transfer.timed_out())
    else:
        manager.start(lambda: _run(backend, transfer))


async def _run(backend: Backend, transfer: Transfer) -> None:
    import asyncio

    try:
        async with asyncio.timeout(max(0.0, transfer.left())):
            await _turns().acquire()
    except TimeoutError:
        transfer.finish(transfer.timed_out())
        return
    except BaseException as exc:  # this process is ending
        transfer.finish(exc)
        raise
    try:
        await _Staged(backend, transfer, asyncio.get_running_loop()).run()
    except Exception as exc:
        transfer.finish(exc)
    except BaseException as exc:
        transfer.finish(exc)
        raise
    else:
        transfer.finish()
    finally:
        _turns().release()


class _Staged:
    """One such transfer, on the Mover's loop."""

    def __init__(self, backend: Backend, transfer: Transfer, loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._transfer = transfer
        self._loop = loop
        self._next = 0
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Raises the first error, once nothing moves any more."""
        import asyncio

        await asyncio.gather(self._pieces(), self._pieces())
        if self._error is not None:
            raise self._error

    async def _pieces(self) -> None:
        """One piece of pinned memory, again and again."""
        piece = Piece()
        while self._error is None and self._next < self._transfer.size:
            at = self._next
            count = min(PIECE, self._transfer.size - at)
            self._next += count
            error = await self._one(piece, at, count)
            self._error = self._error or error
        piece.close()  # not when this was cancelled: something may still be on its way there

    async def _one(self, piece: Piece, at: int, count: int) -> BaseException | None:
        transfer = self._transfer
        device, host, after = transfer.memory.keep[at : at + count], piece.bytes[:count], transfer.after
        if transfer.write:
            error = await self._copy(lambda: interface().begin(host, device, after))
            return error or await self._move(piece, at, count)
        error = await self._move(piece, at, count)
        return error or await self._copy(lambda: interface().begin(device, host, after))

    def _move(self, piece: Piece, at: int, count: int) -> asyncio.Future[BaseException | None]:
        """Moves the piece, by the backend."""
        moved = self._loop.create_future()
        part = _Part(self._transfer, LocalMemory(piece.address, count, True, piece.storage, "pinned memory"), at, count)
        part.ended = lambda error: self._tell(moved, error)
        try:
            self._backend.start(part)
        except Exception as exc:
            part.finish(exc)
        return moved

    def _copy(self, begin: Callable[[], Wait]) -> asyncio.Future[BaseException | None]:
        """Copies to or from the device, on a thread that may wait for it."""
        copied = self._loop.create_future()

        def work() -> None:
            error = None
            try:
                begin()()
            except Exception as exc:
                error = exc
            self._tell(copied, error)

        copying.later(work)
        return copied

    def _tell(self, future: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
        def settle() -> None:
            if not future.done():
                future.set_result(error)

        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed: this process is ending
            pass


class _Part(Transfer):
    """A piece of a transfer, which hears of its end and speaks in its name."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Transfer, memory: LocalMemory, at: int, count: int) -> None:
        super().__init__(whole.handle, memory, whole.offset + at, count, whole.write, whole.timeout)
        self._whole = whole
        self.deadline = whole.deadline
        self.path, self.kept = whole.path, whole.kept

    def finish(self, error: BaseException | None = None) -> None:
        self._whole.path = self.path
        self.ended(error)

    def __str__(self) -> str:
        return str(self._whole)


_semaphores: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _turns() -> asyncio.Semaphore:
    import asyncio

    return _semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(STAGED))
