"""Callers that call again as soon as they are answered: a thread each, or a task each of one event loop.

What they call is a `Target`, which every contender has in its own script.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from _workload import Params, Samples, Usage, usage

Calls = Sequence[Callable[[], object]]
AsyncCalls = Sequence[Callable[[], Awaitable[object]]]
Reading = tuple[float, Usage, Usage]  # when; of the client, of the process with the actors


class Target(Protocol):
    """Actors of one process, and how they are called. Actors are numbered from 0."""

    def callers(self, actors: Sequence[int]) -> Calls:
        """For each of `actors`, what one thread does again and again; several may call the same actor."""

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        """The same for the tasks of an event loop, in which this is called."""

    def usage(self) -> Usage:
        """What the process with the actors has used."""


class Actors(Target, Protocol):
    """A target with several actors, which can be kept busy."""

    def compute(self, actor: int) -> Callable[[], object]:
        """That actor computes in Python and is at it when this returns; what is returned ends that, by way of actor 0."""


def measure(key: str, target: Target, client: str, actors: Sequence[int], params: Params) -> Samples:
    """How long calls take when one caller for each of `actors` calls it for params["count_s"] seconds, after
    params["warmup_s"]; `client` is "sync" or "asyncio". Beside it, under the names of `_question.CALL_COLUMNS`, what both
    processes use for a call.
    """
    in_turn = in_threads if client == "sync" else in_tasks
    taken, before, after = in_turn(target, actors, params["warmup_s"], params["count_s"])
    calls = len(taken)
    samples = {key: taken, f"{key} rate": [calls / (after[0] - before[0])]}
    for place, side in ((1, "client"), (2, "actor")):
        (cpu_before, switches_before), (cpu_after, switches_after) = before[place], after[place]
        samples[f"{key} {side} cpu"] = [(cpu_after - cpu_before) / calls]
        samples[f"{key} {side} switches"] = [(switches_after - switches_before) / calls]
    return samples


def in_threads(
    target: Target, actors: Sequence[int], warmup_s: float, count_s: float
) -> tuple[list[float], Reading, Reading]:
    """A single caller is the main thread, as in a script; several are threads, which warm up and are measured together."""
    calls = target.callers(actors)
    if len(calls) == 1:
        repeated(calls[0], warmup_s)
        before = reading(target)
        taken = repeated(calls[0], count_s)
        return taken, before, reading(target)

    readings: list[Reading] = []
    together = threading.Barrier(len(calls), lambda: readings.append(reading(target)))
    by_thread: list[list[float]] = []
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            repeated(call, warmup_s)
            together.wait()
            by_thread.append(repeated(call, count_s))
            together.wait()
        except BaseException as exc:
            failures.append(exc)
            together.abort()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return list(chain.from_iterable(by_thread)), readings[0], readings[1]


def in_tasks(
    target: Target, actors: Sequence[int], warmup_s: float, count_s: float
) -> tuple[list[float], Reading, Reading]:
    """One event loop in the main thread; usage is read while it does not run."""
    calls: AsyncCalls = ()

    async def all_for(duration: float) -> list[float]:
        nonlocal calls
        calls = calls or target.tasks(actors)
        return list(chain.from_iterable(await asyncio.gather(*(repeated_async(call, duration) for call in calls))))

    with asyncio.Runner() as runner:
        runner.run(all_for(warmup_s))
        before = reading(target)
        taken = runner.run(all_for(count_s))
        return taken, before, reading(target)


def repeated(call: Callable[[], object], duration: float) -> list[float]:
    """How long each of the calls took that were begun within `duration` seconds."""
    taken = []
    start = time.perf_counter()
    until = start + duration
    while start < until:
        call()
        end = time.perf_counter()
        taken.append(end - start)
        start = end
    return taken


async def repeated_async(call: Callable[[], Awaitable[object]], duration: float) -> list[float]:
    """`repeated` in a task."""
    taken = []
    start = time.perf_counter()
    until = start + duration
    while start < until:
        await call()
        end = time.perf_counter()
        taken.append(end - start)
        start = end
    return taken


def reading(target: Target) -> Reading:
    return time.perf_counter(), usage(), target.usage()


@contextlib.contextmanager
def busy_cores(wanted: bool, pinned: bool) -> Iterator[None]:
    """With `wanted`, every core but one has a process that does nothing but compute, which may run elsewhere unless it
    is `pinned`.
    """
    cores = sorted(os.sched_getaffinity(0))[1:] if wanted else []
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in cores]
    try:
        if pinned:
            for spinner, core in zip(spinners, cores, strict=True):
                os.sched_setaffinity(spinner.pid, {core})
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
