"""Many tensors of one process read by another with nothing around it: process_vm_readv with a thousand vectors a call, and
memcpy. One thread; nothing looks whether the memory is still meant to be read, nor whether it changes meanwhile.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterable

from _workload import Params, Samples, main, rates, times
from rdma_floor import LIBC, filled, sleeping_child

VECTORS = 1024
Piece = tuple[int, int, int]  # their address, ours, bytes


def reading(pid: int, pieces: Iterable[Piece]) -> Callable[[], None]:
    calls = []
    pieces = iter(pieces)
    while some := list(itertools.islice(pieces, VECTORS)):
        ours = struct.pack(f"={2 * len(some)}Q", *(x for _, our, size in some for x in (our, size)))
        theirs = struct.pack(f"={2 * len(some)}Q", *(x for their, _, size in some for x in (their, size)))
        local, remote = ctypes.create_string_buffer(ours), ctypes.create_string_buffer(theirs)
        calls.append((local, remote, len(some), sum(size for _, _, size in some)))

    def read() -> None:
        for local, remote, count, size in calls:
            done = LIBC.process_vm_readv(pid, local, count, remote, count, 0)
            if done != size:
                raise OSError(ctypes.get_errno(), f"{done} of {size} bytes")

    return read


def copying(pieces: list[Piece]) -> Callable[[], None]:
    def copy() -> None:
        for source, target, size in pieces:
            ctypes.memmove(target, source, size)

    return copy


LIBC.process_vm_readv.restype = ctypes.c_ssize_t


def whole(params: Params) -> Samples:
    """Bytes a second of `tensors` of `size` bytes each."""
    size, tensors = params["size"], params["tensors"]
    total = size * tensors
    _memory, ours = filled(total, 3)
    with sleeping_child(total) as (pid, theirs):
        read = reading(pid, ((theirs + i * size, ours + i * size, size) for i in range(tensors)))
        samples = {"reader": rates(read, total, params), "read_into": rates(read, total, params)}
    _other, source = filled(total, 4)
    copy = copying([(source + i * size, ours + i * size, size) for i in range(tensors)])
    return samples | {"memcpy": rates(copy, total, params)}


def many(params: Params) -> Samples:
    """Durations of reads of `tensors` of `size` bytes each, with a gap of a page between them."""
    size, tensors = params["size"], params["tensors"]
    step = size + 4096
    _memory, ours = filled(step * tensors, 3)
    with sleeping_child(step * tensors) as (pid, theirs):
        read = reading(pid, ((theirs + i * step, ours + i * step, size) for i in range(tensors)))
        samples = {"reader": times(read, params), "read_into": times(read, params)}
    _other, source = filled(step * tensors, 4)
    copy = copying([(source + i * step, ours + i * step, size) for i in range(tensors)])
    return samples | {"memcpy": times(copy, params)}


def columns(params: Params) -> Samples:
    """Durations of reads of the first `columns` of a square of `side` float32."""
    side, wide = params["side"], params["columns"] * 4
    _memory, ours = filled(side * wide, 3)
    with sleeping_child(side * side * 4) as (pid, theirs):
        read = reading(pid, ((theirs + i * side * 4, ours + i * wide, wide) for i in range(side)))
        _all, target = filled(side * side * 4, 3)
        everything = reading(pid, [(theirs, target, side * side * 4)])
        return {
            "reader": times(read, params),
            "read_into": times(read, params),
            "everything": times(everything, params),
        }


if __name__ == "__main__":
    main({f.__name__: f for f in (whole, many, columns)})
