"""The host's end of `shell`: an interactive shell on a terminal of its own.

What the shell shows waits in the kernel until the client has asked for what came before, so nothing piles up here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios

import msgspec

from monarch.actor import Actor, concurrent_endpoint, endpoint
from monarch.actor.lowlevel import start_thread
from monarch.job.commands.command_plan import shell_status
from monarch.job.commands.loop_queue import put_from_thread

_PIECE = 16 * 1024
_PIECES = 16
_PATIENCE = 1.0  # seconds after SIGHUP, and again after SIGTERM
_END_OF_FILE = b"\x04"  # Ctrl-D
_AGAIN = 1.0  # seconds until Ctrl-D is typed again, where what reads the terminal took the one before
_ENDS = 5  # times that it is typed; what runs on then is hung up on

# A session's leader that opens a terminal gets it as its controlling one: job control and Ctrl-C work.
_ON_TERMINAL = 'exec "$0" -i <>"$1" >&0 2>&0'


class ShellLaunch(msgspec.Struct, frozen=True):
    """A shell's start. `workdir` has to be there; without one `folder` is taken, if it is there."""

    env: dict[str, str]
    workdir: str | None
    folder: str
    rows: int
    columns: int


class TerminalActor(Actor):
    """One shell. `start`, then `read` until it says an exit status."""

    def __init__(self) -> None:
        self._shown: asyncio.Queue[bytes | int] = asyncio.Queue(_PIECES)
        self._ended = asyncio.Event()
        self._terminal = -1
        self._shell: subprocess.Popen[bytes] | None = None

    @endpoint
    async def start(self, launch: ShellLaunch) -> int:
        """The shell's pid. OSError when it cannot be started."""
        self._loop = asyncio.get_running_loop()
        folder = launch.workdir or (launch.folder if os.path.isdir(launch.folder) else None)
        self._terminal, side = pty.openpty()
        try:
            _set_size(self._terminal, launch.rows, launch.columns)
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _ON_TERMINAL, shell_program(), os.ttyname(side)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, **launch.env},
                start_new_session=True,
            )
        except BaseException:
            os.close(side)
            raise
        start_thread(self._follow, "monarch-shell", self._shell, side)
        return self._shell.pid

    @concurrent_endpoint
    async def read(self) -> list[bytes | int]:
        """Returns what is shown since the last call, in order; waits for something. The last one of all is the exit
        status."""
        found = [await self._shown.get()]
        while not self._shown.empty():
            found.append(self._shown.get_nowait())
        return found

    @endpoint
    async def type(self, data: bytes) -> None:
        """Takes what was typed; waits while the terminal takes no more."""
        terminal = self._terminal
        if terminal >= 0:
            await asyncio.to_thread(_write, terminal, data)

    @concurrent_endpoint
    async def end_input(self) -> None:
        """Nothing more will be typed. It is Ctrl-D, again and again, for a program in the shell may take the first; and a
        hang-up when something runs on that does not read."""
        writable = select.poll()
        writable.register(self._terminal, select.POLLOUT)
        for _ in range(_ENDS):
            if writable.poll(0):
                with contextlib.suppress(OSError):  # the shell has ended
                    os.write(self._terminal, _END_OF_FILE)
            if await self._has_ended(_AGAIN):
                return
        await self._hang_up()

    @endpoint
    async def resize(self, rows: int, columns: int) -> None:
        """The client's window has this size now."""
        if self._terminal >= 0:
            _set_size(self._terminal, rows, columns)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self._shell is not None:
            await self._hang_up()
        if self._terminal >= 0:
            terminal, self._terminal = self._terminal, -1
            os.close(terminal)

    async def _hang_up(self) -> None:
        """Ends the shell, and what runs in front of it: that is not known any more when the shell has ended first."""
        assert self._shell is not None
        groups = {self._shell.pid}
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
            groups |= {_foreground(self._terminal)} - {0}
            for group in groups:
                _signal_group(group, number)
            if await self._has_ended(_PATIENCE):
                return

    async def _has_ended(self, patience: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), patience)
        return self._ended.is_set()

    def _follow(self, shell: subprocess.Popen[bytes], side: int) -> None:
        """Hands out the exit status behind all that was shown. `side`, the shell's end of the terminal, stays open
        here as long as the shell runs: reading would find an end before the shell has opened it."""
        reader = start_thread(self._show, "monarch-terminal", self._terminal)
        status = shell_status(shell.wait())
        os.close(side)
        reader.join()
        self._put(status)
        try:
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:  # the actor has stopped
            pass

    def _show(self, terminal: int) -> None:
        while True:
            try:
                data = os.read(terminal, _PIECE)
            except OSError:  # EIO: nobody has the other end any more
                return
            self._put(data)

    def _put(self, item: bytes | int) -> None:
        put_from_thread(self._shown, self._loop, item)


def shell_program() -> str:
    """The user's shell on this host, or bash."""
    for path in (os.environ.get("SHELL", ""), "/bin/bash", "/bin/sh"):
        if path and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("this host has no shell: neither $SHELL nor /bin/bash nor /bin/sh can be executed")


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _foreground(terminal: int) -> int:
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return 0


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def _write(terminal: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(terminal, view) :]
