"""Programs on a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

import pytest

from tests.support.patience import TIMEOUT


class Terminal:
    """A program that has a terminal. What it shows is read as it comes."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> None:
        self.fd, side = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=side, stdout=side, stderr=side, env=dict(env), cwd=cwd
        )
        self.side = side
        self.shown = ""
        self._seen = 0

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, pattern: str) -> str:
        """Waits until this is shown, behind what was waited for before."""
        while (found := re.compile(pattern, re.M).search(self.shown, self._seen)) is None:
            if not select.select([self.fd], [], [], TIMEOUT)[0]:
                pytest.fail(f"{pattern!r} was not shown within {TIMEOUT} s; it shows:\n{self.shown}")
            self.shown += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
        self._seen = found.end()
        return found.group()

    def read(self) -> None:
        """Reads what it shows now, if anything, so that it can go on."""
        if select.select([self.fd], [], [], 0.05)[0]:
            self.shown += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")

    def attributes(self) -> list[object]:
        """Returns how the terminal is set: raw, echo and so on."""
        return termios.tcgetattr(self.side)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.side)
        os.close(self.fd)
