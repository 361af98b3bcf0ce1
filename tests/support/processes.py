"""Processes seen from outside."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.patience import TIMEOUT


class Watch:
    """Processes by descriptor: their end is waited for without polling, and a reused pid fools nobody."""

    def __init__(self, pids: list[int]) -> None:
        self._open: dict[int, int] = {}
        for pid in pids:
            try:
                self._open[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass

    def survivors(self, seconds: float) -> dict[int, str]:
        """Waits up to `seconds` for all to end; those that have not, with their command lines."""
        deadline = time.monotonic() + seconds
        left = {}
        for pid, fd in self._open.items():
            ended, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                left[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            os.close(fd)
        self._open = {}
        return left


def descendants(pid: int) -> list[int]:
    """The pids of all processes below it, now."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, wave = [], {pid}
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave}
        found += sorted(wave)
    return found


def kill(pid: int) -> None:
    """SIGKILL; returns when the kernel has let go of its memory."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        assert select.select([process], [], [], TIMEOUT)[0]
    finally:
        os.close(process)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Inside, all threads of the process are stopped by SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + TIMEOUT
        while not all(state == "T" for state in thread_states(pid)):  # the kernel tells nobody but the parent
            assert time.monotonic() < deadline
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have been killed
            os.kill(pid, signal.SIGCONT)


def thread_states(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
