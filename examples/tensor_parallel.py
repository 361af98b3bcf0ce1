"""Tensor parallel training from one script: the layers of a transformer block are spread over the processes.

    python examples/tensor_parallel.py

As in Megatron-LM (Shoeybi et al., 2019): of two linear layers in a row the first is cut by its columns, the second by its
rows, and so is attention by its heads; each pair needs one sum over the processes forwards and one backwards. Written with
distributed tensors only, and checked against the same block in this process. Needs torch.
"""

from typing import Any

import torch
from torch.nn import functional as F

import monarch
import monarch.metrics
from monarch.actor import this_host

PARTS, BATCH, LENGTH, WIDTH, HEADS, STEPS = 2, 4, 16, 32, 4, 10


class Spread(torch.autograd.Function):
    """Before a cut layer: every process has the whole input, and each a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.reduce("tp", "sum")


class Gather(torch.autograd.Function):
    """Behind a cut layer: each process has a part of the output's sum, and every one the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.reduce("tp", "sum")

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def weights() -> dict[str, Any]:
    """The whole block's parameters, the same wherever they are made."""
    shapes = {"qkv": (3, WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}
    return {
        name: torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * (0.3 + 0.1 * place)).reshape(
            shape
        )
        / 6
        for place, (name, shape) in enumerate(shapes.items())
    }


def block(x: Any, w: dict[str, Any], heads: int, spread: Any, gather: Any) -> Any:
    """Attention and a perceptron around shortcuts. `w` may be parts: `heads` heads, some of the perceptron's units."""
    inside = spread(F.layer_norm(x, (WIDTH,)))
    q, k, v = (
        F.linear(inside, part).unflatten(-1, (heads, WIDTH // HEADS)).transpose(1, 2) for part in w["qkv"].unbind(0)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + gather(F.linear(mixed, w["out"]))
    inside = spread(F.layer_norm(x, (WIDTH,)))
    return x + gather(F.linear(F.gelu(F.linear(inside, w["up"])), w["down"]))


def train(w: dict[str, Any], heads: int, spread: Any, gather: Any) -> list[Any]:
    """The loss of each step of plain gradient descent."""
    inputs = torch.cos(torch.arange(BATCH * LENGTH * WIDTH, dtype=torch.float64)).reshape(BATCH, LENGTH, WIDTH)
    wanted = inputs.roll(1, dims=1) * 0.5
    w = {name: weight.clone().requires_grad_() for name, weight in w.items()}
    losses = []
    for _ in range(STEPS):
        loss = (block(inputs, w, heads, spread, gather) - wanted).square().mean()
        grads = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for weight, grad in zip(w.values(), grads, strict=True):
                weight.sub_(0.2 * grad)
        losses.append(loss.detach())
    return losses


def part_of(w: dict[str, Any], rank: Any) -> dict[str, Any]:
    """The rows or columns of each weight that belong to a process; `rank` is a different number on each."""

    def cut(weight: Any, dim: int) -> Any:
        size = weight.shape[dim] // PARTS
        return weight.index_select(dim, rank * size + torch.arange(size))

    return {"qkv": cut(w["qkv"], 1), "out": cut(w["out"], 1), "up": cut(w["up"], 0), "down": cut(w["down"], 1)}


def main() -> None:
    procs = this_host().spawn_procs({"tp": PARTS})
    with procs.activate() as mesh:
        parts = part_of(weights(), mesh.rank("tp"))
        losses = monarch.inspect(train(parts, HEADS // PARTS, Spread.apply, Gather.apply))
    for step, loss in enumerate(losses):
        monarch.metrics.log(step=step, loss=loss)
    procs.stop().get()
    alone = train(weights(), HEADS, lambda x: x, lambda x: x)
    for step in range(0, STEPS, 3):
        print(f"step {step}: loss {losses[step]:.6f} on {PARTS} processes, {alone[step]:.6f} on one")
    apart = max(abs(a.item() - b.item()) for a, b in zip(losses, alone, strict=True))
    print(f"largest difference of {STEPS} losses: {apart:.1e}")
    if apart > 1e-5:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
