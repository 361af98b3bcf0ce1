"""Data parallel training from one script: each process has a part of the batch, gradients are averaged between them.

    python examples/data_parallel.py                 # two processes
    python examples/data_parallel.py --procs 4
    python examples/data_parallel.py --workers tcp://node1:26600 tcp://node2:26600  # two on each: docs/hosts.md

`monarch.function` traces the whole step (forward, backward, all-reduce, optimizer) once; after that a step is one small
message. At the end the losses are compared with those of plain torch in this process on the whole batch. Needs torch.
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import monarch
from monarch.actor import attach_to_workers, this_host
from monarch.builtins.random import set_manual_seed_remote

BATCH, WIDTH, CLASSES, STEPS = 64, 32, 10, 20


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.LayerNorm(4 * WIDTH), nn.Linear(4 * WIDTH, CLASSES))


def data() -> tuple[Any, Any]:
    """The same problem wherever it is made: nothing here is random."""
    index = torch.arange(BATCH * WIDTH, dtype=torch.float64).reshape(BATCH, WIDTH)
    inputs = torch.sin(index * 0.7)
    return inputs, (inputs[:, :CLASSES] + torch.cos(inputs[:, :CLASSES] * 3)).argmax(dim=1)


def train_on_mesh(workers: list[str], each: int) -> tuple[dict[str, Any], list[float]]:
    """The parameters it began with, and the loss of each step."""
    hosts = attach_to_workers(workers=workers) if workers else this_host()
    procs = hosts.spawn_procs({"gpus": each})
    with procs.flatten("dp").activate() as mesh:  # whatever host they are on, in one row
        count = len(mesh)
        set_manual_seed_remote(0)  # the same parameters on every process
        net = model().double()
        before = monarch.inspect(net.state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        # Each process takes its rows: which ones follows from its rank.
        rows = mesh.rank("dp") * (BATCH // count) + torch.arange(BATCH // count)
        inputs, wanted = (part.index_select(0, rows) for part in data())

        @monarch.function
        def step(inputs: Any, wanted: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), wanted)
            loss.backward()
            monarch.reduce_([p.grad for p in net.parameters()], "dp", "avg")
            optimizer.step()
            return loss.detach().reduce("dp", "avg")

        losses = [step(inputs, wanted) for _ in range(STEPS)]  # none of these waits
        found = [loss.item() for loss in monarch.inspect(losses)]
    procs.stop().get()
    return before, found


def train_here(before: dict[str, Any]) -> list[float]:
    """The same in this process alone, on the whole batch."""
    net = model().double()
    net.load_state_dict(before)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, wanted = data()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--procs", type=int, default=2, help=f"processes a host; all have to divide the batch of {BATCH}"
    )
    parser.add_argument(
        "--workers", nargs="+", metavar="ADDRESS", default=[], help="hosts, where `monarch worker` runs"
    )
    args = parser.parse_args()
    before, losses = train_on_mesh(args.workers, args.procs)
    count = args.procs * max(1, len(args.workers))
    alone = train_here(before)
    for step in range(0, STEPS, 5):
        print(f"step {step:2}: loss {losses[step]:.6f} on {count} processes, {alone[step]:.6f} on one")
    apart = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    print(f"largest difference of {STEPS} losses: {apart:.1e}")
    if apart > 1e-5:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
