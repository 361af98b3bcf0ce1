"""The standard input of a program, for a command that it runs.

On the same machine the command gets the descriptor itself, so nothing is read for it that it does not ask for, and a terminal
is a terminal. On another machine it has a pipe, which the program fills: a line of a terminal when it is typed, and of other
input as much as a pipe holds.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from monarch._linux import local_socket
from monarch._linux.locks import Lock
from monarch.actor import bind_context
from monarch.actor.lowlevel import start_thread

_PATIENCE = 10.0  # seconds for the other end, which is a thread of this user
_PIECE = 64 * 1024


class InputDoor:
    """The giving end, in the program whose standard input it is. `name` is "" where there is nothing to give: no standard
    input, or a terminal that others read from while this program is in the background. `terminal`: it is one."""

    def __init__(self) -> None:
        self.name = ""
        self.terminal = False
        self._settings: Any = None
        self._sock: socket.socket | None = None
        try:
            self.terminal = os.isatty(0)
            if self.terminal and os.tcgetpgrp(0) != os.getpgrp():
                self.terminal = False
                return
            os.fstat(0)
        except OSError:
            return
        if self.terminal:
            self._settings = termios.tcgetattr(0)
        self.name = f"\0monarch-input-{secrets.token_hex(16)}"
        self._sock = sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(self.name)
        sock.listen()
        start_thread(self._give, "monarch-input", sock)

    def __enter__(self) -> InputDoor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock.close()
        # A command that was killed while it edited a line leaves the terminal without echo.
        if self._settings is not None and os.tcgetpgrp(0) == os.getpgrp():
            termios.tcsetattr(0, termios.TCSANOW, self._settings)

    def _give(self, sock: socket.socket) -> None:
        while True:
            try:
                other, _ = sock.accept()
            except OSError:
                return
            with other:
                try:
                    other.settimeout(_PATIENCE)
                    local_socket.check_peer(other, "the standard input", root=False)
                    socket.send_fds(other, [b"0"], [0])
                except OSError:
                    pass


def take(name: str) -> int | None:
    """Returns the descriptor behind this name, which is the caller's to close; None on another machine, and when the program
    has gone."""
    try:
        with local_socket.connect(name, _PATIENCE) as sock:
            _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError:
        return None
    if not descriptors:
        return None
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


class InputPipe:
    """The pipe of a command on another machine. `reading` is the command's end, for whoever starts it to close."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = Lock()
        self._open = True
        os.set_blocking(self._writing, False)

    def put(self, data: bytes) -> bool:
        """Writes it, or ends the input with b""; waits while the pipe is full. Whether more can be read: not when nobody has
        the other end, nor when the command has ended, whatever it has left running."""
        with self._lock:
            view = memoryview(data)
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if self._open:
                poll.register(self._writing, select.POLLOUT)
            while view and self._open:
                if self._ended in dict(poll.poll()):
                    return False
                try:
                    view = view[os.write(self._writing, view) :]
                except BlockingIOError:  # less room than the system writes at once
                    continue
                except BrokenPipeError:
                    return False
            if not data:
                self._close()
            return self._open

    def end(self) -> None:
        """The command has ended."""
        os.eventfd_write(self._ended, 1)
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._writing)


@contextmanager
def sent_to(command: Any) -> Iterator[None]:
    """Inside, the standard input of this program goes to the command of this actor, where it could not take it itself. What
    was read and not taken is gone afterwards."""
    over, leaving = os.pipe()
    thread = start_thread(bind_context(_send), "monarch-input", command, over)
    try:
        yield
    finally:
        os.close(leaving)
        thread.join()
        os.close(over)


def _send(command: Any, over: int) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(over, 0)  # its other end is closed
    try:
        more = command.lacks_input.call_one().get()
        while more and over not in dict(poll.poll()):
            data = _read()
            more = command.give_input.call_one(data).get() and data
    except Exception:  # the command's process is gone, or its host: who reads what it writes is told
        pass


def _read() -> bytes:
    try:
        return os.read(0, _PIECE)
    except OSError:  # the terminal is gone
        return b""
