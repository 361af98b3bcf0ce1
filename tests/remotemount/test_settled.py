"""One state of a file that others write to, or the word that it is changing. Time is the test's."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor.file_sync import ManifestEntry
from monarch.remotemount.gather_pull import Pull
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


class LargeHost:
    """A host with one large file, as a pull asks it. `at_ask` changes the file before a request, by its number."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.asked: list[str] = []
        self.at_ask: dict[int, Callable[[], object]] = {}
        self.read = SimpleNamespace(call_one=lambda *args: SimpleNamespace(get=lambda _: self.ask(self, "read", *args)))

    def ask(self, host: object, question: str, *args: Any) -> Any:
        self.asked.append(question)
        self.at_ask.get(len(self.asked), lambda: None)()
        data, time, _ = self.disk.files["f"]
        if question == "manifest":
            return {"f": ManifestEntry("file", len(data), 0o400, time)}
        if question == "stamp":
            found = self.disk.stamp("f")
            return found, is_recent(found, self.disk.now)
        _, offset, size = args
        part = data[offset : offset + size]
        return part if question == "read" else hashlib.blake2b(part, digest_size=16).digest()

    def pull(self, folder: Path) -> tuple[bytes | None, str]:
        """Returns what is there of the file afterwards, and what was said."""
        pull = Pull(self, str(folder), "", self.ask)
        said = pull.run()
        assert said or pull.brought >= pull.total == SIZE, "of what was read again all counts"
        return (folder / "f").read_bytes() if (folder / "f").exists() else None, said


SIZE = 5 << 20  # two pieces
OLD, NEW = bytes(SIZE), b"n" * SIZE
# The numbers of the requests for a file of two pieces that is here for the first time.
MANIFEST, STAMP, FIRST, LAST, AGAIN = range(1, 6)


@pytest.fixture
def large(disk: Disk) -> LargeHost:
    disk.write("f", OLD, LONG_AGO)
    return LargeHost(disk)


def test_a_large_file_that_nobody_writes_to_is_read_once(large: LargeHost, tmp_path: Path) -> None:
    assert large.pull(tmp_path) == (OLD, "")
    assert large.asked == ["manifest", "stamp", "read", "read", "stamp"]


@pytest.mark.parametrize("when", [STAMP, FIRST, LAST, AGAIN])
@pytest.mark.parametrize("inode", [1, 2], ids=["in place", "another file"])
def test_a_large_file_that_is_written_to_once_is_brought_in_one_state(
    large: LargeHost, tmp_path: Path, when: int, inode: int
) -> None:
    large.at_ask[when] = lambda: large.disk.write("f", NEW, inode=inode)
    assert large.pull(tmp_path) == (NEW, "")


def test_a_second_write_within_one_tick_is_seen_though_all_is_quiet_afterwards(
    large: LargeHost, tmp_path: Path
) -> None:
    large.disk.write("f", OLD)
    large.at_ask[LAST] = lambda: large.disk.write("f", NEW)
    large.at_ask[AGAIN] = lambda: large.disk.pause(10 * TICK)
    assert large.pull(tmp_path) == (NEW, "")


def test_a_large_file_that_is_written_to_all_the_time_stays_as_it_was(large: LargeHost, tmp_path: Path) -> None:
    for request in range(1, 100):
        letter = b"%c" % (97 + request % 26)
        large.at_ask[request] = lambda letter=letter: large.disk.write("f", letter * len(OLD))  # type: ignore[misc]
    assert large.pull(tmp_path) == (
        None,
        "the host: 1 file(s) changed while they were read, and stay here as they were until the next refresh: f",
    )


def test_of_a_large_log_that_grows_what_was_there_is_brought(large: LargeHost, tmp_path: Path) -> None:
    for request in range(FIRST, 100):
        large.at_ask[request] = lambda: large.disk.write("f", large.disk.files["f"][0] + b"+")
    assert large.pull(tmp_path) == (OLD, "")


def test_a_stamp_is_of_a_real_file_and_a_time_to_come_is_recent() -> None:
    status = os.stat(__file__)
    stamp = stamp_of(status)
    assert stamp.size == status.st_size and not is_recent(stamp, max(stamp.mtime_ns, stamp.ctime_ns) + TICK_NS)
    assert is_recent(stamp, stamp.ctime_ns - 1)
