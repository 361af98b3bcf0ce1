"""The shared memory of a graph: an anonymous file, of which each process maps what it uses.

A slot holds one value: its kind, the lengths, the pickle, and the buffers beside it. What is made of the buffers lies in the
slot, uncopied. When the slot is given back and some of it is still used (an endpoint has kept an array), it is taken out: a
copy comes under the same addresses, in one step, and belongs to who kept it. So the value stays what it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from monarch import _text
from monarch._linux import memory_map
from monarch._linux.locks import RLock
from monarch._linux.weak_sets import members
from monarch.actor import MessageTooLargeError
from monarch.graph.plan import Written, control_size

_ALIGN = 64
VALUE = 0  # the kind of what is no error; those are what messages have
_HEAD = struct.Struct("=IIQ")  # kind, number of buffers, bytes of the pickle
_pack_head, _unpack_head, _HEAD_SIZE = _HEAD.pack_into, _HEAD.unpack_from, _HEAD.size
# Whether a store is seen by other processors after all that were made before it.
_ORDERED = os.uname().machine in ("x86_64", "amd64", "i686")
_fence = threading.Lock()
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Buffer = bytes | bytearray | memoryview


def fence() -> None:
    """Orders what was written, or read, before it and after it."""
    for _ in range(2):
        _fence.acquire()
        _fence.release()


def make_file(size: int) -> int:
    """Returns the descriptor of a new anonymous file, whose size nobody can change."""
    fd = os.memfd_create("monarch-graph", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # who made it smaller would end all who look into it
    except BaseException:
        os.close(fd)
        raise
    return fd


class _Mapping:
    """One slot as this process sees it: `private` where others read it too, and none is to see what another writes."""

    __slots__ = ("_type", "address", "private", "size", "used", "view")

    def __init__(self, fd: int, offset: int, size: int, private: bool, kind: Any) -> None:
        self.size = size
        self.private = private
        self.used = 0
        self._type = kind
        self.address = memory_map.map_memory(fd, size, memory_map.PRIVATE if private else memory_map.SHARED, offset)
        self.view = memory_map.bytes_of(kind.from_address(self.address))

    def lend(self) -> tuple[memoryview, weakref.ref[Any]]:
        """The memory, and what says whether any of it is still used, once that view is gone."""
        array = self._type.from_address(self.address)
        return memory_map.bytes_of(array), weakref.ref(array)

    def take_out(self, user: Any) -> None:
        """Gives the memory to its user, with a copy of what is there. This mapping is of no use any more."""
        fresh = memory_map.map_memory(-1, self.size, memory_map.PRIVATE | memory_map.ANONYMOUS, 0)
        ctypes.memmove(fresh, self.address, self.used)
        flags = memory_map.MAY_MOVE | memory_map.FIXED
        if memory_map.libc().mremap(fresh, self.size, self.size, flags, self.address) != self.address:
            error = memory_map.failed()
            memory_map.libc().munmap(fresh, self.size)
            raise error
        address, self.address = self.address, 0  # 0 already where a handler of signals has forked meanwhile
        if address:
            weakref.finalize(user, memory_map.libc().munmap, address, self.size).atexit = False

    def forget_writes(self) -> None:
        memory_map.libc().madvise(self.address, -(-self.used // 4096) * 4096, memory_map.DONT_NEED)

    def close(self) -> None:
        address, self.address = self.address, 0
        if address:
            memory_map.libc().munmap(address, self.size)


class Lent:
    """A slot of which something is used here, or may be."""

    __slots__ = ("mapping", "place", "user")

    def __init__(self, place: tuple[int, int], mapping: _Mapping, user: weakref.ref[Any]) -> None:
        self.place = place
        self.mapping = mapping
        self.user = user

    @property
    def used(self) -> bool:
        """True as long as the slot's own memory is used."""
        return bool(self.mapping.address) and self.user() is not None


