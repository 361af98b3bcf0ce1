"""Real processes under load, one of them killed or stopped five times a second; says what went wrong.

    python tests/procs/chaos.py --procs 16 --seconds 60 --seed 0

Callers (threads of the client, and the workers themselves through references) number what they send to each rank. A worker
writes down what it applied. At the end the books must agree: every call ended with a value or a typed error; a value means
that exactly one worker process applied it, once; what a worker applied from one caller is in the order it was sent; nobody
applied what was sent to another's predecessor after its end was told. Prints one JSON object; status 1 when a rule is broken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import monarch.actor
from monarch.actor import Actor, ActorError, RestartPolicy, SupervisionError, endpoint, shutdown_context, this_host
from monarch.config import configure

PATIENCE = 30.0  # seconds after which a call counts as one that never ends
SUSPECTED = 1.0  # seconds until a stopped process is killed


class Worker(Actor):
    def __init__(self) -> None:
        self.applied: dict[str, list[int]] = {}

    @endpoint
    def apply(self, caller: str, number: int) -> int:
        self.applied.setdefault(caller, []).append(number)
        return os.getpid()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def book(self) -> tuple[int, dict[str, list[int]]]:
        return os.getpid(), self.applied


class Relay(Actor):
    """Calls workers through a reference, in a process that nobody kills."""

    def __init__(self, workers: Any, ranks: int) -> None:
        self.workers, self.ranks = workers, ranks

    @endpoint
    def work(self, caller: str, seed: int, seconds: float) -> dict[str, Any]:
        return Caller(caller, self.workers, self.ranks, seed).run(time.monotonic() + seconds)


class Caller:
    """One sender: a call after the other to random ranks. Notes what came of each."""

    def __init__(self, name: str, workers: Any, ranks: int, seed: int) -> None:
        self.name, self.workers, self.ranks = name, workers, ranks
        self.dice = random.Random(seed)
        self.number = 0
        self.values = array("q")  # number, pid that applied it, number, pid, ...: small, for memory is measured
        self.outcomes: Counter[str] = Counter()

    def run(self, until: float) -> dict[str, Any]:
        while time.monotonic() < until:
            if self.dice.random() < 0.1:
                self.everybody()
            else:
                self.one()
        return {"name": self.name, "values": self.values, "outcomes": dict(self.outcomes), "sent": self.number}

    def one(self) -> None:
        self.number += 1
        rank = self.dice.randrange(self.ranks)
        try:
            pid = self.workers.slice(gpus=rank).apply.call_one(self.name, self.number).get(PATIENCE)
        except (SupervisionError, ActorError, TimeoutError) as exc:
            self.note(exc)
        else:
            self.outcomes["value"] += 1
            self.values.extend((self.number, pid))

    def everybody(self) -> None:
        self.number += 1
        try:
            pids = self.workers.apply.call(self.name, self.number).get(PATIENCE).values()
        except (SupervisionError, ActorError, TimeoutError) as exc:
            self.note(exc)
        else:
            self.outcomes["value"] += 1
            for pid in pids:
                self.values.extend((self.number, pid))

    def note(self, exc: Exception) -> None:
        kind = "stale" if "was restarted after this message was sent" in str(exc) else type(exc).__name__
        self.outcomes[kind] += 1
        time.sleep(0.002)  # a rank that is down fails calls at once


class Chaos:
    """Kills, stops and continues worker processes, and keeps the books of those that live."""

    def __init__(self, workers: Any, ranks: int, every: float, seed: int) -> None:
        self.workers, self.ranks, self.every = workers, ranks, every
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.every):
            rank = self.dice.randrange(self.ranks)
            try:
                pid = self.workers.slice(gpus=rank).pid.with_timeout(0.5).call_one().get()
            except (SupervisionError, TimeoutError):
                self.done["was down"] += 1
                continue
            self.strike(pid)

    def strike(self, pid: int) -> None:
        what = self.dice.choice(["kill", "kill", "stop", "pause"])
        try:
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            return
        self.done[what] += 1
        if what == "pause":
            threading.Timer(0.3, _continue, [pid]).start()


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def audit(calls: list[dict[str, Any]], books: list[tuple[int, dict[str, list[int]]]]) -> list[str]:
    """The rules that the living workers' books break."""
    wrong = []
    for pid, applied in books:
        for call in calls:
            name = call["name"]
            entries = applied.get(name, [])
            if any(after <= before for before, after in itertools.pairwise(entries)):
                wrong.append(f"pid {pid} applied calls of {name} twice or out of order: {entries}")
            if entries and entries[-1] > call["sent"]:
                wrong.append(f"pid {pid} applied {entries[-1]} of {name}, which sent only {call['sent']}")
            answered = zip(call["values"][::2], call["values"][1::2], strict=True)
            lost = {number for number, by in answered if by == pid} - set(entries)
            if lost:
                wrong.append(f"pid {pid} answered {sorted(lost)} of {name} and did not apply them")
    for call in calls:
        if call["outcomes"].get("TimeoutError"):
            wrong.append(
                f"{call['outcomes']['TimeoutError']} calls of {call['name']} did not end within {PATIENCE:g} s"
            )
        if call["outcomes"].get("ActorError"):
            wrong.append(f"{call['outcomes']['ActorError']} calls of {call['name']} raised in a worker")
    return wrong


