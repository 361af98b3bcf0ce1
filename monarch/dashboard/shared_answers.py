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
MOST_BYTES = 64 << 20  # of answers that are kept, as `_size` estimates them; beyond it the oldest go


class SharedAnswers:
    """Answers by key, fresh for some seconds. Those who ask what is being answered wait for that answer.

    An asker who goes away ends nothing: others wait for the same. A failure is told to all who wait, and not kept. What is
    not fresh any more goes when somebody asks for anything.
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
            now = self._now()
            stale = [key for key, each in self._answers.items() if each.at is not None and now - each.at >= self._fresh]
            for each in stale:
                del self._answers[each]
            known = self._answers.get(key)
            if known is not None:
                return known, False
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
            answer.size = _size(value)
            with self._lock:
                answer.at = self._now()  # fresh from when it came
                kept = sum(each.size for each in self._answers.values())
                for other, each in list(self._answers.items()):
                    if kept > MOST_BYTES and each.at is not None:
                        kept -= each.size
                        del self._answers[other]
            answer.made.set_result(value)


class _SharedAnswer:
    __slots__ = ("at", "made", "size", "task")

    def __init__(self) -> None:
        self.at: float | None = None  # None: not yet
        self.made: Future[Any] = Future()
        self.made.set_running_or_notify_cancel()  # nobody who waits may cancel it
        self.size = 0
        self.task: Any = None  # held while it runs


def _size(value: Any) -> int:
    """Returns about how many bytes a tree of values takes."""
    if isinstance(value, (str, bytes)):
        return 50 + len(value)
    if isinstance(value, dict):
        return 100 + sum(_size(key) + _size(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)) and isinstance(value[-1], (int, float)):
            return 60 + 32 * len(value)  # a column of numbers, of which an answer may have a million
        return 60 + sum(map(_size, value))
    return 50 + sum(_size(getattr(value, field)) for field in getattr(value, "__struct_fields__", ()))
