"""A loop of Lightning Fabric: it finds the launcher by its variables, and sets up model and data."""

import logging

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning_fabric").setLevel(logging.ERROR)


def main() -> None:
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    x = torch.randn(256, 4)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True))
    net = nn.Linear(4, 1)
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for epoch in range(6):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = (net(inputs) - targets).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
    fabric.save("state.ckpt", {"net": net})
    ranks = fabric.all_gather(torch.tensor(fabric.global_rank)).tolist()
    weights = [round(weight, 3) for weight in net.module.weight.flatten().tolist()]
    fabric.print("ranks", ranks, "weights", weights)


if __name__ == "__main__":
    main()
