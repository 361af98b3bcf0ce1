"""Storages of device memory between processes of one host: those that this process lends, those it has borrowed.

Torch wants a share of a storage for each time that it is opened somewhere, and lets nobody reuse the memory before each
share has been released. So every borrower asks the owner once for each storage, whatever number of buffers lie in it, and
keeps it open; after that the owner takes no part. When the last of a storage's buffers has been dropped, the owner tells
its borrowers, who close it once no copy of theirs uses it any more, and say so.

Nobody is left with what the dead had: the owner releases a dead borrower's shares in its name, and a borrower closes what
it has of a dead owner's.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from monarch._devices.forked import never_free
from monarch._devices.memory import interface
from monarch._errors import BufferDroppedError
from monarch._linux.locks import Lock
from monarch.rdma.buffer_handle import DevicePlace, Owner, this_host
from monarch.rdma.deaths import deaths
from monarch.rdma.local_memory import LocalMemory

BORROWERS = 1024  # processes that have one storage; another is refused and takes another path
SHARES = 2048  # of one storage in its life: torch wraps it once more for each, and unwraps it by recursion
OPEN = 1024  # storages of others that a process has open; the one used longest ago is closed

Share = tuple[Any, ...]


class NotLentError(Exception):
    """The storage cannot be given to another process; the text says why."""


class _Storage:
    """`borrowers`: the processes that may have it, and their services. `buffers`: how many are registered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffers = 0
        self.shares = 0
        self.borrowers: dict[Owner, Any] = {}


class Lending:
    """This process's storages with registered buffers. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers = itertools.count()
        self._storages: dict[int, _Storage] = {}  # by where they begin: no other begins there while it lives
        self._over: list[_Storage] = []
        # What each process may still have open, by storage; of those without buffers too, until it says that it closed them.
        self._given: dict[Owner, dict[int, list[Share]]] = {}

    def place(self, memory: LocalMemory) -> tuple[DevicePlace, Callable[[], None]]:
        """Returns where memory of a device that is about to be registered is, and what to call when it has been released."""
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

    def give(self, memory: LocalMemory, borrower: Any, who: Owner) -> Share:
        """Returns what that process, whose service `borrower` is, opens the storage of registered memory with.
        NotLentError.
        """
        if memory.device is None:
            raise NotLentError("it is not memory of a device")
        if who.host != this_host():
            raise NotLentError("it is lent to processes of its host only")
        obstacle = interface().ipc_obstacle(memory.keep)
        if obstacle:
            raise NotLentError(obstacle)
        with self._lock:
            storage = self._storages[memory.keep.untyped_storage().data_ptr()]
            if who not in storage.borrowers and len(storage.borrowers) >= BORROWERS:
                raise NotLentError(f"{BORROWERS} processes have it already")
            if storage.shares >= SHARES:
                raise NotLentError(f"it was lent {SHARES} times already")
            new = who not in storage.borrowers
            storage.shares += 1
            storage.borrowers[who] = borrower
        try:
            share = interface().share(memory.keep)
        except Exception as exc:
            with self._lock:
                storage.shares -= 1
                if new:
                    storage.borrowers.pop(who, None)
            raise NotLentError(f"{type(exc).__name__}: {exc}") from exc
        with self._lock:
            given = self._given.setdefault(who, {}).setdefault(storage.number, [])
            given[:] = [*filter(interface().lent, given), share]
        deaths.watch(who, self.lost)
        return share

    def over(self) -> list[tuple[int, Any]]:
        """Storages with no buffer any more, each with one that has to be told, once."""
        if not self._over:
            return []
        with self._lock:
            over, self._over = self._over, []
        return [(storage.number, borrower) for storage in over for borrower in storage.borrowers.values()]

    def closed(self, who: Owner, number: int) -> None:
        """Notes that a process has closed a storage: its memory may be this process's again."""
        with self._lock:
            given = self._given.get(who, {})
            left = [*filter(interface().lent, given.get(number, ()))]  # a copy may be under way there
            if left:
                given[number] = left
            else:
                given.pop(number, None)
        _collect()

    def lost(self, who: Owner) -> None:
        """Takes back what a process had that has ended."""
        with self._lock:
            given = self._given.pop(who, {})
            for storage in self._storages.values():
                storage.borrowers.pop(who, None)
        for share in itertools.chain.from_iterable(given.values()):
            interface().release(share)
        _collect()

    def given(self) -> int:
        """Shares that may still be open somewhere."""
        with self._lock:
            return sum(len(shares) for storages in self._given.values() for shares in storages.values())


