"""Threads of tests, which are to end by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from monarch._runtime.loop import Loop

TIMEOUT = 30


def start(fn: Callable[..., Any], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=fn, args=args, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "somebody was never woken"


def together(*fns: Callable[[], Any]) -> None:
    """Runs each in a thread of its own, and returns when all have ended."""
    join(*[start(fn) for fn in fns])


def in_loop(loop: Loop, fn: Callable[[], Any]) -> Any:
    """Has the loop's thread call `fn`, and waits for what it returns."""
    done = threading.Event()
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(fn())
        finally:
            done.set()

    loop.call_soon(run)
    assert done.wait(TIMEOUT)
    return got[0]
