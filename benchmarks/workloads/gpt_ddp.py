"""Training steps of a GPT-2-shaped network under torch's DistributedDataParallel, one process a rank, as torchrun would
start them."""

from __future__ import annotations

import time

import _ranks
from _torch import torch
from _workload import Params, Samples, main
from gpt import GPT, optimizer


def rank_main(params: dict[str, int]) -> None:
    """One rank. Prints the seconds of each step on rank 0."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.set_num_threads(params["threads"])
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(*(params[k] for k in ("vocabulary", "length", "layers", "width", "heads"))))
    step = optimizer(model)
    torch.manual_seed(dist.get_rank())
    for round_ in range(params["warmup"] + params["count"]):
        shape = (params["batch"], params["length"])
        words, wanted = (torch.randint(0, params["vocabulary"], shape) for _ in range(2))
        start = time.perf_counter()
        step.zero_grad()
        loss = model(words, wanted)
        loss.backward()
        step.step()
        loss.item()
        if round_ >= params["warmup"] and dist.get_rank() == 0:
            print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


def step(params: Params) -> Samples:
    """Seconds a step."""
    return _ranks.run("gpt_ddp", params)


if __name__ == "__main__":
    main({"step": step})
