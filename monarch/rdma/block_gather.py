"""Many pieces of an owner's buffers, read together: what a list of transfers would do, at the cost of a few.

Within a process a thousand are copied at a time. Within a host, one process_vm_readv reads up to some thousand pieces
(iovec), the buffers' control words before and after them as for a single transfer. Over streams, one request asks for
hundreds of pieces, and what lies between two that are close together comes along. By RDMA devices and through actors, pieces
that lie within GAP of each other come as one transfer. What has a device at either end is in `device_gather`.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Awaitable, Iterable, Sequence
from time import monotonic
from typing import Any

from monarch._errors import RDMAError
from monarch._linux.procfs import start_of
from monarch.actor import Future, Promise
from monarch.rdma import copying
from monarch.rdma.action import RDMAAction
from monarch.rdma.backends import owner_view, process_vm
from monarch.rdma.backends.device_ipc import DeviceIpc
from monarch.rdma.backends.ibverbs.backend import Ibverbs
from monarch.rdma.backends.nixl.backend import Nixl
from monarch.rdma.backends.same_process import SameProcess
from monarch.rdma.backends.tcp import batched_reads
from monarch.rdma.backends.tcp.backend import TcpStreams
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.buffer_handle import BufferHandle, buffer_dropped, owner_ended
from monarch.rdma.device_batches import DeviceBatch
from monarch.rdma.device_gather import LentBuffers, NotLentHereError, ThroughPinned
from monarch.rdma.layout import Block
from monarch.rdma.local_memory import LocalMemory, memmove
from monarch.rdma.registry import registry
from monarch.rdma.shards import Piece, Span, joined, spans
from monarch.rdma.transfer import Transfer

VECTORS = 1024  # UIO_MAXIOV: what the kernel takes in one call
GAP = 1 << 16  # unwanted bytes that cost less than another message or transfer
PART_GAP = 1 << 12  # and less than another part of a request
PATHS = 3  # that are tried when an owner refuses one
SPAN = 64 << 20  # bytes read into spare memory at most, in one piece

Target = tuple[Block, Any]  # a block; the flat tensor on a device that it goes to, None for the host's memory
Read = tuple[RDMABuffer, Sequence[Target]]
_Placed = tuple[RDMABuffer, Span, int]


class BlockGather:
    """All blocks of all buffers of one owner, to be read as often as you like, one time after the other.

    `keep` keeps the local memory alive, of which blocks must not overlap. A block's `here` is an address, or counts from the
    start of its tensor on a device.
    """

    def __init__(self, reads: Sequence[Read], keep: Any) -> None:
        self._reads = reads
        self._keep = keep
        self._moving: list[Transfer] = []
        self._plan()

    def _plan(self) -> None:
        near: list[tuple[RDMABuffer, list[Piece]]] = []
        own: list[tuple[RDMABuffer, list[Piece]]] = []
        lent: list[tuple[RDMABuffer, list[Target]]] = []  # on devices that copy by themselves
        passing: list[tuple[RDMABuffer, Block, Any]] = []  # to devices, through the host
        self._spans: list[tuple[RDMABuffer, Span]] = []  # a transfer each
        self._parts: list[tuple[RDMABuffer, Span]] = []  # parts of requests to one owner
        for buffer, targets in self._reads:
            if not targets:
                continue
            backend = buffer._way()
            if buffer._handle.device is not None and backend.name in (SameProcess.name, DeviceIpc.name):
                lent.append((buffer, list(targets)))
                continue
            passing += [(buffer, block, flat) for block, flat in targets if flat is not None]
            pieces = joined(piece for block, flat in targets if flat is None for piece in block.pieces())
            if not pieces:
                continue
            if backend.name == process_vm.ProcessVm.name:
                near.append((buffer, pieces))
            elif backend.name == SameProcess.name:
                own.append((buffer, pieces))
            elif backend.name == TcpStreams.name and buffer._handle.device is None:
                self._parts += [(buffer, span) for span in spans(pieces, PART_GAP, SPAN)]
            else:
                gap = GAP if backend.uses_network or backend.name in (Ibverbs.name, Nixl.name) else 0
                self._spans += [(buffer, span) for span in spans(pieces, gap, SPAN)]
        self._batches: list[_Batch | _OwnBatch] = [*_batches(near), *_own_batches(own)]
        self._lent = LentBuffers(lent) if lent else None
        self._passing = ThroughPinned(passing, BlockGather) if passing else None
        # Where it is the same each time.
        self._planned: tuple[list[_Placed], list[batched_reads.GatherRequest]] | None = None

    async def read(self, timeout: float, after: Sequence[Any] = ()) -> None:
        """Done, or raising the first RDMAError, once nothing moves any more. On a thread with an event loop.

        Writes to devices come after `after`, marks of theirs.
        """
        deadline = monotonic() + timeout
        for left in reversed(range(PATHS)):
            try:
                await self._read(deadline, timeout, after)
                return
            except NotLentHereError as exc:  # from now on these buffers are reached by another path
                if not left:
                    raise RDMAError(f"memory of a device cannot be reached: {exc}") from exc
                self._plan()

    def part(self) -> float:
        """Returns the share that the last read has begun to move; 0.0 where not all of it goes in chunks."""
        moving, left = self._moving, len(self._spans) + bool(self._passing)
        sizes = [transfer.size for transfer in moving]
        done = sum(
            size * each.chunked.taken for size, each in zip(sizes, moving, strict=True) if each.chunked is not None
        )
        return 0.0 if left or not moving else done / max(1, sum(sizes))

    async def _read(self, deadline: float, timeout: float, after: Sequence[Any]) -> None:
        spare = _Spare()
        futures: list[Awaitable[None]] = []
        moving: list[Transfer] = []
        self._moving = moving
        try:
            if self._lent is not None:
                await self._lent.open(max(0.0, deadline - monotonic()))
                moving.append(lent := _Gathering(self._lent.batches, self._keep, timeout, after))
                futures.append(lent.begin())
            if self._batches:
                moving.append(near := _Gathering(self._batches, self._keep, timeout, after))
                futures.append(near.begin())
            streamed = self._streamed(spare, timeout) if self._parts else None
            if streamed is not None:
                moving.append(streamed.transfer)
                futures.append(streamed.begin())
            if self._spans:
                futures.append(_transfers(spare.placed(self._spans)).submit(timeout=timeout))
            error = await _first_error(futures)
        finally:
            if self._lent is not None:
                self._lent.close()
        if error is None and self._passing is not None:
            error = await _first_error([self._passing.read(max(0.0, deadline - monotonic()), after)])
        if error is None and streamed is not None and streamed.to_be_moved:
            left = max(0.0, deadline - monotonic())
            error = await _first_error([_transfers(streamed.to_be_moved).submit(timeout=left)])
        if error is not None:
            raise error
        spare.spread()

    def _streamed(self, spare: _Spare, timeout: float) -> _Streamed:
        placed, batches = self._planned or ([], [])
        if not batches:
            placed = spare.placed(self._parts)
            batches = batched_reads.batches(
                [
                    batched_reads.ReadPart(buffer._handle, span.offset, address, span.size)
                    for buffer, span, address in placed
                ]
            )
            if not spare.used:
                self._planned = placed, batches
        return _Streamed(placed, batches, (self._keep, spare), timeout)


async def _first_error(futures: Sequence[Awaitable[None]]) -> RDMAError | None:
    """Waits for all of them, and returns the first error."""
    error: RDMAError | None = None
    for future in futures:
        try:
            await future
        except RDMAError as exc:
            error = error or exc
    return error


class _Streamed:
    """Parts on their way over streams. `to_be_moved`: what has to go another way, once it has ended."""

    def __init__(
        self, placed: list[_Placed], batches: list[batched_reads.GatherRequest], keep: Any, timeout: float
    ) -> None:
        self.to_be_moved: list[_Placed] = []
        self._placed = placed
        self._promise: Promise[None] = Promise()
        self.transfer = batched_reads.StreamedGather(batches, keep, timeout, self._reroute)
        self.transfer.ended = self._promise.settle

    def begin(self) -> Future[None]:
        self.transfer.begin()
        return self._promise.future

    def _reroute(self) -> None:
        self.to_be_moved = self._placed
        self._promise.set(None)


class _Spare:
    """Memory for spans that hold more than one piece, from where these are put into their places."""

    def __init__(self) -> None:
        self._held: list[tuple[Span, bytearray]] = []

    @property
    def used(self) -> bool:
        return bool(self._held)

    def placed(self, reads: Sequence[tuple[RDMABuffer, Span]]) -> list[_Placed]:
        """Returns the spans, each with the address that it is to be read to."""
        return [(buffer, span, self._place(span)) for buffer, span in reads]

    def _place(self, span: Span) -> int:
        if len(span.pieces) == 1:
            return span.pieces[0][1]
        self._held.append((span, bytearray(span.size)))
        return _address(self._held[-1][1])

    def spread(self) -> None:
        for span, memory in self._held:
            address = _address(memory) - span.offset
            for offset, target, size in span.pieces:
                memmove(target, address + offset, size)


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _transfers(placed: list[_Placed]) -> RDMAAction:
    action = RDMAAction()
    for buffer, span, address in placed:
        target = (ctypes.c_char * span.size).from_address(address)
        action.read_remote(target, buffer, offset=span.offset, size=span.size)
    return action


class _Batch:
    """One call: some pieces of some buffers."""

    path = process_vm.ProcessVm.name
    __slots__ = ("handles", "local", "pieces", "remote", "total", "wanted", "words")
    local: ctypes.Array[Any]
    remote: ctypes.Array[Any]
    words: ctypes.Array[ctypes.c_char]
    wanted: bytes

    def __init__(self) -> None:
        self.handles: list[BufferHandle] = []
        self.pieces: list[tuple[int, int, int]] = []  # their address, ours, size
        self.total = 0

    def full(self, handle: BufferHandle) -> bool:
        """True if there is no room for a piece of that buffer."""
        if self.handles and self.handles[0].owner != handle.owner:
            return True
        return len(self.pieces) + 2 * len(self.handles) + 3 > VECTORS or self.total >= copying.CHUNK

    def add(self, handle: BufferHandle, piece: Piece) -> int:
        """Adds a piece, and returns how many bytes of it there was room for."""
        if not self.handles or self.handles[-1] is not handle:
            self.handles.append(handle)
        offset, address, size = piece
        size = min(size, copying.CHUNK - self.total)
        self.pieces.append((handle.address + offset, address, size))
        self.total += size
        return size

    def pack(self) -> None:
        """Makes the vectors. The control words go to memory of the batch's own, so one call at a time."""
        count = len(self.handles)
        self.words = ctypes.create_string_buffer(16 * count)
        at = ctypes.addressof(self.words)
        control = [(handle.word, 8) for handle in self.handles]
        data = _joined((our, size) for _, our, size in self.pieces)
        self.local = _vectors([(at, 8 * count), *data, (at + 8 * count, 8 * count)])
        self.remote = _vectors([*control, *((their, size) for their, _, size in self.pieces), *control])
        self.wanted = struct.pack(f"={count}Q", *(handle.token for handle in self.handles)) * 2

    @property
    def handle(self) -> BufferHandle:
        return self.handles[0]

    def read(self, after: Sequence[Any]) -> None:
        assert owner_view.CALLS is not None
        done = owner_view.CALLS.read(
            self.handles[0].owner.pid,
            ctypes.addressof(self.local), len(self.local) // 16, ctypes.addressof(self.remote), len(self.remote) // 16, 0,
        )  # fmt: skip
        if done != self.total + len(self.wanted) or self.words.raw != self.wanted:
            seen = struct.unpack(f"={2 * len(self.handles)}Q", self.words.raw)
            raise self._why(done, ctypes.get_errno(), seen)

    def _why(self, done: int, code: int, seen: tuple[int, ...]) -> RDMAError:
        count = len(self.handles)
        if done < 0:
            return process_vm.failed(self.handles[0], code)
        if start_of(self.handles[0].owner.pid) != self.handles[0].owner.started:
            return owner_ended(self.handles[0])
        complete = done == self.total + 16 * count
        for number, handle in enumerate(self.handles):
            if seen[number] != handle.token or (complete and seen[count + number] != handle.token):
                return buffer_dropped(handle)
        left = done - 8 * count
        for their, _, size in self.pieces:
            left -= size
            if left < 0:
                inside = (h for h in self.handles if h.address <= their < h.address + h.size)
                return process_vm.unmapped(next(inside, self.handles[0]))
        return process_vm.unmapped(self.handles[-1])


