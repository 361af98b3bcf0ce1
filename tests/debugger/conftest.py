"""A program that stands at breakpoints, and what talks to it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from monarch.admin.debugging import STREAM, Visit
from monarch.admin.programs import Program, choose
from monarch.config import configured
from tests.support.hosts import Hosts
from tests.support.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("program.py")


class Talk:
    """One end of a conversation, as a plain client has it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(TIMEOUT)
        self.said = ""

    def until(self, end: str) -> str:
        """Returns what came since the last time, up to and with `end`."""
        while end not in self.said:
            data = self.sock.recv(65536)
            assert data, f"it ended before {end!r}; it said {self.said!r}"
            self.said += data.decode()
        found, _, self.said = self.said.partition(end)
        return found + end

    def __call__(self, line: str, end: str = "monarch_dbg> ") -> str:
        self.sock.sendall(f"{line}\n".encode())
        return self.until(end)

    def ended(self) -> str:
        while data := self.sock.recv(65536):
            self.said += data.decode()
        return self.said

    def close(self) -> None:
        self.sock.close()


class Running:
    """The program, and its admin socket."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="mnd")
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "MONARCH_RUNTIME_DIR": self.folder,
            "MONARCH_DEBUG_SERVER_PORT": "0",
            "XDG_STATE_HOME": self.folder,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SOURCE), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=SOURCE.parent, env=self.environment | env,
        )  # fmt: skip
        self._watchdog = threading.Timer(4 * TIMEOUT, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        ready = self.line().split()
        assert ready[0] == "ready", ready
        self.pids = [int(pid) for pid in ready[1:]]
        self._talks: list[Talk] = []
        self.notes = ""
        self.port = 0

    @property
    def program(self) -> Program:
        with configured(runtime_dir=self.folder):
            return choose(self.process.pid)

    def call(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def note(self, pattern: str) -> str:
        """Reads what the program says on stderr until a line matches."""
        assert self.process.stderr is not None
        while found := self.process.stderr.readline():
            self.notes += found
            if match := re.search(pattern, found):
                return match.group(1)
        raise AssertionError(f"{pattern!r} was not said, but:\n{self.notes}")

    def talk(self) -> Talk:
        """By the admin socket, up to the first prompt."""
        sock = self.program.stream(STREAM, msgspec.msgpack.encode(Visit()))
        talk = Talk(sock)
        self._talks.append(talk)
        assert talk.until("\n") == "{}\n"
        talk.until("monarch_dbg> ")
        return talk

    def connect(self) -> Talk:
        """By the port, as nc does. An endpoint stands at the first breakpoint of the program."""
        if not self.port:
            self.port = int(self.note(r"nc localhost (\d+)"))
        talk = Talk(socket.create_connection(("localhost", self.port)))
        self._talks.append(talk)
        return talk

    def close(self) -> None:
        self._watchdog.cancel()
        for talk in self._talks:
            talk.close()
        self.process.kill()
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """One for the tests of a file, each of which leaves no endpoint standing."""
    program = Running()
    yield program
    program.close()


@pytest.fixture
def own() -> Iterator[Running]:
    """For tests that end it."""
    program = Running()
    yield program
    program.close()


@pytest.fixture
def afar(hosts: Hosts) -> Iterator[Running]:
    """A program whose two ranks are on two other hosts."""
    program = Running(hosts.start().address, hosts.start().address)
    yield program
    program.close()
