"""One mesh of many processes of this machine: how long it takes to come up, to be called and to go, and who has how much
memory and processor time for it."""

from __future__ import annotations

import os
import time

from _workload import Params, Samples, main, private_bytes, seconds
from monarch_actors import Echo
from scale import children, of_process, of_thread

from monarch.actor import shutdown_context, this_host


def mesh(params: Params) -> Samples:
    """Up: from asking for processes until an actor in each has answered. The processor times are those of a call; what the
    processes do between calls is in theirs."""
    host = this_host()
    host.spawn_procs({"procs": 1}).spawn("one", Echo).echo.call_one(1).get()  # the agent and its fork server are there
    (agent,) = children(os.getpid())
    start = time.perf_counter()
    procs = host.spawn_procs({"procs": params["procs"]})
    actors = procs.spawn("echo", Echo)
    actors.echo.call(1).get()
    up = time.perf_counter() - start
    pids = actors.pid.call().get().values()
    for _ in range(params["warmup"]):
        actors.echo.call(1).get()

    def clocks() -> dict[str, float]:
        return {
            "thread": time.thread_time(),
            "I/O": of_thread("monarch-io"),
            "agent": of_process(agent),
            "processes": sum(map(of_process, pids)),
        }

    before = clocks()
    taken = [seconds(lambda: actors.echo.call(1).get()) for _ in range(params["count"])]
    after = clocks()
    memory = {
        "client": private_bytes(os.getpid()),
        "host agent": private_bytes(agent),
        "process": private_bytes(pids[-1]),
    }
    stop = seconds(lambda: procs.stop().get())
    return {
        "up": [up],
        "call": taken,
        "stop": [stop],
        **{f"memory {who}": [size] for who, size in memory.items()},
        **{f"cpu {who}": [(after[who] - before[who]) / len(taken)] for who in after},
    }


if __name__ == "__main__":
    try:
        main({"mesh": mesh})
    finally:
        shutdown_context().get()
