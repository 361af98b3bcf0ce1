"""Adverbs and ports through real processes: what a call gives, and in which order messages are handled.

What each adverb and each port does is in tests/_mesh/actors.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    Port,
    ProcMesh,
    ValueMesh,
    current_rank,
    endpoint,
    send,
)
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs


class Worker(Actor):
    def __init__(self) -> None:
        self.log: list[Any] = []

    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def note(self, what: Any, payload: bytes = b"") -> tuple[Any, int]:
        self.log.append(what)
        return what, len(payload)

    @endpoint
    async def notes(self) -> list[Any]:
        return self.log

    @endpoint
    async def emit(self, port: Port[Any], values: list[Any]) -> int:
        for value in values:
            port.send(value)
        return len(values)

    @endpoint(explicit_response_port=True)
    async def answer_rank(self, port: Port[int]) -> str:
        port.send(current_rank().rank)
        return "ignored"


@pytest.fixture
def workers(procs4: ProcMesh) -> Any:
    return procs4.spawn("worker", Worker)


def test_call_gives_every_ranks_value_in_the_shape_of_the_mesh(workers: Any) -> None:
    result = workers.rank.call().get(timeout=TIMEOUT)
    assert isinstance(result, ValueMesh)
    assert result.extent == workers.extent and result.values() == [0, 1, 2, 3]
    assert workers.answer_rank.call().get(timeout=TIMEOUT).values() == [0, 1, 2, 3]


def test_messages_are_handled_in_the_order_sent_over_all_adverbs_views_and_sizes(workers: Any) -> None:
    """200 messages to one actor: mixed adverbs, mixed views of it, from nothing to a megabyte."""
    choice = random.Random(7)
    views = [
        workers,
        workers.slice(a=0),
        workers.slice(b=0),
        workers.slice(a=0, b=0),
        workers.flatten("rank").slice(rank=slice(0, 3)),
        workers.rename(a="x", b="y").slice(x=0),
    ]
    single = views[3]
    port, _receiver = Channel[Any].open()
    expected = []
    futures = []
    for n in range(200):
        payload = b"x" * choice.choice([0, 10, 1_000, 70_000, 1_000_000 if n % 20 == 0 else 100])
        view = choice.choice(views)
        adverb = choice.choice(["call", "call_one", "choose", "broadcast", "stream", "send"])
        if adverb == "send":
            send(view.note, (n, payload), {}, port=port)
        elif adverb in ("call_one", "choose"):
            futures.append(getattr(single.note, adverb)(n, payload))
        elif adverb == "stream":
            futures += list(view.note.stream(n, payload))
        elif adverb == "call":
            futures.append(view.note.call(n, payload))
        else:
            view.note.broadcast(n, payload)
        expected.append(n)
    assert single.notes.call_one().get(timeout=TIMEOUT) == expected
    for future in futures:
        future.get(timeout=TIMEOUT)
    for log in workers.notes.call().get(timeout=TIMEOUT).values():
        assert log == sorted(log)


class Relay(Actor):
    @endpoint
    async def relay(self, target: Any, count: int) -> None:
        for n in range(count):
            (target if n % 2 else target.slice(a=0)).note.broadcast(n)

    @endpoint
    def relay_sync(self, target: Any, count: int) -> None:
        for n in range(count):
            (target if n % 2 else target.slice(a=0)).note.broadcast(n)


@pytest.mark.parametrize("how", ["relay", "relay_sync"])
def test_order_holds_between_two_actors_too(procs2: ProcMesh, workers: Any, how: str) -> None:
    relay = procs2.slice(gpus=0).spawn("relay", Relay)
    getattr(relay, how).call_one(workers, 100).get(timeout=TIMEOUT)

    async def until_complete() -> list[int]:
        while True:  # no order is promised between the relay's messages and ours
            log: list[int] = await workers.slice(a=0, b=1).notes.call_one()
            if len(log) == 100:
                return log

    assert asyncio.run(asyncio.wait_for(until_complete(), TIMEOUT)) == list(range(100))


def test_ports_travel_and_keep_the_order_of_each_sender(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    calls = [
        workers.slice(a=n, b=0).emit.call_one(port, [(n, i, b"x" * (i % 7) * 20_000) for i in range(50)])
        for n in range(2)
    ]
    got = [receiver.recv().get(timeout=TIMEOUT) for _ in range(100)]
    for n in range(2):
        assert [i for sender, i, _ in got if sender == n] == list(range(50))
    assert [c.get(timeout=TIMEOUT) for c in calls] == [50, 50]
