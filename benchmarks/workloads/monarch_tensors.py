"""Operations on distributed tensors: our API and torchmonarch's are the same, so is this file."""

from __future__ import annotations

import os
import time
from typing import Any

from _operations import issued
from _torch import torch
from _workload import Params, Samples, main

import monarch
from monarch.actor import this_host

if "MONARCH_BENCH_TORCH" in os.environ:  # torch must be found by the processes of the mesh, too
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], os.environ["MONARCH_BENCH_TORCH"]])


def mesh(params: Params) -> Any:
    return this_host().spawn_procs({"gpus": params["procs"]})


def chains(params: Params) -> Samples:
    """Seconds an operation, to issue and until the last result is here, of chains of small operations."""
    samples: Samples = {"issue": [], "complete": [], "issue in place": [], "complete in place": []}
    length = params["length"]
    with mesh(params).activate():
        one = torch.ones(3, 4)
        for round_ in range(params["warmup"] + params["count"]):
            start = time.perf_counter()
            value = one
            for _ in range(length):
                value = value + one
            issued = time.perf_counter()
            monarch.inspect(value)
            done = time.perf_counter()
            other = one.clone()
            middle = time.perf_counter()
            for _ in range(length):
                other.add_(one)
            issued_in_place = time.perf_counter()
            monarch.inspect(other)
            end = time.perf_counter()
            if round_ >= params["warmup"]:
                samples["issue"].append((issued - start) / length)
                samples["complete"].append((done - start) / length)
                samples["issue in place"].append((issued_in_place - middle) / length)
                samples["complete in place"].append((end - middle) / length)
    return samples


def kinds(params: Params) -> Samples:
    """Seconds to issue an operation, by its kind."""
    with mesh(params).activate():
        return issued(params, monarch.inspect)


def fetch(params: Params) -> Samples:
    """Seconds from an operation to its value here."""
    samples: Samples = {"inspect": []}
    with mesh(params).activate():
        one = torch.ones(3, 4)
        for round_ in range(params["warmup"] + params["count"]):
            start = time.perf_counter()
            monarch.inspect(one + one)
            if round_ >= params["warmup"]:
                samples["inspect"].append(time.perf_counter() - start)
    return samples


def step(params: Params) -> Samples:
    """Seconds a step of a small network: forward, backward and SGD, until the loss is here."""
    samples: Samples = {"step": []}
    with mesh(params).activate():
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = torch.ones(8, 16)
        for round_ in range(params["warmup"] + params["count"]):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = net(data).square().mean()
            loss.backward()
            optimizer.step()
            monarch.inspect(loss.detach())
            if round_ >= params["warmup"]:
                samples["step"].append(time.perf_counter() - start)
    return samples


def _pid() -> int:
    return os.getpid()


def death(params: Params) -> Samples:
    """Seconds from `kill -9` of a process in the middle of a step until the program has the exception, and until the mesh,
    restarted, has done an operation again."""
    import signal

    from monarch.actor import SupervisionError

    samples: Samples = {"noticed": [], "again": []}
    procs = mesh(params)
    for round_ in range(params["warmup"] + params["count"]):
        with procs.activate():
            pid = monarch.remote(_pid, propagate="inspect").call().get().item(gpus=params["procs"] - 1)
            wide = torch.ones(400, 400)
            monarch.inspect(wide)
            for _ in range(60):
                wide = (wide @ wide) * 0
            start = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            try:
                monarch.inspect(wide)
            except SupervisionError as error:
                noticed = time.perf_counter() - start
                assert "sig=9" in str(error)
            else:
                raise RuntimeError("Error: a value came from a killed process")
        procs.restart(failed=True).get()
        with procs.activate():
            monarch.inspect(torch.ones(2) + 1)
        if round_ >= params["warmup"]:
            samples["noticed"].append(noticed)
            samples["again"].append(time.perf_counter() - start)
    procs.stop().get()
    return samples


if __name__ == "__main__":
    main({f.__name__: f for f in (chains, kinds, fetch, step, death)})
