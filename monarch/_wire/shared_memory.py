"""Anonymous shared memory of Linux (memfd): as its maker fills it, and as another process maps it.

Mapped with ctypes and not with `mmap`, which keeps a descriptor a mapping. What a receiver gets from a mapping hangs on one
object a payload, whose death is the death of the last array, tensor or memoryview taken from it, however derived: each
of them holds the one it was taken from.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from monarch._linux import memory_map
from monarch._wire.frame import Buffer
from monarch._wire.segments import HEADER, Flags

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# Whether other processors see a store after all that was read before it. Elsewhere the I/O thread clears the flag, which has
# then taken a lock that the thread that read has released.
_ORDERED = os.uname().machine in ("x86_64", "amd64", "i686")
_COPIERS = 4  # threads that copy one payload
_LARGE = 16 << 20  # bytes for each of them at least
_CHUNK = 1 << 20  # bytes copied at a time; between two of them other threads get their turn


@cache
def _array(size: int) -> Any:
    import ctypes

    return ctypes.c_ubyte * size


class OwnMemory:
    """Memory that this process shares: a page of flags, then `size` bytes. OSError where there is none.

    Pages are taken before they are first written to, so that a lack of them is an error and not a signal. It is gone, but for
    what others have mapped of it, when nobody refers to it any more.
    """

    def __init__(self, size: int, name: str = "monarch-payload") -> None:
        self._size = HEADER + size
        self._ready = self._address = 0
        # Called and kept in one step: behind a call a handler of signals may raise, and the descriptor were lost.
        (self.fd,) = map(os.memfd_create, (name,), (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING,))
        try:
            os.ftruncate(self.fd, self._size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            (self._address,) = map(memory_map.map_memory, (self.fd,), (self._size,), (memory_map.SHARED,))
            self._end = weakref.finalize(self, _end, self.fd, self._address, self._size)
        except BaseException:
            if end := getattr(self, "_end", None):
                end()
            else:
                _end(self.fd, self._address, self._size)
            raise
        self._end.atexit = False
        self.prepare(0)
        self._view = memory_map.bytes_of(_array(self._size).from_address(self._address))
        self.flags: Flags = self._view[:HEADER]

    def prepare(self, size: int) -> None:
        """Takes the pages for a payload of `size` bytes. OSError when there are not enough."""
        end = min(self._size, -(-(HEADER + size) // 4096) * 4096)
        if end <= self._ready:
            return
        start = self._ready
        if memory_map.libc().madvise(self._address + start, end - start, memory_map.POPULATE_WRITE):
            error = memory_map.failed()
            if error.errno != errno.EINVAL:  # a kernel before 5.14
                raise error
            os.posix_fallocate(self.fd, start, end - start)
        self._ready = end

    def give_back(self) -> None:
        """Gives its pages back to the machine, also where others have it mapped: nobody reads it any more."""
        memory_map.libc().madvise(self._address, self._size, memory_map.REMOVE)

    def write(self, offset: int, data: Buffer) -> None:
        """Copies `data` to `offset` of the payload."""
        source, start = memoryview(data), HEADER + offset
        for done in range(0, len(source), _CHUNK):
            part = source[done : done + _CHUNK]
            self._view[start + done : start + done + len(part)] = part

    def write_in_threads(self, offset: int, data: memoryview) -> None:
        """Takes the pages, and copies `data`, of bytes, to `offset` of the payload; what is large in several threads, while
        others run. OSError when there are not enough pages."""
        size = len(data)
        self.prepare(offset + size)
        workers = min(_COPIERS, len(os.sched_getaffinity(0)), size // _LARGE)
        if workers < 2:
            self.write(offset, data)
            return
        import ctypes

        part = -(-size // workers)
        target = self._address + HEADER + offset
        with memory_map.address_of(data) as source:
            parts = [(target + begin, source + begin, min(part, size - begin)) for begin in range(0, size, part)]
            copiers = []
            try:
                while len(parts) > 1:
                    copier = threading.Thread(target=ctypes.memmove, args=parts[-1], daemon=True)
                    copiers.append(copier)
                    try:
                        copier.start()
                    except RuntimeError:  # the process has as many threads as it may: this one copies what is left
                        break
                    parts.pop()
                for each in parts:
                    ctypes.memmove(*each)
            finally:
                for copier in copiers:
                    if copier.ident is not None:
                        copier.join()


def _end(fd: int, address: int, size: int) -> None:
    if address:
        memory_map.libc().munmap(address, size)
    os.close(fd)


class LentMemory:
    """Memory that another process shares, mapped here. Takes `fd` and closes it. OSError, ValueError when it is none of ours.

    `later(fn)` has `fn` called on the thread of everything here but the deaths of payloads, which come on any.
    """

    def __init__(self, fd: int, later: Callable[[Callable[[], Any]], None]) -> None:
        self._later = later
        self._pid = os.getpid()
        self._live: dict[int, _Loan] = {}
        self._pinned: set[int] = set()  # loans that processes forked off us may use, too
        self.used = False  # whether a payload ever came in it
        self._retired = False
        self._shared = self._private = 0
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("the memory could shrink while it is used")
            self._size = os.fstat(fd).st_size - HEADER
            if self._size <= 0:
                raise ValueError("the memory holds no payload")
            self._shared = memory_map.map_memory(fd, HEADER + self._size, memory_map.SHARED)
            try:
                self._private = memory_map.map_memory(
                    fd, self._size, memory_map.PRIVATE | memory_map.NO_RESERVE, HEADER
                )
            except OSError:  # then what others get as well is copied
                pass
        finally:
            os.close(fd)
        self._flags = memory_map.bytes_of(_array(HEADER).from_address(self._shared))

    def __repr__(self) -> str:
        return f"<LentMemory of {self._size} bytes, {len(self._live)} payloads in use>"

    @property
    def lent(self) -> int:
        """Payloads that are in use here."""
        return len(self._live)

    def borrow(self, slot: int, used: int, others: bool) -> memoryview:
        """The payload's memory, `used` bytes; its flag is cleared when the last view of it is gone. With `others` who get the
        same payload what is written here is seen here only.
        """
        if not 0 < slot < HEADER or used > self._size:
            raise ValueError(f"no payload of {used} bytes for receiver {slot} is in {self._size} bytes")
        self.used = True
        start = self._private if others else self._shared + HEADER
        if others and not self._private:
            copy = bytearray(memory_map.bytes_of(_array(self._size).from_address(self._shared + HEADER))[:used])
            self._flags[slot] = 0
            return memoryview(copy)
        array = _array(self._size).from_address(start)
        loan = _Loan(array, _ended)
        loan.memory, loan.slot, loan.others = self, slot, others
        self._live[id(loan)] = loan
        return memory_map.bytes_of(array)[:used]

    def _loan_ended(self, loan: _Loan) -> None:
        """On any thread, at any point of the program."""
        if id(loan) in self._pinned or os.getpid() != self._pid:
            return  # in a process forked off us: the memory is still its parent's
        if loan.others or not _ORDERED:
            self._later(lambda: self._give_back(loan))
            return
        self._flags[loan.slot] = 0  # first: once it is not live any more it may be unmapped
        del self._live[id(loan)]
        if self._retired:
            self._later(self._unmap_if_unused)

    def _give_back(self, loan: _Loan) -> None:
        if loan.others:  # the next payload is not to see what was written here
            memory_map.libc().madvise(self._private, self._size, memory_map.DONT_NEED)
        if self._shared:
            self._flags[loan.slot] = 0
        self._live.pop(id(loan), None)
        if self._retired:
            self._unmap_if_unused()

    def pin(self) -> None:
        """Before a fork: what is in use here will be used there, and nobody would tell of its end. It is never given back."""
        self._pinned.update(list(self._live))

    def retire(self) -> None:
        """No payload comes in it any more: unmapped as soon as nothing of it is used."""
        self._retired = True
        self._unmap_if_unused()

    def _unmap_if_unused(self) -> None:
        if self._live:
            return
        shared, self._shared = self._shared, 0  # first: while it is unmapped other threads run
        private, self._private = self._private, 0
        if shared:
            memory_map.libc().munmap(shared, HEADER + self._size)
        if private:
            memory_map.libc().munmap(private, self._size)


class _Loan(weakref.ref[Any]):
    """Knows when the object that all views of a payload hang on has died."""

    __slots__ = ("memory", "others", "slot")
    memory: LentMemory
    slot: int
    others: bool


def _ended(loan: Any) -> None:
    loan.memory._loan_ended(loan)
