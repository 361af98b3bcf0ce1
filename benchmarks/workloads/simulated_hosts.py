"""A client and many hosts with a process each, in one interpreter: real agents, links, trees and processes over a network in
memory with a clock that stands still. Counts messages, bytes, memory, processor time; time that passes is virtual."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from _workload import RESULT_PREFIX, Params, main

LATENCY = 1e-4  # seconds one way between two hosts
QUIET = 0.2  # real seconds without a message, after which nothing is left to do but to let time pass
SOON = 0.001  # a timer within so many virtual seconds is a message under way


def json_of_all(found: dict[str, Any]) -> None:
    print(RESULT_PREFIX + json.dumps({"steps": found}), flush=True)


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Watch:
    """Counts what is delivered, and lets virtual time pass until something is there."""

    def __init__(self, cluster: Any, clock: Any) -> None:
        self.cluster = cluster
        self.clock = clock
        self.messages: Counter[str] = Counter()
        self.at_client = 0  # to and from the agent of the client's host
        own = cluster.address_of("agent", host="client")
        client = cluster.address_of("client")

        def seen(sent: Any) -> None:
            between = sent.source.rpartition("/")[0] != sent.target.rpartition("/")[0]
            self.messages["between hosts" if between else "inside"] += 1
            self.at_client += own in (sent.source, sent.target) and client not in (sent.source, sent.target)

        cluster.network.tap(seen)

    def measure(self, what: str, run: Callable[[], Any], hosts: int) -> dict[str, float]:
        """`run()` in a thread of its own, while time passes only when nothing else is left to do."""
        gc.collect()
        before, at_client = Counter(self.messages), self.at_client
        virtual, cpu, memory = self.clock.now(), time.process_time(), resident()
        raised: list[str] = []

        def body() -> None:
            try:
                run()
            except Exception as exc:
                raised.append(f"{type(exc).__name__}: {exc}"[:120])

        thread = threading.Thread(target=body)
        thread.start()
        seen, since = -1, 0.0
        while thread.is_alive():
            self.cluster.settle()
            thread.join(0.001)
            if self.messages.total() != seen:
                seen, since = self.messages.total(), time.monotonic()
            due = self.clock.next_timer() if thread.is_alive() else None
            if due is not None and (due < SOON or time.monotonic() - since > QUIET):
                self.clock.advance(due)
        self.cluster.settle()
        spent = self.messages - before
        point = {
            "between hosts": spent["between hosts"] / hosts,
            "inside": spent["inside"] / hosts,
            "client's agent": self.at_client - at_client,
            "virtual": self.clock.now() - virtual,
            "processor": (time.process_time() - cpu) / hosts,
            "memory": (resident() - memory) / hosts,
        }
        shown = "  ".join(f"{key} {value:.4g}" for key, value in point.items())
        print(f"{hosts} hosts, {what}: {shown} {raised or ''}", file=sys.stderr, flush=True)
        return point


def hosts(params: Params) -> dict[str, Any]:
    """See the module. What was found so far is printed after each step: should the rest not fit into memory or time."""
    from monarch_actors import Echo

    import monarch
    from monarch.testing import InProcessCluster, VirtualClock
    from monarch.testing import clock as clocks
    from monarch.testing import cluster as clusters

    clusters._TURN = clocks._PATIENCE = 600.0  # one turn of the loop of thousands of hosts takes its time
    threading.stack_size(256 * 1024)
    count = params["hosts"]
    found: dict[str, Any] = {}
    clock = VirtualClock()
    sizes = resident()
    with InProcessCluster(hosts=count, clock=clock, patience=120.0) as cluster:
        watch = Watch(cluster, clock)
        made: dict[str, Any] = {}

        def step(what: str, run: Callable[[], Any]) -> None:
            found[what] = watch.measure(what, run, count)
            found[what]["resident"] = (resident() - sizes) / count
            json_of_all(found)

        def spawn() -> None:
            made["procs"] = cluster.hosts.spawn_procs(per_host={"procs": 1})
            made["mesh"] = made["procs"].spawn("echo", Echo)
            made["mesh"].echo.call(1).get()

        def call() -> None:
            made["mesh"].echo.call(1).get()

        def told_of(lose: Callable[[], None], view: slice) -> Callable[[], None]:
            """From a loss until a call that was sent after it has told of it."""

            def run() -> None:
                lose()
                try:
                    made["mesh"].slice(hosts=view).echo.call(1).get()
                except monarch.actor.SupervisionError:
                    return
                raise RuntimeError("the call has told of nothing")

            return run

        with cluster.network.delay(LATENCY, source="*/agent", target="*/agent"):
            step("attach", cluster.hosts.initialized.get)
            step("spawn, first call", spawn)
            step("call", call)
            step("call again", call)
            step("broadcast, call", lambda: (made["mesh"].hit.broadcast(), call()))
            slow = cluster.address_of("agent", host=count // 2)
            with cluster.network.delay(0.05, target=slow):
                step("a host 50 ms away", call)
            if params["losses"]:
                last = count - 1
                step("a process dies", told_of(lambda: cluster.kill(made["mesh"], last), slice(0, count)))
                step("a host with those below it is lost", told_of(lambda: cluster.kill_host(0), slice(0, last)))
                lost = range(count // 4, count // 4 + max(1, count // 100))
                one_percent = lambda: [cluster.kill_host(index) for index in lost]  # noqa: E731
                step("1 % of hosts lost at once", told_of(one_percent, slice(1, last)))
                step(
                    "call of the others", lambda: made["mesh"].slice(hosts=slice(lost[-1] + 1, last)).echo.call(1).get()
                )
            step("stop", lambda: made["procs"].stop().get())
            os._exit(0)  # to take it all apart takes as long again


if __name__ == "__main__":
    main({"hosts": hosts})
