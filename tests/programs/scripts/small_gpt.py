"""A trainer class around a small GPT, with a snapshot from which a second run goes on: settings come from the command line,
ranks and devices from the launcher's variables."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEXT = "to be, or not to be, that is the question: " * 20
LETTERS = sorted(set(TEXT))
BLOCK = 16


class Letters(Dataset):
    def __init__(self) -> None:
        self.data = torch.tensor([LETTERS.index(letter) for letter in TEXT])

    def __len__(self) -> int:
        return len(self.data) - BLOCK

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[place : place + BLOCK], self.data[place + 1 : place + BLOCK + 1]


class GPT(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(BLOCK, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.block(self.words(x) + self.places(torch.arange(x.shape[1])), mask, is_causal=True))


class Trainer:
    def __init__(self, snapshot: Path) -> None:
        self.rank, self.local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        self.snapshot, self.epoch = snapshot, 0
        torch.manual_seed(0)
        self.net = GPT()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        if snapshot.exists():
            state = torch.load(snapshot)
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epoch = state["epoch"]
        self.model = DistributedDataParallel(self.net)
        data = Letters()
        self.sampler = DistributedSampler(data, seed=1)
        self.loader = DataLoader(data, batch_size=64, sampler=self.sampler, drop_last=True)

    def train(self, until: int) -> float:
        while self.epoch < until:
            self.sampler.set_epoch(self.epoch)
            total = torch.zeros(1)
            for x, y in self.loader:
                loss = functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                total += loss.detach()
            self.epoch += 1
            dist.all_reduce(total)
            if self.rank == 0:
                state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
                torch.save(state, self.snapshot)
            dist.barrier()
        return total.item() / len(self.loader) / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    given = parser.parse_args()
    dist.init_process_group("gloo")
    first = Trainer(given.snapshot)
    first.train(given.epochs - 1)
    again = Trainer(given.snapshot)
    loss = again.train(given.epochs)
    if again.rank == 0:
        print(f"epoch {again.epoch}, loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
