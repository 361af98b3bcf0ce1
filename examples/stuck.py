"""A hang to find: one rank of four never enters an all_reduce, and the others wait for it.

    python examples/stuck.py               finds it from inside, with diagnose(), and ends
    python examples/stuck.py --wait        stays stuck; in another terminal:

    monarch stacks                         where every rank is
    monarch doctor                         which rank keeps the others waiting, and at which line it is

It needs torch (pip install 'pymonarch[torch]'), but no GPU.
"""

from __future__ import annotations

import sys
import threading

from monarch.actor import Actor, current_rank, diagnose, endpoint, setup_torch_distributed, this_host

RANKS = 4
MISSING = 3  # the rank that goes astray


def load_batch(rank: int, step: int) -> float:
    """Reads the data of a step; on one rank it waits for a file that nobody writes."""
    if rank == MISSING and step == 2:
        threading.Event().wait()
    return float(rank + step)


class Trainer(Actor):
    """Trains, with all ranks in step."""

    @endpoint
    def train(self, steps: int) -> float:
        """Adds up what all ranks have read."""
        import torch
        import torch.distributed as dist

        rank = current_rank().rank
        total = torch.zeros(1)
        for step in range(steps):
            total += load_batch(rank, step)
            dist.all_reduce(total)
        return float(total)


def main() -> None:
    """Starts the training, which gets stuck in its third step."""
    procs = this_host().spawn_procs({"gpus": RANKS}, name="workers")
    setup_torch_distributed(procs, "gloo").get()
    trainers = procs.spawn("trainers", Trainer)
    training = trainers.train.call(10)
    if "--wait" in sys.argv:
        training.get()
    while True:
        found = diagnose().get()
        if any(finding.kind == "collective" for finding in found.findings):
            break
    print(found)
    procs.stop().get()


if __name__ == "__main__":
    main()
