"""Detached processes of this machine, told apart from others that come to have their pids."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec

_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
_BETWEEN = 0.05


class Session(msgspec.Struct, frozen=True):
    """A process that leads a session of its own: which one it is on which boot of which machine."""

    pid: int
    started: int  # in clock ticks after boot
    boot: str

    def alive(self) -> bool:
        """Whether it runs; a process that has ended but was not waited for does not."""
        found = _stat(self.pid) if self.here() else None
        return found is not None and found.started == self.started and found.state not in "ZX"

    def here(self) -> bool:
        """Whether this is the machine it was started on, and that was not booted since."""
        return self.boot == boot_id()

    def members(self) -> list[int]:
        """The living processes of the session, its leader among them."""
        if not self.here():
            return []
        leader = _stat(self.pid)
        if leader is not None and leader.started != self.started:
            return []  # another process has its pid, so the session has ended
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                stat = _stat(int(entry.name))
                if stat is not None and stat.session == self.pid and stat.state not in "ZX":
                    found.append(int(entry.name))
        return found


def session_of(pid: int) -> Session:
    """ProcessLookupError when there is no such process."""
    found = _stat(pid)
    if found is None:
        raise ProcessLookupError(f"no process {pid}")
    return Session(pid, found.started, boot_id())


def end(sessions: list[Session]) -> None:
    """Ends every process of these sessions: SIGTERM, and SIGKILL for those that are there a second later. Returns when they
    are gone."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        deadline = None if patience is None else time.monotonic() + patience
        left = _members(sessions)
        _signal(left, number)
        pause = threading.Event()
        while left and (deadline is None or time.monotonic() < deadline):
            pause.wait(_BETWEEN)
            left = _members(sessions)
            if deadline is None:  # those that were forked meanwhile
                _signal(left, number)


def _members(sessions: list[Session]) -> list[int]:
    return [pid for session in sessions for pid in session.members()]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Stat(msgspec.Struct):
    state: str
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(fields[0], int(fields[3]), int(fields[19]))
