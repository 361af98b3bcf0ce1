"""Training steps of a GPT-2-shaped network under torch's FSDP2, in actors that one script drives."""

from __future__ import annotations

import time
from typing import Any

from _workload import Params, Samples, main
from gpt_fsdp import Training

from monarch.actor import Actor, endpoint, setup_torch_distributed, this_host
from monarch.spmd import torch_device_mesh


class Trainer(Actor):
    @endpoint
    def build(self, params: dict[str, int]) -> None:
        self.training = Training(params, torch_device_mesh()["dp"])

    @endpoint
    def step(self) -> float:
        return self.training.step()


def step(params: Params) -> Samples:
    """Seconds a step, with the call that asks for it and the losses that come back."""
    procs = this_host().spawn_procs({"dp": params["procs"]}, env={"OMP_NUM_THREADS": str(params["threads"])})
    setup_torch_distributed(procs, "gloo", threads=params["threads"]).get()
    trainers: Any = procs.spawn("trainers", Trainer)
    trainers.build.call(dict(params)).get()
    seconds = []
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        trainers.step.call().get()
        if round_ >= params["warmup"]:
            seconds.append(time.perf_counter() - start)
    procs.stop().get()
    return {"step": seconds}


if __name__ == "__main__":
    main({"step": step})
