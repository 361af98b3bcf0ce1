"""Queues of an actor's event loop, filled by its threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TypeVar

T = TypeVar("T")


def put_from_thread(queue: asyncio.Queue[T], loop: asyncio.AbstractEventLoop, item: T) -> None:
    """Puts an item into the queue; waits while that is full. Does nothing once the actor has stopped: nobody reads then."""
    putting = queue.put(item)
    try:
        asyncio.run_coroutine_threadsafe(putting, loop).result()
    except RuntimeError:  # the loop was closed
        putting.close()
    except concurrent.futures.CancelledError:  # not asyncio's class of that name
        return
