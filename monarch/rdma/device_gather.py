"""The part of a Gather that has a device at one end or both.

`LentBuffers`: the owner's device is one that this process reaches (its own, or by device_ipc): it copies by itself, to the
host or to other devices. `ThroughPinned`: everything else that goes to a device of ours, through buckets of pinned memory:
one is filled while the one before is put into its places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from monarch._devices.memory import Card, interface
from monarch._errors import RDMAError, RDMATimeoutError
from monarch.rdma import copying, device_batches
from monarch.rdma.backends import device_ipc, same_process
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.layout import Block
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

ASKED = 64  # storages that an owner is asked for at a time
BUCKET = 64 << 20  # bytes on their way to a device together; there are two buckets

_Target = tuple[Block, Any]


class NotLentHereError(Exception):
    """An owner does not lend its storage after all: its buffers have to be reached by another path."""


class LentBuffers:
    """Blocks of buffers on devices that this process reaches, of one owner. Read within `open` and `close`."""

    def __init__(self, reads: list[tuple[RDMABuffer, list[_Target]]]) -> None:
        self._buffers = [buffer for buffer, _ in reads]
        self._flats: dict[int, tuple[Any, str]] = {}  # storages that are open, and where, by the number of the buffer
        self._lends: list[device_batches.Lend] = []
        self.batches: list[device_batches.DeviceBatch] = []
        # Scratch memory is of one device, so those to the host are kept apart by device.
        groups: dict[tuple[bool, Card | None], list[tuple[int, Block, Any]]] = {}
        for number, (buffer, targets) in enumerate(reads):
            place = buffer._handle.device
            assert place is not None
            for block, flat in targets:
                groups.setdefault((flat is None, place.card), []).append((number, block, flat))
        for (to_host, card), blocks in groups.items():
            device = "" if card is None else interface().find(card)
            handle = self._buffers[0]._handle
            self.batches += device_batches.batches(self._lends, blocks, to_host, handle, device)

    async def open(self, timeout: float) -> None:
        """Makes them readable. The owner is asked for each storage that is not open here. NotLentHereError, RDMAError."""
        import asyncio

        deadline = monotonic() + timeout
        for at in range(0, len(self._buffers), ASKED):
            asked = [self._lend(at + i, buffer, deadline) for i, buffer in enumerate(self._buffers[at : at + ASKED])]
            opened = await asyncio.gather(*asked, return_exceptions=True)
            failed = [one for one in opened if isinstance(one, BaseException)]
            if failed:
                raise next((one for one in failed if not isinstance(one, NotLentHereError)), failed[0])
            self._lends += [one for one in opened if not isinstance(one, BaseException)]

    def close(self) -> None:
        """Lets go of the storages, each on its device."""
        self._lends.clear()
        for device in {device for _, device in self._flats.values()}:
            with interface().on(device):
                for number in [number for number, (_, where) in self._flats.items() if where == device]:
                    del self._flats[number]

    async def _lend(self, number: int, buffer: RDMABuffer, deadline: float) -> device_batches.Lend:
        handle = buffer._handle
        backend = buffer._way()
        if not isinstance(backend, device_ipc.DeviceIpc):
            return lambda: same_process._lend(handle)
        nothing = LocalMemory(0, 0, True, None, "tensors")
        transfer = Transfer(handle, nothing, 0, handle.size, False, max(0.0, deadline - monotonic()))
        transfer.path = backend.name
        try:
            self._flats[number] = await backend.borrow(handle, transfer.left())
        except RDMAError as exc:
            raise transfer._told(exc) from exc
        except TimeoutError:
            raise transfer._told(transfer.timed_out()) from None
        except Exception as exc:
            raise NotLentHereError(str(exc)) from exc
        return lambda: device_ipc._lend(transfer, self._flats[number][0])


class _Reading(Protocol):
    """A reader of blocks into memory of the host, as BlockGather is."""

    async def read(self, timeout: float, after: Sequence[Any] = ()) -> None: ...


class _Bucket:
    """Blocks that go to one device together: `fill` reads them into memory of the host, `put` brings them to their places."""

    def __init__(self, fill: _Reading, parts: list[tuple[Any, Block, Any]], host: Any) -> None:
        self.fill = fill
        self._parts = parts
        self._host = host

    def put(self, after: Sequence[Any]) -> None:
        copies = device_batches.bucket(self._parts, self._host, to_device=True)
        interface().begin_all(copies, after)()


class ThroughPinned:
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
