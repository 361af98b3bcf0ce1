"""Futures that code of this package fulfils: by hand, or by what a thread of its own makes."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

from monarch._runtime.future import Future, Slot, make_future
from monarch._runtime.loop import start_thread

T = TypeVar("T")


class Promise(Generic[T]):
    """A Future that code of this package fulfils: `future` is given away, then one call of `set` or `fail`, on any thread.

    For optional packages. Observers of `future` wait until then; a second call does nothing. `fail` takes the exception that
    every observation raises.
    """

    __slots__ = ("_slot", "future")

    def __init__(self, of: str = "") -> None:
        """`of`: what it is the result of, for people."""
        self._slot = Slot(of)
        self.future: Future[T] = make_future(self._slot)

    def set(self, result: T) -> None:
        """Fulfils it. Nothing when it is done already."""
        self._slot.set(result)

    def fail(self, error: BaseException) -> None:
        """Every observation of `future` raises `error` from here on. Nothing when it is done already."""
        self._slot.fail(error)

    def settle(self, error: BaseException | None) -> None:
        """Calls `fail(error)`, or `set(None)` without one."""
        if error is None:
            self._slot.set()
        else:
            self._slot.fail(error)


def in_thread(make: Callable[[], T], name: str, of: str = "") -> Future[T]:
    """Runs `make()` on a thread that may call actors as this one may; its result or error is the Future's. For
    optional packages. `of`: what it is the result of, for people."""
    promise: Promise[T] = Promise(of)

    def run() -> None:
        try:
            promise.set(make())
        except BaseException as exc:
            promise.fail(exc)

    start_thread(contextvars.copy_context().run, name, run)
    return promise.future
