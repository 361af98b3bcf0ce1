"""Loops of I/O threads: they run while a test does, and what their callbacks raise fails it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from monarch._runtime.loop import Loop
from monarch.testing.clock import VirtualClock
from tests.support.patience import TIMEOUT


def in_loop(loop: Loop, fn: Callable[[], Any]) -> Any:
    """Has the loop's thread call `fn`, waits for it, and returns or raises what it does."""
    done = threading.Event()
    failed: list[Exception] = []
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(fn())
        except Exception as exc:
            failed.append(exc)
        done.set()

    loop.call_soon(run)
    assert done.wait(TIMEOUT)
    if failed:
        raise failed[0]
    return got[0]


class RunningLoop:
    """A loop in a thread of its own; with a clock, in the test's own time."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.loop = Loop("test-io") if clock is None else Loop("test-io", clock.now, virtual=True)
        self.errors: list[BaseException] = []
        self.loop.on_error = self.errors.append
        self.loop.start()
        if clock is not None:
            clock.attach(self.loop)

    def call(self, fn: Callable[[], Any]) -> Any:
        return in_loop(self.loop, fn)

    def until(self, fn: Callable[[], bool]) -> None:
        """Asks on the I/O thread, turn after turn."""
        limit = time.monotonic() + TIMEOUT
        while not self.call(fn):
            assert time.monotonic() < limit

    def end(self, expected: str = "") -> None:
        """Nothing was raised on the I/O thread but `expected`."""
        self.loop.stop()
        assert self.loop.join(TIMEOUT)
        assert [str(error) for error in self.errors if str(error) != expected] == []


@contextlib.contextmanager
def running(clock: VirtualClock | None = None, expected: str = "") -> Iterator[Loop]:
    one = RunningLoop(clock)
    yield one.loop
    one.end(expected)


def loop_of_the_test() -> Iterator[Loop]:
    """A fixture of tests."""
    with running() as loop:
        yield loop
