"""Matrix products and a sum over the processes: one after the other, and beside each other."""

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
    """Seconds of `products` matrix products, of a sum of `megabytes` along the mesh, of both in turn, and of both with
    async_op=True."""
    with this_host().spawn_procs({"gpus": params["procs"]}).activate():
        a = torch.full((params["side"], params["side"]), 1e-3)
        gradient = torch.ones(params["megabytes"] << 18)

        def compute() -> Any:
            x = a
            for _ in range(params["products"]):
                x = x @ a
            return x.sum()

        def communicate() -> Any:
            return gradient.reduce("gpus")[0]

        def sequential() -> Any:
            total = communicate()
            return compute() + total

        def overlapped() -> Any:
            pending = gradient.reduce("gpus", async_op=True)
            x = compute()
            return x + pending.wait()[0]

        found = {}
        for name, call in (
            ("compute", compute), ("communicate", communicate), ("in turn", sequential), ("beside", overlapped),
        ):  # fmt: skip
            found[name] = measured(call, params)
        return found


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
