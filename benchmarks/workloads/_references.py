"""Values that are put, read and handed to other processes, by whatever keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from _workload import Params, Samples, payload, seconds, times


def measured(
    put: Callable[[Any], Any], get: Callable[[Any], Any], fan_out: Callable[[Any], Any], params: Params
) -> Samples:
    """`put` gives a reference, `get` its value, `fan_out` has every reader look at each page of the value of one."""
    value = payload("array", params["size"])
    kept = [put(value)]

    def free() -> None:
        kept[0] = None
        time.sleep(0.02)  # it is freed beside the program, and neither of the two says when

    def timed() -> float:
        free()
        return seconds(lambda: kept.__setitem__(0, put(value)))

    puts = [timed() for _ in range(params["warmup"] + params["count"])][params["warmup"] :]
    gets = times(lambda: get(kept[0]), params)
    outs = []
    for index in range(params["warmup"] + params["count"]):
        free()
        start = time.perf_counter()
        kept[0] = put(value)
        fan_out(kept[0])
        if index >= params["warmup"]:
            outs.append(time.perf_counter() - start)
    return {"put": puts, "get": gets, "fan out": outs}
