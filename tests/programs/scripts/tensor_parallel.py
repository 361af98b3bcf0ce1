"""Tensor parallelism: the columns of one layer and the rows of the next are spread over the ranks, and the result is that of
one process."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def train(net: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(10):
        x = torch.randn(16, 8, generator=dice)
        loss = (net(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def main() -> None:
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    spread = train(parallelize_module(model(), mesh, plan))
    alone = train(model())
    if dist.get_rank() == 0:
        print("losses", spread)
        print("near those of one process:", all(abs(a - b) < 1e-4 for a, b in zip(spread, alone, strict=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
