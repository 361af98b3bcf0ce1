"""Training steps of a GPT-2-shaped network under torch's FSDP2, one process a rank: as torchrun would start them, or as
actors of a mesh."""

from __future__ import annotations

import time
from typing import Any

import _ranks
from _torch import torch
from _workload import Params, Samples, main
from gpt import GPT, optimizer


class Training:
    """One rank's part."""

    def __init__(self, params: dict[str, int], mesh: Any) -> None:
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        torch.set_num_threads(params["threads"])
        torch.manual_seed(0)
        model = GPT(*(params[k] for k in ("vocabulary", "length", "layers", "width", "heads")))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.model: Any = fully_shard(model, mesh=mesh)
        self.optimizer = optimizer(model)
        self.params = params
        torch.manual_seed(dist.get_rank())

    def step(self) -> float:
        shape = (self.params["batch"], self.params["length"])
        words, wanted = (torch.randint(0, self.params["vocabulary"], shape) for _ in range(2))
        self.optimizer.zero_grad()
        loss = self.model(words, wanted)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def rank_main(params: dict[str, int]) -> None:
    """One rank of the floor. Prints the seconds of each step on rank 0."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    training = Training(params, init_device_mesh("cpu", (params["procs"],), mesh_dim_names=("dp",)))
    for round_ in range(params["warmup"] + params["count"]):
        start = time.perf_counter()
        training.step()
        if round_ >= params["warmup"] and dist.get_rank() == 0:
            print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


def programs(params: Params) -> Samples:
    """Seconds a step, of one program a rank."""
    return _ranks.run("gpt_fsdp", params)


if __name__ == "__main__":
    main({"step": programs})
