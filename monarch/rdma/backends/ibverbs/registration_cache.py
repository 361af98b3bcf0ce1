"""Local memory as devices know it: the side of a transfer that is not the buffer's.

Registering pins pages, which takes about a tenth of the time of moving them. So a tensor's, array's or mmap's whole storage
is registered by its first transfer, and stays so until it is freed or CACHED others were used since; other memory for the
time of a transfer. No key of here lets anybody else in.

A storage that is resized in place, and so comes to lie elsewhere, is another one; one that is resized away and back to the
same address (`untyped_storage().resize_`) between two transfers cannot be told from one that stayed: the device would go on
with the old pages. Resize such memory under another tensor, or not at all.
"""

from __future__ import annotations

import logging
import mmap
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch._linux.locks import Lock
from monarch.rdma.backends.ibverbs.binding import LOCAL_WRITE, Registration
from monarch.rdma.local_memory import LocalMemory

CACHED = 1024  # registrations that nobody uses and that are kept

Register = Callable[[str, LocalMemory, int, int, int], Registration]


class WholeStorage(NamedTuple):
    """The owner of memory, and all of that memory."""

    owner: Any
    address: int
    size: int


def storage_of(memory: LocalMemory) -> WholeStorage | None:
    """Returns what to register so that later transfers find it; None when nobody would say when the memory is freed."""
    keep = memory.keep
    if memory.device is not None:
        return None
    if hasattr(keep, "data_ptr") and hasattr(keep, "nbytes"):
        found = WholeStorage(keep, keep.data_ptr(), keep.nbytes())
    elif hasattr(keep, "__array_interface__"):
        while hasattr(keep.base, "__array_interface__"):
            keep = keep.base
        if keep.base is not None or not keep.flags.forc:
            return None
        found = WholeStorage(keep, keep.__array_interface__["data"][0], keep.nbytes)
    elif isinstance(keep, memoryview) and isinstance(keep.obj, mmap.mmap):
        found = WholeStorage(keep.obj, memory.address, memory.size)
    else:
        return None
    inside = found.address <= memory.address and memory.address + memory.size <= found.address + found.size
    return found if inside else None


class HeldRegistration:
    """A registration in use; `release` it once."""

    def __init__(self, registration: Registration, release: Callable[[], None]) -> None:
        self.key = registration.key
        self.release = release


_Name = tuple[str, int, int, int]  # device, address, size, access


class _CachedRegistration:
    __slots__ = ("registration", "storage", "users")

    def __init__(self, registration: Registration, storage: weakref.ref[Any]) -> None:
        self.registration = registration
        self.storage = storage
        self.users = 0


class RegistrationCache:
    """Any thread. Storages may be freed on any, at any time."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._lock = Lock()
        self._kept: OrderedDict[_Name, _CachedRegistration] = OrderedDict()
        self._freed: deque[tuple[_Name, weakref.ref[Any]]] = deque()

    def hold(self, nic: str, memory: LocalMemory, write: bool) -> HeldRegistration:
        """Registers `memory`, or finds it registered; `write`: the device may write to it. OSError."""
        access = LOCAL_WRITE if write else 0
        storage = storage_of(memory)
        if storage is None:
            registration = self._try(nic, memory, memory.address, memory.size, access)
            return HeldRegistration(registration, lambda: close(registration))
        name = (nic, storage.address, storage.size, access)
        try:
            with self._lock:
                kept = self._kept.get(name)
                if kept is None or kept.storage() is not storage.owner:
                    kept = None
                else:
                    kept.users += 1
                    self._kept.move_to_end(name)
            if kept is None:
                kept = self._add(name, memory, storage)
            return HeldRegistration(kept.registration, lambda kept=kept: self._release(kept))  # type: ignore[misc]
        finally:
            self._tidy()

    def close(self) -> None:
        """Gives all registrations back; nothing is in use any more. For tests."""
        self._evict(0)

    def __len__(self) -> int:
        return len(self._kept)

    def _add(self, name: _Name, memory: LocalMemory, storage: WholeStorage) -> _CachedRegistration:
        nic, address, size, access = name
        registration = self._try(nic, memory, address, size, access)
        kept = _CachedRegistration(registration, weakref.ref(storage.owner, lambda ref: self._gone(name, ref)))
        kept.users = 1
        with self._lock:
            before = self._kept.get(name)
            self._kept[name] = kept
            self._kept.move_to_end(name)
        if before is not None and not before.users:
            close(before.registration)  # of a storage that was freed, or of two transfers that came first together
        self._evict(CACHED)
        return kept

    def _try(self, nic: str, memory: LocalMemory, address: int, size: int, access: int) -> Registration:
        try:
            return self._register(nic, memory, address, size, access)
        except OSError:
            if not self._evict(0):
                raise
        return self._register(nic, memory, address, size, access)

    def _release(self, kept: _CachedRegistration) -> None:
        with self._lock:
            kept.users -= 1
            unknown = not kept.users and not any(other is kept for other in self._kept.values())
        if unknown:
            close(kept.registration)
        self._tidy()

    def _evict(self, most: int) -> int:
        """Lets go of what was not used for longest until `most` are left; how many that were."""
        with self._lock:
            idle = [name for name, kept in self._kept.items() if not kept.users]
            gone = [self._kept.pop(name) for name in idle[: max(0, len(self._kept) - most)]]
        for kept in gone:
            close(kept.registration)
        return len(gone)

    def _gone(self, name: _Name, ref: weakref.ref[Any]) -> None:
        """A storage was freed: called from anywhere, even where this thread has the lock."""
        self._freed.append((name, ref))
        self._tidy()

    def _tidy(self) -> None:
        """Lets go of what was freed. Whoever has the lock does it for those who could not have it."""
        while self._freed and self._lock.acquire(blocking=False):
            gone = []
            try:
                while self._freed:
                    name, ref = self._freed.popleft()
                    kept = self._kept.get(name)
                    if kept is not None and kept.storage is ref:
                        del self._kept[name]
                        gone.append(kept)
            finally:
                self._lock.release()
            for kept in gone:
                close(kept.registration)


def close(registration: Registration) -> None:
    try:
        registration.close()
    except OSError as exc:
        logging.getLogger("monarch").warning("an RDMA device cannot let go of memory: %s", exc)
