"""Memory that is shared from the start: `empty` allocates it, `RDMABuffer.map` shows it to other processes of the host
uncopied.

A segment is an anonymous file (memfd), mapped by all that use it and freed by the kernel when the last one has unmapped
it. Its size is sealed, so nobody who maps it can make another's access fail. It is found from a buffer's handle
through /proc, which asks for the same permission as process_vm_readv.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import math
import mmap
import operator
import os
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch._devices.modes import locally
from monarch._errors import RDMAError, RDMAUnavailableError
from monarch._linux import procfs
from monarch._linux.locks import Lock
from monarch.rdma.backends.owner_view import view_of_owner, why_unreachable
from monarch.rdma.buffer_handle import BufferHandle, SegmentLocation, owner_ended
from monarch.rdma.local_memory import LocalMemory

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Segment(NamedTuple):
    """Memory of a segment: where it is, and its descriptor."""

    start: int
    size: int
    file: int

    @property
    def end(self) -> int:
        return self.start + self.size


class _Segments:
    """The segments of this process that are alive, by address. Any thread.

    Python unmaps a segment before its finalizer is called, so another may be at its address by then. The finalizer may come
    in the middle of anything: it takes no lock, and leaves word for who looks next.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._starts: list[int] = []
        self._known: dict[int, _Segment] = {}  # by start
        self._gone: deque[_Segment] = deque()

    def make(self, size: int) -> mmap.mmap:
        room = procfs.memory()[1] or sys.maxsize
        if size > room:  # pages come at the first touch: what does not fit would end in the kernel's killing somebody
            raise MemoryError(f"{size} bytes of shared memory were asked for, the machine has {room} available")
        file = os.memfd_create("monarch-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
        self.add(memory, file)
        return memory

    def add(self, memory: Any, file: int) -> None:
        """Takes the descriptor, and closes it when the memory is no more."""
        view = ctypes.c_char.from_buffer(memory)
        segment = _Segment(ctypes.addressof(view), len(memory), file)
        with self._lock:
            self._forget()
            # Those that were where it is now are no more, though nobody has said so yet.
            while (last := self._last_before(segment.end)) is not None and last.end > segment.start:
                self._remove(last)
            bisect.insort(self._starts, segment.start)
            self._known[segment.start] = segment
        weakref.finalize(memory, self._ended, segment)

    def forked(self) -> None:
        """In a child made by `os.fork`, where a thread that had the lock is no more."""
        self._lock = Lock()

    def _ended(self, segment: _Segment) -> None:
        os.close(segment.file)
        self._gone.append(segment)

    def _forget(self) -> None:
        """Under the lock."""
        while self._gone:
            segment = self._gone.popleft()
            if self._known.get(segment.start) is segment:
                self._remove(segment)

    def _remove(self, segment: _Segment) -> None:
        del self._known[segment.start]
        self._starts.remove(segment.start)

    def _last_before(self, address: int) -> _Segment | None:
        index = bisect.bisect_left(self._starts, address)
        return self._known[self._starts[index - 1]] if index else None

    def find(self, memory: LocalMemory) -> tuple[int, int] | None:
        """Descriptor and offset of memory that lies in a segment."""
        with self._lock:
            self._forget()
            segment = self._last_before(memory.address + 1)
        if segment is None or memory.address + memory.size > segment.end:
            return None
        return segment.file, memory.address - segment.start

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._known)


_segments = _Segments()
os.register_at_fork(after_in_child=_segments.forked)


def empty(shape: int | Sequence[int], dtype: Any = None) -> Any:
    """Zeroed memory of this process that `RDMABuffer(...).map()` gives other processes of the host with no copy.

    With a torch dtype a CPU tensor of that shape; without one a memoryview of bytes of that shape. Whole, or in
    contiguous parts, it can be registered like any other memory. It is freed when neither it, nor a view of it, nor a
    buffer, nor a mapping in any process is left. Each call is a file of its own with at least a page: allocate much at
    once and slice it.

    ValueError for a negative size, MemoryError for more than the machine has available.
    """
    sizes = (operator.index(shape),) if not isinstance(shape, Sequence) else tuple(map(operator.index, shape))
    if any(size < 0 for size in sizes):
        raise ValueError(f"invalid shape {sizes}: sizes must be 0 or more")
    wide = 1 if dtype is None else _item_size(dtype)
    size = math.prod(sizes) * wide
    memory = memoryview(_segments.make(max(1, size)))[:size]
    return _shown(memory, "" if dtype is None else str(dtype).removeprefix("torch."), sizes)


def _item_size(dtype: Any) -> int:
    try:
        return int(dtype.itemsize)
    except AttributeError:
        raise TypeError(f"invalid dtype {dtype!r}: expected a torch.dtype, or None for bytes") from None


@locally
def _shown(memory: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    if not dtype:
        return memory if len(shape) == 1 or not memory.nbytes else memory.cast("B", shape)
    import torch

    kind = getattr(torch, dtype)
    if not memory.nbytes:
        return torch.empty(shape, dtype=kind, device="cpu")  # whatever torch.set_default_device says
    return torch.frombuffer(memory, dtype=torch.uint8).view(kind).reshape(shape)


def place_of(memory: LocalMemory) -> SegmentLocation | None:
    """Returns where registered memory can be mapped from; None for memory that is in no segment."""
    found = _segments.find(memory)
    return None if found is None else SegmentLocation(*found, memory.dtype, memory.shape)


def map_buffer(handle: BufferHandle) -> Any:
    """Maps the memory of a buffer on this host into this process: see `RDMABuffer.map`."""
    place = handle.place
    if place is None:
        raise RDMAError(f"{handle} cannot be mapped: its memory was not allocated by monarch.rdma.empty(...)")
    obstacle = why_unreachable(handle)
    if obstacle:
        raise RDMAUnavailableError(f"{handle} cannot be mapped: {obstacle}")
    whole = memoryview(map_segment(handle))
    return _shown(whole[place.offset : place.offset + handle.size], place.dtype, place.shape)


def map_segment(handle: BufferHandle, flags: int = 0) -> mmap.mmap:
    """The whole segment that a reachable buffer stands in. Raises BufferDroppedError, OwnerEndedError,
    RDMAUnavailableError.
    """
    owner, place = view_of_owner(handle), handle.place
    assert place is not None
    owner.enter(handle)  # while we are in, the buffer is registered, so the descriptor is what the handle says
    try:
        mode = os.O_RDWR if handle.writable else os.O_RDONLY
        file = os.open(f"/proc/{handle.owner.pid}/fd/{place.file}", mode | os.O_CLOEXEC)
    except FileNotFoundError:
        raise owner_ended(handle) from None
    except OSError as exc:
        raise RDMAUnavailableError(f"{handle} cannot be mapped: {exc.strerror}") from exc
    finally:
        owner.leave(handle.slot)
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if handle.writable else 0)
        return mmap.mmap(file, os.fstat(file).st_size, mmap.MAP_SHARED | flags, protection)
    finally:
        os.close(file)
