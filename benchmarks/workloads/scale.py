"""Workloads of scale.py: the same few operations on meshes of many shapes, and who spends how much processor time on them.

`hosts`: real processes, on hosts that worker agents on this machine stand for (ipc:// addresses, a socket and a folder
each). `cluster`: simulated ones, all in this process. Both print a list of points, one a shape, under "points".
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from _workload import RESULT_PREFIX, Params, main
from monarch_actors import Echo

import monarch
from monarch.actor import attach_to_workers, shutdown_context

Point = dict[str, float]
Clocks = Callable[[], dict[str, float]]


# --- where processor time goes


def of_process(pid: int) -> float:
    """Processor seconds of a whole process, whosever it is, since its start: see clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def of_thread(name: str) -> float:
    """Processor seconds of a thread of this process."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name == name]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident)


class Spending:
    """Processor time spent between two looks, by who spent it."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._before = clocks()

    def each(self, count: int) -> dict[str, float]:
        now = self._clocks()
        return {f"{name}_cpu": (now[name] - self._before[name]) / count for name in now}


# --- what is measured on one mesh of actors


def repetitions(params: Params, procs: int) -> int:
    """As many as fit the time that a shape gets, at about 0.2 ms a receiver."""
    return max(params["least"], min(params["most"], round(params["seconds"] / (0.0002 * procs))))


def measure(mesh: Any, params: Params, clocks: Clocks) -> Point:
    """Calls and casts on actors that live. The first call of the view is told apart: it brings the tree its plan."""
    procs = len(mesh)
    point: Point = {}
    start = time.perf_counter()
    mesh.echo.call(1).get()
    point["call_cold"] = time.perf_counter() - start
    for _ in range(params["warmup"]):
        mesh.echo.call(1).get()
        mesh.hit.broadcast()
    mesh.count.call().get()
    count = repetitions(params, procs)
    gc.collect()
    point |= calls(mesh, count, clocks)
    point |= casts(mesh, 4 * count, clocks, point)
    return point


def calls(mesh: Any, count: int, clocks: Clocks) -> Point:
    """One after the other. `issue` is the part of a call until its Future is there."""
    taken, issued = [], []
    spending = Spending(clocks)
    for _ in range(count):
        start = time.perf_counter()
        future = mesh.echo.call(1)
        issued.append(time.perf_counter() - start)
        future.get()
        taken.append(time.perf_counter() - start)
    spent = spending.each(count)
    return {"call": median(taken), "call_issue": median(issued), **{f"call_{who}": t for who, t in spent.items()}}


def casts(mesh: Any, count: int, clocks: Clocks, known: Point) -> Point:
    """Broadcasts without a pause; then a call, which every actor answers after the last of them. The processor time of that
    call, which is `known`, is not counted; nor is any of the calling thread but for the broadcasts themselves."""
    issued = []
    before = sum(mesh.count.call().get().values())
    spending = Spending(clocks)
    begin = time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        mesh.hit.broadcast()
        issued.append(time.perf_counter() - start)
    own = spending.each(count)["client_cpu"]
    after = mesh.count.call().get()
    taken = time.perf_counter() - begin
    spent = spending.each(1)
    if sum(after.values()) - before != count * len(mesh):
        raise RuntimeError(
            f"Error: {count} casts to {len(mesh)} actors were handled {sum(after.values()) - before} times"
        )
    each = {f"cast_{who}": max(0.0, seconds - known[f"call_{who}"]) / count for who, seconds in spent.items()}
    return {"cast": taken / count, "cast_issue": median(issued), **each, "cast_client_cpu": own}


def spawn(hosts: Any, per_host: int, clocks: Clocks) -> tuple[Any, Any, Point]:
    """From asking for processes until an actor in each of them has answered."""
    spending = Spending(clocks)
    start = time.perf_counter()
    procs = hosts.spawn_procs(per_host={"gpus": per_host})
    mesh = procs.spawn("echo", Echo)
    issued = time.perf_counter() - start
    mesh.echo.call(1).get()
    return (
        procs,
        mesh,
        {"spawn": time.perf_counter() - start, "spawn_issue": issued, **_named("spawn", spending.each(1))},
    )


def _named(what: str, spent: dict[str, float]) -> Point:
    return {f"{what}_{who}": seconds for who, seconds in spent.items()}


# --- shapes


class Record:
    """What was found so far, printed after each shape: should the rest take too long, this much is known."""

    def __init__(self, params: Params) -> None:
        self.found: dict[str, Any] = {"points": [], "crossing": [], "left_out": []}
        self._ends = time.monotonic() + params["budget"]

    def time_is_up(self, *shape: Any) -> bool:
        """Whether a shape has to be left out; notes it."""
        if time.monotonic() < self._ends:
            return False
        self.found["left_out"].append(list(shape))
        return True

    def add(self, part: str, point: Point, **shape: int) -> None:
        self.found[part].append({**shape, **point})
        keys = ("spawn", "call_cold", "call", "cast", "cast_issue")
        print({**shape, **{key: float(f"{point[key]:.3g}") for key in keys if key in point}})
        print(RESULT_PREFIX + json.dumps(self.found), flush=True)


