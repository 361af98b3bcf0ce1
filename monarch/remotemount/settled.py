"""Reading files that others may write to meanwhile: one state of each, or the word that it is changing.

A file is settled when it was the same before and after it was read, and was last written to longer ago than file systems
tell times apart; or when a second look finds the same bytes in it, and perhaps more behind them, as in a log that grows.
A write that is stopped half-way during both looks cannot be told from a file that somebody has left like that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

TICK = 0.02  # seconds in which two writes may give a file the same time
LOOKS = 4  # at a file, before it counts as changing
_NANO = 1_000_000_000


class FileStamp(NamedTuple):
    """A file, and the state that it is in."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    def grew_to(self, later: FileStamp) -> bool:
        """True if it is the same file, and not shorter."""
        return (self.inode, self.device) == (later.inode, later.device) and self.size <= later.size


class SettledFile(NamedTuple):
    data: bytes
    mtime_ns: int


class HostErrno(NamedTuple):
    """The errno that the host met; EAGAIN for a file that is changing."""

    error: int


def stamp_of(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def is_recent(stamp: FileStamp, now_ns: int) -> bool:
    """True if it may have been written to again without another time. A time to come is of another machine's clock."""
    return now_ns - max(stamp.mtime_ns, stamp.ctime_ns) < TICK * _NANO


# Reads a file: its stamp before, the data, its stamp afterwards.
Read = Callable[[str], tuple[FileStamp, bytes, FileStamp]]


def read_settled(
    paths: Sequence[str], read: Read, pause: Callable[[float], object], now_ns: Callable[[], int]
) -> list[SettledFile | HostErrno]:
    """Returns the content of each file, after LOOKS looks at most, with a pause before each look but the first."""
    found: dict[str, SettledFile | HostErrno] = {}
    seen: dict[str, tuple[FileStamp, bytes]] = {}
    for look in range(LOOKS):
        left = [path for path in paths if path not in found]
        if look and left:
            pause(TICK)
        for path in left:
            began = now_ns()
            try:
                before, data, after = read(path)
            except OSError as exc:
                found[path] = HostErrno(exc.errno or errno.EIO)
                continue
            whole = len(data) == before.size
            if whole and before == after and not is_recent(before, began):
                found[path] = SettledFile(data, before.mtime_ns)
                continue
            earlier = seen.get(path)
            if earlier is not None and earlier[0].grew_to(after) and data.startswith(earlier[1]):
                found[path] = SettledFile(earlier[1], earlier[0].mtime_ns)
            elif whole:
                seen[path] = before, data
            else:
                seen.pop(path, None)
    return [found.get(path, HostErrno(errno.EAGAIN)) for path in paths]
