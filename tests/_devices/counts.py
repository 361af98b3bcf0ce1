"""Counts of shared memory as torch keeps them: in a file of its own format, one for each share, which exactly one opener
takes 1 off. Below 0 they are huge, as torch reads them: the memory is never free again.
"""

from __future__ import annotations

import atexit
import mmap
import os
import struct
import threading
from pathlib import Path

FOLDER = Path("/dev/shm")
HEADER, COUNTS = 64, 10000


class Counts:
    """The counts of this process, in /dev/shm/torch_<pid>_..., made by the first share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._file = b""
        self._next = 0

    def take(self) -> tuple[bytes, int]:
        """A count that is 1: the file it is in, and its number."""
        with self._lock:
            if not self._file:
                self._file = f"/torch_{os.getpid()}_{int.from_bytes(os.urandom(4), 'big')}_0".encode()
                (FOLDER / os.fsdecode(self._file[1:])).write_bytes(bytes(HEADER + 8 * COUNTS))
                atexit.register(self.close)
            number = self._next
            self._next += 1
        assert number < COUNTS
        self._add(self._file, number, 1)
        return self._file, number

    def drop(self, file: bytes, number: int) -> None:
        """Nothing happens when the file is gone, as with torch."""
        try:
            self._add(file, number, -1)
        except FileNotFoundError:
            return

    def close(self) -> None:
        if self._file and self._pid == os.getpid():
            (FOLDER / os.fsdecode(self._file[1:])).unlink(missing_ok=True)
            self._file = b""

    def _add(self, file: bytes, number: int, by: int) -> None:
        with (FOLDER / os.fsdecode(file[1:])).open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as counts:
            at = HEADER + 8 * number
            (now,) = struct.unpack_from("=Q", counts, at)
            assert now or by > 0, "a count is taken off twice: torch would keep the memory for good"
            struct.pack_into("=Q", counts, at, now + by)
