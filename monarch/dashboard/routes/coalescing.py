"""Equal questions of many readers at once become one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

FRESH = 0.2  # seconds for which an answer serves those who ask the same
_KEPT = 64  # answers; the oldest go


class Coalesced:
    """On one event loop. Whoever asks what is being asked waits for that answer; a fresh one is given at once.

    An asker who goes away ends nothing: others wait for the same. A failure is told to all who wait, and not kept.
    """

    def __init__(self, fresh: float = FRESH) -> None:
        self._fresh = fresh
        self._known: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        known = self._known.get(key)
        if known is not None and not known[1].done():
            return await asyncio.shield(known[1])
        if known is not None and loop.time() - known[0] < self._fresh and known[1].exception() is None:
            return known[1].result()

        async def run() -> Any:
            try:
                return await make()
            finally:  # fresh from when it came
                self._known[key] = loop.time(), task

        task = loop.create_task(run())
        self._known.pop(key, None)
        self._known[key] = loop.time(), task
        for old in [key for key, (_, task) in self._known.items() if task.done()][:-_KEPT]:
            del self._known[old]
        return await asyncio.shield(task)
