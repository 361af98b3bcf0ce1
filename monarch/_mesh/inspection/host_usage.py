"""What the system knows of a host and of the processes on it: memory, load, processor time. Reads /proc."""

from __future__ import annotations

import os

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessUsage(msgspec.Struct, frozen=True):
    """One process of the program: its address, its mesh and place there; `state`: starting, running, stopping, stopped (by
    a signal) or suspected, and `why`. From the system: bytes of memory (`resident`), seconds of processor time, threads, and
    the letter that it has for what the main thread does (`letter`; T: stopped, D: waits in the kernel)."""

    address: str
    pid: int
    mesh: str
    rank: int
    state: str
    why: str
    letter: str = ""
    resident: int = 0
    processor: float = 0.0
    threads: int = 0

    @classmethod
    def of(cls, address: str, pid: int, mesh: str, rank: int, state: str, why: str) -> ProcessUsage:
        """With what the system says now."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(") ")[2].split()
        except OSError:  # it ends just now, or is another one's behind a wrapper
            return cls(address, pid, mesh, rank, state, why)
        ticks = int(fields[11]) + int(fields[12])
        resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return cls(address, pid, mesh, rank, state, why, fields[0], resident, ticks / _TICKS, int(fields[17]))


class HostUsage(msgspec.Struct, frozen=True):
    """A host: its address and name, its agent's pid, bytes of `memory` that it has and that are `available`, the lower of
    the machine's and of the container's; its load, its processes."""

    host: str
    name: str
    pid: int
    memory: int
    available: int
    load: float
    processes: list[ProcessUsage]


def memory_of_host() -> tuple[int, int]:
    """(bytes there are, bytes that are available), for this process: a container may have fewer than the machine."""
    total, available = _memory_of_machine()
    limit, used = _memory_of_group()
    if 0 < limit < total:
        return limit, min(available, max(0, limit - used))
    return total, available


def _memory_of_machine() -> tuple[int, int]:
    found = {}
    with open("/proc/meminfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            if value.endswith("kB\n"):
                found[key] = int(value.split()[0]) * 1024
    return found["MemTotal"], found.get("MemAvailable", found["MemFree"])


def _memory_of_group() -> tuple[int, int]:
    """(limit, used without what can be dropped) of the control group as a container sees it; (0, 0) without a limit."""
    root = "/sys/fs/cgroup"
    for folder, limit_name, used_name, key in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (f"{root}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            with open(f"{folder}/{limit_name}") as file:
                limit = int(file.read())
            with open(f"{folder}/{used_name}") as file:
                used = int(file.read())
            with open(f"{folder}/memory.stat") as file:
                droppable = next((int(line.split()[1]) for line in file if line.split()[0] == key), 0)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return limit, max(0, used - droppable)
    return 0, 0


decode_host = msgspec.msgpack.Decoder(HostUsage).decode
