"""A small character GPT, and the text it reads: what replicas.py, parallel.py and resume.py train.

The text is the standard library's own source, which every machine that has Python has. Needs torch.
"""

import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CHARACTERS = 128  # ASCII; the few others read as "?"
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Settings:
    width: int = 64
    heads: int = 4
    layers: int = 4
    context: int = 64  # characters a sequence


class Block(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.head_width = s.width // s.heads
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        # Apart, and not one matrix: tensor parallelism cuts each by its columns, so that a rank has whole heads.
        self.query, self.key, self.value = (nn.Linear(s.width, s.width) for _ in range(3))
        self.out = nn.Linear(s.width, s.width)
        self.up, self.down = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.norm1(x)
        # As many heads as this rank has of the matrices: -1.
        q, k, v = (
            f(inside).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, s.width), nn.Embedding(s.context, s.width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))


class Head(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.norm, self.guess = nn.LayerNorm(s.width), nn.Linear(s.width, CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.guess(self.norm(x.flatten(0, 1)))


class GPT(nn.Module):
    """Says for each character which one comes next. `stage` of `stages` has its share of the layers only: the first also
    the embedding, the last also the head, which gives a row for each character. Parameters have the same names, and begin
    the same, however it is divided."""

    def __init__(self, s: Settings, stage: int = 0, stages: int = 1, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        embedding, blocks, head = Embedding(s), [Block(s) for _ in range(s.layers)], Head(s)
        mine = range(stage * s.layers // stages, (stage + 1) * s.layers // stages)
        self.embedding = embedding if stage == 0 else nn.Identity()
        self.blocks = nn.ModuleDict({str(number): blocks[number] for number in mine})
        self.head = head if stage == stages - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x)


def loss_of(guesses: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(guesses, wanted.flatten())


class Text:
    """The standard library's source, cut into sequences that are numbered without an end: every epoch has each of them
    once, in another order. So one number says how far a training has read."""

    def __init__(self, context: int, limit: int = 1_000_000) -> None:
        self.context, self.text = context, read_source(limit)
        self.pieces = (len(self.text) - 1) // context  # an epoch
        self.order = lru_cache(maxsize=2)(self.order_of)

    def order_of(self, epoch: int) -> torch.Tensor:
        return torch.randperm(self.pieces, generator=torch.Generator().manual_seed(epoch))

    def batch(self, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The sequences of these numbers, and what the model is to say: each character's next one."""
        starts = [int(self.order(n // self.pieces)[n % self.pieces]) * self.context for n in numbers]
        rows = torch.stack([self.text[start : start + self.context + 1] for start in starts]).long()
        return rows[:, :-1], rows[:, 1:]


def read_source(limit: int) -> torch.Tensor:
    """The first `limit` characters of the standard library's modules, by name."""
    folder, text = Path(sysconfig.get_path("stdlib")), bytearray()
    for file in sorted(folder.glob("*.py")):
        text += file.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 10_000:
        raise RuntimeError(f"{folder} holds hardly any .py files: this Python came without its source")
    found = torch.frombuffer(text, dtype=torch.uint8)[:limit].clone()
    return torch.where(found < CHARACTERS, found, ord("?"))


def losses_alone(settings: Settings, steps: Iterable[Sequence[int]]) -> list[float]:
    """The losses of one process that reads the sequences of these numbers in each step: what the examples are compared
    with."""
    torch.set_num_threads(1)  # a model as small as this is no faster with more
    text, model, losses = Text(settings.context), GPT(settings), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for numbers in steps:
        read, wanted = text.batch(numbers)
        loss = loss_of(model(read), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
