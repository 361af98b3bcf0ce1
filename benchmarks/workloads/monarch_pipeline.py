"""The pipeline as a compiled graph: an execution is a micro-batch, and actors take the oldest first, which is 1F1B."""

from __future__ import annotations

import time
from typing import Any

from _pipeline import SPACE, StageOfGPT, buffer, measured, micro_batches
from _workload import Params, Samples, main

from monarch import graph
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.graph import InputNode


class Stage(Actor):
    def __init__(self, params: Params) -> None:
        self._stage = StageOfGPT(current_rank().rank, params)

    @endpoint
    def forward(self, given: Any) -> Any:
        return self._stage.forward(given)

    @endpoint
    def backward(self, grad: Any) -> Any:
        return self._stage.backward(grad)

    @endpoint
    def both(self, given: Any, wanted: Any) -> Any:
        return self._stage.both(given, wanted)

    @endpoint
    def used(self) -> float:
        return time.process_time()

    @endpoint
    def losses(self) -> list[float]:
        return self._stage.losses


def pipeline(params: Params) -> Samples:
    count = params["stages"]
    procs = this_host().spawn_procs({"stage": count})
    stages = procs.spawn("stages", Stage, params)
    each = [stages.slice(stage=rank) for rank in range(count)]
    with InputNode() as x:
        value = x[0]
        for stage in each[:-1]:
            value = stage.forward.bind(value)
        grad = each[-1].both.bind(value, x[1])
        for stage in reversed(each[:-1]):
            grad = stage.backward.bind(grad)
    parts = micro_batches(params)
    with graph.compile(grad, depth=count + params["ahead"], buffer=buffer(params) + SPACE) as compiled:

        def step() -> None:
            for future in [compiled.execute(*part) for part in parts]:
                future.get()

        found = measured(step, lambda: time.process_time() + sum(stages.used.call().get().values()), params)
    found["loss"] = each[-1].losses.call_one().get()[-1:]
    procs.stop().get()
    return found


if __name__ == "__main__":
    main({"pipeline": pipeline})
