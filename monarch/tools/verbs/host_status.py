"""What a host says of itself: its memory, and the processes that its agent has started, whoever asked for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from monarch.actor import Actor, HostMesh, endpoint
from monarch.job.commands.run_command import one_by_one

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessFacts(msgspec.Struct, frozen=True):
    """A process of ours and what it has started: its pid, bytes of memory, seconds of processor time, how many they are."""

    pid: int
    resident: int
    processor: float
    count: int


class HostFacts(msgspec.Struct, frozen=True):
    """A machine: its name, bytes of memory in all and to be had, its load, and the processes of ours."""

    name: str
    memory: int
    available: int
    load: float
    processes: list[ProcessFacts]


class HostStatus(Actor):
    """Reads /proc of its host."""

    @endpoint
    def look(self) -> HostFacts:
        """The host as it is now, without the process that looks."""
        memory = {
            line.split(":")[0]: int(line.split()[1]) * 1024
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.endswith("kB")
        }
        return HostFacts(
            os.uname().nodename,
            memory["MemTotal"],
            memory.get("MemAvailable", memory["MemFree"]),
            os.getloadavg()[0],
            [facts for facts in started_by(os.getppid()) if facts.pid != os.getpid()],
        )


def look(hosts: HostMesh, timeout: float) -> list[HostFacts | str]:
    """Of each host, or why it does not answer."""
    found: list[HostFacts | str] = []
    asked: list[Any] = []
    for host in one_by_one(hosts):
        procs = host.spawn_procs(name="status")
        asked.append((procs, procs.spawn("status", HostStatus).look.call_one()))
    for procs, answer in asked:
        try:
            found.append(answer.get(timeout))
        except TimeoutError:
            found.append(f"has not answered within {timeout:g} s")
        except Exception as exc:
            found.append((str(exc).strip().splitlines() or [type(exc).__name__])[-1].strip())
        procs.stop()
    return found


def started_by(agent: int) -> list[ProcessFacts]:
    """The processes below this host agent, each with all of its process group; fork servers, which share the agent's
    group, are left out."""
    groups: dict[int, list[tuple[int, float]]] = {}
    children = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        state, parent, group = fields[0], int(fields[1]), int(fields[2])
        if state == "Z":
            continue
        if parent == agent and group == int(entry.name):
            children.add(group)
        used = int(fields[21]) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS
        groups.setdefault(group, []).append(used)
    return [
        ProcessFacts(pid, sum(one[0] for one in groups[pid]), sum(one[1] for one in groups[pid]), len(groups[pid]))
        for pid in sorted(children)
    ]
