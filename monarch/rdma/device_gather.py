"""The part of a Gather that has a device at one end or both.

`Lent`: the owner's device is one that this process reaches (its own, or by device_ipc): it copies by itself, to the host or
to other devices. `Passing`: everything else that goes to a device of ours, through buckets of pinned memory: one is filled
while the one before is put into its places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from monarch._devices.memory import Card, interface
from monarch._errors import RDMAError, RDMATimeoutError
from monarch.rdma import copying, device_batches
from monarch.rdma.backends import device_ipc, local
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.handle import Handle
from monarch.rdma.layout import Block
from monarch.rdma.lending import Borrowed
from monarch.rdma.memory import Memory
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

ASKED = 64  # storages that an owner is asked for at a time
BUCKET = 64 << 20  # bytes on their way to a device together; there are two buckets

_Target = tuple[Block, Any]


class ElsewhereError(Exception):
    """An owner does not lend its storage after all: its buffers have to be reached by another path."""


class LentBatch:
    """Blocks that the device copies together, with the buffer that errors name."""

    path = device_ipc.DeviceIpc.name

    def __init__(self, handle: Handle, batch: device_batches.Batch) -> None:
        self.handle = handle
        self.total = batch.size
        self._batch = batch

    def read(self, after: Sequence[Any]) -> None:
        self._batch.read(after)


class Lent:
    """Blocks of buffers on devices that this process reaches, of one owner."""

    def __init__(self, reads: list[tuple[RDMABuffer, list[_Target]]]) -> None:
        self._reads = reads
        self._batches: list[LentBatch] = []

    async def open(self, timeout: float) -> list[LentBatch]:
        """All of them, to be read. The owner is asked for each storage, the first time. ElsewhereError, RDMAError."""
        if self._batches:
            return self._batches
        import asyncio

        deadline = monotonic() + timeout
        opened: list[device_batches.Lend | BaseException] = []
        for at in range(0, len(self._reads), ASKED):
            some = (_lend(buffer, deadline) for buffer, _ in self._reads[at : at + ASKED])
            opened += await asyncio.gather(*some, return_exceptions=True)
        failed = [one for one in opened if isinstance(one, BaseException)]
        if failed:
            raise next((one for one in failed if not isinstance(one, ElsewhereError)), failed[0])
        lends: list[device_batches.Lend] = [one for one in opened if not isinstance(one, BaseException)]
        # Scratch memory is of one device, so those to the host are kept apart by device.
        groups: dict[tuple[bool, Card | None], list[tuple[int, Block, Any]]] = {}
        for number, (buffer, targets) in enumerate(self._reads):
            place = buffer._handle.device
            for block, flat in targets:
                card = None if place is None or flat is not None else place.card
                groups.setdefault((flat is None, card), []).append((number, block, flat))
        first = self._reads[0][0]._handle
        for (to_host, _), blocks in groups.items():
            made = device_batches.batches(lends, blocks, to_host)
            self._batches += [LentBatch(first, batch) for batch in made]
        return self._batches


async def _lend(buffer: RDMABuffer, deadline: float) -> device_batches.Lend:
    handle = buffer._handle
    backend = buffer._way()
    if not isinstance(backend, device_ipc.DeviceIpc):
        return lambda: local._lend(handle)
    transfer = Transfer(handle, Memory(0, 0, True, None, "tensors"), 0, handle.size, False, deadline - monotonic())
    transfer.path, transfer.kept = backend.name, buffer._kept
    try:
        borrowed: Borrowed = await backend.borrow(handle, transfer.left())
    except TimeoutError as exc:
        raise exc if isinstance(exc, RDMAError) else transfer.timed_out() from None
    except RDMAError as exc:
        raise transfer._told(exc) from exc
    except Exception as exc:
        raise ElsewhereError(str(exc)) from exc
    return lambda: device_ipc._lend(transfer, borrowed)


class _Reading(Protocol):
    """A Gather."""

    async def read(self, timeout: float, after: Sequence[Any] = ()) -> None: ...


class _Bucket:
    """What goes to one device together: `fill` reads it into memory of the host, `put` brings it to its places."""

    def __init__(self, fill: _Reading, parts: list[tuple[Any, Block, Any]], host: Any) -> None:
        self.fill = fill
        self._parts = parts
        self._host = host

    def put(self, after: Sequence[Any]) -> None:
        copies = device_batches.bucket(self._parts, self._host, to_device=True)
        interface().begin_all(copies, after)()


class Passing:
    """Blocks that come to devices of ours through the host. Two buckets are kept as long as this is."""

    def __init__(self, blocks: list[tuple[RDMABuffer, Block, Any]], gather: Callable[[Any, Any], _Reading]) -> None:
        groups: dict[str, list[tuple[RDMABuffer, Block, Any]]] = {}
        for buffer, whole, flat in blocks:
            groups.setdefault(str(flat.device), []).extend((buffer, block, flat) for block in whole.cut(BUCKET))
        filled = [one for group in groups.values() for one in _filled(group)]
        size = max(device_batches.room(block for _, block, _ in one) for one in filled)
        hosts = [_pinned(size) for _ in filled[:2]]
        self._buckets = [_bucket(one, hosts[number % 2], gather) for number, one in enumerate(filled)]

    async def read(self, timeout: float, after: Sequence[Any]) -> None:
        """Raises the first error, once nothing moves any more."""
        import asyncio

        deadline = monotonic() + timeout
        putting: list[asyncio.Future[None]] = []
        try:
            for number, bucket in enumerate(self._buckets):
                if number >= 2:
                    await putting[number - 2]
                await bucket.fill.read(max(0.0, deadline - monotonic()))
                putting.append(_on_thread(bucket, after))
        finally:
            ended = await asyncio.gather(*putting, return_exceptions=True)
        for one in ended:
            if isinstance(one, RDMATimeoutError):
                raise one
            if isinstance(one, BaseException):
                raise RDMAError(f"a device did not take what was read: {type(one).__name__}: {one}") from one


def _filled(blocks: list[tuple[RDMABuffer, Block, Any]]) -> list[list[tuple[RDMABuffer, Block, Any]]]:
    """The blocks, in order, in buckets."""
    result: list[list[tuple[RDMABuffer, Block, Any]]] = []
    size = 0
    for one in blocks:
        room = device_batches.room([one[1]])
        if not result or size + room > BUCKET:
            result.append([])
            size = 0
        result[-1].append(one)
        size += room
    return result


def _bucket(blocks: list[tuple[RDMABuffer, Block, Any]], host: Any, gather: Callable[[Any, Any], _Reading]) -> _Bucket:
    address = host.data_ptr()
    reads: dict[RDMABuffer, list[_Target]] = {}
    for (buffer, block, _), at in zip(blocks, device_batches.packed(block for _, block, _ in blocks), strict=True):
        dense = block._replace(here=address + at, steps_here=device_batches.dense(block))
        reads.setdefault(buffer, []).append((dense, None))
    return _Bucket(gather(list(reads.items()), host), [(None, block, flat) for _, block, flat in blocks], host)


def _pinned(size: int) -> Any:
    try:
        return interface().pinned(size)
    except Exception:  # the kernel lets no more memory be pinned: slower is better than not at all
        import torch

        return torch.empty(size, dtype=torch.uint8)


def _on_thread(bucket: _Bucket, after: Sequence[Any]) -> asyncio.Future[None]:
    """Puts it on a thread that may wait for a device."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        error = None
        try:
            bucket.put(after)
        except Exception as exc:
            error = exc
        try:
            loop.call_soon_threadsafe(settle, error)
        except RuntimeError:  # the loop is closed: this process is ending
            pass

    copying.later(work)
    return done
