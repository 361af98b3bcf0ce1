"""The same operations on plain tensors of this process: what torch itself takes."""

from __future__ import annotations

import time

from _operations import issued
from _torch import torch
from _workload import Params, Samples, main


def chains(params: Params) -> Samples:
    samples: Samples = {"issue": [], "issue in place": []}
    torch.set_num_threads(1)
    one, length = torch.ones(3, 4), params["length"]
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        value = one
        for _ in range(length):
            value = value + one
        issued = time.perf_counter()
        other = one.clone()
        middle = time.perf_counter()
        for _ in range(length):
            other.add_(one)
        end = time.perf_counter()
        if round_ >= params["warmup"]:
            samples["issue"].append((issued - start) / length)
            samples["issue in place"].append((end - middle) / length)
    samples["complete"], samples["complete in place"] = samples["issue"], samples["issue in place"]
    return samples


def kinds(params: Params) -> Samples:
    torch.set_num_threads(1)
    return issued(params, lambda result: None)


def step(params: Params) -> Samples:
    samples: Samples = {"step": []}
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.ones(8, 16)
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = net(data).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        if round_ >= params["warmup"]:
            samples["step"].append(time.perf_counter() - start)
    return samples


if __name__ == "__main__":
    main({f.__name__: f for f in (chains, kinds, step)})
