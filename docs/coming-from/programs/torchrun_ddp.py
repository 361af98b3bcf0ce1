"""Data-parallel training with DDP, as torchrun starts it: one program on every rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        x = torch.randn(32, 4)  # every rank has data of its own
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over the ranks
        optimizer.step()
    if dist.get_rank() == 0:
        print([round(weight, 2) for weight in model.module.weight.detach().flatten().tolist()])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
