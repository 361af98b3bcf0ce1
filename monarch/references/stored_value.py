"""Values that references stand for: as they are kept where they were made, and as another process has them.

A value is pickled once. What is large of it lies in a memory of its own (a memfd), which other processes of the host map and
do not copy: arrays and tensors that they get view it. A mapping is private: who writes to it writes to a copy of that page.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import resource
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch._linux import memory_map, procfs
from monarch._wire.unpickling import Unpickler

SMALL = 1 << 16  # bytes of a value up to which it lies in no memory of its own and travels in the answer
_ALIGNED = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class MemoryPlace(NamedTuple):
    """The place where the memory of a value can be mapped from, by processes of the same host. `identity`: of the file, so
    that another one that has its number is not taken for it.
    """

    host: str
    pid: int
    file: int
    identity: tuple[int, int]
    size: int


class StoredValue:
    """A pickled value that does not change: the pickle, and buffers beside it.

    What is large lies in a memory that others map, as long as this process has descriptors for it.
    """

    __slots__ = ("_memory", "_pieces", "lengths", "size")

    def __init__(self, pieces: Sequence[Any]) -> None:
        """Copies the pieces. MemoryError when the machine has not that much."""
        self.lengths = [memoryview(piece).nbytes for piece in pieces]
        self.size = sum(self.lengths)
        self._memory = -1
        if self.size > SMALL:
            self._memory = _written(pieces, self.lengths)
        self._pieces = [bytes(piece) for piece in pieces] if self._memory < 0 else None

    @property
    def place(self) -> MemoryPlace | None:
        """The place where others map it from; None where it is in no memory of its own."""
        if self._memory < 0:
            return None
        found = os.fstat(self._memory)
        return MemoryPlace(_host(), os.getpid(), self._memory, (found.st_dev, found.st_ino), found.st_size)

    def pieces(self) -> list[Any]:
        """Returns the pieces, read-only."""
        if self._pieces is None:
            self._pieces = _cut(_MappedFile(self._memory, end_of(self.lengths)), self.lengths)
        return self._pieces

    def part(self, offset: int, size: int) -> bytes:
        """Returns bytes of the memory, for a process that cannot map it."""
        return os.pread(self._memory, size, offset)

    def __del__(self) -> None:
        if getattr(self, "_memory", -1) >= 0:
            os.close(self._memory)
            _memories.discard(self._memory)
            self._memory = -1


def _written(pieces: Sequence[Any], lengths: Sequence[int]) -> int:
    """The descriptor of a new memory that holds the pieces."""
    size = end_of(lengths)
    room = procfs.memory()[1]
    if room and size > room:
        raise MemoryError(f"{size} bytes are to be kept for a reference, the machine has {room} available")
    if len(_memories) >= _most_memories():
        return -1
    file = os.memfd_create("monarch-reference", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        for piece, start in zip(pieces, starts(lengths), strict=True):
            view = memoryview(piece).cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(file, view[done : done + _STEP], start + done)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(file)
        raise
    _memories.add(file)
    return file


_memories: set[int] = set()  # descriptors in use


def _most_memories() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 4096 if soft == resource.RLIM_INFINITY else min(4096, soft // 4)


_STEP = 1 << 30  # one call of the kernel writes 2 GiB at most


def starts(lengths: Sequence[int]) -> list[int]:
    """Returns where pieces of these lengths begin in a memory."""
    found, end = [], 0
    for length in lengths:
        found.append(-(-end // _ALIGNED) * _ALIGNED)
        end = found[-1] + length
    return found


def end_of(lengths: Sequence[int]) -> int:
    """Returns the size of a memory for pieces of these lengths."""
    return starts(lengths)[-1] + lengths[-1]


class _MappedFile:
    """A private mapping of a file, which needs no descriptor any more; gone with the last piece of it."""

    def __init__(self, file: int, size: int) -> None:
        self.address = memory_map.map_memory(file, size, memory_map.PRIVATE | memory_map.NO_RESERVE)
        weakref.finalize(self, memory_map.libc().munmap, self.address, size).atexit = False


def _cut(mapping: _MappedFile, lengths: Sequence[int]) -> list[Any]:
    """The pieces of a mapping, read-only; each keeps the mapping."""
    pieces = []
    for start, length in zip(starts(lengths), lengths, strict=True):
        memory = (ctypes.c_ubyte * length).from_address(mapping.address + start)
        memory.mapping = mapping  # type: ignore[attr-defined]
        pieces.append(memory_map.bytes_of(memory).toreadonly())
    return pieces


def mapped(place: MemoryPlace, lengths: Sequence[int]) -> list[Any] | None:
    """The pieces of a value of another process; None where they cannot be mapped from here."""
    if place.host != _host():
        return None
    try:
        file = os.open(f"/proc/{place.pid}/fd/{place.file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != place.identity or not found.st_size == place.size == end_of(lengths):
            return None
        return _cut(_MappedFile(file, found.st_size), lengths)
    except OSError:
        return None
    finally:
        os.close(file)


_known_host = ""


def _host() -> str:
    """Returns what is equal in processes that see each other in /proc."""
    global _known_host
    if not _known_host:
        try:
            _known_host = procfs.namespace("pid")
        except OSError:
            _known_host = f"?{os.urandom(8).hex()}"
    return _known_host


class _Unpickling(threading.local):
    handles: Sequence[Any] = ()


_reading = _Unpickling()


def inner(index: int) -> Any:
    """Returns a reference within the value that is being unpickled."""
    return _reading.handles[index]


def unpickle(pieces: Sequence[Any], handles: Sequence[Any]) -> Any:
    """Returns the value, anew each time; `handles` are the references within it. Raises what unpickling raises."""
    before, _reading.handles = _reading.handles, handles
    try:
        return _ValueUnpickler(io.BytesIO(pieces[0]), buffers=pieces[1:]).load()
    finally:
        _reading.handles = before


class _ValueUnpickler(Unpickler):
    """Unpickles tensors without copying read-only memory: torch knows none, and codec's own way would."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_rebuild_span" and module == "monarch._wire.codec":
            return _storage_of
        return super().find_class(module, name)


def _storage_of(view: Any) -> Any:
    import torch

    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    memory = view.obj if isinstance(view, memoryview) and isinstance(view.obj, ctypes.Array) else bytearray(view)
    return torch.frombuffer(memory, dtype=torch.uint8)
