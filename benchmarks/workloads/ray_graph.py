"""Ray's compiled graphs. An actor takes part in one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import ray
from _graphs import DEPTH, measured
from _workload import Params, Samples, main
from ray.dag import InputNode
from ray_actors import Echo
from ray_api import start


class Graphs:
    """One graph at a time: the actors of all that there are keep the processors busy."""

    def __init__(self) -> None:
        self._made: tuple[int, int] | None = None
        self._graph: Any = None

    def of(self, actors: int, size: int = 1 << 20) -> Any:
        if self._made != (actors, size):
            self.end()
            with InputNode() as x:
                last = x
                for _ in range(actors):
                    last = Echo.remote().echo.bind(last)
            self._graph = last.experimental_compile(_buffer_size_bytes=size, _max_inflight_executions=DEPTH)
            self._made = actors, size
        return self._graph

    def end(self) -> None:
        if self._graph is not None:
            self._graph.teardown(kill_actors=True)


def run(params: Params) -> Samples:
    graphs, size = Graphs(), params["large"] + (1 << 20)

    def begin(given: Any) -> Callable[[], Any]:
        future = graphs.of(1).execute(given)
        return lambda: ray.get(future)

    found = measured(
        params,
        "",
        lambda given: ray.get(graphs.of(1).execute(given)),
        lambda given: ray.get(graphs.of(4).execute(given)),
        begin,
        lambda given: int(ray.get(graphs.of(4, size).execute(given))[0]),
        numpy.ones(params["large"], dtype=numpy.uint8),
    )
    graphs.end()
    return found


if __name__ == "__main__":
    try:
        start()
        main({"graph": run})
    finally:
        ray.shutdown()
