"""Large copies. Fresh pages cost several times what the copy does, those of 4 KiB most.

`Copies`: what a sender keeps of memory that others may change meanwhile, in memory that is used again. Every view of a copy
hangs on one object; when that dies, the memory is free for the next copy of about its size. Free memory that nothing took
for `idle` seconds is given back.
"""

from __future__ import annotations

import mmap
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Protocol

from monarch._wire.frame import Buffer, mapped

LEAST = 1 << 20  # bytes; smaller copies are made anew
_GRAIN = 2 << 20  # sizes are multiples of this
_LARGE_BYTES = 32 << 20  # bytes; below, the allocator has memory that it used before
_STEP = 1 << 20  # bytes copied at a time; between two of them other threads get their turn


class Clock(Protocol):
    def now(self) -> float: ...
    def call_soon(self, fn: Callable[[], Any]) -> None: ...
    def call_later(self, delay: float, fn: Callable[[], Any]) -> Any: ...


class Copies:
    """Any thread. Bound: `limit` bytes are kept free; a copy itself is as large as it is."""

    def __init__(self, limit: int, idle: float, clock: Clock) -> None:
        self._limit = limit
        self._idle = idle
        self._clock = clock
        # Appended to and taken from by deaths of objects, so on any thread at any point of the program: no lock here.
        self._free: deque[mmap.mmap] = deque()
        self._used = 0.0
        self._watching = False

    def __repr__(self) -> str:
        return f"<Copies ({self.free} of {self._limit} bytes are free to be used)>"

    @property
    def free(self) -> int:
        return sum(len(memory) for memory in list(self._free))

    def of(self, piece: Buffer) -> Buffer:
        """A copy of `piece`, or `piece` itself where it is `bytes`."""
        if type(piece) is bytes:
            return piece
        source = memoryview(piece).cast("B")
        if source.nbytes < LEAST:
            return bytes(source)
        memory = self._take(source.nbytes)
        whole = _array(len(memory)).from_buffer(memory)
        weakref.finalize(whole, self._ended, memory).atexit = False
        view = pickle.PickleBuffer(whole).raw()[: source.nbytes]  # ctypes' own format is not that of bytes
        _copy(view, source)
        return view

    def _take(self, size: int) -> mmap.mmap:
        self._used = self._clock.now()
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # others take as well
                break
            if size <= len(memory) <= 2 * size + _GRAIN:
                return memory
            self._free.append(memory)
        return mapped(-(-size // _GRAIN) * _GRAIN)

    def _ended(self, memory: mmap.mmap) -> None:
        """Nothing refers to the copy any more."""
        if self.free + len(memory) > self._limit:
            return
        self._free.append(memory)
        if not self._watching:
            self._watching = True
            self._clock.call_soon(self._look)

    def _look(self) -> None:
        """Runs on the loop."""
        left = self._used + self._idle - self._clock.now()
        if left > 0:
            self._clock.call_later(left, self._look)
            return
        self._watching = False
        self._free.clear()


def as_bytes(data: Buffer) -> bytes:
    """`bytes(data)`, with large pages where the kernel has some."""
    source = memoryview(data).cast("B")
    if source.nbytes < _LARGE_BYTES:
        return bytes(source)
    new, at, view, advise = _python()
    made: bytes = new(None, source.nbytes)  # not filled yet; C-API: who made it so may write to it until others have it
    address = at(made)
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    advise(start, source.nbytes - (start - address), mmap.MADV_HUGEPAGE)
    target: memoryview = view(address, source.nbytes, _WRITABLE)
    _copy(target, source)
    return made


def _copy(target: memoryview, source: memoryview) -> None:
    for start in range(0, source.nbytes, _STEP):
        target[start : start + _STEP] = source[start : start + _STEP]


_WRITABLE = 0x200  # PyBUF_WRITE


@cache
def _python() -> tuple[Any, Any, Any, Any]:
    """New bytes, their address, a view of memory; madvise."""
    import ctypes

    new, at, view = (ctypes.pythonapi[name] for name in ("PyBytes_FromStringAndSize", "PyBytes_AsString", _VIEW))
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
    at.restype, at.argtypes = ctypes.c_void_p, (ctypes.py_object,)
    view.restype, view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return new, at, view, advise


_VIEW = "PyMemoryView_FromMemory"


@lru_cache(16)
def _array(size: int) -> Any:
    import ctypes  # for the few processes that send much to other hosts

    return ctypes.c_ubyte * size