class Value(Struct, eq=False):
    """The contents of a slot: kind, pickle, and buffers that lie in the slot."""

    kind: int
    body: bytes
    slot: int
    buffers: Sequence[memoryview] = ()
    lent: Lent | None = None


class GraphMemory:
    """The memory of one graph in one process. Takes `fd`. Not for several threads at once, but for `ended`."""

    def __init__(self, fd: int, rings: int, depth: int, slot_size: int, private: Sequence[bool], buffer: int) -> None:
        self._fd = fd
        self._depth = depth
        self._slot_size = slot_size
        self._private = private
        self._buffer = buffer
        self._control = control_size(rings, depth)
        self._type = ctypes.c_ubyte * slot_size
        self._reading: dict[tuple[int, int], _Mapping] = {}
        self._writing: dict[tuple[int, int], _Mapping] = {}
        self._lends: set[Lent] = set()
        self._taking = RLock()  # of what is lent: any thread may fork
        self._head = _Mapping(fd, 0, self._control, False, ctypes.c_ubyte * self._control)
        words = self._head.view.cast("Q")
        self._ended = words[:1]
        self.written = Written(words[1:], depth)
        _live.add(self)

    @property
    def ended(self) -> bool:
        return bool(self._ended[0])

    def end(self) -> None:
        """Tells all who look that the graph has ended."""
        self._ended[0] = 1

    def _mapped(self, place: tuple[int, int], kept: dict[tuple[int, int], _Mapping], private: bool) -> _Mapping:
        mapping = kept.get(place)
        if mapping is None:
            offset = self._control + (place[0] * self._depth + place[1]) * self._slot_size
            mapping = kept[place] = _Mapping(self._fd, offset, self._slot_size, private, self._type)
        return mapping

    def write(self, ring: int, slot: int, kind: int, body: Buffer, buffers: Sequence[Buffer], what: str) -> None:
        """Puts a value into a slot. MessageTooLargeError when it does not fit."""
        if not buffers and _HEAD_SIZE + len(body) <= self._slot_size:
            mapping = self._writing.get((ring, slot)) or self._mapped((ring, slot), self._writing, False)
            view = mapping.view
            _pack_head(view, 0, kind, 0, len(body))
            view[_HEAD_SIZE : _HEAD_SIZE + len(body)] = body
            return
        count, start = len(buffers), _HEAD_SIZE + 8 * len(buffers)
        sizes = [memoryview(buffer).nbytes for buffer in buffers]
        whole = start + len(body) + sum(size + _ALIGN for size in sizes)
        if whole > self._slot_size:
            size = len(body) + sum(sizes)
            raise MessageTooLargeError(
                f"{what} is {_text.size(size)} ({size} bytes), more than the {_text.size(self._buffer)} that each value of "
                f"the graph may have: compile it with buffer={size} or more"
            )
        view = self._mapped((ring, slot), self._writing, False).view
        _pack_head(view, 0, kind, count, len(body))
        struct.pack_into(f"={count}Q", view, _HEAD_SIZE, *sizes)
        view[start : start + len(body)] = body
        at = start + len(body)
        for buffer, size in zip(buffers, sizes, strict=True):
            at = -(-at // _ALIGN) * _ALIGN
            view[at : at + size] = memoryview(buffer).cast("B")
            at += size

    def tell(self, ring: int, number: int, slot: int) -> None:
        """The value is there."""
        if not _ORDERED:
            fence()
        self.written.write(ring, number, slot)

    def read(self, rings: Sequence[int], number: int) -> tuple[dict[int, Value], list[Lent]]:
        """The values of an execution by ring, which are there, and what they lend: `give_back` it."""
        if not _ORDERED:
            fence()
        values, lends = {}, []
        for ring in rings:
            slot = self.written.slot(ring, number)
            place = ring, slot
            mapping = self._reading.get(place) or self._mapped(place, self._reading, self._private[ring])
            view = mapping.view
            kind, count, length = _unpack_head(view)
            end = _HEAD_SIZE + 8 * count + length
            value = values[ring] = Value(kind, bytes(view[end - length : end]), slot)
            if count:
                value.buffers, value.lent = self._lend(place, mapping, count, end)
                lends.append(value.lent)
        return values, lends

    def _lend(self, place: tuple[int, int], mapping: _Mapping, count: int, at: int) -> tuple[list[memoryview], Lent]:
        """The buffers of a slot, behind `at`, where they lie."""
        sizes = struct.unpack_from(f"={count}Q", mapping.view, _HEAD_SIZE)
        whole, user = mapping.lend()
        buffers = []
        for size in sizes:
            at = -(-at // _ALIGN) * _ALIGN
            buffers.append(whole[at : at + size])
            at += size
        mapping.used = at
        lent = Lent(place, mapping, user)
        self._lends.add(lent)
        return buffers, lent

    def give_back(self, lent: Lent) -> None:
        """Its writer may use the slot again: what is still used of it is taken out."""
        with self._taking:
            if self._take_out(lent) or lent not in self._lends:
                return
            self._lends.remove(lent)
            if lent.mapping.private:
                lent.mapping.forget_writes()

    def before_fork(self) -> None:
        """Takes out all that is used. A forked child would have the slots themselves: what is written there next, and here
        what the child writes."""
        with self._taking:
            for lent in list(self._lends):
                self._take_out(lent)

    def _take_out(self, lent: Lent) -> bool:
        """Returns whether it was used."""
        user = lent.user()
        if user is None or lent not in self._lends:
            return False
        lent.mapping.take_out(user)
        self._lends.discard(lent)
        self._reading.pop(lent.place, None)
        return True

    def close(self) -> None:
        """Unmaps all. What is lent has to be given back before."""
        _live.discard(self)
        for mapping in (*self._reading.values(), *self._writing.values()):
            mapping.close()
        self._reading.clear()
        self._writing.clear()
        self._ended.release()
        self.written.words.release()
        self._head.close()
        os.close(self._fd)


_live: weakref.WeakSet[GraphMemory] = weakref.WeakSet()


def _before_fork() -> None:
    for memory in members(_live):
        memory.before_fork()


os.register_at_fork(before=_before_fork)


class GateMemory:
    """The memory of one graph on one host as bytes, for the streams to other hosts, which read and write slots as they are.
    Any thread, but for `close`."""

    def __init__(self, fd: int, rings: int, depth: int, slot_size: int) -> None:
        self._depth = depth
        self._slot_size = slot_size
        self._control = control_size(rings, depth)
        self._map = mmap.mmap(fd, self._control + rings * depth * slot_size)
        self._view = memoryview(self._map)
        words = self._view[: self._control].cast("Q")
        self._ended = words[:1]
        self.written = Written(words[1:], depth)
        self._views = [self.written.words, self._ended, words, self._view]

    def end(self) -> None:
        self._ended[0] = 1

    def slot(self, ring: int, slot: int) -> memoryview:
        start = self._control + (ring * self._depth + slot) * self._slot_size
        return self._view[start : start + self._slot_size]

    def value(self, ring: int, slot: int) -> memoryview:
        """The bytes of the value that was written there."""
        if not _ORDERED:
            fence()
        view = self.slot(ring, slot)
        _, count, length = _unpack_head(view)
        at = _HEAD_SIZE + 8 * count + length
        for size in struct.unpack_from(f"={count}Q", view, _HEAD_SIZE):
            at = -(-at // _ALIGN) * _ALIGN + size
        return view[:at]

    def tell(self, ring: int, number: int, slot: int) -> None:
        if not _ORDERED:
            fence()
        self.written.write(ring, number, slot)

    def close(self) -> None:
        """Unmaps it, or leaves that to the last view of it."""
        with contextlib.suppress(BufferError):
            for view in self._views:
                view.release()
            self._map.close()
