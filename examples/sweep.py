"""A hyper-parameter search over a mesh: random settings, and those that do worse than others are stopped early.

    python examples/sweep.py                       # 24 trials on 2 processes, a minute on two busy cores
    python examples/sweep.py --ranks 8 --trials 96  # goes on: trials that sweep.jsonl has are not run again
    python examples/sweep.py --kill 2              # two processes are killed on the way

Each rank trains one trial at a time, a small character GPT on the standard library's source, and reports its loss through a
port while it goes on. The script compares (asynchronous successive halving): at a ninth and at a third of its steps a
trial must be among the best third of those that came so far, else it is stopped and its rank takes the next one. A trial that
raises or diverges is a result like any other; one whose process is killed is run once more. Needs torch >= 2.6.
"""

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import signal
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import monarch.metrics
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    PortReceiver,
    RestartPolicy,
    SupervisionError,
    concurrent_endpoint,
    this_host,
)

CONTEXT, BATCH = 32, 16
REPORTS, RUNGS, KEPT = 18, (2, 6), 3  # reports of a whole trial; after which it has to be among the best 1/KEPT

Curve = list[tuple[int, float]]  # steps done, loss on validation text then


@dataclass(frozen=True)
class Trial:
    number: int
    learning_rate: float
    optimizer: str
    width: int
    heads: int

    @staticmethod
    def drawn(number: int, seed: int) -> "Trial":
        """The same settings whenever the same number is asked for. Not all of them work: 4 heads do not divide width 50."""
        dice = random.Random(f"{seed}/{number}")
        learning_rate = float(f"{10 ** dice.uniform(-4, 0.5):.2g}")
        optimizer = dice.choice(["adamw", "sgd"])
        return Trial(number, learning_rate, optimizer, dice.choice([24, 32, 50, 64]), dice.choice([1, 2, 4]))

    def __str__(self) -> str:
        return f"lr {self.learning_rate:<7g} {self.optimizer:<5} width {self.width} heads {self.heads}"


@dataclass(frozen=True)
class Report:
    rank: int
    pid: int
    trial: int
    step: int
    loss: float


@dataclass
class Result:
    """What came of a trial; a line of the file."""

    trial: Trial
    status: str  # finished, stopped, failed
    curve: Curve
    error: str = ""

    @property
    def loss(self) -> float:
        return self.curve[-1][1] if self.status == "finished" else math.inf

    @staticmethod
    def parsed(line: str) -> "Result":
        fields = json.loads(line)
        curve = [(step, loss) for step, loss in fields.pop("curve")]
        return Result(Trial(**fields.pop("trial")), curve=curve, **fields)


def train_and_validation_text(limit: int = 1_000_000) -> tuple[torch.Tensor, torch.Tensor]:
    """The first bytes of the standard library's modules, by name; the last tenth to validate on."""
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
    data = torch.frombuffer(text, dtype=torch.uint8)[:limit]
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


