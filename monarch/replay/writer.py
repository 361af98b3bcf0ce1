"""The file of one recording: written by one actor, event by event, at most so many bytes."""

from __future__ import annotations

import os
import re
import stat
import time

from monarch.replay.events import MAGIC, SUFFIX, Event, Piece, encode

_MOST_PIECES = 1000  # that one system call writes
_SPARE = 4096  # bytes kept for the event that says why recording stopped


class Full(Exception):
    """No more is recorded: the bound is reached."""


class Writer:
    """OSError when the folder or the file cannot be made, and from `write` when the disk is full."""

    def __init__(self, folder: str, name: str, rank: int, most: int) -> None:
        make_folder(folder)
        plain = re.sub(r"[^-_.A-Za-z0-9]", "_", name)[:100] or "actor"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_APPEND
        number = 0
        while True:  # an actor of that name, in that second, may have been restarted
            again = f".{number}" if number else ""
            self.path = os.path.join(folder, f"{plain}-{rank}-{stamp}-{os.getpid()}{again}{SUFFIX}")
            try:
                self._fd = os.open(self.path, flags, 0o600)
                break
            except FileExistsError:
                number += 1
        self._left = most - len(MAGIC)
        self.size = len(MAGIC)
        os.write(self._fd, MAGIC)

    def write(self, events: list[tuple[Event, list[Piece]]]) -> None:
        """Returns when they are with the kernel, so that they outlive this process. Full, and nothing of the first event that
        did not fit was written."""
        waiting: list[Piece] = []
        full = False
        for event, pieces in events:
            encoded = encode(event, pieces)
            size = sum(len(piece) for piece in encoded)
            if size > self._left:
                full = True
                break
            self._left -= size
            waiting += encoded
        self._put(waiting)
        if full:
            raise Full

    def end(self, event: Event | None) -> None:
        """Closes the file, after a last event for which there is room in any case."""
        if self._fd < 0:
            return
        try:
            if event is not None:
                self._put(encode(event)[:_SPARE])
        except OSError:  # full: then it ends without a word
            pass
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _put(self, pieces: list[Piece]) -> None:
        while pieces:
            count = os.writev(self._fd, pieces[:_MOST_PIECES])
            self.size += count
            while pieces and count >= len(pieces[0]):
                count -= len(pieces[0])
                del pieces[0]
            if count:
                pieces[0] = memoryview(pieces[0])[count:]


def make_folder(folder: str) -> None:
    """Private to this user when it is made here; PermissionError for one that others own, or may write in."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user, and recordings hold all that an actor was sent: name a folder of yours "
            f"(setting record_folder)"
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"others may write in {folder}: chmod go-w it, or name another (setting record_folder)")
