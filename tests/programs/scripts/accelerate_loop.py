"""A loop of accelerate: it finds the launcher by its variables, and prepares model, optimizer and data."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    x = torch.randn(256, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(6):
        for inputs, targets in loader:
            with accelerator.accumulate(net):
                loss = (net(inputs) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    counted = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index])).tolist()
    weights = [round(weight, 3) for weight in accelerator.unwrap_model(net).weight.flatten().tolist()]
    accelerator.print("ranks", counted, "weights", weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
