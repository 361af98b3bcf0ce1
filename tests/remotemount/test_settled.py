"""One state of a file that others write to, or the word that it is changing. Time is the test's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from monarch.remotemount.settled import (
    LOOKS,
    TICK,
    FileStamp,
    HostErrno,
    SettledFile,
    is_recent,
    read_settled,
    stamp_of,
)

TICK_NS = int(TICK * 1e9)
LONG_AGO = -100 * TICK_NS


class Disk:
    """Files in memory. `at_look` changes them in the middle of a look, by its number."""

    def __init__(self) -> None:
        self.now = 0
        self.files: dict[str, tuple[bytes, int, int]] = {}  # content, time, inode
        self.at_look: dict[int, Callable[[], object]] = {}
        self.looks = 0

    def write(self, path: str, data: bytes, at: int | None = None, inode: int = 1) -> None:
        self.files[path] = data, self.now // TICK_NS * TICK_NS if at is None else at, inode

    def stamp(self, path: str) -> FileStamp:
        if path not in self.files:
            raise OSError(errno.ENOENT, "gone")
        data, time, inode = self.files[path]
        return FileStamp(len(data), time, time, inode, 0)

    def read(self, path: str) -> tuple[FileStamp, bytes, FileStamp]:
        before = self.stamp(path)
        first = self.files[path][0][: before.size // 2]
        self.looks += 1
        self.at_look.get(self.looks, lambda: None)()
        self.stamp(path)
        return before, first + self.files[path][0][before.size // 2 : before.size], self.stamp(path)

    def pause(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def settle(self, path: str = "f") -> SettledFile | HostErrno:
        (found,) = read_settled([path], self.read, self.pause, lambda: self.now)
        return found


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.write("f", b"aaaa", LONG_AGO)
    return disk


def test_a_file_that_nobody_writes_to_is_read_once(disk: Disk) -> None:
    assert disk.settle() == SettledFile(b"aaaa", LONG_AGO) and disk.looks == 1


@pytest.mark.parametrize("inode", [1, 2], ids=["in place", "another file"])
def test_a_file_that_is_written_to_once_is_read_again(disk: Disk, inode: int) -> None:
    disk.at_look[1] = lambda: disk.write("f", b"bbbb", inode=inode)
    assert disk.settle() == SettledFile(b"bbbb", 0)


def test_a_write_that_gives_no_other_time_is_seen(disk: Disk) -> None:
    """The second within one tick."""
    disk.write("f", b"aaaa")
    disk.at_look[1] = lambda: disk.write("f", b"bbbb")
    assert disk.settle() == SettledFile(b"bbbb", 0)


def test_a_file_that_is_written_to_all_the_time_is_never_mixed(disk: Disk) -> None:
    for look in range(1, LOOKS + 1):
        disk.at_look[look] = lambda data=(b"b" if look % 2 else b"a") * 4: disk.write("f", data)  # type: ignore[misc]
    found = disk.settle()
    assert found == HostErrno(errno.EAGAIN) and disk.looks == LOOKS


def test_of_a_log_that_grows_what_was_there_is_brought(disk: Disk) -> None:
    for look in range(1, LOOKS + 1):
        disk.at_look[look] = lambda: disk.write("f", disk.files["f"][0] + b"+")
    assert disk.settle() == SettledFile(b"aaaa", LONG_AGO) and disk.looks == 2


def test_what_goes_or_becomes_shorter_is_no_old_state(disk: Disk) -> None:
    disk.at_look[1] = lambda: disk.write("f", b"a")
    disk.at_look[2] = lambda: disk.files.pop("f")
    assert disk.settle() == HostErrno(errno.ENOENT)
    assert disk.settle("g") == HostErrno(errno.ENOENT)


def test_others_are_not_held_up_by_one_that_changes(disk: Disk) -> None:
    disk.write("g", b"gg", LONG_AGO)
    for look in range(1, 20):
        disk.at_look[look] = lambda data=b"%04d" % look: disk.write("f", data)  # type: ignore[misc]
    found = read_settled(["f", "g"], disk.read, disk.pause, lambda: disk.now)
    assert found == [HostErrno(errno.EAGAIN), SettledFile(b"gg", LONG_AGO)]


def test_a_stamp_is_of_a_real_file_and_a_time_to_come_is_recent() -> None:
    status = os.stat(__file__)
    stamp = stamp_of(status)
    assert stamp.size == status.st_size and not is_recent(stamp, max(stamp.mtime_ns, stamp.ctime_ns) + TICK_NS)
    assert is_recent(stamp, stamp.ctime_ns - 1)
