"""Readers -> tokenizers -> trainers, each a mesh of its own size; nothing is lost or seen twice when some of them are killed.

    python examples/data_pipeline.py                   # 2 readers, 2 tokenizers, 2 trainers; writes data_pipeline.pt
    python examples/data_pipeline.py --stop-after 100  # stops in the middle; the next run goes on from there
    python examples/data_pipeline.py --kill            # a reader and a tokenizer are killed on the way

A record is a piece of a file of the standard library, named by file and offset. The plan, one list of all records in an order
drawn from a seed, says which records each step of each trainer takes. Everything is pulled: a trainer maps its
part of the plan over the tokenizers (`mesh.endpoint.map`), a tokenizer maps the places over the readers. So nothing is made
that nobody has asked for, a rank that dies takes only requests with it, which are sent again, and the position in the plan
is one number, which is saved with the model. Needs torch >= 2.6.
"""

import argparse
import asyncio
import hashlib
import os
import random
import re
import signal
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monarch.actor import (
    Actor,
    RestartPolicy,
    concurrent_endpoint,
    current_rank,
    endpoint,
    setup_torch_distributed,
    this_host,
)

VOCABULARY, IN_FLIGHT, WINDOW = (
    1024,
    2,
    4,
)  # tokens; batches a tokenizer has of each trainer; times that, `map` has pulled
WORD = re.compile(rb"[A-Za-z_]+|[0-9]+| +|\s|.", re.DOTALL)
State = dict[str, Any]


class Place(NamedTuple):
    """Which record."""

    file: int
    offset: int


class Batch(NamedTuple):
    places: list[Place]  # as the reader told them with the bytes
    tokens: torch.Tensor  # a row a record, shorter ones filled up with -1


class Trained(NamedTuple):
    loss: float
    places: list[Place]
    waited: float  # seconds, for data


def make_plan(files: list[str], record: int, seed: int) -> list[Place]:
    plan = [Place(n, at) for n, file in enumerate(files) for at in range(0, os.path.getsize(file), record)]
    random.Random(seed).shuffle(plan)
    return plan


def read_record(file: str, offset: int, size: int) -> bytes:
    with open(file, "rb") as opened:
        return os.pread(opened.fileno(), size, offset)


def make_vocabulary(texts: Iterator[bytes]) -> dict[bytes, int]:
    """The most frequent words; the first 256 tokens are single bytes, with which every other word is spelled."""
    counts = Counter(word for text in texts for word in WORD.findall(text) if len(word) > 1)
    return {word: 256 + n for n, (word, _) in enumerate(counts.most_common(VOCABULARY - 256))}


def tokens_of(text: bytes, vocabulary: dict[bytes, int]) -> list[int]:
    tokens: list[int] = []
    for word in WORD.findall(text):
        known = vocabulary.get(word)
        tokens.extend(word if known is None else (known,))
    return tokens


def padded(rows: list[list[int]]) -> torch.Tensor:
    """One tensor; at least one row, with one token to predict, should there be no records."""
    tokens = torch.full((max(1, len(rows)), max([2, *map(len, rows)])), -1)
    for row, ids in zip(tokens, rows, strict=False):
        row[: len(ids)] = torch.tensor(ids)
    return tokens


class Reader(Actor):
    def __init__(self, files: list[str], record: int) -> None:
        self.files, self.record = files, record

    @endpoint
    def read(self, places: list[Place]) -> list[tuple[Place, bytes]]:
        return [(place, read_record(self.files[place.file], place.offset, self.record)) for place in places]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Tokenizer(Actor):
    """Has as many batches at a time as trainers have asked it for: while one waits for readers, another is tokenized."""

    def __init__(self, readers: Reader, vocabulary: dict[bytes, int]) -> None:
        self.readers, self.vocabulary = readers, vocabulary
        self.held = self.most = 0

    @concurrent_endpoint
    async def tokenize(self, places: list[Place]) -> Batch:
        self.held += 1
        self.most = max(self.most, self.held)
        try:
            records = await self.read(places)
            rows = [tokens_of(text, self.vocabulary) for _, text in records]
            return Batch([place for place, _ in records], padded(rows))
        finally:
            self.held -= 1

    async def read(self, places: list[Place]) -> list[tuple[Place, bytes]]:
        """Each reader reads a part. What one that died was asked for, another one reads."""
        parts = [places[n :: len(self.readers)] for n in range(len(self.readers))]
        return [record async for part in self.readers.read.map(parts, retries=100) for record in part]

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def most_held(self) -> int:
        return self.most


