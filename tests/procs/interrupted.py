"""A client whose handler of signals raises, so many times, every few hundred microseconds while it calls an actor; each call
has to end.

    python tests/procs/interrupted.py --times 20000

With `--handler return` it only counts, and no call may take notice of it.

Prints one line of figures; ends with status 1 if a call had no answer, the wrong one, or was handled twice or out of order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from typing import Any

from monarch.actor import Actor, Future, endpoint, this_host

PATIENCE = 300.0  # seconds; an answer takes a fraction of a millisecond
_UNRAISABLE = sys.unraisablehook


class Tick(KeyboardInterrupt):
    pass


class Counter(Actor):
    """Checks what it is sent, and from where: `last` is the number that came before."""

    def __init__(self) -> None:
        self.last = -1
        self.disorder: list[tuple[int, int]] = []

    @endpoint
    def take(self, number: int) -> int:
        if number <= self.last:
            self.disorder.append((self.last, number))
        self.last = number
        return number

    @endpoint
    def wrong(self) -> list[tuple[int, int]]:
        return self.disorder


def on_tick(number: int, frame: Any) -> None:
    raise Tick


class Ticks:
    """A handler that returns; the next signal is under way then."""

    def __init__(self, rng: random.Random) -> None:
        self.count = 0
        self._rng = rng
        self._ended = False

    def __call__(self, number: int, frame: Any) -> None:
        self.count += 1
        if not self._ended:
            self.set_next()

    def set_next(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(0.00005, 0.0006))

    def end(self) -> None:
        """Says so before the timer is stopped: a signal that came first is handled after, and would set it again."""
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)


def patiently(future: Future[int]) -> int:
    while True:
        try:
            return future.get(PATIENCE)
        except Tick:
            pass


def run_undisturbed(times: int, seed: int) -> dict[str, Any]:
    counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
    ticks = Ticks(random.Random(seed))
    signal.signal(signal.SIGALRM, ticks)
    number = 0
    ticks.set_next()
    while ticks.count < times:
        number += 2
        counters.take.broadcast(number - 1)
        assert set(counters.take.call(number).get(PATIENCE).values()) == {number}
    ticks.end()
    wrong = [pair for pairs in counters.wrong.call().get(PATIENCE).values() for pair in pairs]
    return {"calls": number, "interrupted": ticks.count, "wrong": wrong}


def run(times: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
    one = counters.slice(gpus=0)
    one.take.call_one(0).get(PATIENCE)
    signal.signal(signal.SIGALRM, on_tick)
    number, ticks = 0, 0
    while ticks < times:
        future: Future[int] | None = None
        number += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00005, 0.0006))
            counters.take.broadcast(number)
            number += 1
            future = one.take.call_one(number)
            assert future.get(PATIENCE) == number
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Tick:
            ticks += 1
            if future is not None:
                assert patiently(future) == number
    signal.setitimer(signal.ITIMER_REAL, 0)
    wrong = [pair for pairs in counters.wrong.call().get(PATIENCE).values() for pair in pairs]
    return {"calls": number, "interrupted": ticks, "wrong": wrong, "descriptors": len(os.listdir("/proc/self/fd"))}


def quiet(unraisable: Any) -> None:
    """Python lets no exception out of a finalizer, and says so."""
    if not isinstance(unraisable.exc_value, Tick):
        _UNRAISABLE(unraisable)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--handler", choices=["raise", "return"], default="raise")
    arguments = parser.parse_args()
    sys.unraisablehook = quiet
    result = (run if arguments.handler == "raise" else run_undisturbed)(arguments.times, arguments.seed)
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)
