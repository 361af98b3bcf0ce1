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


def run(params: Params) -> Samples:
    value = numpy.ones(params["large"], dtype=numpy.uint8)

    def compiled(actors: int, size: int) -> Any:
        with InputNode() as x:
            last = x
            for _ in range(actors):
                last = Echo.remote().echo.bind(last)
        return last.experimental_compile(_buffer_size_bytes=size, _max_inflight_executions=DEPTH)

    single, chain = compiled(1, 1 << 20), compiled(4, 1 << 20)
    large = compiled(4, params["large"] + (1 << 20))

    def begin(given: Any) -> Callable[[], Any]:
        future = single.execute(given)
        return lambda: ray.get(future)

    found = measured(
        params,
        "",
        lambda given: ray.get(single.execute(given)),
        lambda given: ray.get(chain.execute(given)),
        begin,
        lambda given: int(ray.get(large.execute(given))[0]),
        value,
    )
    for one in (single, chain, large):
        one.teardown()
    return found


if __name__ == "__main__":
    try:
        start()
        main({"graph": run})
    finally:
        ray.shutdown()