def _joined(vectors: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours made one: the kernel is told fewer."""
    result: list[tuple[int, int]] = []
    for address, size in vectors:
        if result and sum(result[-1]) == address:
            result[-1] = (result[-1][0], result[-1][1] + size)
        else:
            result.append((address, size))
    return result


def _vectors(vectors: list[tuple[int, int]]) -> ctypes.Array[Any]:
    flat = itertools.chain.from_iterable(vectors)
    return ctypes.create_string_buffer(struct.pack(f"={2 * len(vectors)}Q", *flat), 16 * len(vectors))


class _OwnBatch:
    """Pieces of a buffer of this process."""

    path = SameProcess.name
    __slots__ = ("handle", "pieces", "total")

    def __init__(self, handle: BufferHandle) -> None:
        self.handle = handle
        self.pieces: list[Piece] = []
        self.total = 0

    def read(self, after: Sequence[Any]) -> None:
        with registry().using(self.handle.number, self.handle.token) as region:
            for offset, address, size in self.pieces:
                memmove(address, region.memory.address + offset, size)


def _own_batches(reads: Sequence[tuple[RDMABuffer, list[Piece]]]) -> list[_OwnBatch]:
    """Returns batches of at most VECTORS pieces and copying.CHUNK bytes each."""
    result: list[_OwnBatch] = []
    for buffer, pieces in reads:
        batch = _OwnBatch(buffer._handle)
        for offset, address, size in pieces:
            for at in range(0, size, copying.CHUNK):
                count = min(copying.CHUNK, size - at)
                if batch.total + count > copying.CHUNK or len(batch.pieces) == VECTORS:
                    result.append(batch)
                    batch = _OwnBatch(buffer._handle)
                batch.pieces.append((offset + at, address + at, count))
                batch.total += count
        result.append(batch)
    return result


class _Gathering(Transfer):
    """Batches as the chunks of one transfer, so that the threads of `copying` take them; its size counts those."""

    __slots__ = ("_batches", "_marks")

    def __init__(
        self, batches: Sequence[_Batch | _OwnBatch | DeviceBatch], keep: Any, timeout: float, marks: Sequence[Any]
    ) -> None:
        first = batches[0]
        small = len(batches) == 1 and not isinstance(first, DeviceBatch) and first.total <= copying.INLINE
        size = first.total if small else len(batches) * copying.CHUNK
        super().__init__(first.handle, LocalMemory(0, 0, True, keep, "tensors"), 0, size, False, timeout)
        self.path = first.path
        self._batches = batches
        self._marks = marks

    def begin(self) -> Future[None]:
        promise: Promise[None] = Promise()
        self.ended = promise.settle
        copying.run(self, _copy)
        return promise.future

    def __str__(self) -> str:
        total = sum(batch.total for batch in self._batches)
        return f"read of {total} bytes, in pieces, from buffer {self.handle.number} and others"


def _copy(transfer: Transfer, at: int, count: int) -> None:
    assert isinstance(transfer, _Gathering)
    transfer._batches[at // copying.CHUNK].read(transfer._marks)


def _batches(reads: Sequence[tuple[RDMABuffer, list[Piece]]]) -> list[_Batch]:
    """Returns batches of one owner each."""
    result: list[_Batch] = []
    for buffer, pieces in reads:
        handle = buffer._handle
        for piece in pieces:
            left = piece
            while left[2]:
                if not result or result[-1].full(handle):
                    result.append(_Batch())
                took = result[-1].add(handle, left)
                left = (left[0] + took, left[1] + took, left[2] - took)
    for batch in result:
        batch.pack()
    return result
