"""The buffer is another process's on this host: process_vm_readv and process_vm_writev, one copy by the kernel.

The owner's Python code takes no part: it may be busy, hung or stopped. One call reads control word, data and control
word again, in this order (process_vm_readv(2) handles its vectors in array order), so what was read is what was
registered, or the transfer fails. A writer holds the buffer's lock (see `registry`) from before it looks at the control
word until it has written, which a drop waits for.

Whether this process may look into the owner, `owner_view` knows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading

from monarch._errors import RDMAError
from monarch._linux.procfs import start_of
from monarch.rdma import copying
from monarch.rdma.backends import owner_view
from monarch.rdma.backends.owner_view import view_of_owner, why_unreachable
from monarch.rdma.buffer_handle import BufferHandle, buffer_dropped, owner_ended
from monarch.rdma.transfer import Transfer

_VECTORS = struct.Struct("=12Q")  # three local struct iovec, three remote ones
_WORDS = struct.Struct("=2Q")


class _Vectors(threading.local):
    """Vectors and two words, a thread's own, so that a call allocates nothing."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_VECTORS.size + _WORDS.size)
        self.vectors = ctypes.addressof(self.memory)
        self.remote = self.vectors + _VECTORS.size // 2
        self.words = self.vectors + _VECTORS.size


_scratch = _Vectors()


class ProcessVm:
    """One-sided copies between processes of one host."""

    name = "process_vm"
    uses_network = False
    takes_devices = False

    def why_unavailable(self, handle: BufferHandle) -> str:
        if handle.device is not None:
            return "it is memory of a device, which the kernel cannot copy"
        return why_unreachable(handle)

    def start(self, transfer: Transfer) -> None:
        copying.run(transfer, write if transfer.write else read)


def read(transfer: Transfer, at: int, count: int) -> None:
    handle, scratch = transfer.handle, _scratch
    calls = owner_view.CALLS
    assert calls is not None
    word, words = handle.word, scratch.words
    _VECTORS.pack_into(
        scratch.memory, 0,
        words, 8, transfer.memory.address + at, count, words + 8, 8,
        word, 8, handle.address + transfer.offset + at, count, word, 8,
    )  # fmt: skip
    _WORDS.pack_into(scratch.memory, _VECTORS.size, 0, 0)
    call = calls.small_read if count <= copying.INLINE else calls.read
    done = call(handle.owner.pid, scratch.vectors, 3, scratch.remote, 3, 0)
    before, after = _WORDS.unpack_from(scratch.memory, _VECTORS.size)
    if done == count + 16 and before == after == handle.token:
        return
    if done < 0:
        raise failed(handle, ctypes.get_errno())
    if start_of(handle.owner.pid) != handle.owner.started:
        raise owner_ended(handle)
    if before != handle.token or (done == count + 16 and after != handle.token):
        raise buffer_dropped(handle)
    raise unmapped(handle)


def write(transfer: Transfer, at: int, count: int) -> None:
    handle, scratch = transfer.handle, _scratch
    calls = owner_view.CALLS
    assert calls is not None
    theirs = handle.address + transfer.offset + at
    _VECTORS.pack_into(
        scratch.memory, 0, transfer.memory.address + at, count, 0, 0, 0, 0, theirs, count, 0, 0, 0, 0
    )  # fmt: skip
    call = calls.small_write if count <= copying.INLINE else calls.write
    owner = view_of_owner(handle)
    owner.enter(handle)
    try:
        done = call(handle.owner.pid, scratch.vectors, 1, scratch.remote, 1, 0)
        if done < 0:
            raise failed(handle, ctypes.get_errno())
    finally:
        owner.leave(handle.slot)
    if done != count:
        raise unmapped(handle)


def failed(handle: BufferHandle, code: int) -> RDMAError:
    if code == errno.ESRCH or start_of(handle.owner.pid) != handle.owner.started:
        return owner_ended(handle)
    if code == errno.EFAULT:
        return unmapped(handle)
    return RDMAError(f"buffer {handle.number}: {os.strerror(code)}")


def unmapped(handle: BufferHandle) -> RDMAError:
    return RDMAError(
        f"buffer {handle.number}: memory of one side is gone or read-only although it is registered (a mapping that was "
        "closed, or a storage that was resized)"
    )