class Model(nn.Module):
    """Predicts a token from the four before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(VOCABULARY, 64), nn.Conv1d(64, 128, 4)
        self.head = nn.Linear(128, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.pad(self.tokens(tokens.clamp(min=0)).transpose(1, 2), (3, 0))
        return self.head(F.gelu(self.mix(x)).transpose(1, 2))


class Trainer(Actor):
    def __init__(self, tokenizers: Tokenizer, plan: list[Place], batch: int) -> None:
        self.tokenizers, self.plan, self.batch = tokenizers, plan, batch
        self.rank, self.most = current_rank(), 0
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.device = accelerator or torch.device("cpu")

    def part(self, position: int) -> Iterator[list[Place]]:
        """What each step from here on takes on this rank."""
        ranks = self.rank.size("gpus")
        for start in range(position, len(self.plan), ranks * self.batch):
            yield self.plan[start : start + ranks * self.batch][self.rank.rank :: ranks]

    @endpoint
    def begin(self, position: int, state: State | None) -> None:
        torch.manual_seed(0)
        model = Model().to(self.device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if state:
            model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.model = DDP(model)
        # Lives on between calls of `train`: batches are made while the script saves.
        self.batches = self.tokenizers.tokenize.map(self.part(position), in_flight=IN_FLIGHT, retries=100)

    @endpoint
    def train(self, steps: int) -> Trained:
        """The next steps, or those that are left."""
        losses, places, waited, start = [], list[Place](), 0.0, time.perf_counter()
        for batch in islice(self.batches, steps):
            waited += time.perf_counter() - start
            places += batch.places
            progress = self.batches.progress
            self.most = max(self.most, progress.pulled - progress.given)
            tokens = batch.tokens.to(self.device)
            logits, wanted = self.model(tokens[:, :-1]), tokens[:, 1:]
            # A sum: in the last step there may be nothing for this rank.
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum")
            loss = loss / (wanted >= 0).sum().clamp(min=1)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
            start = time.perf_counter()
        return Trained(sum(losses) / max(1, len(losses)), places, waited)

    @endpoint
    def state(self) -> State:
        return {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    @endpoint
    def most_held(self) -> tuple[int, int]:
        """Batches on the way or ready, at most; how many were asked for again."""
        return self.most, self.batches.progress.sent_again


def load(file: Path, about: str) -> State | None:
    if not file.exists():
        return None
    saved: State = torch.load(file, map_location="cpu")
    if saved["about"] != about:
        raise SystemExit(f"{file} is of other records: give another --state, or remove it")
    return saved


def save(file: Path, state: State) -> None:
    """Whole or not at all."""
    torch.save(state, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train from a pipeline of readers and tokenizers.")
    parser.add_argument("--readers", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--tokenizers", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--trainers", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="records a trainer a step (default %(default)s)")
    parser.add_argument("--record", type=int, default=1024, help="bytes a record (default %(default)s)")
    parser.add_argument("--files", type=int, default=100, help="files to read (default %(default)s)")
    parser.add_argument("--save-every", type=int, default=25, help="steps between saves (default %(default)s)")
    parser.add_argument("--stop-after", type=int, default=10**9, metavar="STEPS", help="end this run early")
    parser.add_argument("--state", type=Path, default=Path("data_pipeline.pt"), help="file (default %(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill a reader, then a tokenizer")
    args = parser.parse_args()

    files = [str(file) for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: args.files]]
    plan = make_plan(files, args.record, seed=0)
    about = hashlib.sha256(repr((files, plan)).encode()).hexdigest()
    saved = load(args.state, about)
    position, seen = (saved["position"], Counter(map(Place._make, saved["seen"]))) if saved else (0, Counter[Place]())
    vocabulary = make_vocabulary(read_record(files[file], offset, args.record) for file, offset in plan[:500])

    stages = [
        this_host().spawn_procs({"readers": args.readers}),
        this_host().spawn_procs({"tokenizers": args.tokenizers}),
    ]
    with RestartPolicy(max_restarts=100):  # in place: who holds the mesh reaches the new one
        readers = stages[0].spawn("readers", Reader, files, args.record)
        tokenizers = stages[1].spawn("tokenizers", Tokenizer, readers, vocabulary)
    procs = this_host().spawn_procs({"gpus": args.trainers})
    await setup_torch_distributed(procs, timeout=120)
    trainers = procs.spawn("trainers", Trainer, tokenizers, plan, args.batch)
    await trainers.begin.call(position, saved)
    print(f"{len(plan):,} records of {len(files)} files, from record {position:,} on")

    pids = [("reader", readers.pid), ("tokenizer", tokenizers.pid)] if args.kill else []
    step_size, left = args.trainers * args.batch, args.stop_after
    while position < len(plan) and left > 0:
        steps = min(args.save_every, left)
        start = time.perf_counter()
        training = trainers.train.call(steps)
        if pids:
            name, ask = pids.pop(0)
            pid = (await ask.call()).values()[0]
            os.kill(pid, signal.SIGKILL)
            print(f"  killed a {name} (pid {pid})")
        told = (await training).values()
        took = time.perf_counter() - start
        before, position, left = position, min(position + steps * step_size, len(plan)), left - steps
        seen.update(place for trained in told for place in trained.places)
        state = await trainers.slice(gpus=0).state.call_one()
        save(args.state, {"about": about, "position": position, "seen": [tuple(p) for p in seen.elements()], **state})
        loss, waited = sum(t.loss for t in told) / len(told), sum(t.waited for t in told) / len(told)
        rate = (position - before) / took
        print(
            f"record {position:>6,}  loss {loss:.3f}  {rate:,.0f} records/s, {waited / took:.0%} of it waiting",
            flush=True,
        )

    await tokenizers.healthy(timeout=60)  # one that was killed at the end may not be back yet
    held = (await tokenizers.most_held.call()).values()
    ready, again = zip(*(await trainers.most_held.call()).values(), strict=True)
    print(f"batches in a tokenizer: {max(held)} at most, limit {args.trainers * IN_FLIGHT}")
    print(
        f"batches of a trainer on the way or ready: {max(ready)} at most, limit {WINDOW * args.tokenizers * IN_FLIGHT}"
    )
    print(f"batches asked for again: {sum(again)}")
    twice, never = sum(count > 1 for count in seen.values()), [place for place in plan[:position] if not seen[place]]
    print(f"seen in all runs: {len(seen):,} of {len(plan):,} records; twice: {twice}; left out: {len(never)}")
    for mesh in (procs, *reversed(stages)):
        await mesh.stop()


if __name__ == "__main__":
    asyncio.run(main())
