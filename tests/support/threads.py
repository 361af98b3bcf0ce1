"""Threads of tests, which are to end by themselves."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from monarch._linux.thread_frames import thread_frames
from tests.support.patience import TIMEOUT


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


def left_beside(before: set[threading.Thread]) -> list[str]:
    """Returns those that have begun since and do not end, each with its stack."""
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5.0)
    return [
        f"thread {thread.name} is left:\n{stack}"
        for thread, stack in _with_stacks()
        if thread in left and thread.is_alive()
    ]


def stacks() -> str:
    """Returns those of all threads, equal ones once; that of the main thread comes first."""
    alike: dict[str, Counter[str]] = {}
    for thread, stack in sorted(_with_stacks(), key=lambda found: found[0] is not threading.main_thread()):
        alike.setdefault(stack, Counter())[thread.name] += 1
    return "\n".join(
        ", ".join(name if count == 1 else f"{count} {name}" for name, count in names.items()) + f":\n{stack}"
        for stack, names in alike.items()
    )


def _with_stacks() -> list[tuple[threading.Thread, str]]:
    frames = thread_frames()
    found = [(thread, frames.get(thread.ident or 0)) for thread in threading.enumerate()]
    return [(thread, "".join(traceback.format_stack(frame)) if frame else "(no stack)") for thread, frame in found]
