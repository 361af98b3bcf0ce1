"""A pipeline of two stages from one script: each process has half of the layers, micro-batches flow through both.

    python examples/pipeline_parallel.py

The stages are slices of one mesh. Operations are issued in the order of this script and run as soon as their inputs are
there, so while the second stage works on one micro-batch the first is at the next: the schedule needs no code of its own.
`monarch.grad_function` is not even needed; an autograd function carries activations one way and gradients the other.
Checked against the same network in this process. Needs torch.
"""

from typing import Any

import torch
from torch import nn

import monarch
from monarch.actor import this_host
from monarch.builtins.random import set_manual_seed_remote

WIDTH, BATCH, PARTS, STEPS = 32, 32, 4, 10


class Move(torch.autograd.Function):
    """To another mesh; its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Any, mesh: Any) -> Any:
        ctx.mesh = x.mesh
        return x.to_mesh(mesh)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.to_mesh(ctx.mesh), None


def stage(last: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1 if last else WIDTH)).double()


def data() -> tuple[Any, Any]:
    index = torch.arange(BATCH * WIDTH, dtype=torch.float64).reshape(BATCH, WIDTH)
    inputs = torch.sin(index * 0.7)
    return inputs, inputs.square().mean(dim=1, keepdim=True)


def train_on_mesh() -> tuple[list[dict[str, Any]], list[float]]:
    """The parameters each stage began with, and the loss of each step."""
    procs = this_host().spawn_procs({"stage": 2})
    with procs.activate() as mesh:
        set_manual_seed_remote(0)
    first, second = mesh.slice(stage=0), mesh.slice(stage=1)
    with first.activate():
        front = stage(last=False)
        inputs = data()[0].chunk(PARTS)
    with second.activate():
        back = stage(last=True)
        wanted = data()[1].chunk(PARTS)
    before = [monarch.inspect(front.state_dict()), monarch.inspect(back.state_dict())]
    optimizers = [torch.optim.SGD(half.parameters(), lr=0.2, momentum=0.9) for half in (front, back)]
    losses = []
    for _ in range(STEPS):
        parts = []
        for part, target in zip(inputs, wanted, strict=True):
            middle = Move.apply(front(part), second)
            loss = (back(middle) - target).square().mean() / PARTS
            loss.backward()
            parts.append(loss.detach())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(torch.stack(parts).sum())
    found = [loss.item() for loss in monarch.inspect(losses)]
    procs.stop().get()
    return before, found


def train_here(before: list[dict[str, Any]]) -> list[float]:
    """The same layers in this process, on whole batches."""
    net = nn.Sequential(stage(last=False), stage(last=True))
    for half, state in zip(net, before, strict=True):
        half.load_state_dict(state)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    inputs, wanted = data()
    losses = []
    for _ in range(STEPS):
        loss = (net(inputs) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    before, losses = train_on_mesh()
    alone = train_here(before)
    for step in range(0, STEPS, 3):
        print(f"step {step}: loss {losses[step]:.6f} in two stages, {alone[step]:.6f} in one process")
    apart = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    print(f"largest difference of {STEPS} losses: {apart:.1e}")
    if apart > 1e-5:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
