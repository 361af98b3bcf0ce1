"""Recorded functions of distributed tensors: `monarch.function`, and where there is none, `compile`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from _torch import torch
from _workload import Params, Samples, main
from gpt import GPT

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


def models(params: Params) -> Samples:
    """Training steps of small models, here and on a mesh in turn: time, and processor time of this process and of the rank
    that takes longer."""
    networks: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "perceptron": (
            lambda: torch.nn.Sequential(*(part for _ in range(8) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU()))),
            lambda net: net(torch.ones(16, 64)).square().mean(),
        ),
        "transformer": (lambda: GPT(512, 64, 4, 64, 2), lambda net: net(*(torch.ones(4, 64, dtype=torch.int64),) * 2)),
        "convolutions": (
            lambda: torch.nn.Sequential(
                torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
                torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
            ),
            lambda net: net(torch.ones(8, 3, 32, 32)).square().mean(),
        ),
    }  # fmt: skip
    optimizers: dict[str, dict[str, bool]] = {"": {}, ", fused": {"fused": True}}
    samples: Samples = {}
    torch.set_num_threads(1)
    on_mesh = mesh(params)
    with on_mesh.activate():

        @monarch.remote
        def processor_time(x: Any) -> float:
            """Seconds of a rank."""
            torch.set_num_threads(1)
            return time.process_time()

        one = torch.ones(1)
        for name, (make, loss_of) in networks.items():
            for told, options in optimizers.items():

                def stepping(
                    make: Any = make, loss_of: Any = loss_of, options: dict[str, bool] = options
                ) -> Callable[[], Any]:
                    net = make()
                    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, **options)

                    def body() -> Any:
                        optimizer.zero_grad()
                        loss = loss_of(net)
                        loss.backward()
                        optimizer.step()
                        return loss.detach()

                    return body

                with monarch.no_mesh.activate():
                    local = stepping()
                plain, recorded = stepping(), monarch.function(stepping())

                def here(local: Any = local) -> None:
                    with monarch.no_mesh.activate():
                        for _ in range(params["calls"]):
                            local()

                def there(call: Any) -> None:
                    for _ in range(params["calls"]):
                        result = call()
                    monarch.inspect(result)

                ways = {"here": here, "op by op": lambda p=plain: there(p), "function": lambda r=recorded: there(r)}
                for round_ in range(params["warmup"] + params["count"]):
                    for way, run in ways.items():
                        before = processor_time.call(one).get()
                        used, start = time.process_time(), time.perf_counter()
                        run()
                        taken, used = time.perf_counter() - start, time.process_time() - used
                        after = processor_time.call(one).get()
                        ranks = max(b - a for a, b in zip(before.values(), after.values(), strict=True))
                        if round_ >= params["warmup"]:
                            for what, value in (("", taken), (", program", used), (", rank", ranks)):
                                found = samples.setdefault(f"{name}{told}: {way}{what}", [])
                                found.append(value / params["calls"])
    return samples


if __name__ == "__main__":
    main({f.__name__: f for f in (chain, step, models)})
