"""Data-parallel training with DDP, on actors."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from monarch.actor import Actor, current_rank, endpoint, setup_torch_distributed, this_host


class Trainer(Actor):
    @endpoint
    def setup(self) -> None:
        torch.manual_seed(current_rank().rank)
        self.model = DDP(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @endpoint
    def train(self, steps: int) -> list[float]:
        for _ in range(steps):
            x = torch.randn(32, 4)  # every rank has data of its own
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()  # gradients are averaged over the ranks
            self.optimizer.step()
        return self.model.module.weight.detach().flatten().tolist()


def main() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    setup_torch_distributed(procs, "gloo").get()  # address, port, ranks, process group
    trainers = procs.spawn("trainers", Trainer)
    trainers.setup.call().get()
    weights = trainers.train.call(200).get().values()
    print("the same on all ranks:", weights[0] == weights[1])  # the same on all ranks: True
    print([round(weight, 2) for weight in weights[0]])  # [1.0, 1.0, 1.0, 1.0]
    procs.stop().get()


if __name__ == "__main__":
    main()
