"""One process's memory read and written by another, with nothing around it: process_vm_readv, process_vm_writev, memcpy.

The other process is a forked child that sleeps; both have touched their pages. Nothing looks whether the memory is
still meant to be read, and nothing looks at the clock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from _workload import Params, Samples, main, rates, times

LIBC = ctypes.CDLL(None, use_errno=True)


def filled(size: int, value: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Memory whose pages have been written to, and its address."""
    memory = ctypes.create_string_buffer(size)
    ctypes.memset(memory, value, size)
    return memory, ctypes.addressof(memory)


@contextmanager
def sleeping_child(size: int) -> Iterator[tuple[int, int]]:
    """The pid of a child and the address of memory of its own there."""
    _memory, address = filled(size, 1)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.memset(address, 2, size)  # copies every page
        os.write(told, b"x")
        signal.pause()
        os._exit(1)
    os.read(ready, 1)
    try:
        yield pid, address
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def copies(pid: int, theirs: int, size: int) -> dict[str, Callable[[], object]]:
    _ours, ours = filled(size, 3)
    _more, more = filled(size, 4)
    vectors = ctypes.create_string_buffer(struct.pack("=4Q", ours, size, theirs, size))
    local, remote = ctypes.c_void_p(ctypes.addressof(vectors)), ctypes.c_void_p(ctypes.addressof(vectors) + 16)
    keep = (_ours, _more, vectors)

    def check(done: int) -> None:
        if done != size:
            raise OSError(ctypes.get_errno(), f"{done} of {size} bytes", keep)

    return {
        "read": lambda: check(LIBC.process_vm_readv(pid, local, 1, remote, 1, 0)),
        "write": lambda: check(LIBC.process_vm_writev(pid, local, 1, remote, 1, 0)),
        "memcpy": lambda: ctypes.memmove(ours, more, size),
    }


def transfer(params: Params) -> Samples:
    """Durations of single copies."""
    with sleeping_child(params["size"]) as (pid, theirs):
        return {name: times(copy, params) for name, copy in copies(pid, theirs, params["size"]).items()}


def throughput(params: Params) -> Samples:
    """Bytes a second of single copies."""
    size = params["size"]
    with sleeping_child(size) as (pid, theirs):
        return {name: rates(copy, size, params) for name, copy in copies(pid, theirs, size).items()}


if __name__ == "__main__":
    main({f.__name__: f for f in (transfer, throughput)})