def _collect() -> None:
    try:
        interface().collect()
    except Exception as exc:  # the device is out of order, and its memory lost anyway
        logging.getLogger("monarch").debug("shared memory was not taken back: %s", exc)


class Borrowed:
    """A storage of another process, open here until `close`; a copy that uses its bytes keeps them for itself."""

    __slots__ = ("bytes", "device", "share")

    def __init__(self, flat: Any, device: str, share: Share) -> None:
        self.bytes = flat
        self.device = device  # as this process calls the card
        self.share = share

    def close(self) -> None:
        """Closes the memory; that never raises, whatever state the device is in."""
        try:
            with interface().on(self.device):
                self.bytes = None
        except Exception as exc:  # the device is out of order: no other can be chosen either
            self.bytes = None
            logging.getLogger("monarch").debug("memory on %s was closed, but: %s", self.device, exc)


_Name = tuple[Owner, int]


class Borrowing:
    """The storages that this process has open. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: OrderedDict[_Name, Borrowed] = OrderedDict()
        self._asked: dict[_Name, bool] = {}  # for which an answer is awaited; True: its owner has ended it meanwhile

    def find(self, owner: Owner, storage: int) -> Borrowed | None:
        with self._lock:
            borrowed = self._open.get((owner, storage))
            if borrowed is not None:
                self._open.move_to_end((owner, storage))
            return borrowed

    @contextmanager
    def asking(self, owner: Owner, storage: int) -> Iterator[None]:
        """While the owner is asked for a storage, by one at a time, and until it is open."""
        with self._lock:
            self._asked[owner, storage] = False
        try:
            yield
        finally:
            with self._lock:
                del self._asked[owner, storage]

    def open(self, owner: Owner, storage: int, shared: Share, device: str) -> Borrowed:
        """Within `asking`. Raises what torch raises; BufferDroppedError when the owner has dropped all in it since."""
        borrowed = Borrowed(interface().open(shared, device), device, shared)
        gone: list[Borrowed] = []
        with self._lock:
            over = self._asked.get((owner, storage), False)
            if over:
                gone.append(borrowed)
            else:
                self._open[owner, storage] = borrowed
                if len(self._open) > OPEN:
                    gone.append(self._open.popitem(last=False)[1])
        for one in gone:
            one.close()
        if over:
            raise BufferDroppedError("not found: its owner dropped all in its storage")
        deaths.watch(owner, self.lost)
        return borrowed

    def close(self, owner: Owner, storage: int) -> None:
        """The owner has dropped everything there."""
        with self._lock:
            borrowed = self._open.pop((owner, storage), None)
            if (owner, storage) in self._asked:
                self._asked[owner, storage] = True
        if borrowed is not None:
            borrowed.close()

    def lost(self, owner: Owner) -> None:
        """The owner has ended: what is open of it holds memory that is nobody's any more."""
        with self._lock:
            gone = [self._open.pop(name) for name in list(self._open) if name[0] == owner]
            for name in self._asked:
                if name[0] == owner:
                    self._asked[name] = True
        for borrowed in gone:
            borrowed.close()
            interface().forget(borrowed.share)

    def __len__(self) -> int:
        return len(self._open)


lending = Lending()
borrowing = Borrowing()


def _after_fork() -> None:
    """A forked child has none of its parent's buffers, and must not close what its parent has open."""
    for one in (lending, borrowing):
        never_free(dict(one.__dict__))
        one.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
