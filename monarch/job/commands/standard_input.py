"""The standard input of a program, for a command that it runs on the same machine: the command gets the descriptor itself, so
nothing is read for it that it does not ask for, and a terminal is a terminal."""

from __future__ import annotations

import os
import secrets
import socket
import termios
from types import TracebackType
from typing import Any

from monarch._linux import local_socket
from monarch.actor.lowlevel import start_thread

_PATIENCE = 10.0  # seconds for the other end, which is a thread of this user


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
