"""Futures whose waits people see: see `progress.WatchedProgress`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeVar

from monarch._runtime.future import Future, Source, Then, detach, make_future

T = TypeVar("T")


def show_waits(future: Future[T], shown: AbstractContextManager[object]) -> Future[T]:
    """The Future of the same result, each blocking wait for which is within `shown`: it may show people how far it is. For
    optional packages, and only for a Future that nobody has observed: it is used up."""
    return make_future(_ShownWaits(detach(future), shown))


class _ShownWaits(Then):
    """The same result, whose blocking waits are shown."""

    __slots__ = ("_shown",)

    def __init__(self, first: Source, shown: AbstractContextManager[object]) -> None:
        super().__init__(first, lambda value: value)
        self._shown = shown

    def wait(self, timeout: float | None, since: float | None = None) -> bool:
        with self._shown:
            return super().wait(timeout, since)
