"""The buffer is another process's on this host, in memory that `monarch.rdma.empty` allocated: it is mapped once, then
memmove.

Up to twice as fast as having the kernel copy (process_vm), which looks up every page each time. The mapping lives as
long as the RDMABuffer object. Every chunk is copied under the buffer's lock (see `registry`), so a drop waits for it.
"""

from __future__ import annotations

import mmap

from monarch._errors import BufferDroppedError
from monarch.rdma import copying, shared
from monarch.rdma.backends.owner_view import view_of_owner, why_unreachable
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import LocalMemory, memmove, memory_of
from monarch.rdma.transfer import Transfer


class MappedSegment:
    """Copies to and from shared memory."""

    name = "segment"
    uses_network = False
    takes_devices = False

    def why_unavailable(self, handle: BufferHandle) -> str:
        if handle.place is None:
            return "its memory was not allocated by monarch.rdma.empty"
        return why_unreachable(handle)

    def start(self, transfer: Transfer) -> None:
        try:
            if not transfer.late() and self.name not in transfer.kept:
                transfer.kept[self.name] = memory_of(shared.map_segment(transfer.handle, mmap.MAP_POPULATE))
        except Exception as exc:
            transfer.finish(exc)
            return
        mapped = transfer.kept.get(self.name)
        copying.run(transfer, lambda transfer, at, count: copy(mapped, transfer, at, count))


def copy(mapped: LocalMemory | None, transfer: Transfer, at: int, count: int) -> None:
    handle = transfer.handle
    owner = view_of_owner(handle)
    try:
        owner.enter(handle)
    except BufferDroppedError:
        transfer.kept.clear()
        raise
    try:
        assert mapped is not None and handle.place is not None  # a transfer that is late copies nothing
        theirs = mapped.address + handle.place.offset + transfer.offset + at
        ours = transfer.memory.address + at
        if transfer.write:
            memmove(theirs, ours, count)
        else:
            memmove(ours, theirs, count)
    finally:
        owner.leave(handle.slot)
