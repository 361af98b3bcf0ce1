"""Train a small character-level GPT with DistributedDataParallel: four processes, driven by this one script.

    python examples/ddp.py                                    # four processes, under a minute on two cores
    python examples/ddp.py --procs 8 --device cuda --batch 64  # one process a device
    python examples/ddp.py --workers tcp://node1:26600 tcp://node2:26600  # two hosts, four processes each: docs/hosts.md
    python examples/ddp.py --keep runs  # and `monarch metrics` in another terminal
    python examples/ddp.py --mesh trainers  # the hosts that this project's file describes, Slurm's say: docs/jobs.md

The text is the standard library's own source, which every machine that has Python has. There is no launcher:
`main` below spawns one `Trainer` actor a process and tells them what to do next. Needs torch >= 2.6.
"""

import argparse
import asyncio
import ctypes
import hashlib
import sys
import sysconfig
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import monarch.metrics
from monarch.actor import (
    Actor,
    attach_to_workers,
    current_rank,
    endpoint,
    hosts_from_config,
    setup_torch_distributed,
    this_host,
)


@dataclass
class Settings:
    device: str = "cpu"
    steps: int = 300
    batch: int = 12  # sequences a rank a step
    context: int = 64  # bytes a sequence
    width: int = 128
    heads: int = 4
    layers: int = 2
    learning_rate: float = 6e-3


PARTS = ("forward", "backward", "all-reduce", "optimizer")  # of a step


def train_and_validation_text(limit: int = 2_000_000) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `limit` bytes of the standard library's modules, by name; the last tenth to validate on."""
    folder, text = Path(sysconfig.get_path("stdlib")), bytearray()
    for file in sorted(folder.glob("*.py")):
        text += file.read_bytes()
    if len(text) < 10_000:
        raise RuntimeError(f"{folder} holds hardly any .py files: this Python came without its source")
    data = torch.frombuffer(text, dtype=torch.uint8)[:limit]
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


class GPT(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, s.width), nn.Embedding(s.context, s.width)
        options = {"dropout": 0.0, "activation": F.gelu, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(s.width, s.heads, 4 * s.width, **options) for _ in range(s.layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(s.width), nn.Linear(s.width, 256))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        mask = nn.Transformer.generate_square_subsequent_mask(len(places), device=text.device)
        x = self.bytes(text) + self.places(places)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)  # no byte sees the ones after it
        return self.head(x)


class Trainer(Actor):
    """One rank of the training: what a rank can do. When it does it is for `main` to say."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.rank = current_rank().rank
        self.device_ids = None if settings.device == "cpu" else [torch.accelerator.current_device_index()]
        self.train_data, self.val_data = train_and_validation_text()
        self.places = torch.Generator().manual_seed(1000 + self.rank)  # every rank reads elsewhere
        self.seconds: list[list[float]] = []
        self.backward_ended = 0.0

    @endpoint
    def build(self) -> int:
        """On all ranks: the model, which DDP keeps equal on them. Returns the number of parameters."""
        torch.manual_seed(0)
        self.model = DDP(GPT(self.settings).to(self.settings.device), device_ids=self.device_ids)

        def all_reduce(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            """DDP's own way with a full bucket of gradients, and a look at the clock when the last one is full:
            what `backward()` takes from there on is spent on the other ranks."""
            if bucket.is_last():
                self.backward_ended = self.clock()
            return allreduce_hook(None, bucket)

        self.model.register_comm_hook(None, all_reduce)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95))
        return sum(p.numel() for p in self.model.parameters())

    @endpoint
    def step(self, number: int) -> float:
        """One step of the training; returns this rank's loss before it."""
        warm, left = (number + 1) / 10, (self.settings.steps - number) / self.settings.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * min(warm, left)
        start = self.clock()
        loss = self.loss(self.train_data, self.places)
        forward = self.clock()
        loss.backward()
        reduced = self.clock()
        self.optimizer.step()
        self.optimizer.zero_grad()
        marks = [start, forward, self.backward_ended, reduced, self.clock()]
        self.seconds.append([after - before for before, after in pairwise(marks)])
        value = float(loss.item())
        monarch.metrics.log(step=number, loss=value, learning_rate=self.optimizer.param_groups[0]["lr"])
        return value

    @endpoint
    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Losses on training and on validation text: on the same batches at every call."""
        places = torch.Generator().manual_seed(self.rank)
        train = [self.loss(self.train_data, places).item() for _ in range(8)]
        val = [self.loss(self.val_data, places).item() for _ in range(8)]
        return fmean(train), fmean(val)

    @endpoint
    @torch.no_grad()
    def sample(self, prompt: str, length: int) -> str:
        text, dice = list(prompt.encode()), torch.Generator().manual_seed(0)
        for _ in range(length):
            window = torch.tensor([text[-self.settings.context :]], device=self.settings.device)
            chances = F.softmax(self.model.module(window)[0, -1].float().cpu() / 0.7, dim=0)
            text.append(int(torch.multinomial(chances, 1, generator=dice)))
        return "".join(chr(b) if 32 <= b < 127 or b == 10 else "?" for b in text)  # no escape sequences

    @endpoint
    def fingerprint(self) -> tuple[str, float]:
        """SHA-256 and norm of all parameters. Equal digests: the same bits."""
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()]).cpu()
        return hashlib.sha256(ctypes.string_at(flat.data_ptr(), flat.nbytes)).hexdigest(), flat.norm().item()

    @endpoint
    def mean_seconds(self) -> list[float]:
        """Mean seconds a step of each of PARTS; the first two steps, which warm up, left out."""
        return [fmean(part) for part in zip(*(self.seconds[2:] or self.seconds), strict=True)]

    @endpoint
    def teardown(self) -> None:
        dist.destroy_process_group()

    def loss(self, data: torch.Tensor, places: torch.Generator) -> torch.Tensor:
        """The loss on sequences from random places: the model has to predict every byte's next one."""
        length = self.settings.context
        starts = torch.randint(len(data) - length, (self.settings.batch, 1), generator=places)
        rows = data[starts + torch.arange(length + 1)].long().to(self.settings.device)
        return F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def clock(self) -> float:
        if self.device_ids:
            torch.accelerator.synchronize()
        return time.perf_counter()


