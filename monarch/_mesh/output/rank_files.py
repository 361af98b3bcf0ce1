"""A file for the output of each rank, written by its host agent on a thread of its own: a disk that is slow, or full, holds
up nothing else.

Files are in a folder of their mesh, FOLDER/MESH-ID/RANK.log, for this user only. Bounds: a file that has reached its limit
becomes RANK.log.1 and another begins; `WAITING` bytes wait for the disk, what comes then is dropped, and the file says so.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable

from monarch._linux import private_files
from monarch._linux.locks import Condition
from monarch._runtime.log_thread import log
from monarch._runtime.loop import start_thread

WAITING = 16 << 20  # bytes of all files of a host
AGAIN = 5.0  # seconds between two tries of a disk that takes nothing


def folder_of(chosen: str) -> str:
    """Returns where files are; `chosen` by the setting log_dir, else in this user's home."""
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "monarch", "logs")


def path_of(folder: str, mesh: str, uid: str, rank: int) -> str:
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in mesh)[:60]
    return os.path.join(folder, f"{name}-{uid}", f"{rank}.log")


def say(mesh: str, uid: str, chosen: str) -> None:
    """Says where the files are; once a program."""
    place = path_of(folder_of(chosen), mesh, uid, 0).removesuffix("0.log")
    log(
        logging.getLogger("monarch"),
        logging.WARNING,
        "what the ranks of mesh %r write is also in %sRANK.log on their hosts, and so on for meshes to come (setting "
        "log_dir)",
        mesh,
        place,
    )


class RankFile:
    """One. Used by the thread of `RankFiles` only, but for `dropped`: bytes that found no room to wait for the disk. `lost`:
    bytes that the disk has not taken. The file says how many are missing before what is written next."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.dropped = 0
        self.lost = 0
        self._fd = -1
        self._size = 0

    def write(self, data: bytes) -> None:
        """OSError when the disk takes nothing."""
        if self._fd < 0:
            self._open()
        if self._size and self._size + len(data) > self.limit:
            os.close(self._fd)
            self._fd = -1
            os.replace(self.path, f"{self.path}.1")
            self._open()
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _open(self) -> None:
        private_files.make_folder(os.path.dirname(self.path))
        self._fd = private_files.open_log(self.path)
        self._size = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _missing(count: int) -> bytes:
    """Returns what the file says in the place of so many bytes."""
    return f"[{count} bytes of output are missing here: the disk was too slow, or full]\n".encode() if count else b""


class RankFiles:
    """The files of a host's processes. `write` and `close` wait for nothing. `complain` is called once, on a thread,
    when a disk takes nothing."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._complained = False
        # And how many were dropped before; b"" closes the file.
        self._waiting: deque[tuple[RankFile, bytes, int]] = deque()
        self._size = 0
        self._changed = Condition()
        self._started = False
        self._busy = False
        self._closed_until = 0.0

    def write(self, file: RankFile, data: bytes) -> None:
        with self._changed:
            if self._size + len(data) > WAITING:
                file.dropped += len(data)
                return
            self._put(file, data)

    def close(self, file: RankFile) -> None:
        with self._changed:
            self._put(file, b"")

    def _put(self, file: RankFile, data: bytes) -> None:
        if not self._started:
            try:
                start_thread(self._run, "monarch-rank-files")
            except RuntimeError:  # no more threads
                file.dropped += len(data)
                return
            self._started = True
        dropped, file.dropped = file.dropped, 0
        self._waiting.append((file, data, dropped))
        self._size += len(data)
        self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Waits until everything is written. False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                file, data, dropped = self._waiting.popleft()
                self._size -= len(data)
                self._busy = True
            file.lost += dropped
            if not data:
                file.close()
            elif time.monotonic() < self._closed_until:
                file.lost += len(data)
            else:
                try:
                    file.write(_missing(file.lost) + data)
                    file.lost = 0
                except OSError as error:
                    file.close()
                    self._closed_until = time.monotonic() + AGAIN
                    file.lost += len(data)
                    self._say(file, error)

    def _say(self, file: RankFile, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._complain(
                f"output cannot be written to {file.path} ({error.strerror}); the program goes on, and what the disk does "
                f"not take is left out of the files (settings enable_file_capture, log_dir)"
            )
