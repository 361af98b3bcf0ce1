"""Recorded functions of distributed tensors: `monarch.function`, and where there is none, `compile`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from _torch import torch
from _workload import Params, Samples, main

import monarch
from monarch.actor import this_host
from monarch.common._coalescing import compile

if "MONARCH_BENCH_TORCH" in os.environ:  # torch must be found by the processes of the mesh, too
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], os.environ["MONARCH_BENCH_TORCH"]])


def mesh(params: Params) -> Any:
    return this_host().spawn_procs({"gpus": params["procs"]})


def measured(call: Callable[[], Any], params: Params) -> tuple[list[float], list[float]]:
    """Seconds a call, to issue and until the last result is here."""
    issue, complete = [], []
    calls = params["calls"]
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        issued = time.perf_counter()
        monarch.inspect(result)
        done = time.perf_counter()
        if round_ >= params["warmup"]:
            issue.append((issued - start) / calls)
            complete.append((done - start) / calls)
    return issue, complete


def compared(plain: Callable[[], Any], recorded: Callable[[], Any], params: Params) -> Samples:
    one, one_complete = measured(plain, params)
    issue, complete = measured(recorded, params)
    return {"issue one by one": one, "complete one by one": one_complete, "issue": issue, "complete": complete}


def chain(params: Params) -> Samples:
    """A call of `length` small operations."""

    def body(x: Any, y: Any) -> Any:
        for _ in range(params["length"] // 2):
            x = (x + y) * 0.5
        return x

    recorded = monarch.function(body) if hasattr(monarch, "function") else compile(body)
    with mesh(params).activate():
        x, y = torch.ones(3, 4), torch.ones(3, 4)
        return compared(lambda: body(x, y), lambda: recorded(x, y), params)


def step(params: Params) -> Samples:
    """A call of forward, backward and AdamW of a small network."""
    with mesh(params).activate():
        net = torch.nn.Sequential(
            *(layer for _ in range(params["layers"]) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU()))
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
        data = torch.ones(8, 32)

        def body(x: Any) -> Any:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        recorded = monarch.function(body)
        return compared(lambda: body(data), lambda: recorded(data), params)


if __name__ == "__main__":
    main({f.__name__: f for f in (chain, step)})
