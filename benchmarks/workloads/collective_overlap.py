"""A computation and a sum over the processes: one after the other, and beside each other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from _torch import torch
from _workload import Params, Samples, main

import monarch
from monarch.actor import this_host

if "MONARCH_BENCH_TORCH" in os.environ:  # torch must be found by the processes of the mesh, too
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], os.environ["MONARCH_BENCH_TORCH"]])


def overlap(params: Params) -> Samples:
    """Seconds of a sum of `megabytes` along the mesh and of a computation: each alone, in turn, and with async_op=True.

    The computation is one of the processors, which the sum needs as well, or one of a device: then the workers pause.
    """
    with this_host().spawn_procs({"gpus": params["procs"]}).activate():
        a = torch.full((params["side"], params["side"]), 1e-3)
        gradient = torch.ones(params["megabytes"] << 18)

        def products() -> Any:
            x = a
            for _ in range(params["products"]):
                x = x @ a
            return x.sum()

        def pause(seconds: float) -> Any:
            time.sleep(seconds)
            return torch.ones(())

        device = monarch.remote(pause, propagate=lambda seconds: torch.empty(()))
        found = {"sum": measured(lambda: gradient.reduce("gpus")[0], params)}
        kinds = (("processor", products), ("device", lambda: device(params["pause"])))
        for kind, compute in kinds:
            found[kind] = measured(compute, params)
            found[f"{kind} in turn"] = measured(lambda: in_turn(gradient, compute), params)  # noqa: B023 - called here
            found[f"{kind} beside"] = measured(lambda: beside(gradient, compute), params)  # noqa: B023
        return found


def in_turn(gradient: Any, compute: Callable[[], Any]) -> Any:
    total = gradient.reduce("gpus")
    return compute() + total[0]


def beside(gradient: Any, compute: Callable[[], Any]) -> Any:
    pending = gradient.reduce("gpus", async_op=True)
    found = compute()
    return found + pending.wait()[0]


def measured(call: Callable[[], Any], params: Params) -> list[float]:
    seconds = []
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        monarch.inspect(call())
        if round_ >= params["warmup"]:
            seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main({"overlap": overlap})