def shapes(hosts: Any, params: Params, clocks: Clocks, record: Record, watched: list[int]) -> None:
    """Each shape (hosts, processes a host) with a mesh of its own."""
    for count, per_host in params["shapes"]:
        if record.time_is_up(count, per_host):
            continue
        procs, mesh, point = spawn(hosts.slice(hosts=slice(0, count)), per_host, clocks)
        watched[:] = mesh.pid.call().get().values()
        point |= measure(mesh, params, clocks)
        record.add("points", point, hosts=count, per_host=per_host, procs=len(mesh))
        watched.clear()
        procs.stop().get()
    if params["vary"] and not record.time_is_up(*params["vary"], "widths"):
        count, per_host = params["vary"]
        procs = hosts.slice(hosts=slice(0, count)).spawn_procs(per_host={"gpus": per_host})
        varied(procs, params, clocks, record)
        procs.stop().get()


def varied(procs: Any, params: Params, clocks: Clocks, record: Record) -> None:
    """Trees of other widths, and none (width 0): every receiver is sent a message of its own. On parts of the hosts."""
    per_host = procs.extent["gpus"]
    for count in params["vary_hosts"]:
        part = procs.slice(hosts=slice(0, count))
        for width in (0, *params["widths"]):
            if width > 2 * count or record.time_is_up(count, per_host, width):
                continue
            mesh = part.spawn("echo", Echo)
            with sending(width):
                point = measure(mesh, params, clocks)
            record.add("points", point, hosts=count, per_host=per_host, procs=len(mesh), width=width)
            mesh.stop().get()


def crossing(hosts: Any, params: Params, clocks: Clocks, record: Record, watched: list[int]) -> None:
    """Without the tree and with it, for few hosts and receivers: from where on does it pay? In turn, twice."""
    for count, per_host in params["crossing"]:
        if record.time_is_up(count, per_host, "crossing"):
            continue
        procs = hosts.slice(hosts=slice(0, count)).spawn_procs(per_host={"gpus": per_host})
        for turn in range(4):
            mesh = procs.spawn("echo", Echo)
            width = 16 * (turn % 2)
            with sending(width, few=1):
                watched[:] = mesh.pid.call().get().values()
                point = measure(mesh, params, clocks)
            record.add("crossing", point, hosts=count, per_host=per_host, procs=len(mesh), width=width, turn=turn // 2)
            mesh.stop().get()
        watched.clear()
        procs.stop().get()


@contextlib.contextmanager
def sending(width: int, few: int | None = None) -> Iterator[None]:
    """Casts of views that are used for the first time go down a tree of that width; 0: no tree at all. `few` receivers make
    one worth while."""
    few = (few or 2) if width else sys.maxsize
    with monarch.configured(max_cast_fanout=width or 16, tree_casts_from=few, tree_calls_from=few):
        yield


# --- workloads


def hosts(params: Params) -> dict[str, Any]:
    """See the module. The agents are started two at a time, one a core, as long as they take."""
    agents: list[Any] = []
    started = time.perf_counter()
    secret = os.urandom(32)
    with ThreadPoolExecutor(2) as pool:
        agents += pool.map(lambda _: start_worker(secret), range(params["hosts"]))
    ready = time.perf_counter()
    workers = [agent.pid for agent, _, _ in agents]
    try:
        mesh = attach_to_workers(workers=[prefix for _, _, prefix in agents], secret=secret)
        mesh.initialized.get()
        attached = time.perf_counter()
        (own,) = set(children(os.getpid())) - set(workers)
        watched: list[int] = []  # processes of the mesh that is measured

        def clocks() -> dict[str, float]:
            return {
                "client": time.thread_time(),
                "io": of_thread("monarch-io"),
                "agent": of_process(own),
                "workers": sum(map(of_process, workers)),
                "procs": sum(map(of_process, watched)),
            }

        record = Record(params)
        record.found |= {"start": [ready - started], "attach": [attached - ready]}
        crossing(mesh, params, clocks, record, watched)
        shapes(mesh, params, clocks, record, watched)
        mesh.shutdown().get()
    finally:
        for agent, sock, _ in agents:
            sock.close()
            agent.wait()
    return record.found


def start_worker(secret: bytes) -> Any:
    """A host's agent, as `hosts_from_config` starts it."""
    from monarch._mesh.start import agent_process
    from monarch._mesh.start.run_directory import make_directory

    directory = make_directory()
    given = agent_process.Credentials(secret)
    where = f"ipc://{directory.path}/host"
    options = agent_process.AgentOptions(directory.path, where, worker=True, credentials=given)
    return agent_process.start(options, directory.lock)


def cluster(params: Params) -> dict[str, Any]:
    """Everything in this process: agents and processes share one I/O thread, each actor has a thread of its own."""
    from monarch.testing import InProcessCluster

    def clocks() -> dict[str, float]:
        return {"client": time.thread_time(), "all": time.process_time()}

    with InProcessCluster(hosts=max(count for count, _ in params["shapes"])) as simulated:
        record = Record(params)
        shapes(simulated.hosts, {**params, "vary": None}, clocks, record, [])
    return record.found


if __name__ == "__main__":
    try:
        main({"hosts": hosts, "cluster": cluster})
    finally:
        shutdown_context().get()
