"""Training steps of a GPT-2-shaped network under torch's DistributedDataParallel, one process a rank, as torchrun would
start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(params["procs"]):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(params["procs"]), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": str(params["threads"]),
        }  # fmt: skip
        command = [sys.executable, "-c", f"import gpt_ddp; gpt_ddp.rank_main({dict(params)!r})"]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed")
    return {"step": [float(line) for line in outputs[0].split()]}


if __name__ == "__main__":
    main({"step": step})
