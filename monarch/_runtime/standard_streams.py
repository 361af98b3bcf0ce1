"""Descriptors 0, 1 and 2 of a process of ours: always open, and written to without waiting or raising."""

from __future__ import annotations

import os
import select
import stat
import time

_STDERR = 2
_stderr: os.stat_result | None = None  # what descriptor 2 was when `secure` was called


def secure() -> None:
    """Opens /dev/null where a standard descriptor is missing: else the next socket would get its number, and whatever is
    printed would go there. To be called before anything else is opened."""
    global _stderr
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
    _stderr = os.fstat(_STDERR)


def write_stderr(text: str, patience: float = 0.0) -> None:
    """Writes what stderr has room for within `patience` seconds.

    To the descriptor: `sys.stderr` may be None, closed, or an object of the program's, with locks that another thread holds.
    Not when it was closed since `secure` and its number has become another's socket.
    """
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    deadline = time.monotonic() + patience
    room = select.poll()
    room.register(_STDERR, select.POLLOUT)
    try:
        if _is_anothers():
            return
        while data:
            ready = room.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready or not ready[0][1] & select.POLLOUT:
                return
            written = os.write(_STDERR, data[: select.PIPE_BUF])  # a pipe that has room takes so much without waiting
            data = data[written:]
    except OSError:  # closed, nobody reads, the disk is full
        return


def _is_anothers() -> bool:
    now = os.fstat(_STDERR)
    terminal_pipe_or_file = stat.S_ISCHR(now.st_mode) or stat.S_ISFIFO(now.st_mode) or stat.S_ISREG(now.st_mode)
    return not terminal_pipe_or_file and (_stderr is None or not os.path.samestat(_stderr, now))