def footprint(pid: int) -> dict[str, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "kib": int(fields["VmRSS"].split()[0]),
        "threads": int(fields["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


def _ready(workers: Any) -> list[tuple[int, dict[str, list[int]]]]:
    """The books of all workers, once every rank is back."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return workers.book.with_timeout(5.0).call().get().values()  # type: ignore[no-any-return]
        except (SupervisionError, TimeoutError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def run(procs_count: int, seconds: float, every: float, callers: int, seed: int) -> dict[str, Any]:
    configure(suspect_timeout=f"{SUSPECTED:g}s")
    logging.getLogger("monarch").setLevel(logging.ERROR)  # each restart is a warning
    faults: list[str] = []
    monarch.actor.unhandled_fault_hook = lambda failure: faults.append(failure.report())  # type: ignore[assignment]
    procs = this_host().spawn_procs({"gpus": procs_count})
    with RestartPolicy(max_restarts=1_000_000):
        workers: Any = procs.spawn("workers", Worker)
    relays: Any = this_host().spawn_procs({"relays": 2}).spawn("relays", Relay, workers, procs_count)
    _ready(workers)
    agent = os.getpid(), *(int(p) for p in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    chaos = Chaos(workers, procs_count, every, seed)
    calls: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=lambda i=i: calls.append(Caller(f"client{i}", workers, procs_count, seed + i).run(until))  # type: ignore[misc]
        )
        for i in range(callers)
    ]
    threads.append(threading.Thread(target=chaos.run))
    for thread in threads:
        thread.start()
    relayed = [relays.slice(relays=i).work.call_one(f"relay{i}", seed + 100 + i, seconds) for i in range(2)]
    time.sleep(seconds / 4)  # the workload's own time, not a wait for anything
    early = {pid: footprint(pid) for pid in agent}
    calls += [future.get(seconds + 2 * PATIENCE) for future in relayed]
    chaos.over.set()
    for thread in threads:
        thread.join()
    books = _ready(workers)
    late = {pid: footprint(pid) for pid in agent}
    wrong = audit(calls, books)
    wrong += [f"a failure reached the client: {text}" for text in faults]
    wrong += leaks(early, late, agent)
    before = descendants(os.getpid())
    procs.stop().get(PATIENCE)
    shutdown_context().get(PATIENCE)
    left = [pid for pid in before if Path(f"/proc/{pid}").exists()]
    if left:
        wrong.append(f"processes left behind: {left}")
    outcomes: Counter[str] = Counter()
    for call in calls:
        outcomes.update(call["outcomes"])
    return {
        "procs": procs_count, "seconds": seconds, "seed": seed, "chaos": dict(chaos.done), "calls": dict(outcomes),
        "client": [early[agent[0]], late[agent[0]]], "agent": [early[agent[1]], late[agent[1]]], "wrong": wrong,
    }  # fmt: skip


def leaks(early: dict[int, dict[str, int]], late: dict[int, dict[str, int]], pids: tuple[int, ...]) -> list[str]:
    """Returns what grew from the first quarter of the run to its end."""
    wrong = []
    for who, pid in zip(("client", "agent"), pids, strict=False):
        for what, allowed in (("kib", 16 * 1024), ("threads", 4), ("descriptors", 24)):
            grown = late[pid][what] - early[pid][what]
            if grown > allowed:
                wrong.append(f"the {who} grew by {grown} {what} (allowed {allowed})")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--procs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=0.2)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = run(args.procs, args.seconds, args.every, args.callers, args.seed)
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
