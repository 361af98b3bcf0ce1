"""The workloads about latency, which all contenders share; each has a script that says how it calls (a `Target`).

Contenders say how actors are made: `make(style, count)` starts a process with so many actors, whose endpoints are "sync"
or "async"; None where it has no such actors.
"""

from __future__ import annotations

from collections.abc import Callable

from _callers import Actors, Target, busy_cores, measure
from _workload import Params, Samples, Workload

STYLES = ("sync", "async")


def latency(make: Callable[[str, int], Target | None]) -> Workload:
    """One actor called by one caller and by several, threads and tasks; by key "CALLERS CLIENT STYLE"."""

    def run(params: Params) -> Samples:
        targets = {style: target for style in STYLES if (target := make(style, 1))}
        samples: Samples = {}
        with busy_cores(params["busy"], params["pinned"]):
            for callers in params["callers"]:
                for client in ("sync", "asyncio"):
                    for style, target in targets.items():
                        samples |= measure(f"{callers} {client} {style}", target, client, [0] * callers, params)
        return samples

    return run


def actors_in_a_process(make: Callable[[str, int], Actors]) -> Workload:
    """Actors of one process, each called by a thread of its own; by key "COUNT STYLE". Then one of them while another
    computes: "beside STYLE".
    """

    def run(params: Params) -> Samples:
        samples: Samples = {}
        targets = {style: make(style, max(params["actors"])) for style in STYLES}
        beside = {**params, "count_s": params["beside_s"]}
        for style, target in targets.items():
            for count in params["actors"]:
                samples |= measure(f"{count} {style}", target, "sync", range(count), params)
            stop = target.compute(1)
            samples |= measure(f"beside {style}", target, "sync", [0], beside)
            stop()
        return samples

    return run
