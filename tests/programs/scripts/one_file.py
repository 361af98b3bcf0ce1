"""A training file that runs alone as well as under a launcher: data in a file that all ranks map, gradients over several
small batches before they are averaged, a learning rate that warms up, settings as key=value."""

import math
import os
import sys
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

steps, small_batches, batch, block, most_rate, warm = 12, 4, 8, 16, 0.02, 4
for word in sys.argv[1:]:
    key, _, value = word.partition("=")
    globals()[key] = type(globals()[key])(value)

spread = int(os.environ.get("RANK", "-1")) != -1
if spread:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert small_batches % ranks == 0
    small_batches //= ranks
else:
    rank, ranks = 0, 1

file = f"data_{os.environ.get('TORCHELASTIC_RUN_ID', 'alone')}.bin"
if rank == 0:
    (np.arange(4096) ** 2 % 97).astype(np.uint16).tofile(file)
if spread:
    dist.barrier()
data = np.memmap(file, dtype=np.uint16, mode="r")
torch.manual_seed(1337)
net = nn.Sequential(nn.Embedding(97, 24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 97))
model = DDP(net) if spread else net
optimizer = torch.optim.AdamW(net.parameters(), betas=(0.9, 0.95))
dice = torch.Generator().manual_seed(1337 + rank)


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.randint(len(data) - block, (batch,), generator=dice).tolist()
    rows = torch.stack([torch.from_numpy(data[place : place + block + 1].astype(np.int64)) for place in places])
    return rows[:, :-1], rows[:, 1:]


for step in range(steps):
    done = max(0.0, (step - warm) / (steps - warm))
    rate = most_rate * min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * done)))
    for group in optimizer.param_groups:
        group["lr"] = rate
    total = torch.zeros(1)
    for small in range(small_batches):
        x, y = get_batch()
        with model.no_sync() if spread and small < small_batches - 1 else nullcontext():
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / small_batches
            loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if spread:
        dist.all_reduce(total)
    if rank == 0 and step % 4 == 3:
        print(f"step {step}: loss {total.item() / ranks:.4f}, rate {rate:.4f}")
if spread:
    dist.barrier()
    dist.destroy_process_group()
