"""Equal questions at the same time are answered once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from monarch.dashboard import shared_answers
from monarch.dashboard.shared_answers import MOST_ANSWERS, SharedAnswers


class Maker:
    """Counts; gives its count when `goes_on` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.count += 1
        mine = self.count
        self.begun.set()
        assert self.goes_on.wait(60)
        if self.error is not None:
            raise self.error
        return mine


@pytest.fixture
def make() -> Maker:
    return Maker()


def on_threads(number: int, work: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def run(test: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test, 60)

    asyncio.run(limited())


def test_kept_for_its_time(make: Maker) -> None:
    now = 0.0
    answers = SharedAnswers(2.0, lambda: now)
    make.goes_on.set()
    assert answers.get("a", make) == 1
    now = 1.9
    assert answers.get("a", make) == 1
    now = 2.0
    assert answers.get("a", make) == 2
    assert answers.get("b", make) == 3


def test_errors_are_not_kept(make: Maker) -> None:
    answers = SharedAnswers(2.0, lambda: 0.0)
    make.goes_on.set()
    make.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        answers.get("a", make)
    make.error = None
    assert answers.get("a", make) == 2


def test_many_threads_at_once_make_one(make: Maker) -> None:
    answers = SharedAnswers(2.0, lambda: 0.0)
    found: list[int] = []
    threads = on_threads(1, lambda: found.append(answers.get("a", make)))
    assert make.begun.wait(60)
    threads += on_threads(7, lambda: found.append(answers.get("a", make)))
    make.goes_on.set()
    for thread in threads:
        thread.join(60)
    assert (found, make.count) == ([1] * 8, 1)


def test_a_failure_is_told_to_all_who_wait(make: Maker) -> None:
    answers = SharedAnswers(3600.0)
    make.error = ValueError("on purpose")

    async def test() -> None:
        readers = [asyncio.create_task(answers.ask("a", make)) for _ in range(3)]
        await asyncio.sleep(0)
        make.goes_on.set()
        for reader in readers:
            with pytest.raises(ValueError, match="on purpose"):
                await reader
        assert make.count == 1

    run(test())


def test_coroutines_and_threads_wait_for_the_same(make: Maker) -> None:
    """More of them than there are threads for coroutines: those who wait take none."""
    answers = SharedAnswers(3600.0)
    found: list[int] = []

    async def test() -> None:
        readers = [asyncio.create_task(answers.ask("a", make)) for _ in range(200)]
        assert await asyncio.to_thread(make.begun.wait, 60)
        (thread,) = on_threads(1, lambda: found.append(answers.get("a", make)))
        make.goes_on.set()
        assert await asyncio.gather(*readers) == [1] * 200
        await asyncio.to_thread(thread.join, 60)

    run(test())
    assert (found, make.count) == ([1], 1)


def test_a_reader_who_goes_away_ends_nothing(make: Maker) -> None:
    answers = SharedAnswers(3600.0)

    async def test() -> None:
        first = asyncio.create_task(answers.ask("a", make))
        second = asyncio.create_task(answers.ask("a", make))
        assert await asyncio.to_thread(make.begun.wait, 60)
        first.cancel()
        await asyncio.sleep(0)
        make.goes_on.set()
        assert await second == 1

    run(test())


def test_it_is_bounded(make: Maker) -> None:
    answers = SharedAnswers(2.0, lambda: 0.0)
    make.goes_on.set()
    for number in range(MOST_ANSWERS * 2):
        answers.get(number, make)
    assert len(answers._answers) <= MOST_ANSWERS


def test_what_is_not_fresh_any_more_goes_when_somebody_asks() -> None:
    now = 0.0
    answers = SharedAnswers(2.0, lambda: now)
    for number in range(9):
        answers.get(number, lambda: "x")
    now = 2.0
    answers.get("other", lambda: "x")
    assert list(answers._answers) == ["other"]


def test_the_oldest_go_beyond_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "MOST_BYTES", 4000)
    answers = SharedAnswers(2.0, lambda: 0.0)
    for number in range(9):
        answers.get(number, lambda: {"curves": [{"mean": [None, 0.5], "steps": [1] * 30}]})
    kept = list(answers._answers)
    assert kept == [*range(9)][-len(kept) :] and 1 < len(kept) < 4
    assert len(answers.get("large", lambda: "x" * 5000)) == 5000
    assert "large" not in answers._answers
