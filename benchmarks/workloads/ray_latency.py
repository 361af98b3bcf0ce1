"""Latency of Ray's actors: ordinary calls, and as contender "ray-graph" those of a graph compiled ahead, whose channels
lie in shared memory. Actors of Ray have a process each, so there are not several in one.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import ray
from _callers import AsyncCalls, Calls, Target
from _latency import latency
from _workload import Usage, main
from ray.dag import InputNode
from ray_api import start
from ray_latency_actors import AsyncTimed, Timed


class One:
    """An actor and its ordinary calls."""

    def __init__(self, style: str) -> None:
        self.handle = (AsyncTimed if style == "async" else Timed).remote()
        ray.get(self.handle.echo.remote(1))

    def callers(self, actors: Sequence[int]) -> Calls:
        return [lambda: ray.get(self.handle.echo.remote(1)) for _ in actors]

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        return [lambda: self.handle.echo.remote(1) for _ in actors]

    def usage(self) -> Usage:
        return ray.get(self.handle.usage.remote())


class Compiled(One):
    """The same actor at the end of a graph, which is made anew for threads and for tasks: an actor takes part in one."""

    graph: Any = None

    def callers(self, actors: Sequence[int]) -> Calls:
        """`execute` is not thread-safe: threads take turns, each with a whole call."""
        graph, turn = self._compile(), threading.Lock()

        def call() -> object:
            with turn:
                return ray.get(graph.execute(1))

        return [call for _ in actors] if len(actors) > 1 else [lambda: ray.get(graph.execute(1))]

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        graph = self._compile(enable_asyncio=True)

        async def call() -> object:
            return await (await graph.execute_async(1))

        return [call for _ in actors]

    def _compile(self, **options: Any) -> Any:
        if self.graph is not None:
            self.graph.teardown()
        with InputNode() as argument:
            node = self.handle.echo.bind(argument)
        self.graph = node.experimental_compile(**options)
        return self.graph


def make(style: str, count: int) -> Target | None:
    if not json.loads(sys.argv[2])["contender"].endswith("graph"):
        return One(style)
    return Compiled(style) if style == "sync" else None  # actors with an event loop cannot be compiled


if __name__ == "__main__":
    try:
        start()
        main({"latency": latency(make)})
    finally:
        ray.shutdown()
