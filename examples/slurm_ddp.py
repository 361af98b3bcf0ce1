"""Train with DistributedDataParallel on nodes that Slurm gives, from a login node: one script, no sbatch file.

    python examples/slurm_ddp.py --nodes 4 --procs 8 --partition gpu --gpus-per-node 8 --time 01:00:00
    python examples/slurm_ddp.py --nodes 4 --keep    # the nodes stay; the next run with the same arguments has them at once
    python -m tests.lab slurm                        # a Slurm of four nodes on this machine, to try it: docs/slurm.md

Each rank learns to tell ten noisy points apart: the loss falls, and the ranks end with equal parameters. Needs torch.
"""

import argparse
import hashlib
import socket
import sys
import time
from collections import Counter
from statistics import fmean

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import monarch.metrics
from monarch.actor import Actor, current_rank, endpoint, setup_torch_distributed
from monarch.job import SlurmJob

WIDTH, CLASSES, BATCH = 64, 10, 128


class Trainer(Actor):
    """One rank. Batches are drawn around ten centres, the same on all ranks; each rank draws others."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.step = 0
        self.noise = torch.Generator().manual_seed(1000 + current_rank().rank)
        self.centres = 0.3 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))

    @endpoint
    def build(self) -> str:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES)).to(self.device)
        self.model = DDP(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return socket.gethostname()

    @endpoint
    def train(self, steps: int) -> float:
        """Takes steps together with the other ranks; the mean loss of the last ones."""
        losses = []
        for _ in range(steps):
            labels = torch.randint(CLASSES, (BATCH,), generator=self.noise)
            inputs = self.centres[labels] + torch.randn(BATCH, WIDTH, generator=self.noise)
            loss = nn.functional.cross_entropy(self.model(inputs.to(self.device)), labels.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.step += 1
            monarch.metrics.log(step=self.step, loss=losses[-1])
        return fmean(losses[-10:])

    @endpoint
    def fingerprint(self) -> str:
        parameters = torch.cat([p.detach().flatten().cpu() for p in self.model.parameters()])
        dist.destroy_process_group()
        return hashlib.sha256(repr(parameters.tolist()).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with DDP on nodes that Slurm gives.")
    parser.add_argument("--nodes", type=int, default=2, help="nodes (default %(default)s)")
    parser.add_argument("--procs", type=int, default=2, help="processes a node (default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps (default %(default)s)")
    parser.add_argument("--partition", help="the partition; by default Slurm's own default")
    parser.add_argument("--gpus-per-node", type=int, help="devices of each node; without, processors train")
    parser.add_argument("--time", help="time limit, such as 01:00:00")
    parser.add_argument("--python", default=sys.executable, help="the interpreter on the nodes (default: this one)")
    parser.add_argument("--keep", action="store_true", help="keep the nodes for the next run; `monarch kill` ends them")
    parser.add_argument("--curves", metavar="FOLDER", help="keep the losses there; `monarch metrics` draws them")
    args = parser.parse_args()

    if args.curves:
        print(f"losses are kept in {monarch.metrics.keep(args.curves)}")
    job = SlurmJob(
        {"trainers": args.nodes},
        python_exe=args.python,
        job_name="slurm_ddp",
        partition=args.partition,
        gpus_per_node=args.gpus_per_node,
        time_limit=args.time,
    )
    begun = time.perf_counter()
    hosts = job.state().trainers  # waits, and says what for
    print(f"{args.nodes} nodes after {time.perf_counter() - begun:.1f} s")
    try:
        device = "cuda" if args.gpus_per_node else "cpu"
        procs = hosts.spawn_procs({"gpus": args.procs})
        setup_torch_distributed(procs, "nccl" if args.gpus_per_node else "gloo").get()
        trainers = procs.spawn("trainers", Trainer, device)
        for node, ranks in sorted(Counter(trainers.build.call().get().values()).items()):
            print(f"{node}: {ranks} ranks")
        for done in range(0, args.steps, 50):
            losses = trainers.train.call(min(50, args.steps - done)).get().values()
            print(f"step {min(done + 50, args.steps)}: loss {fmean(losses):.3f}")
        prints = set(trainers.fingerprint.call().get().values())
        print("parameters equal on all ranks" if len(prints) == 1 else f"the ranks' parameters differ: {prints}")
        procs.stop().get()
    finally:
        if not args.keep:
            job.kill()


if __name__ == "__main__":
    main()
