"""Training steps of a GPT-2-shaped network under torch's FSDP2, one process a rank: as torchrun would start them, or as
actors of a mesh."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(params["procs"]):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(params["procs"]), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": str(params["threads"]),
        }  # fmt: skip
        command = [sys.executable, "-c", f"import gpt_fsdp; gpt_fsdp.rank_main({dict(params)!r})"]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed")
    return {"step": [float(line) for line in outputs[0].split()]}


if __name__ == "__main__":
    main({"step": programs})
