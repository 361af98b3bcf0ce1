"""A trainer whose model FSDP2 shards, and generators that hold it tensor-parallel or whole."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from monarch.actor import Actor, current_rank, current_size, endpoint
from monarch.rdma import StateDict, StateDictHandle

WIDE, DEEP = 10, 7  # of two ranks: uneven parts


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDE, 2 * DEEP)
        self.down = torch.nn.Linear(2 * DEEP, WIDE)
        self.norm = torch.nn.LayerNorm(WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))  # type: ignore[no-any-return]


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(Block(), torch.nn.Linear(WIDE, 5), torch.nn.Linear(5, 3, bias=False))


class InGroup(Actor):
    """A rank of a gloo group, whose store is in a folder of the test's."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.rank, self.size = current_rank().rank, current_size()["ranks"]
        init_process_group(
            "gloo", init_method=f"file://{folder}/{type(self).__name__}", rank=self.rank, world_size=self.size
        )
        self.mesh = init_device_mesh("cpu", (self.size,))

    def __cleanup__(self, exc: Exception | None) -> None:
        destroy_process_group()


class Trainer(InGroup):
    @endpoint
    def publish(self) -> StateDictHandle:
        self.model = model(1)
        for layer in (self.model[0], self.model):
            fully_shard(layer, mesh=self.mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.weights = StateDict(self.model)
        return self.weights.handle

    @endpoint
    def step(self) -> int:
        torch.manual_seed(self.rank)
        self.model(torch.randn(4, WIDE)).square().sum().backward()
        with self.weights.updating():
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.weights.version

    @endpoint
    def full(self) -> dict[str, torch.Tensor]:
        """All of it, by torch's own collectives."""
        return {name: tensor.full_tensor().detach().clone() for name, tensor in self.model.state_dict().items()}

    @endpoint
    def drop(self) -> None:
        self.weights.drop().get()


class Generator(InGroup):
    @endpoint
    def read(self, handle: StateDictHandle) -> tuple[int, int, dict[str, torch.Tensor]]:
        """The version, the bytes that came, and all of the weights, put together by torch's own collectives."""
        mine = model(2 + self.rank)
        plan = {"0.up": ColwiseParallel(), "0.down": RowwiseParallel(), "1": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(mine, self.mesh, plan)
        reader = handle.reader(mine)
        version = reader.read().get(300)
        whole: dict[str, Any] = {}
        for name, tensor in mine.state_dict().items():
            whole[name] = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        route = reader._plan.route
        return version, sum(map(route.bytes_of, route.owners)), whole
