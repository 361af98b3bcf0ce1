"""Tests that what fails in the last line of a test fails the test, though nobody waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.testing import InProcessCluster, UnsupervisedFailure, VirtualClock


class Frail(Actor):
    @endpoint
    def die(self) -> None:
        raise ValueError("on purpose")

    @endpoint
    def pass_on(self, other: Any) -> None:
        other.die.broadcast()


class AsyncFrail(Actor):
    @endpoint
    async def die(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("on purpose")


@pytest.mark.parametrize("kind", [Frail, AsyncFrail])
@pytest.mark.parametrize("clock", [False, True])
def test_a_broadcast_that_fails_in_the_last_line(kind: Any, clock: bool) -> None:
    for _ in range(10):
        with (
            pytest.raises(UnsupervisedFailure, match="on purpose"),
            InProcessCluster(clock=VirtualClock() if clock else None),
        ):
            this_host().spawn_procs({"gpus": 2}).spawn("frail", kind).die.broadcast()


def test_one_that_another_actor_sends_then() -> None:
    with pytest.raises(UnsupervisedFailure, match="on purpose"), InProcessCluster():
        procs = this_host().spawn_procs()
        first, second = procs.spawn("first", Frail), procs.spawn("second", Frail)
        first.pass_on.broadcast(second)


def test_a_failure_that_only_a_future_knows_of() -> None:
    with pytest.raises(UnsupervisedFailure, match="sig=9"), InProcessCluster() as cluster:
        mesh = this_host().spawn_procs().spawn("frail", Frail)
        mesh.die.call_one().exception()
        cluster.kill(mesh)
        kept = mesh.die.call_one()
        cluster.settle()
    with pytest.raises(SupervisionError):
        kept.get()
