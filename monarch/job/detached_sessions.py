"""Detached processes of this machine, told apart from others that come to have their pids."""

from __future__ import annotations

import os
import signal
import threading
import time

import msgspec

from monarch._linux import procfs

_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
_BETWEEN = 0.05


class DetachedSession(msgspec.Struct, frozen=True):
    """A process that leads a session of its own: which one it is on which boot of which machine."""

    pid: int
    started: int  # in clock ticks after boot
    boot: str

    def alive(self) -> bool:
        """True if it runs; a process that has ended but was not waited for does not."""
        return self.here() and procfs.start_of(self.pid) == self.started

    def here(self) -> bool:
        """True if this is the machine it was started on, and that was not booted since."""
        return self.boot == procfs.boot_id()

    def members(self) -> list[int]:
        """The living processes of the session, its leader among them."""
        if not self.here():
            return []
        leader = procfs.stat(self.pid)
        if leader is not None and leader.started != self.started:
            return []  # another process has its pid, so the session has ended
        every = map(procfs.stat, procfs.pids())
        return [found.pid for found in every if found is not None and found.session == self.pid and found.alive]


Session = DetachedSession  # jobs that an earlier version has kept name it so


def session_of(pid: int) -> DetachedSession:
    """ProcessLookupError when there is no such process."""
    found = procfs.stat(pid)
    if found is None:
        raise ProcessLookupError(f"no process {pid}")
    return DetachedSession(pid, found.started, procfs.boot_id())


def end(sessions: list[DetachedSession]) -> None:
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


def _members(sessions: list[DetachedSession]) -> list[int]:
    return [pid for session in sessions for pid in session.members()]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
