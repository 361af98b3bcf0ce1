"""Usage of a host and of the processes on it, as the system knows it: memory, load, processor time."""

from __future__ import annotations

import msgspec

from monarch._linux import procfs


class ProcessUsage(msgspec.Struct, frozen=True):
    """One process of the program: its address, its mesh and place there; `state`: starting, running, stopping, stopped (by
    a signal) or suspected, and `why`; `restarts`: 0, or a number that grows with each process that takes the place of one
    before. From the system: bytes of memory (`resident`), seconds of processor time, threads, and the letter that it has
    for what the main thread does (`letter`; T: stopped, D: waits in the kernel)."""

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
    restarts: int = 0

    @classmethod
    def of(cls, address: str, pid: int, mesh: str, rank: int, state: str, why: str, restarts: int) -> ProcessUsage:
        """Returns the usage of a process, with what the system says now."""
        found = procfs.stat(pid)
        known = cls(address, pid, mesh, rank, state, why, restarts=restarts)
        if found is None:  # it ends just now, or is another one's behind a wrapper
            return known
        return msgspec.structs.replace(
            known, letter=found.state, resident=found.resident, processor=found.processor, threads=found.threads
        )


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
    total, available = procfs.memory()
    limit, used = _memory_of_group()
    if 0 < limit < total:
        return limit, min(available, max(0, limit - used))
    return total, available


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
