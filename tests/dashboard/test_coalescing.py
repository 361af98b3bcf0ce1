"""Equal questions at once are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from monarch.dashboard.routes.coalescing import Coalesced


class Maker:
    """Counts; gives its count when `goes_on` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.count += 1
        mine = self.count
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return mine


def run(test: Callable[[Maker], Awaitable[None]]) -> None:
    async def inside() -> None:
        await test(Maker())

    asyncio.run(asyncio.wait_for(inside(), 60))


def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    async def test(make: Maker) -> None:
        asked = Coalesced()
        readers = [asyncio.create_task(asked.get("a", make)) for _ in range(10)]
        await asyncio.sleep(0)
        make.goes_on.set()
        assert await asyncio.gather(*readers) == [1] * 10

    run(test)


def test_a_fresh_answer_is_given_at_once_and_an_old_one_is_not() -> None:
    async def test(make: Maker) -> None:
        make.goes_on.set()
        fresh, never = Coalesced(fresh=3600.0), Coalesced(fresh=0.0)
        assert [await fresh.get("a", make) for _ in range(3)] == [1, 1, 1]
        assert [await never.get("a", make) for _ in range(3)] == [2, 3, 4]

    run(test)


def test_other_questions_are_asked_by_themselves() -> None:
    async def test(make: Maker) -> None:
        make.goes_on.set()
        asked = Coalesced(fresh=3600.0)
        assert [await asked.get(key, make) for key in "ab"] == [1, 2]

    run(test)


def test_a_failure_is_told_to_all_who_wait_and_not_kept() -> None:
    async def test(make: Maker) -> None:
        asked = Coalesced(fresh=3600.0)
        make.error = ValueError("on purpose")
        readers = [asyncio.create_task(asked.get("a", make)) for _ in range(3)]
        await asyncio.sleep(0)
        make.goes_on.set()
        for reader in readers:
            with pytest.raises(ValueError, match="on purpose"):
                await reader
        make.error = None
        assert await asked.get("a", make) == 2

    run(test)


def test_a_reader_who_goes_away_ends_nothing() -> None:
    async def test(make: Maker) -> None:
        asked = Coalesced()
        first = asyncio.create_task(asked.get("a", make))
        second = asyncio.create_task(asked.get("a", make))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        make.goes_on.set()
        assert await second == 1

    run(test)


def test_few_answers_are_kept() -> None:
    async def test(make: Maker) -> None:
        make.goes_on.set()
        asked = Coalesced(fresh=3600.0)
        for key in range(1000):
            await asked.get(key, make)
        assert len(asked._known) < 100

    run(test)
