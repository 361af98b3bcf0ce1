"""Threads of tests, which are to end by themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

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


def where() -> tuple[int, bool, bool]:
    """(thread, whether it is the main one, whether a loop is running in it)"""
    try:
        asyncio.get_running_loop()
        loop = True
    except RuntimeError:
        loop = False
    return threading.get_ident(), threading.current_thread() is threading.main_thread(), loop
