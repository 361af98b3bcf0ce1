"""The program of `monarch demo`: four processes, a call to all of them and to one, a death, a restart. It needs no torch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from monarch._errors import SupervisionError
from monarch.actor import Actor, current_rank, endpoint, this_host

LIMIT = 30.0  # seconds that a step may take


class Fitter(Actor):
    """Fits y = slope * x to points of its own, by gradient descent."""

    def __init__(self) -> None:
        rank = current_rank().rank
        self.slope = 0.0
        self.points = [(x / 10, (3 + rank) * x / 10) for x in range(1, 11)]

    @endpoint
    def fit(self, steps: int) -> float:
        for _ in range(steps):
            self.slope -= 0.2 * sum((self.slope * x - y) * x for x, y in self.points) / len(self.points)
        return round(self.slope, 2)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def run(show: Callable[[str, str], None]) -> None:
    """Runs the demonstration; `show` gets each line of code with what came of it."""
    hosts = this_host()
    began = time.monotonic()
    procs = hosts.spawn_procs({"gpus": 4})
    fitters = procs.spawn("fitters", Fitter)
    pids = fitters.pid.call().get(LIMIT).values()
    show(
        'procs = this_host().spawn_procs({"gpus": 4})\nfitters = procs.spawn("fitters", Fitter)',
        f"four processes, pids {', '.join(map(str, pids))}, with an actor in each, after {time.monotonic() - began:.2f} s",
    )
    show(
        "fitters.fit.call(steps=50).get().values()",
        f"{fitters.fit.call(steps=50).get(LIMIT).values()}, from every rank",
    )
    show(
        "fitters.slice(gpus=2).fit.call_one(steps=50).get()",
        f"{fitters.slice(gpus=2).fit.call_one(steps=50).get(LIMIT)}",
    )
    began = time.monotonic()
    try:
        fitters.slice(gpus=2).die.call_one().get(LIMIT)
    except SupervisionError as error:
        show(
            "fitters.slice(gpus=2).die.call_one().get()  # its process gets SIGKILL",
            f"{type(error).__name__}, after {1000 * (time.monotonic() - began):.0f} ms:\n{error}",
        )
    began = time.monotonic()
    procs.restart(failed=True).get(LIMIT)
    fitters.restart(failed=True).get(LIMIT)
    restarted = 1000 * (time.monotonic() - began)
    show(
        "procs.restart(failed=True).get()\nfitters.restart(failed=True).get()\nfitters.fit.call(steps=50).get().values()",
        f"rank 2 is back after {restarted:.0f} ms, in a new process\n{fitters.fit.call(steps=50).get(LIMIT).values()}",
    )
    procs.stop().get(LIMIT)
