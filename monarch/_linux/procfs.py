"""Processes and memory as the kernel shows them in /proc."""

from __future__ import annotations

import os
from typing import NamedTuple

_PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")
_EXITING = 4  # PF_EXITING, of a thread's flags
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """A process at one moment. `started`: clock ticks after boot; a pid is used again, a pid with its start is not."""

    pid: int
    name: str
    # R: runs, S: sleeps, D: waits in the kernel, T: stopped by a signal, Z: ended and not waited for, X: gone
    state: str
    parent: int
    group: int
    session: int
    processor: float  # seconds
    threads: int
    started: int
    resident: int  # bytes

    @property
    def alive(self) -> bool:
        """True unless it has ended; what was not waited for has."""
        return self.state not in "ZX"


def stat(pid: int) -> ProcessStat | None:
    """Returns what /proc/PID/stat says; None when there is no such process, or it cannot be read."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read())
    except OSError:
        return None


def parse_stat(data: bytes) -> ProcessStat:
    """Takes a line of /proc/PID/stat apart. A name may hold spaces, parentheses, and bytes that are no text."""
    front, _, back = data.rpartition(b")")
    pid, _, name = front.partition(b" (")
    fields = back.split()
    return ProcessStat(
        int(pid),
        os.fsdecode(name),
        fields[0].decode(),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        (int(fields[11]) + int(fields[12])) / _TICKS,
        int(fields[17]),
        int(fields[19]),
        int(fields[21]) * _PAGE,
    )


def start_of(pid: int) -> int | None:
    """Returns when a living process started, in clock ticks after boot; None when it has ended (a zombie has)."""
    found = stat(pid)
    return found.started if found is not None and found.alive else None


def thread_state(pid: int, thread: int) -> str:
    """Returns the letter for what a thread does (see `ProcessStat.state`); "" when that cannot be seen."""
    try:
        with open(f"{_PROC}/{pid}/task/{thread}/stat", "rb", buffering=0) as file:
            return file.read(512).rpartition(b") ")[2][:1].decode()
    except OSError:  # it has ended, there is no /proc, or no descriptor is left
        return ""


def thread_exits(pid: int, thread: int) -> bool:
    """True if a thread has ended, or is about to: it is in /proc for a moment after it has run for the last time."""
    try:
        with open(f"{_PROC}/{pid}/task/{thread}/stat", "rb", buffering=0) as file:
            return bool(int(file.read(512).rpartition(b")")[2].split()[6]) & _EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # it cannot be seen
        return False


def pids() -> list[int]:
    """Returns the processes that there are; none where /proc cannot be read."""
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def children_of(pid: int | str) -> list[int]:
    """Returns the children that this process (or "self") has started, by whichever thread."""
    found = []
    try:
        threads = os.listdir(f"{_PROC}/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"{_PROC}/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:  # the thread has ended
            continue
    return found


def command_line(pid: int) -> str:
    """Returns the words of a process's command line, with spaces between; "" when it has ended."""
    try:
        with open(f"{_PROC}/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def working_directory(pid: int) -> str:
    """Returns the folder in which a process is; "" when it has ended, or is another user's."""
    try:
        return os.readlink(f"{_PROC}/{pid}/cwd")
    except OSError:
        return ""


def environment(pid: int) -> list[bytes]:
    """Returns the variables that a process was started with, each `NAME=value`; none of what is gone, or another user's."""
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def boot_id() -> str:
    """Returns which boot of which machine this is. OSError where the kernel does not tell."""
    with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def namespace(kind: str) -> str:
    """Returns what is equal in processes that see the same of `kind`, "pid" or "mnt", at the same boot.

    OSError where the kernel does not tell.
    """
    return f"{boot_id()}/{os.readlink(f'{_PROC}/self/ns/{kind}')}"


def memory() -> tuple[int, int]:
    """Returns (bytes there are, bytes that can be had without swapping) of the machine; (0, 0) where it does not say."""
    found = {}
    try:
        with open(f"{_PROC}/meminfo", encoding="ascii") as file:
            for line in file:
                key, _, value = line.partition(":")
                if value.endswith("kB\n"):
                    found[key] = int(value.split()[0]) * 1024
        return found["MemTotal"], found.get("MemAvailable", found["MemFree"])
    except (OSError, KeyError, ValueError):
        return 0, 0
