"""Question "tree" of a host agent: the host, the processes that its roster has, and those that have ended lately."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux import procfs
from monarch._mesh.inspection.description import Facts, memory

if TYPE_CHECKING:
    from collections.abc import Sequence


class RunningProcess(Facts):
    """`state`: starting, running, stopping, stopped (by a signal) or suspected; `why`: what is known of that."""

    address: str
    mesh: str  # the name of its mesh
    rank: int
    pid: int
    incarnation: int
    state: str
    why: str


class EndedProcess(Facts):
    """`code`: exit status, or minus the signal. `stopped`: it was asked to end."""

    address: str
    mesh: str
    rank: int
    pid: int
    incarnation: int
    code: int
    stopped: bool
    detail: str
    at: float
    tail: list[str]


class HostFacts(Facts):
    """`total`, `available`: bytes of memory of the machine; `load`: its load average of a minute."""

    address: str  # of the agent
    host: str
    hostname: str
    pid: int
    now: float
    rss: int
    vm: int
    processors: int
    load: float
    total: int
    available: int
    running: list[RunningProcess]
    ended: list[EndedProcess]


def answer(agent: Any, argument: bytes) -> bytes:
    """Answers the question "tree". `agent`: a BaseHostAgent."""
    return msgspec.msgpack.encode(describe(agent))


def describe(agent: Any) -> HostFacts:
    rss, vm = memory()
    total, available = procfs.memory()
    return HostFacts(
        f"{agent.host}/agent",
        agent.host,
        socket.gethostname(),
        os.getpid(),
        time.time(),
        rss,
        vm,
        os.cpu_count() or 1,
        _load(),
        total,
        available,
        running(agent.roster.overview()),
        ended(list(agent.roster.departed), agent.loop.now()),
    )


def running(overview: Sequence[tuple[Any, int, str, str]]) -> list[RunningProcess]:
    """`overview`: (Start, pid, state, why) of each process, as `Roster.overview` gives them."""
    return [
        RunningProcess(start.address, start.name, start.rank, pid, start.incarnation, state, why)
        for start, pid, state, why in overview
    ]


def ended(departed: Sequence[tuple[Any, Any, float]], now: float) -> list[EndedProcess]:
    """`departed`: (Start, ProcEnded, when by the clock that shows `now`), as `Roster.departed` has them."""
    epoch = time.time()
    return [
        EndedProcess(
            end.address,
            start.name,
            start.rank,
            end.pid,
            end.incarnation,
            end.code,
            end.stopped,
            end.detail,
            epoch - max(0.0, now - at),
            end.tail,
        )
        for start, end, at in departed
    ]


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
