"""Training that changes its number of processes: three steps on two, a checkpoint, three more on three.

    python examples/tensor_checkpoint.py
    python examples/tensor_checkpoint.py --folder /shared/run7 --first 4 --then 2

Each process reads its own rows (`monarch.DataLoaders`) and writes its part of the checkpoint (`monarch.checkpoint`). The
weights are compared with those of six steps in this process, which then reads the checkpoint with plain torch. Needs torch.
"""

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import monarch
import monarch.metrics
from monarch.actor import this_host

STEPS, BATCH, WIDTH = 3, 12, 8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def rows(rank: int, size: int, first: int) -> Any:
    """The rows of process `rank` of `size` in batch `first` and the two after it."""
    for step in range(first, first + STEPS):
        index = torch.arange(BATCH * WIDTH, dtype=torch.float64).reshape(BATCH, WIDTH) + step
        inputs = torch.sin(index * 0.7)
        part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        yield inputs[part], inputs.sum(1, keepdim=True)[part]


def train(net: nn.Module, optimizer: Any, batches: Any, averaged: Any) -> list[Any]:
    """The loss of each step, on the rows of a process."""
    losses = []
    for inputs, wanted in batches:
        optimizer.zero_grad()
        loss = (net(inputs) - wanted).square().mean()
        loss.backward()
        averaged([weight.grad for weight in net.parameters()])
        optimizer.step()
        losses.append(loss.detach())
    return losses


def on_processes(count: int, before: Path | None, after: Path) -> dict[str, Any]:
    """Three steps on `count` processes from checkpoint `before`, and checkpoint `after`. The weights then."""
    local = model()
    procs = this_host().spawn_procs({"dp": count})
    with procs.activate():
        net = monarch.replicate(local)  # the same weights in each process
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        step = 0
        if before is not None:
            state = monarch.checkpoint.read(before)
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        batches = monarch.DataLoaders(rows, step)
        losses = train(net, optimizer, batches, lambda grads: monarch.reduce_(grads, "dp", "avg"))
        monarch.reduce_(losses, "dp", "avg")
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + STEPS}
        monarch.checkpoint.save(state, after, overwrite=True)
        weights: dict[str, Any] = monarch.inspect(net.state_dict())
        for number, loss in enumerate(monarch.inspect(losses)):
            monarch.metrics.log(step=step + number, loss=loss)
    procs.stop().get()
    return weights


def in_this_process() -> dict[str, Any]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for first in (0, STEPS):
        train(net, optimizer, rows(0, 1, first), lambda grads: None)
    weights: dict[str, Any] = net.state_dict()
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", help="where checkpoints go; all processes have to see it (default: a temporary one)"
    )
    parser.add_argument("--first", type=int, default=2, help=f"processes of the first part; they divide {BATCH}")
    parser.add_argument("--then", type=int, default=3, help=f"processes of the second part; they divide {BATCH}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        on_processes(args.first, None, folder / "step3")
        weights = on_processes(args.then, folder / "step3", folder / "step6")
        plain: dict[str, Any] = {"net": model().state_dict(), "step": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it reads in a single process
            dcp.load(plain, checkpoint_id=folder / "step6")
    alone = in_this_process()
    apart = max((weights[name] - alone[name]).abs().max().item() for name in alone)
    print(
        f"{STEPS} steps on {args.first} processes and {STEPS} on {args.then}: weights differ by {apart:.0e} from one process"
    )
    read = all(torch.equal(plain["net"][name], weights[name]) for name in weights)
    print(f"plain torch reads step {plain['step']}, and the same weights: {read}")
    if apart > 1e-9 or not read or plain["step"] != 2 * STEPS:
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
