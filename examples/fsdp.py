"""Sharded training with torch's own FSDP2 and tensor parallelism, in actors of a two-dimensional mesh.

    python examples/fsdp.py                       # 2 x 2 processes on the CPU
    python examples/fsdp.py --dp 4 --tp 2 --device cuda  # one process a device

Each rank asks for its mesh as torch's DeviceMesh (`torch_device_mesh`), and shards the model over it: the parameters of each
block over "dp" (`fully_shard`), its matrices over "tp" (`parallelize_module`). The script drives the ranks and compares the
losses with those of a single process that trains on all of the data. Needs torch >= 2.6.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, setup_torch_distributed, this_host
from monarch.spmd import torch_device_mesh

WIDTH, WORDS, LENGTH, BATCH = 64, 128, 16, 8  # a model and sequences that any machine has room for


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Model(nn.Module):
    """Says for each word which one comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences of all ranks: each counts on from a random word."""
    first = torch.randint(WORDS, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    words = (first + torch.arange(LENGTH + 1)) % WORDS
    return words[:, :-1], words[:, 1:]


class Trainer(Actor):
    @endpoint
    def build(self, device: str) -> int:
        """Shards the model over the mesh. Returns how many of its numbers this rank keeps."""
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        self.device, mesh = device, torch_device_mesh()
        torch.manual_seed(0)  # the same weights on all ranks, before they are sharded
        self.model = Model().to(device)
        for block in self.model.blocks:
            parallelize_module(block, mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(self.model, mesh=mesh["dp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        return sum(parameter.to_local().numel() for parameter in self.model.parameters())

    @endpoint
    def step(self, number: int) -> float:
        """One step on this rank's share of the batch: the same for all ranks of a "tp" row."""
        rank = current_rank()
        words, wanted = (part.chunk(rank.size("dp"))[rank["dp"]].to(self.device) for part in batch(number))
        loss = self.model(words, wanted)
        loss.backward()  # FSDP averages the gradients over "dp"
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())


def alone(steps: int) -> list[float]:
    """The losses of one process."""
    torch.manual_seed(0)
    model, losses = Model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for number in range(steps):
        loss = model(*batch(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dp", type=int, default=2, help="ranks that share the parameters and the data")
    parser.add_argument("--tp", type=int, default=2, help="ranks that share each matrix")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if BATCH % args.dp:
        parser.error(f"--dp has to divide the {BATCH} sequences of a batch")

    procs: ProcMesh = this_host().spawn_procs({"dp": args.dp, "tp": args.tp})
    setup_torch_distributed(procs, "gloo" if args.device == "cpu" else "nccl").get()
    trainers = procs.spawn("trainers", Trainer)
    kept = trainers.build.call(args.device).get().values()
    whole = sum(parameter.numel() for parameter in Model().parameters())
    print(f"{whole:,} parameters; each rank keeps between {min(kept):,} and {max(kept):,}")

    expected, furthest = alone(args.steps), 0.0
    for number in range(args.steps):
        losses = trainers.step.call(number).get().values()
        loss = sum(losses) / len(losses)
        furthest = max(furthest, abs(loss - expected[number]))
        if number % 5 == 0 or number == args.steps - 1:
            print(f"step {number:2}  loss {loss:.4f}  in one process {expected[number]:.4f}")
    print(f"losses differ by {furthest:.1e} at most")
    procs.stop().get()


if __name__ == "__main__":
    main()
