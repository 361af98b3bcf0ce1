"""RDMABuffer: memory of one process that others read and write."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from monarch._devices.memory import interface
from monarch._errors import RDMAError, RDMAMemoryError, RDMAReadOnlyError, RDMASizeError, RDMAUnavailableError
from monarch.actor import Future, Promise
from monarch.rdma import manager, paths, rerouting, shared
from monarch.rdma.backends import Backend
from monarch.rdma.backends import through_actors as dropping
from monarch.rdma.backends.owner_view import let_peers_read
from monarch.rdma.backends.tcp import stream_server
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.lending import lending
from monarch.rdma.local_memory import LocalMemory, memory_of
from monarch.rdma.registry import registry
from monarch.rdma.transfer import Transfer, check_timeout

TIMEOUT = 60


class RDMABuffer:
    """A handle to memory that this process registers, for itself and all that get the handle (it can be sent anywhere).

    `data` is a tensor (on the CPU or a device), a numpy array, or anything with the buffer protocol, of any dtype and
    shape, contiguous in C order. Sizes and offsets are in bytes. Read-only memory is fine as the source of reads.

    **Lifetime.** The process that constructs it owns it, and keeps the storage behind `data` alive until somebody calls
    `drop()` or the process ends; that the RDMABuffer objects are forgotten changes nothing. After a drop transfers
    raise BufferDroppedError, though the tensor lives on.

    **Races.** Nothing locks the bytes themselves: a transfer that overlaps another one, or the program's own writes,
    may see or leave a mixture. Two transfers have no order unless one was waited for before the other began. What a
    drop promises: a read that succeeds has read nothing but registered memory; once a drop's Future is done no transfer
    writes into the memory any more.

    **Devices.** Constructing waits for what this thread has given the tensor's device to do. Later work on the tensor has to
    be waited for (torch.cuda.synchronize()) before another process is told that it may read or write. A transfer comes
    after what the thread that begins it has given the device of its own tensor to do, and is seen by every stream
    once its Future is done.

    Raises, in this process at once: RDMAUnavailableError ("RDMA is not available") when settings allow no way to other
    hosts, RDMAMemoryError for what is not memory.
    """

    __slots__ = ("_backend", "_handle", "_kept")

    def __init__(self, data: Any) -> None:
        if paths.get_rdma_backend() == "none":
            raise RDMAUnavailableError(
                "RDMA is not available: this machine has no usable device and the TCP fallback is off. Call "
                "monarch.configure(rdma_allow_tcp_fallback=True) to allow it"
            )
        memory = memory_of(data)
        if not memory.size:
            raise RDMAMemoryError("Cannot create RDMABuffer with size 0.")
        service = manager.service()
        let_peers_read()
        stream_server.listen()
        mine = registry()
        place = let_go = None
        if memory.device is not None:
            paths.warn_of_allocator(stacklevel=3)
            interface().settle(memory.keep)
            place, let_go = lending.place(memory)
        try:
            region = mine.register(memory, let_go)
        except BaseException:
            if let_go is not None:
                let_go()
            raise
        manager.tell_borrowers()
        self._backend: Backend | None = None
        self._kept: dict[str, Any] = {}
        self._handle = BufferHandle(
            mine.owner,
            region.number,
            region.token,
            region.slot,
            region.word,
            memory.address,
            memory.size,
            memory.writable,
            service,
            shared.place_of(memory),
            place,
        )

    def size(self) -> int:
        """Returns the number of bytes registered."""
        return self._handle.size

    @property
    def backend(self) -> str:
        """`get_rdma_backend()` of the process that asks, not of the owner's."""
        return paths.get_rdma_backend()

    @property
    def path(self) -> str:
        """The path of a transfer that begins in this process now: "local", "device_ipc", "segment", "process_vm",
        "tcp", "actor" and more: see docs/rdma.md.

        RDMAUnavailableError when there is no way.
        """
        return self._way().name

    @property
    def owner(self) -> str:
        """The owning process and its service, for people and for comparison; the text means nothing else."""
        owner = self._handle.owner
        return f"rdma_manager@{owner.name}/{owner.pid}.{owner.started}"

    def read_into(
        self, dst: Any, *, offset: int = 0, size: int | None = None, timeout: float = TIMEOUT
    ) -> Future[None]:
        """Copies the buffer into the leading bytes of local memory `dst`; what lies behind is untouched.

        `offset` and `size` choose a part of the buffer; without them it is all of it. The transfer begins now and goes on
        whether or not anybody waits, `dst` being kept alive; up to 64 KiB from this host it is done when this returns.
        The Future gives None or raises the RDMAError that ended it, RDMATimeoutError after `timeout` seconds (an int or
        a float).

        Raises at once: RDMASizeError when `dst` is too small or the part is not in the buffer, RDMAReadOnlyError,
        RDMAMemoryError, and for the timeout TypeError, OverflowError, ValueError.
        """
        timeout = check_timeout(timeout)
        return self._one(self._reading(memory_of(dst), offset, size, timeout))

    def write_from(
        self, src: Any, *, offset: int = 0, size: int | None = None, timeout: float = TIMEOUT
    ) -> Future[None]:
        """Copies local memory `src` into the buffer from byte `offset` on; what lies around is untouched.

        `size` takes only the leading bytes of `src`. Do not change `src` before the Future is done. All else is as for
        `read_into`. Autograd is not told that a tensor was written to.
        """
        timeout = check_timeout(timeout)
        return self._one(self._writing(memory_of(src), offset, size, timeout))

    def map(self) -> Any:
        """The memory itself, in this process, with no copy: for buffers of memory that `monarch.rdma.empty` allocated.

        A tensor of the dtype and shape that was registered, a memoryview for what was no tensor. Every process that
        maps it sees what any of them writes, at once and without order: agree by messages on who writes when. Needs the
        owner's host. The memory lives as long as anything that maps it, whatever becomes of buffer and owner.

        Raises at once: RDMAError for other memory, RDMAUnavailableError from where it cannot be mapped,
        BufferDroppedError, OwnerEndedError.
        """
        return shared.map_buffer(self._handle)

    def drop(self) -> Future[None]:
        """Has the owner forget the buffer and release its memory; any process that has the handle may ask for it, more than
        once.

        It begins now, whether or not anybody waits. No transfer that begins after the Future is done succeeds; one
        under way fails or is finished. The Future waits for writes under way (of a chunk, milliseconds; of a process
        that is stopped by SIGSTOP while it writes, until it goes on, or is killed after `suspect_timeout`), then the
        memory is the program's alone. An owner that has ended has dropped everything.
        """
        handle = self._handle
        self._kept.clear()
        promise: Promise[None] = Promise()
        if paths.LOCAL.why_unavailable(handle) == "" and registry().drop(handle.number, handle.token):
            manager.tell_borrowers()
            promise.set(None)
            return promise.future
        manager.start(lambda: _drop(handle, promise))
        return promise.future

    # --- for RDMAAction as well

    def _reading(self, memory: LocalMemory, offset: int, size: int | None, timeout: float) -> Transfer:
        handle = self._handle
        offset, size = _part(handle, offset, size)
        if not memory.writable:
            raise RDMAReadOnlyError(f"the destination ({memory.shown}) is read-only; use a bytearray or a tensor")
        if memory.size < size:
            raise RDMASizeError(f"destination local memory size ({memory.size}) must be >= remote buffer size ({size})")
        return Transfer(handle, memory, offset, size, False, timeout)

    def _writing(self, memory: LocalMemory, offset: int, size: int | None, timeout: float) -> Transfer:
        handle = self._handle
        if not handle.writable:
            raise RDMAReadOnlyError(f"{handle} is of read-only memory; its owner has to register writable memory")
        offset, room = _part(handle, offset, None)
        size = memory.size if size is None else operator.index(size)
        if not 0 <= size <= memory.size:
            raise RDMASizeError(f"source local memory size ({memory.size}) must be >= the size to write ({size})")
        if size > room:
            raise RDMASizeError(f"source local memory size ({size}) must be <= remote buffer size ({room})")
        return Transfer(handle, memory, offset, size, True, timeout)

    def _begin(self, transfer: Transfer) -> None:
        try:
            backend = self._way()
            transfer.path, transfer.kept = backend.name, self._kept
            if backend.uses_network:
                paths.warn_once(self._handle, backend, stacklevel=5)
            rerouting.begin(backend, transfer)
        except Exception as exc:  # the failure belongs to the code that waits for this transfer
            transfer.finish(exc)

    def _one(self, transfer: Transfer) -> Future[None]:
        promise: Promise[None] = Promise()
        transfer.ended = promise.settle
        self._begin(transfer)
        return promise.future

    def _way(self) -> Backend:
        backend = self._backend
        if backend is None:
            backend = paths.choose(self._handle)
            if not backend.uses_network and self._handle.device is None:  # others may have to change
                self._backend = backend
        return backend

    def __reduce__(self) -> tuple[Callable[..., RDMABuffer], tuple[Any, ...]]:
        return _restore, tuple(self._handle)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RDMABuffer):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Owner, int, int]:
        return self._handle.owner, self._handle.number, self._handle.token

    def __repr__(self) -> str:
        return f"<RDMABuffer {self._handle}>"


def _restore(*fields: Any) -> RDMABuffer:
    buffer = RDMABuffer.__new__(RDMABuffer)
    buffer._backend = None
    buffer._kept = {}
    buffer._handle = BufferHandle(*fields)
    return buffer


def _part(handle: BufferHandle, offset: int, size: int | None) -> tuple[int, int]:
    """Offset and size of a part of the buffer, checked; without a size, all from the offset on."""
    offset = operator.index(offset)
    size = handle.size - offset if size is None else operator.index(size)
    if offset < 0 or size < 0 or offset + size > handle.size:
        raise RDMASizeError(
            f"bytes {offset} to {offset + size} do not lie in the {handle.size} of buffer {handle.number}"
        )
    return offset, size


async def _drop(handle: BufferHandle, promise: Promise[None]) -> None:
    try:
        await dropping.drop(handle)
    except BaseException as exc:
        error = RDMAError(f"Failed to drop buffer: {handle}: {exc}")
        error.__cause__ = exc
        promise.fail(error)
    else:
        promise.set(None)
