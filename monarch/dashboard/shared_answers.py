"""Equal questions of many readers at the same time are answered once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from monarch._linux.locks import Lock

T = TypeVar("T")

MOST_ANSWERS = 256  # beyond it the oldest goes


class SharedAnswers:
    """Answers by key, fresh for some seconds. Those who ask what is being answered wait for that answer.

    An asker who goes away ends nothing: others wait for the same. A failure is told to all who wait, and not kept.
    """

    def __init__(self, fresh: float, now: Callable[[], float] = time.monotonic) -> None:
        self._fresh = fresh
        self._now = now
        self._lock = Lock()
        self._answers: dict[Hashable, _SharedAnswer] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the answer, made by `make` here if there is none that is fresh. Any thread; waits."""
        answer, mine = self._answer(key)
        if mine:
            self._make(key, answer, make)
        value: T = answer.made.result()
        return value

    async def ask(self, key: Hashable, make: Callable[[], T]) -> T:
        """Does the same for a coroutine: `make` runs on a thread, and those who wait take none."""
        from starlette.concurrency import run_in_threadpool

        answer, mine = self._answer(key)
        if mine:
            answer.task = asyncio.ensure_future(run_in_threadpool(self._make, key, answer, make))
        value: T = await asyncio.wrap_future(answer.made)
        return value

    def _answer(self, key: Hashable) -> tuple[_SharedAnswer, bool]:
        """Returns the answer, and True if the caller is to make it."""
        with self._lock:
            known = self._answers.get(key)
            if known is not None and (known.at is None or self._now() - known.at < self._fresh):
                return known, False
            self._answers.pop(key, None)
            answer = self._answers[key] = _SharedAnswer()
            while len(self._answers) > MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return answer, True

    def _make(self, key: Hashable, answer: _SharedAnswer, make: Callable[[], Any]) -> None:
        try:
            value = make()
        except BaseException as exc:
            with self._lock:
                if self._answers.get(key) is answer:
                    del self._answers[key]
            answer.made.set_exception(exc)
        else:
            answer.at = self._now()  # fresh from when it came
            answer.made.set_result(value)


class _SharedAnswer:
    __slots__ = ("at", "made", "task")

    def __init__(self) -> None:
        self.at: float | None = None  # None: not yet
        self.made: Future[Any] = Future()
        self.made.set_running_or_notify_cancel()  # nobody who waits may cancel it
        self.task: Any = None  # held while it runs