def choose_device(wanted: str, procs: int) -> str:
    """The kind of device to train on; "auto" takes accelerators, of any make, if there is one a process."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = accelerator.type if accelerator and torch.accelerator.device_count() >= procs else "cpu"
    if wanted not in ("auto", "cpu", kind):
        raise SystemExit(f"{procs} processes need {procs} devices of kind {wanted}; this host has fewer")
    return kind if wanted == "auto" else wanted


def show_progress(done: int, steps: int, loss: float, speed: float) -> None:
    text = f"step {done}/{steps}  loss {loss:.3f}  {speed:,.0f} tokens/s"
    if sys.stdout.isatty():
        bar, end = "#" * (30 * done // steps), "" if done < steps else "\n"
        print(f"\r[{bar:<30}] {text:<48}", end=end, flush=True)
    elif done == steps or done % max(1, steps // 10) == 0:
        print(text, flush=True)


async def mean_losses(trainers: Trainer) -> list[float]:
    return [fmean(losses) for losses in zip(*(await trainers.evaluate.call()).values(), strict=True)]


def show_throughput(ranks: list[list[float]], tokens: int, device: str) -> None:
    print(f"{'rank':>5} {'device':>7} {'tokens/s':>9} {'ms/step':>9}" + "".join(f"{p:>12}" for p in PARTS))
    for rank, seconds in enumerate(ranks):
        row = f"{rank:>5} {device:>7} {tokens / sum(seconds):>9,.0f} {1000 * sum(seconds):>9.1f}"
        print(row + "".join(f"{1000 * part:>12.1f}" for part in seconds))
    print(f"total {'':>7} {sum(tokens / sum(seconds) for seconds in ranks):>9,.0f}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with DDP, one process a rank.")
    parser.add_argument("--procs", type=int, default=4, help="processes a host (default %(default)s)")
    parser.add_argument("--workers", nargs="+", metavar="ADDRESS", help="hosts, where `monarch worker` runs")
    parser.add_argument("--mesh", metavar="NAME", help="hosts of a job, described in monarch.toml or pyproject.toml")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="steps (default %(default)s)")
    parser.add_argument("--batch", type=int, default=Settings.batch, help="sequences a rank a step")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, xpu, ... (default %(default)s)")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the losses as a run: docs/how-to/metrics.md")
    args = parser.parse_args()
    settings = Settings(choose_device(args.device, args.procs), args.steps, args.batch)
    tokens = settings.batch * settings.context

    if args.keep:
        print(f"losses are kept in {monarch.metrics.keep(args.keep)}")
    if args.mesh:
        hosts = hosts_from_config(args.mesh)
    else:
        hosts = attach_to_workers(workers=args.workers) if args.workers else this_host()
    procs = hosts.spawn_procs({"gpus": args.procs})
    await setup_torch_distributed(procs, dist.get_default_backend_for_device(settings.device))
    trainers = procs.spawn("trainers", Trainer, settings)
    first = trainers.flatten("rank").slice(rank=0)
    parameters = (await trainers.build.call()).values()[0]
    print(f"{len(trainers)} ranks on {settings.device}, a GPT of {parameters:,} parameters each")

    train_start, val_start = await mean_losses(trainers)
    start = time.perf_counter()
    for number in range(settings.steps):
        losses = (await trainers.step.call(number)).values()
        speed = (number + 1) * tokens * len(trainers) / (time.perf_counter() - start)
        show_progress(number + 1, settings.steps, fmean(losses), speed)
    train_end, val_end = await mean_losses(trainers)
    print(f"train loss {train_start:.3f} -> {train_end:.3f}")
    print(f"val   loss {val_start:.3f} -> {val_end:.3f}")

    sample = await first.sample.call_one("def ", 200)
    print(f"--- a sample ---\n{sample}\n--- end of the sample ---")
    prints = (await trainers.fingerprint.call()).values()
    for rank, (digest, norm) in enumerate(prints):
        print(f"rank {rank}: parameters {digest[:16]}, norm {norm:.6f}")
    if len({digest for digest, _ in prints}) != 1:
        raise SystemExit("the ranks' parameters differ")
    print("parameters equal on all ranks")
    show_throughput((await trainers.mean_seconds.call()).values(), tokens, settings.device)
    await trainers.teardown.call()
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(main())
