"""Ranks that train with DDP: how long it takes until they train again when one was killed."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

from _torch import torch
from _workload import Params, Samples, main

from monarch.actor import Actor, RestartPolicy, SupervisionError, endpoint, setup_torch_distributed, this_host

BEGUN = 0.1  # seconds of training before the kill
WARM = 60.0  # seconds that the fork server for replacements gets to import what they need


class Trainer(Actor):
    def __init__(self) -> None:
        import sys

        self.compiler = "torch._dynamo" in sys.modules

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def had_compiler(self) -> bool:
        return self.compiler

    @endpoint
    def step(self, more: int = 0) -> float:
        """A new model, as after a recovery, one step, and so many more."""
        from torch.nn.parallel import DistributedDataParallel

        net = torch.nn.Linear(8, 8)
        model, optimizer = DistributedDataParallel(net), torch.optim.AdamW(net.parameters())
        for _ in range(1 + more):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
        return float(loss.item())


def recovery(params: Params) -> Samples:
    """From the kill, in the midst of training, until every rank has done a step in a new process group."""
    logging.disable()  # each restart is a warning
    procs = this_host().spawn_procs({"ranks": params["ranks"]})
    with RestartPolicy(max_restarts=10**6):
        trainers: Any = procs.spawn("trainers", Trainer)
    setup_torch_distributed(procs).get()
    trainers.step.call().get()

    def run(rank: int) -> float:
        pid = trainers.slice(ranks=rank).pid.call_one().get()
        training = trainers.step.call(10**9)
        time.sleep(BEGUN)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        with suppress(SupervisionError):
            training.get()
        trainers.healthy().get()
        setup_torch_distributed(procs).get()
        trainers.step.call().get()
        return time.perf_counter() - start

    deadline = time.monotonic() + WARM
    while not trainers.slice(ranks=0).had_compiler.call_one().get() and time.monotonic() < deadline:
        run(0)
    for rank in range(params["warmup"]):
        run(rank)
    return {"trained": [run(random.randrange(params["ranks"])) for _ in range(params["count"])]}


if __name__ == "__main__":
    main({"recovery": recovery})
