"""Data-parallel training with DDP, on actors."""

import os
import socket

import ray
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@ray.remote
class Trainer:
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        torch.manual_seed(rank)

    def address(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return "127.0.0.1", free.getsockname()[1]

    def setup(self, host, port):
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
        self.model = DDP(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, steps):
        for _ in range(steps):
            x = torch.randn(32, 4)  # every rank has data of its own
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()  # gradients are averaged over the ranks
            self.optimizer.step()
        return self.model.module.weight.detach().flatten().tolist()

    def leave(self):
        dist.destroy_process_group()


def main():
    ray.init()
    trainers = [Trainer.remote(rank, 2) for rank in range(2)]
    host, port = ray.get(trainers[0].address.remote())
    ray.get([trainer.setup.remote(host, port) for trainer in trainers])
    weights = ray.get([trainer.train.remote(200) for trainer in trainers])
    print("the same on all ranks:", weights[0] == weights[1])  # the same on all ranks: True
    print([round(weight, 2) for weight in weights[0]])  # [1.0, 1.0, 1.0, 1.0]
    ray.get([trainer.leave.remote() for trainer in trainers])
    ray.shutdown()


if __name__ == "__main__":
    main()
