"""The owner's side: what this process has registered, and the table of control words that others look at.

A buffer's control word holds its token while it is registered and 0 after. The words stand in one shared mapping of an
anonymous file, which never moves while the process lives and which its forked children do not have. Others read the
words with the same system call that reads the data, so they need nobody's help to know whether what they read was valid.

A writer cannot look afterwards: what is written is written. So writers of other processes hold a read lock on byte
`slot` of the table's file while they write, and a drop is done only when it has had the write lock. The kernel frees
the locks of the dead.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from monarch._devices.forked import never_free
from monarch._errors import BufferDroppedError
from monarch._linux.locks import Lock
from monarch._linux.procfs import start_of
from monarch.rdma.buffer_handle import Owner, this_host
from monarch.rdma.local_memory import LocalMemory

WORD = struct.Struct("=Q")
PAGE_SLOTS = 4096  # words a mapping has; the table grows by one mapping at a time
_LOCK = struct.Struct("hhqqi4x")  # struct flock, 64 bit


def lock(file: int, kind: int, slot: int) -> None:
    """Sets or frees this open file's lock on `slot`. BlockingIOError when another's stands against it."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, slot, 1, 0))


class ControlWordTable:
    """Control words at addresses that stay. Not thread-safe."""

    def __init__(self) -> None:
        self.file = os.memfd_create("monarch-rdma", os.MFD_CLOEXEC)
        self._maps: list[mmap.mmap] = []
        self._addresses: list[int] = []
        self._free: list[int] = []

    def take(self, token: int) -> tuple[int, int]:
        """A slot whose word is now `token`, and the word's address."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        page, index = divmod(slot, PAGE_SLOTS)
        WORD.pack_into(self._maps[page], index * WORD.size, token)
        return slot, self._addresses[page] + index * WORD.size

    def clear(self, slot: int) -> None:
        """Ends the registration of the slot's buffer, as others see it."""
        page, index = divmod(slot, PAGE_SLOTS)
        WORD.pack_into(self._maps[page], index * WORD.size, 0)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def quiet(self, slot: int) -> bool:
        """True if no process is writing under the slot's lock; of a cleared slot that stays so."""
        try:
            lock(self.file, fcntl.F_WRLCK, slot)
        except BlockingIOError:
            return False
        lock(self.file, fcntl.F_UNLCK, slot)
        return True

    def _grow(self) -> None:
        size = PAGE_SLOTS * WORD.size
        start = len(self._maps) * size
        os.ftruncate(self.file, start + size)
        page = mmap.mmap(self.file, size, offset=start)
        page.madvise(mmap.MADV_DONTFORK)
        self._maps.append(page)
        self._addresses.append(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        first = len(self._maps) * PAGE_SLOTS - 1
        self._free.extend(range(first, first - PAGE_SLOTS, -1))


class RegisteredBuffer:
    """One registered buffer. `users` copies of this process are under way in it."""

    __slots__ = ("lent", "let_go", "memory", "number", "slot", "token", "users", "word")

    def __init__(
        self,
        memory: LocalMemory,
        number: int,
        token: int,
        slot: int,
        word: int,
        let_go: Callable[[], None] | None = None,
    ) -> None:
        self.memory = memory
        self.number = number
        self.token = token
        self.slot = slot
        self.word = word
        self.users = 0
        self.let_go = let_go
        # What backends have made of it for devices, by their names; closed before the memory is released.
        self.lent: dict[str, Any] = {}


class Registry:
    """The buffers of this process. Any thread; nothing here waits for another process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers = itertools.count()
        self._table = ControlWordTable()
        self._regions: dict[int, RegisteredBuffer] = {}
        self._leaving: dict[int, RegisteredBuffer] = {}  # dropped, but somebody still writes into them
        self.pid = os.getpid()
        self.owner = Owner(this_host(), self.pid, start_of(self.pid) or 0, self._table.file, socket.gethostname())

    def register(self, memory: LocalMemory, let_go: Callable[[], None] | None = None) -> RegisteredBuffer:
        """Keeps the memory alive until it is dropped; then `let_go`, which does not wait, is called."""
        token = int.from_bytes(os.urandom(8), "little") or 1
        with self._lock:
            self._sweep()
            slot, word = self._table.take(token)
            number = next(self._numbers)
            region = self._regions[number] = RegisteredBuffer(memory, number, token, slot, word, let_go)
        return region

    @contextmanager
    def using(self, number: int, token: int) -> Iterator[RegisteredBuffer]:
        """The region for a `with` block, in which its memory is not given back. BufferDroppedError when it was dropped."""
        with self._lock:
            region = self._regions.get(number)
            if region is None or region.token != token:
                raise BufferDroppedError(f"buffer {number} not found: it was dropped")
            region.users += 1
        try:
            yield region
        finally:
            with self._lock:
                region.users -= 1

    def on_device(self, number: int) -> bool:
        """True if that buffer, if there is one, is memory of a device."""
        region = self._regions.get(number)
        return region is not None and region.memory.device is not None

    def drop(self, number: int, token: int) -> bool:
        """No transfer begins from here on. True once no write is under way any more either and the memory is released.

        Call it again until it says so; also for a buffer that nobody knows (any more), which is True at once.
        """
        with self._lock:
            region = self._regions.get(number)
            if region is not None and region.token == token:
                del self._regions[number]
                self._table.clear(region.slot)
                self._leaving[number] = region
            self._sweep()
            left = self._leaving.get(number)
            return left is None or left.token != token

    def _sweep(self) -> None:
        for number, region in list(self._leaving.items()):
            if not region.users and self._table.quiet(region.slot):
                del self._leaving[number]
                self._table.give_back(region.slot)
                for lent in region.lent.values():
                    lent.close()
                if region.let_go is not None:
                    region.let_go()

    def __len__(self) -> int:
        with self._lock:
            return len(self._regions) + len(self._leaving)


_registry: Registry | None = None
_making = Lock()


def registry() -> Registry:
    """Returns the registry of this process, made at its first use."""
    global _registry
    if _registry is None:
        with _making:
            if _registry is None:
                _registry = Registry()
    return _registry


def _after_fork() -> None:
    """A forked child begins with nothing: its parent's buffers are not its, and somebody may have held the lock."""
    global _making, _registry
    never_free(_registry)  # buffers on devices are in it
    _making, _registry = Lock(), None


os.register_at_fork(after_in_child=_after_fork)
