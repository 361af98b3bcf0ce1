"""Future: that of a call to a real process. What one is, tests/_runtime/test_future.py says of all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs


class Answerer(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    async def list(self) -> list[int]:
        return [1, 2]

    @endpoint
    async def fail(self) -> None:
        raise KeyError("missing")

    @endpoint
    async def counted(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture(scope="module")
def actor(proc: ProcMesh) -> Any:
    return proc.spawn("answerer", Answerer)


# --- get


# --- await


def test_gather_ensure_future_and_as_completed(actor: Any) -> None:
    async def main() -> list[int]:
        first = await asyncio.gather(*[actor.counted.call_one() for _ in range(3)])
        first.append(await asyncio.ensure_future(actor.counted.call_one()))
        for done in asyncio.as_completed([actor.counted.call_one() for _ in range(2)]):
            first.append(await done)
        return first

    numbers = asyncio.run(main())
    assert sorted(numbers) == list(range(numbers[0], numbers[0] + 6))


# --- lifetime


def test_a_dropped_future_is_harmless(actor: Any) -> None:
    before = actor.counted.call_one().get(timeout=TIMEOUT)
    for _ in range(10):
        actor.counted.call_one()
        actor.fail.call_one()
    assert actor.counted.call_one().get(timeout=TIMEOUT) == before + 11


# --- other futures


def test_stop_and_initialized_are_futures_too(spawn_procs: Any) -> None:
    async def main() -> None:
        procs = spawn_procs()
        actor = procs.spawn("answerer", Answerer)
        assert await procs.initialized is True
        assert await actor.initialized is None
        assert await actor.list.call_one() == [1, 2]
        assert await actor.stop() is None
        assert await procs.stop() is None

    asyncio.run(main())
