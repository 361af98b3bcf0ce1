"""Shared memory for values that a process keeps, used again and again: pages that were never touched cost as much as copying.

It is memory as payloads of messages have it, in a pool of the same kind. A piece is in use until its last holder has gone.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import weakref
from collections.abc import Callable

from monarch._linux import procfs
from monarch._linux.locks import RLock
from monarch._wire.segments import HEADER, Pool, Segment, capacity_for
from monarch._wire.shared_memory import OwnMemory

_IDLE = 10.0  # seconds after which memory that nothing is in is given back
_MOST = 4096  # pieces in use


class PooledMemory:
    """Memory that something is kept in: `size` bytes behind `offset` of the file `fd`. Another process may map it, and has to
    be done with it before this object goes: then it is used again, or its pages are given back. The mapping may stay.

    Since 0.2.0.
    """

    __slots__ = ("__weakref__", "_is_ours", "_is_pooled", "_segment")
    offset = HEADER

    def __init__(self, segment: Segment[OwnMemory], is_pooled: bool) -> None:
        self._segment, self._is_pooled, self._is_ours = segment, is_pooled, True

    @property
    def fd(self) -> int:
        """The descriptor, of this process."""
        return self._segment.memory.fd

    def write(self, offset: int, data: memoryview) -> None:
        """Copies `data`, of bytes, to `offset`; what is large in several threads. OSError when there is no memory."""
        self._segment.memory.write_in_threads(offset, data)

    def disown(self) -> None:
        """Leaves it to the process that this one was forked off."""
        self._is_ours = False

    def __del__(self, at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._is_ours or at_the_end():
            return
        if self._is_pooled:
            self._segment.filled()  # a byte: no lock is taken, whatever this interrupts
        else:
            self._segment.memory.give_back()


class MemoryPool:
    """The memory of one kind of values. `name`: what /proc shows; `limit`: how many bytes are used again at most. Any thread.

    Since 0.2.0.
    """

    def __init__(self, name: str, limit: Callable[[], int]) -> None:
        self._name, self._limit = name, limit
        self._lock = RLock()  # also while the collector ends something in the middle of it
        self._lent: weakref.WeakSet[PooledMemory] = weakref.WeakSet()
        self._clear()
        _pools.add(self)

    def _clear(self) -> None:
        self._pool: Pool[OwnMemory] = Pool(0, 0, lambda segment: segment.memory.give_back())

    def memory_for(self, size: int) -> PooledMemory | None:
        """Returns memory for `size` bytes, whatever is in it. None where this process has no descriptor for more; MemoryError
        when the machine has not that much."""
        now = time.monotonic()
        with self._lock:
            self._pool.limit, self._pool.count = self._limit(), _count()
            found = self._pool.reuse(size, (), now)
            memory = self._new(size, now) if found is None else PooledMemory(found, True)
            if memory is not None:
                self._lent.add(memory)
            return memory

    def _new(self, size: int, now: float) -> PooledMemory | None:
        if len(self._lent) >= _count():
            return None
        available = procfs.memory()[1]
        if available and size > available:
            self._pool.trim(now, now)
            raise MemoryError(f"{size} bytes are to be kept, the machine has {available} available")
        is_pooled = self._pool.make_room(size, now)
        try:
            capacity = capacity_for(size) if is_pooled else size
            segment = Segment(0, capacity, OwnMemory(capacity, self._name))
        except BaseException:
            if is_pooled:
                self._pool.no_room(size)
            raise
        if is_pooled:
            self._pool.add(segment, ())
        return PooledMemory(segment, is_pooled)

    def trim(self) -> float | None:
        """Gives back memory that nothing has been in for ten seconds; returns in how many to look again, None if there is
        none."""
        now = time.monotonic()
        with self._lock:
            since = self._pool.trim(now - _IDLE, now)
        return None if since is None else max(0.01, since + _IDLE - now)


_pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()


def _count() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // 4)


def _after_fork() -> None:
    """The child uses nothing of its parent's again."""
    for pool in _pools:
        for memory in list(pool._lent):
            memory.disown()
        pool._clear()


os.register_at_fork(after_in_child=_after_fork)
