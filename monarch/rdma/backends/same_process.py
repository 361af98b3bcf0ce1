"""The buffer is this process's own: memmove, without the interpreter lock; a device copies its memory itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from monarch.rdma import copying, device_copies
from monarch.rdma.buffer_handle import BufferHandle, this_host
from monarch.rdma.local_memory import LocalMemory, memmove
from monarch.rdma.registry import registry
from monarch.rdma.transfer import Transfer


class SameProcess:
    """Copies within the process. A chunk whose buffer is dropped meanwhile is finished before the memory is released."""

    name = "local"
    uses_network = False
    takes_devices = True

    def why_unavailable(self, handle: BufferHandle) -> str:
        owner = handle.owner
        if owner.pid != os.getpid() or owner.host != this_host():
            return "the buffer belongs to another process"
        return ""

    def start(self, transfer: Transfer) -> None:
        if transfer.memory.device is None and transfer.handle.device is None:
            copying.run(transfer, copy)
        else:
            device_copies.run(transfer, lambda: _lend(transfer.handle))


def copy(transfer: Transfer, at: int, count: int) -> None:
    handle = transfer.handle
    with registry().using(handle.number, handle.token) as region:
        theirs = region.memory.address + transfer.offset + at
        ours = transfer.memory.address + at
        if transfer.write:
            memmove(theirs, ours, count)
        else:
            memmove(ours, theirs, count)


@contextmanager
def _lend(handle: BufferHandle) -> Iterator[LocalMemory]:
    with registry().using(handle.number, handle.token) as region:
        yield region.memory
