"""Mappings of values of other processes, and those that wait for the next value in the same memory.

A mapping is private: who writes to it writes to a copy of that page. The owner makes the next value in the memory of one that
is no more; who has mapped that memory finds the pages of the next value mapped as well, where a new mapping takes a page
fault for every sixteen of them. So a mapping stays for a while after its last view, unless something was written to it.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from monarch._linux import memory_map
from monarch._linux.weak_sets import members

_KEPT_S = 10.0  # for which a mapping stays that nobody uses
_MOST = 64  # of them; pages go when their owner gives them back, so what they take is a table of 2 MiB a GiB

Identity = tuple[int, int]  # of a file: device and inode


class MappedRegion(NamedTuple):
    """Memory that is mapped."""

    address: int
    size: int

    def unmap(self) -> None:
        memory_map.libc().munmap(*self)


def map_region(file: int, offset: int, size: int) -> MappedRegion:
    """Maps a part of a file; it needs no descriptor then. OSError."""
    return MappedRegion(memory_map.map_memory(file, size, memory_map.PRIVATE | memory_map.NO_RESERVE, offset), size)


class IdleRegions:
    """Regions that nobody uses, by their files. Any thread, in the middle of anything: each step is one of a dict."""

    def __init__(self) -> None:
        self._idle: dict[Identity, tuple[MappedRegion, float]] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, file: Identity) -> MappedRegion | None:
        """Returns the region of a file, which is not kept here any more."""
        found = self._idle.pop(file, None)
        return found and found[0]

    def give(self, file: Identity, region: MappedRegion, now: float) -> None:
        """Keeps a region, which nobody has written to; one that is too much is unmapped."""
        before = self._idle.pop(file, None)
        if before is not None:
            before[0].unmap()
        if len(self._idle) < _MOST:
            self._idle[file] = region, now
        else:
            region.unmap()

    def trim(self, now: float) -> float | None:
        """Unmaps what nobody has used for ten seconds; returns in how many to look again, None if there is nothing."""
        waits = []
        for file, (_, since) in list(self._idle.items()):
            if since + _KEPT_S > now:
                waits.append(since + _KEPT_S - now)
            elif (found := self._idle.pop(file, None)) is not None:
                found[0].unmap()
        return min(waits, default=None)

    def clear(self) -> None:
        self.trim(float("inf"))


idle = IdleRegions()
os.register_at_fork(after_in_child=idle.clear)


class Mapping:
    """A region as long as there are pieces of it. `ended` is called behind the last, on any thread, in the middle of
    anything; never once the process was forked: the child reads it as well.

    `file`: of the region, where others may make the next value in it.
    """

    def __init__(self, region: MappedRegion, ended: Callable[[], object], file: Identity | None = None) -> None:
        self._region, self._ended, self._file = region, ended, file
        _live.add(self)

    @property
    def address(self) -> int:
        return self._region.address

    def fork(self) -> None:
        """Keeps what the mapping is of for good."""
        _forked.append(self._ended)
        self._ended, self._file = int, None

    def __del__(self, at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        if at_the_end():  # of the process, which unmaps all, and of which others are told
            return
        if self._file is None or memory_map.is_written(*self._region):
            self._region.unmap()
        else:
            idle.give(self._file, self._region, time.monotonic())
        self._ended()


_live: weakref.WeakSet[Mapping] = weakref.WeakSet()
_forked: list[Callable[[], object]] = []


def _before_fork() -> None:
    for mapping in members(_live):
        mapping.fork()


os.register_at_fork(before=_before_fork)
