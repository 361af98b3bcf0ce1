"""Measures what docs/explanations/performance.md shows, on this machine, and writes it to costs.json.

    python docs/explanations/plots/measure.py      # half a minute; needs numpy
    python docs/explanations/plots/draw.py         # draws the pictures of the page from it

Of each figure the median and the least of many repetitions are kept. The pictures show the least, which other work on the
machine disturbs less.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer

HERE = Path(__file__).resolve().parent
SIZES = [64 << (2 * step) for step in range(11)]  # 64 B to 64 MiB


class Target(Actor):
    """Is called, and reads."""

    @endpoint
    def take(self, payload: object = None) -> None:
        pass

    @endpoint
    def pull(self, buffer: RDMABuffer, size: int, repeats: int) -> list[float]:
        """Seconds of each transfer into memory of this process."""
        mine = np.ones(size, np.uint8)
        return timed(lambda: buffer.read_into(mine).get(), repeats)


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of so many runs, after some that do not count."""
    for _ in range(max(2, repeats // 10)):
        work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def figures(taken: list[float], of: int = 1) -> dict[str, float]:
    """Median and least, for one of `of` things that each run did."""
    return {"median": median(taken) / of, "least": min(taken) / of}


def repeats_for(size: int) -> int:
    return max(8, min(400, (256 << 20) // max(size, 1 << 16)))


def calls() -> list[dict[str, Any]]:
    """Seconds of a call by how it is made."""
    procs = this_host().spawn_procs({"gpus": 32})
    targets = procs.spawn("targets", Target)
    targets.take.call().get()
    one, eight = targets.slice(gpus=0), targets.slice(gpus=slice(0, 8))

    def pipelined() -> None:
        for future in [one.take.call_one() for _ in range(1000)]:
            future.get()

    def broadcasts() -> None:
        for _ in range(1000):
            eight.take.broadcast()
        eight.take.call().get()

    shapes: list[tuple[str, Callable[[], object], int, int]] = [
        ("call_one, waited for", lambda: one.take.call_one().get(), 1000, 1),
        ("call on 8 processes", lambda: eight.take.call().get(), 300, 1),
        ("call on 32 processes", lambda: targets.take.call().get(), 100, 1),
        ("call_one, 1,000 sent before the first is waited for", pipelined, 30, 1000),
        ("broadcast to 8 processes, 1,000 in a row", broadcasts, 20, 1000),
    ]
    found = [{"what": what, **figures(timed(work, repeats), of)} for what, work, repeats, of in shapes]
    procs.stop().get()
    return found


def transfers() -> dict[str, Any]:
    """Seconds until bytes of this process are in another one of this host."""
    procs = this_host().spawn_procs()
    target = procs.spawn("target", Target)
    message, rdma, copy = [], [], []
    for size in SIZES:
        payload, other, repeats = np.ones(size, np.uint8), np.ones(size, np.uint8), repeats_for(size)
        message.append(figures(timed(lambda p=payload: target.take.call_one(p).get(), repeats)))
        buffer = RDMABuffer(payload)
        rdma.append(figures(target.pull.call_one(buffer, size, repeats).get()))
        buffer.drop().get()
        copy.append(figures(timed(lambda p=payload, o=other: np.copyto(o, p), repeats)))
    procs.stop().get()
    return {"sizes": SIZES, "message": message, "rdma": rdma, "copy": copy}


def main() -> None:
    before = os.getloadavg()[0]
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "calls": calls(),
        "transfers": transfers(),
    }
    result["load"] = [round(before, 1), round(os.getloadavg()[0], 1)]
    (HERE / "costs.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
