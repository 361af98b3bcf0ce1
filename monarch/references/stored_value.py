"""Values that references stand for: as they are kept where they were made, and as another process has them.

A value is pickled once. What is large of it lies in a memory of its own (a memfd), which other processes of the host map and
do not copy: arrays and tensors that they get view it.
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch._linux import memory_map, procfs
from monarch.actor.lowlevel import MemoryPool, PooledMemory, Unpickler
from monarch.config import settings
from monarch.references.mapping import MappedRegion, Mapping, idle, map_region

SMALL = 1 << 16  # bytes of a value up to which it lies in no memory of its own and travels in the answer
_ALIGNED = 64


def limit_of_bytes() -> int:
    """Returns how many bytes this process keeps at most."""
    limit = settings.reference_bytes()
    return procfs.memory()[0] // 4 if limit is None else limit


memory = MemoryPool("monarch-reference", limit_of_bytes)


class MemoryPlace(NamedTuple):
    """The place where the memory of a value can be mapped from, by processes of the same host. `identity`: of the file, so
    that another one that has its number is not taken for it.
    """

    host: str
    pid: int
    file: int
    identity: tuple[int, int]
    offset: int
    size: int


class StoredValue:
    """A pickled value that does not change: the pickle, and buffers beside it.

    What is large lies in a memory that others map, as long as this process has descriptors for it. The memory is used again
    for another value once nobody has this one, nor a view of it.
    """

    __slots__ = ("_memory", "_pieces", "lengths", "size")

    def __init__(self, pieces: Sequence[Any]) -> None:
        """Copies the pieces. MemoryError when the machine has not that much."""
        self.lengths = [memoryview(piece).nbytes for piece in pieces]
        self.size = sum(self.lengths)
        self._memory = _written(pieces, self.lengths) if self.size > SMALL else None
        self._pieces = [bytes(piece) for piece in pieces] if self._memory is None else None

    @property
    def place(self) -> MemoryPlace | None:
        """The place where others map it from; None where it is in no memory of its own."""
        if self._memory is None:
            return None
        file = self._memory.fd
        found = os.fstat(file)
        identity = (found.st_dev, found.st_ino)
        return MemoryPlace(_host(), os.getpid(), file, identity, self._memory.offset, found.st_size)

    def pieces(self) -> list[Any]:
        """Returns the pieces, read-only."""
        if self._pieces is None:
            assert self._memory is not None
            kept = functools.partial(id, self._memory)  # keeps it as long as there are views
            region = map_region(self._memory.fd, self._memory.offset, end_of(self.lengths))
            self._pieces = _cut(Mapping(region, kept), self.lengths)
        return self._pieces


def _written(pieces: Sequence[Any], lengths: Sequence[int]) -> PooledMemory | None:
    """Returns a memory that holds the pieces; None where this process has no descriptor for one."""
    found = memory.memory_for(end_of(lengths))
    if found is not None:
        for piece, start in zip(pieces, starts(lengths), strict=True):
            found.write(start, memoryview(piece).cast("B"))
    return found


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


def _cut(mapping: Mapping, lengths: Sequence[int]) -> list[Any]:
    """The pieces of a mapping, read-only; each keeps the mapping."""
    pieces = []
    for start, length in zip(starts(lengths), lengths, strict=True):
        memory = (ctypes.c_ubyte * length).from_address(mapping.address + start)
        memory.mapping = mapping  # type: ignore[attr-defined]
        pieces.append(memory_map.bytes_of(memory).toreadonly())
    return pieces


def mapped(place: MemoryPlace, lengths: Sequence[int], ended: Callable[[], object]) -> list[Any] | None:
    """The pieces of a value of another process; None where they cannot be mapped from here. `ended` is called when nobody
    here has a view of them any more."""
    if place.host != _host() or place.size < place.offset + end_of(lengths):
        return None
    region = idle.take(place.identity) or _region_at(place)
    return region and _cut(Mapping(region, ended, place.identity), lengths)


def _region_at(place: MemoryPlace) -> MappedRegion | None:
    """Maps the whole file, for the next value in it as well."""
    try:
        file = os.open(f"/proc/{place.pid}/fd/{place.file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != place.identity or found.st_size != place.size:
            return None
        return map_region(file, place.offset, place.size - place.offset)
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
