"""Waiting for a Future where the program may be in an event loop: a job's calls block, which is what they are asked for."""

from __future__ import annotations

import contextvars
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from monarch.actor import Future

T = TypeVar("T")


def result_of(future: Future[T], timeout: float | None = None) -> T:
    """As `future.get(timeout)`; in an event loop, which waits meanwhile, without a warning of that."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return future.get(timeout)
    with ThreadPoolExecutor(1, "monarch-wait") as one:
        return one.submit(contextvars.copy_context().run, future.get, timeout).result()
