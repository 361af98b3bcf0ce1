"""Work that waits, on a thread of its own, with a Future of what comes of it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TypeVar

from monarch._runtime.future import Future, Promise
from monarch._runtime.loop import start_thread

T = TypeVar("T")


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