class GPT(nn.Module):
    """One layer: small enough to be trained in a second, large enough to be trained badly."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        mask = nn.Transformer.generate_square_subsequent_mask(len(places), device=text.device)
        return self.head(self.layer(self.bytes(text) + self.places(places), src_mask=mask, is_causal=True))


class Worker(Actor):
    """Trains one trial after another. Its endpoints are concurrent: `give_up` arrives while `train` runs."""

    def __init__(self, steps: int) -> None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.device = accelerator or torch.device("cpu")
        self.texts = [text.to(self.device) for text in train_and_validation_text()]
        self.steps = steps
        self.unwanted: set[int] = set()

    @concurrent_endpoint
    async def give_up(self, trial: int) -> None:
        self.unwanted.add(trial)

    @concurrent_endpoint
    async def train(self, rank: int, trial: Trial, reports: Port[Report]) -> Curve:
        """The whole trial, or what was done when it was stopped."""
        torch.manual_seed(trial.number)
        model = GPT(trial.width, trial.heads).to(self.device)
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[trial.optimizer]
        optimizer = kind(model.parameters(), lr=trial.learning_rate)
        dice, curve, step = torch.Generator().manual_seed(trial.number), Curve(), 0
        for number in range(1, REPORTS + 1):
            while step < number * self.steps // REPORTS:
                self.loss(model, self.texts[0], dice).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            with torch.no_grad():
                same = torch.Generator().manual_seed(0)  # every trial is measured on the same text
                loss = sum(self.loss(model, self.texts[1], same).item() for _ in range(16)) / 16
            if not loss < 20:  # or it is nan
                raise FloatingPointError(f"diverged: loss {loss:.3g} after {step} steps")
            curve.append((step, loss))
            monarch.metrics.log(step=step, **{f"loss/trial {trial.number}": loss})
            reports.send(Report(rank, os.getpid(), trial.number, step, loss))
            await asyncio.sleep(0.001)  # a moment in which `give_up` can arrive
            if trial.number in self.unwanted:
                break
        return curve

    def loss(self, model: nn.Module, text: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
        """To predict each byte's next one, in sequences from random places."""
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=dice)
        rows = text[(starts + torch.arange(CONTEXT + 1)).to(self.device)].long()
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@dataclass
class Halving:
    """Who goes on. It never waits for others: it compares with those that came as far so far."""

    steps: int
    losses: dict[int, dict[int, float]] = field(default_factory=dict)  # step of a rung -> trial -> loss there

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        if step not in [rung * self.steps // REPORTS for rung in RUNGS]:
            return True
        here = self.losses.setdefault(step, {})
        here[trial] = loss
        return loss <= sorted(here.values())[(len(here) - 1) // KEPT]


class Screen:
    """In a terminal one table that is drawn again and again, elsewhere a line for each thing that happens."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.drawn = 0

    def say(self, line: str) -> None:
        """A line that stays."""
        self.draw([])
        print(line, flush=True)

    def draw(self, lines: Iterable[str]) -> None:
        if not self.live:
            return
        columns, rows = shutil.get_terminal_size()
        shown = [line[: columns - 1] for line in lines][: rows - 2]
        print(f"\033[{self.drawn}F\033[J" if self.drawn else "", *(f"{line}\n" for line in shown), sep="", end="")
        sys.stdout.flush()
        self.drawn = len(shown)


class Sweep:
    def __init__(self, ranks: int, steps: int, trials: Iterable[Trial], done: list[Result], file: Path, kill: int):
        self.procs = this_host().spawn_procs({"gpus": ranks})
        with RestartPolicy(max_restarts=100):  # a killed rank is back at once; who called it is told
            self.workers = self.procs.spawn("workers", Worker, steps)
        self.ranks, self.kill, self.file = ranks, kill, file
        self.waiting, self.results, self.halving, self.screen = deque(trials), done, Halving(steps), Screen()
        self.running: dict[int, tuple[Trial, Curve]] = {}  # by rank
        self.again: set[int] = set()  # trials whose process was killed
        for result in done:
            for step, loss in result.curve:
                self.halving.goes_on(result.trial.number, step, loss)

    async def run(self) -> None:
        port, reports = Channel[Report].open()
        listening = asyncio.create_task(self.listen(reports))
        await asyncio.gather(*(self.keep_busy(rank, port) for rank in range(self.ranks)))
        listening.cancel()
        self.screen.draw([])
        await self.procs.stop()

    async def keep_busy(self, rank: int, port: Port[Report]) -> None:
        """One trial after another on this rank, until there is none."""
        worker = self.workers.slice(gpus=rank)
        while self.waiting:
            trial = self.waiting.popleft()
            curve: Curve = []
            self.running[rank] = trial, curve
            try:
                curve = await worker.train.call_one(rank, trial, port)
                status, error = "finished" if curve[-1][0] == self.halving.steps else "stopped", ""
            except ActorError as exc:  # it raised; the rank goes on
                status, error = "failed", f"{type(exc.exception).__name__}: {exc.exception}"
            except SupervisionError:  # its process died; the policy brings the rank back
                await worker.healthy(timeout=60)
                if trial.number not in self.again:
                    self.again.add(trial.number)
                    self.waiting.append(trial)
                    self.screen.say(f"trial {trial.number:>3}: its process was killed, it is run again")
                    continue
                status, error = "failed", "its process was killed twice"
            finally:
                del self.running[rank]
            self.keep(Result(trial, status, curve, error))

    def keep(self, result: Result) -> None:
        self.results.append(result)
        with self.file.open("a") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")
        told = result.error or "{1:.3f} after {0} steps".format(*result.curve[-1])
        self.screen.say(f"trial {result.trial.number:>3}: {result.status:<8} {result.trial}  {told}")
        self.screen.draw(self.table())

    async def listen(self, reports: PortReceiver[Report]) -> None:
        """Stops the losers while they run."""
        while True:
            told = await reports.recv()
            trial, curve = self.running.get(told.rank, (None, []))
            if trial is None or trial.number != told.trial:
                continue  # it ended meanwhile
            curve.append((told.step, told.loss))
            if not self.halving.goes_on(told.trial, told.step, told.loss):
                self.workers.slice(gpus=told.rank).give_up.broadcast(told.trial)
            elif self.kill and told.trial not in self.again:
                self.kill -= 1
                os.kill(told.pid, signal.SIGKILL)
            self.screen.draw(self.table())

    def table(self) -> list[str]:
        best = min(self.results, key=lambda result: result.loss, default=None)
        lines = [f"{len(self.results)} trials done, {len(self.waiting)} wait, {self.ranks} ranks"]
        for rank, (trial, curve) in sorted(self.running.items()):
            step, loss = curve[-1] if curve else (0, math.nan)
            bar = "#" * (20 * step // self.halving.steps)
            lines.append(f"rank {rank}  trial {trial.number:>3}  {trial}  [{bar:<20}] loss {loss:.3f}")
        return [*lines, f"best: trial {best.trial.number}, {best.loss:.3f}"] if best else lines


def opened(file: Path, about: dict[str, Any]) -> list[Result]:
    """The results that the file has. Its first line says what they are results of; a last line that was torn goes."""
    whole = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    if whole and json.loads(whole[0]) != about:
        raise SystemExit(f"{file} has results of {whole[0]}, not of {json.dumps(about)}: give another --file")
    file.write_text("".join(f"{line}\n" for line in whole or [json.dumps(about)]))
    return [Result.parsed(line) for line in whole[1:]]


def record(results: Iterable[Result], best: Result, file: Path) -> None:
    """For docs/training/curves/plot.py."""
    labels = {"finished": "finished", "stopped": "stopped early", "failed": "failed"}
    series = [
        {
            "label": "best" if result is best else labels[result.status],
            "x": [step for step, _ in result.curve],
            "y": [round(loss, 4) for _, loss in result.curve],
            "thin": result is not best,
        }
        for result in results
        if result.curve
    ]
    panels = [{"y": "validation loss", "range": [2, 6], "series": series}]
    file.write_text(json.dumps({"x": "steps", "panels": panels}) + "\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Random search with early stopping over the ranks of a mesh.")
    parser.add_argument("--ranks", type=int, default=2, help="processes, a trial each (default %(default)s)")
    parser.add_argument("--trials", type=int, default=24, help="trials in all (default %(default)s)")
    parser.add_argument("--steps", type=int, default=360, help="steps of a whole trial (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the settings (default %(default)s)")
    parser.add_argument("--file", type=Path, default=Path("sweep.jsonl"), help="results (default %(default)s)")
    parser.add_argument("--kill", type=int, default=0, help="processes to kill on the way (default %(default)s)")
    parser.add_argument("--curves", metavar="FOLDER", help="keep the curves there; `monarch metrics` draws them")
    parser.add_argument("--record", type=Path, help="write the curves there, for docs/training/curves/plot.py")
    args = parser.parse_args()
    if min(args.ranks, args.trials) < 1 or args.steps < REPORTS:
        parser.error(f"at least one rank, one trial, {REPORTS} steps")

    done = opened(args.file, {"seed": args.seed, "steps": args.steps})
    if args.curves:
        print(f"curves are kept in {monarch.metrics.keep(args.curves)}")
    known = {result.trial.number for result in done}
    if known:
        print(f"{len(known)} trials are in {args.file} already")
    trials = [Trial.drawn(number, args.seed) for number in range(args.trials) if number not in known]
    sweep = Sweep(args.ranks, args.steps, trials, done, args.file, args.kill)
    await sweep.run()

    best = min(sweep.results, key=lambda result: result.loss)
    count = {s: sum(r.status == s for r in sweep.results) for s in ("finished", "stopped", "failed")}
    steps = sum(result.curve[-1][0] for result in sweep.results if result.curve)
    print(", ".join(f"{n} {status}" for status, n in count.items()), end=f"; {steps:,} steps, not ")
    print(f"{len(sweep.results) * args.steps:,}; results in {args.file}")
    if args.record:
        record(sweep.results, best, args.record)
    print(f"best: trial {best.trial.number}, loss {best.loss:.3f}: {best.trial}" if count["finished"] else "no best")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on where this stopped") from None
