"""A model over many items on all ranks: which functions of the standard library does a small GPT find hardest to predict?

    python examples/batch_inference.py                    # trains for some seconds, then scores 2,000 functions on 2 ranks
    python examples/batch_inference.py --ranks 8 --items 10000  # goes on: what the file has is not scored again
    python examples/batch_inference.py --kill 2 --as-completed  # two ranks are killed on the way

`mesh.endpoint.map(items)` gives each rank IN_FLIGHT items at a time, and each actor makes batches of those that wait: short
ones together with short ones, never more than --tokens with the filling. A result goes to the file as soon as its
turn has come. Items of a rank that is killed are sent to others, and the rank is back at once. Needs torch >= 2.6.
"""

import argparse
import ast
import asyncio
import json
import math
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from monarch.actor import Actor, RestartPolicy, concurrent_endpoint, endpoint, this_host

CONTEXT, WIDTH, IN_FLIGHT = 128, 64, 32
Weights = dict[str, torch.Tensor]


class Item(NamedTuple):
    name: str
    text: bytes


def functions() -> Iterator[Item]:
    """Those of the standard library's modules, by file and line, cut to what the model can see."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = file.read_bytes()
        lines = source.splitlines(keepends=True)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = b"".join(lines[node.lineno - 1 : node.end_lineno])
                yield Item(f"{file.name}:{node.lineno} {node.name}", text[:CONTEXT])


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        mask = nn.Transformer.generate_square_subsequent_mask(len(places), device=text.device)
        return self.head(self.layer(self.bytes(text) + self.places(places), src_mask=mask, is_causal=True))

    def bits(self, texts: list[bytes]) -> torch.Tensor:
        """Of each text, the mean bits that a byte costs, given those before it. Shorter ones are filled up."""
        device = self.places.weight.device
        rows = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        lengths = torch.tensor([len(text) - 1 for text in texts], device=device)
        rows = rows.to(device)
        losses = F.cross_entropy(self(rows[:, :-1]).transpose(1, 2), rows[:, 1:], reduction="none")
        real = torch.arange(losses.shape[1], device=device) < lengths[:, None]
        return (losses * real).sum(1) / lengths / math.log(2)


def device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


class Trainer(Actor):
    @endpoint
    def train(self, texts: list[bytes], steps: int) -> tuple[float, Weights]:
        """Bits a byte in the last steps, and the weights."""
        torch.manual_seed(0)
        model = GPT().to(device())
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        told = []
        for step in range(steps):
            loss = model.bits([texts[(16 * step + n) % len(texts)] for n in range(16)]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(loss.item())
        return sum(told[-20:]) / len(told[-20:]), {name: w.cpu() for name, w in model.state_dict().items()}


class Scorer(Actor):
    """Takes items one by one and scores those that wait together."""

    def __init__(self, weights: Weights, tokens: int) -> None:
        self.model = GPT().to(device())
        self.model.load_state_dict(weights)
        self.tokens = tokens
        self.waiting: list[tuple[bytes, asyncio.Future[tuple[float, int]]]] = []
        self.working: asyncio.Task[None] | None = None

    @concurrent_endpoint
    async def score(self, item: Item) -> tuple[float, int]:
        """Bits a byte, and how many items were scored together."""
        answer: asyncio.Future[tuple[float, int]] = asyncio.get_running_loop().create_future()
        self.waiting.append((item.text, answer))
        if self.working is None:
            self.working = asyncio.create_task(self.work())
        return await answer

    async def work(self) -> None:
        while self.waiting:
            await asyncio.sleep(0.001)  # answers go out, further items come in
            here, self.waiting = sorted(self.waiting, key=lambda one: len(one[0])), []
            while here:
                fit = [n for n in range(1, len(here) + 1) if n * len(here[n - 1][0]) <= self.tokens]
                size = max(fit, default=1)
                batch, here = here[:size], here[size:]
                with torch.inference_mode():
                    bits = self.model.bits([text for text, _ in batch]).tolist()
                for (_, answer), value in zip(batch, bits, strict=True):
                    answer.set_result((value, size))
        self.working = None

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def opened(file: Path) -> dict[str, float]:
    """What the file has, by name. A last line that was torn goes."""
    whole = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    file.write_text("".join(f"{line}\n" for line in whole))
    return {result["name"]: result["bits"] for result in map(json.loads, whole)}


def show_progress(done: int, items: int, rate: float) -> None:
    text = f"{done:,} of {items:,} items, {rate:,.0f} a second"
    if sys.stdout.isatty():
        print(f"\r{text:<60}", end="\n" if done == items else "", flush=True)
    elif done == items or done % max(1, items // 5) == 0:
        print(text, flush=True)


async def weights_for(results: Path, texts: list[bytes], steps: int) -> Weights:
    """Those that lie beside the results, so that all are of one model; before the first result they are trained."""
    file = results.with_suffix(".pt")
    if file.exists():
        weights: Weights = torch.load(file)
        return weights
    if results.stat().st_size:
        raise SystemExit(f"{file}, the weights that gave the results in {results}, is gone: give another --file")
    procs = this_host().spawn_procs({"gpus": 1})
    start = time.perf_counter()
    bits, weights = await procs.spawn("trainer", Trainer).train.call_one(texts, steps)
    print(f"trained: {bits:.2f} bits a byte after {steps} steps, {time.perf_counter() - start:.1f} s", flush=True)
    await procs.stop()
    torch.save(weights, file)
    return weights


async def main() -> None:
    parser = argparse.ArgumentParser(description="Score many texts with a small GPT on all ranks of a mesh.")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--items", type=int, default=2000, help="functions in all (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="bytes a batch, at most (default %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="of the training (default %(default)s)")
    parser.add_argument("--as-completed", action="store_true", help="results as they are there, not in order")
    parser.add_argument(
        "--file", type=Path, default=Path("batch_inference.jsonl"), help="results (default %(default)s)"
    )
    parser.add_argument("--kill", type=int, default=0, help="ranks to kill on the way (default %(default)s)")
    args = parser.parse_args()

    items, scores = list(islice(functions(), args.items)), opened(args.file)
    left = [item for item in items if item.name not in scores]
    print(f"{len(items):,} functions, {len(items) - len(left):,} of them in {args.file} already")
    if left:
        weights = await weights_for(args.file, [item.text for item in items], args.steps)
        procs = this_host().spawn_procs({"gpus": args.ranks})
        with RestartPolicy(max_restarts=100):  # constructed again with the same arguments: with the weights
            scorers = procs.spawn("scorers", Scorer, weights, args.tokens)
        results = scorers.score.map(left, ordered=not args.as_completed, in_flight=IN_FLIGHT, retries=3)
        victims = {(n + 1) * len(left) // (args.kill + 1): n % args.ranks for n in range(args.kill)}
        done, sizes, start = 0, 0.0, time.perf_counter()
        with args.file.open("a") as lines:
            async for index, (bits, size) in results.indexed():
                name = left[index].name
                scores[name] = bits
                lines.write(json.dumps({"name": name, "bits": round(bits, 4)}) + "\n")
                lines.flush()
                done, sizes = done + 1, sizes + 1 / size
                show_progress(done, len(left), done / (time.perf_counter() - start))
                if done in victims:
                    os.kill(pid := await scorers.slice(gpus=victims[done]).pid.call_one(), signal.SIGKILL)
                    print(f"  killed rank {victims[done]} (pid {pid})", flush=True)
        again = results.progress.sent_again
        print(f"{done / sizes:.1f} items a batch, {again} sent again; results in {args.file}")
        await procs.stop()

    by_bits = sorted(items, key=lambda item: scores[item.name])
    print("easiest:", *(f"  {scores[item.name]:.2f} bits a byte  {item.name}" for item in by_bits[:3]), sep="\n")
    print("hardest:", *(f"  {scores[item.name]:.2f} bits a byte  {item.name}" for item in by_bits[-3:]), sep="\n")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on where this stopped") from None
