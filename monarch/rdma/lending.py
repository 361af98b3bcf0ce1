"""Storages of device memory between processes of one host: those that this process lends, those it has borrowed.

Torch counts the processes that a storage was given to, each by a gift of its own, and lets nobody reuse the memory before
all have let go of theirs. So every borrower asks the owner once for each storage, whatever number of buffers lie in it;
after that the owner takes no part. When the last of a storage's buffers has been dropped, the owner tells its borrowers,
who close what they opened once no copy of theirs uses it any more.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from monarch._devices.memory import interface
from monarch.rdma.handle import DevicePlace, Owner
from monarch.rdma.memory import Memory

BORROWERS = 1024  # processes that have one storage; another is refused and takes another path


class NotLentError(Exception):
    """The storage cannot be given to another process; the text says why."""


class _Storage:
    """`borrowers`: services of the processes that have it. `buffers`: how many are registered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffers = 0
        self.borrowers: list[Any] = []


class Lending:
    """This process's storages with registered buffers. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._storages: dict[int, _Storage] = {}  # by where they begin: no other begins there while it lives
        self._over: list[_Storage] = []

    def place(self, memory: Memory) -> tuple[DevicePlace, Callable[[], None]]:
        """Where memory of a device that is about to be registered is, and what to call when it has been let go of."""
        assert memory.device is not None
        start = memory.keep.untyped_storage().data_ptr()
        with self._lock:
            storage = self._storages.get(start)
            if storage is None:
                storage = self._storages[start] = _Storage(next(self._numbers))
            storage.buffers += 1
        place = DevicePlace(memory.device, storage.number, memory.keep.storage_offset())
        return place, lambda: self._let_go(start)

    def _let_go(self, start: int) -> None:
        with self._lock:
            storage = self._storages[start]
            storage.buffers -= 1
            if not storage.buffers:
                del self._storages[start]
                if storage.borrowers:
                    self._over.append(storage)

    def give(self, memory: Memory, borrower: Any) -> tuple[Any, ...]:
        """What the borrower opens the storage of registered memory with. Raises NotLentError."""
        if memory.device is None:
            raise NotLentError("it is not memory of a device")
        obstacle = interface().ipc_obstacle(memory.keep)
        if obstacle:
            raise NotLentError(obstacle)
        with self._lock:
            storage = self._storages[memory.keep.untyped_storage().data_ptr()]
            if len(storage.borrowers) >= BORROWERS:
                raise NotLentError(f"{BORROWERS} processes have it already")
            storage.borrowers.append(borrower)
        try:
            return interface().share(memory.keep)
        except Exception as exc:
            with self._lock:
                storage.borrowers.remove(borrower)
            raise NotLentError(f"{type(exc).__name__}: {exc}") from exc

    def over(self) -> list[tuple[int, Any]]:
        """Storages with no buffer any more, each with one that has to be told, once."""
        if not self._over:
            return []
        with self._lock:
            over, self._over = self._over, []
        return [(storage.number, borrower) for storage in over for borrower in storage.borrowers]


class Borrowed:
    """A storage of another process, open here until `close`; a copy that uses its bytes keeps them for itself."""

    __slots__ = ("__weakref__", "bytes")

    def __init__(self, flat: Any) -> None:
        self.bytes = flat

    def close(self) -> None:
        self.bytes = None


class Borrowing:
    """The storages that this process has open. Forgotten with the last RDMABuffer object that used them. Any thread."""

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[tuple[Owner, int], Borrowed] = weakref.WeakValueDictionary()

    def find(self, owner: Owner, storage: int) -> Borrowed | None:
        return self._open.get((owner, storage))

    def open(self, owner: Owner, storage: int, shared: tuple[Any, ...], device: str) -> Borrowed:
        """Raises what torch raises."""
        borrowed = self._open[owner, storage] = Borrowed(interface().open(shared, device))
        return borrowed

    def close(self, owner: Owner, storage: int) -> None:
        borrowed = self._open.pop((owner, storage), None)
        if borrowed is not None:
            borrowed.close()

    def __len__(self) -> int:
        return len(self._open)


lending = Lending()
borrowing = Borrowing()


def _after_fork() -> None:
    """A forked child has none of its parent's buffers."""
    lending.__init__()  # type: ignore[misc]
    borrowing.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
