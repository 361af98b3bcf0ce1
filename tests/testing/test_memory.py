"""Tests of what spawns and calls leave behind: nothing that grows with their number.

Traced Python memory of the client, its agent and its processes, which are one interpreter here. Tables that have a bound are
filled before the first measurement, or are given a small one.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._mesh.agent import roster
from monarch._runtime import actor_table, forks, processes
from monarch.actor import Actor, ActorError, endpoint, this_host
from monarch.testing import InProcessCluster, VirtualClock, simulated
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = [full, pytest.mark.usefixtures("no_leaks")]
MOST = 100  # bytes that one spawn or call may leave behind


def counted(few: int, many: int) -> Any:
    """Returns how often a test does its step: `few` in `make test-all`, `many` in `make test-slow`."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tables small: what is remembered of those that ended is full from the beginning."""
    monkeypatch.setattr(actor_table, "_TOMBSTONES", 50)
    monkeypatch.setattr(processes, "_STOPPED_PEERS", 50)
    monkeypatch.setattr(processes, "_ENDED_PEERS", 50)
    monkeypatch.setattr(roster, "ENDED_KEPT", 50)
    monkeypatch.setattr(simulated, "_CROWD", 8)


class Small(Actor):
    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    clock = VirtualClock()
    with InProcessCluster(clock=clock):
        yield clock


def growth(clock: VirtualClock, step: Callable[[], Any], warm: int, count: int) -> float:
    """Bytes that a step leaves behind once what runs out in time has, after `warm` steps."""
    tracemalloc.start()
    try:
        sizes = []
        for steps in (warm, count):
            for _ in range(steps):
                step()
            _settle(clock)
            sizes.append(tracemalloc.get_traced_memory()[0])
        left = (sizes[1] - sizes[0]) / count
        print(f"{left:.1f} bytes a step, of {count}")
        return left
    finally:
        tracemalloc.stop()


def _settle(clock: VirtualClock) -> None:
    for _ in range(4):
        clock.advance(100.0)
    gc.collect()


@counted(500, 10_000)
def test_spawned_and_stopped_actors(clock: VirtualClock, count: int) -> None:
    procs = this_host().spawn_procs()

    def step() -> None:
        actor: Any = procs.spawn("small", Small)
        actor.echo.call_one(1).get(TIMEOUT)
        actor.stop().get(TIMEOUT)

    assert growth(clock, step, 200, count) < MOST


@counted(1_000, 10_000)
def test_spawned_and_stopped_processes(clock: VirtualClock, count: int) -> None:
    def step() -> None:
        procs = this_host().spawn_procs()
        actor: Any = procs.spawn("small", Small)
        actor.echo.call_one(1).get(TIMEOUT)
        procs.stop().get(TIMEOUT)

    assert growth(clock, step, 500, count) < MOST


def test_processes_that_have_ended_are_not_followed_through_forks(clock: VirtualClock) -> None:
    before = len(forks._all)
    for _ in range(5):
        this_host().spawn_procs().stop().get(TIMEOUT)
    assert len(forks._all) == before


@counted(10_000, 100_000)
def test_calls(clock: VirtualClock, count: int) -> None:
    actor: Any = this_host().spawn_procs().spawn("small", Small)
    text = "x" * 100

    def step() -> None:
        actor.echo.call_one(text).get(TIMEOUT)
        actor.echo.broadcast(text)

    # The smallest object has 16 bytes. What the interpreter keeps of freed tuples for reuse comes and goes: some 20 KB.
    assert growth(clock, step, 2_000, count) < 4


def test_calls_that_fail(clock: VirtualClock) -> None:
    actor: Any = this_host().spawn_procs().spawn("small", Small)

    def step() -> None:
        with pytest.raises(ActorError):
            actor.fail.call_one().get(TIMEOUT)

    assert growth(clock, step, 500, 1_000) < MOST
