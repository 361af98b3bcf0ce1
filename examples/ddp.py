"""Train a small character-level GPT with DistributedDataParallel: four processes, driven by this one script.

    python examples/ddp.py                                    # four processes, about a minute on two cores
    python examples/ddp.py --procs 2 --steps 40
    python examples/ddp.py --procs 8 --device cuda --batch 64   # one process per device

The text is the standard library's own source, which every machine that has Python has. There is no launcher and
no rank-dependent script: `main` below spawns one `Trainer` actor a process and tells all of them what to do next.
Needs torch >= 2.6.
"""

import argparse
import asyncio
import ctypes
import hashlib
import math
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from monarch.actor import Actor, current_rank, current_size, endpoint, this_host


@dataclass
class Settings:
    device: str = "cpu"
    steps: int = 120
    batch: int = 12  # sequences a rank a step
    context: int = 128  # bytes a sequence
    width: int = 96
    heads: int = 4
    layers: int = 4
    learning_rate: float = 4e-3


# --- Text: bytes in, bytes out, so the vocabulary is 256 and there is no tokenizer. ---


def standard_library_source(limit: int = 2_000_000) -> bytes:
    """The first `limit` bytes of the standard library's top-level modules, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for file in sorted(folder.glob("*.py")):
        text += file.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 10_000:
        raise RuntimeError(f"{folder} holds {len(text)} bytes of .py files; this Python came without its sources")
    return bytes(text[:limit])


def split(text: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine tenths to train on, and the last tenth, other files, to validate on."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def random_batch(data: torch.Tensor, settings: Settings, generator: torch.Generator):
    """Sequences from random places, and the same sequences one byte further on: what the model shall predict."""
    starts = torch.randint(len(data) - settings.context, (settings.batch, 1), generator=generator)
    rows = data[starts + torch.arange(settings.context + 1)].long().to(settings.device)
    return rows[:, :-1], rows[:, 1:]


# --- Model: a GPT in forty lines. ---


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        self.context = settings.context
        self.bytes = nn.Embedding(256, settings.width)
        self.places = nn.Embedding(settings.context, settings.width)
        self.blocks = nn.Sequential(*[Block(settings.width, settings.heads) for _ in range(settings.layers)])
        self.head = nn.Sequential(nn.LayerNorm(settings.width), nn.Linear(settings.width, 256))

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.bytes(x) + self.places(places)))

    @torch.no_grad()
    def generate(self, prompt: bytes, length: int, generator: torch.Generator) -> bytes:
        device = self.places.weight.device
        text = list(prompt)
        for _ in range(length):
            logits = self(torch.tensor([text[-self.context :]], device=device))[0, -1].float().cpu()
            text.append(int(torch.multinomial(F.softmax(logits / 0.7, dim=0), 1, generator=generator)))
        return bytes(text)


# --- The actor: one rank of the training. Its endpoints are plain functions; each runs when the script says so. ---


class Trainer(Actor):
    def __init__(self, settings: Settings):
        torch.set_num_threads(1)
        self.settings = settings
        self.rank, self.ranks = current_rank()["gpus"], current_size()["gpus"]
        self.device = torch.device(settings.device, None if settings.device == "cpu" else self.rank)
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.rank)
        self.train_data, self.val_data = split(standard_library_source())
        self.batches = torch.Generator().manual_seed(1000 + self.rank)  # every rank reads other places
        self.seconds: list[dict[str, float]] = []

    @endpoint
    def listen(self) -> int:
        """On rank 0: open the store the ranks meet at, on a port the system picks, so that no two runs collide."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self.store.port

    @endpoint
    def setup(self, address: str, port: int) -> int:
        """On all ranks: join the process group and build the model. Returns the number of parameters."""
        store = self.store if self.rank == 0 else dist.TCPStore(address, port, is_master=False)
        backend = dist.get_default_backend_for_device(self.device)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.ranks)
        torch.manual_seed(0)
        model = GPT(self.settings).to(self.device)
        self.model = DDP(model, device_ids=None if self.device.type == "cpu" else [self.rank])
        self.model.register_comm_hook(None, self.all_reduce)
        self.optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
        return sum(p.numel() for p in model.parameters())

    @endpoint
    def step(self, number: int) -> float:
        """One step of the training; returns this rank's loss before it."""
        warm, left = (number + 1) / 10, (self.settings.steps - number) / self.settings.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * min(warm, left)
        x, y = random_batch(self.train_data, self.settings, self.batches)
        start = self.clock()
        loss = self.loss(x, y)
        forward = self.clock()
        loss.backward()
        reduced = self.clock()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = self.clock()
        backward = self.backward_ended
        self.seconds.append(
            {
                "forward": forward - start,
                "backward": backward - forward,
                "all-reduce": reduced - backward,
                "optimizer": end - reduced,
                "step": end - start,
            }
        )
        return loss.item()

    @endpoint
    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Losses on batches of the training text and of the validation text: the same ones at every call."""
        losses = []
        for data in (self.train_data, self.val_data):
            generator = torch.Generator().manual_seed(self.rank)
            batches = [random_batch(data, self.settings, generator) for _ in range(4)]
            losses.append(sum(self.loss(x, y).item() for x, y in batches) / len(batches))
        return losses[0], losses[1]

    @endpoint
    def sample(self, prompt: str, length: int) -> str:
        text = self.model.module.generate(prompt.encode(), length, torch.Generator().manual_seed(0))
        return text.decode(errors="replace")

    @endpoint
    def fingerprint(self) -> tuple[str, float]:
        """SHA-256 and norm of all parameters. Equal digests: the same bits."""
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()]).cpu()
        return hashlib.sha256(ctypes.string_at(flat.data_ptr(), flat.nbytes)).hexdigest(), flat.norm().item()

    @endpoint
    def mean_seconds(self) -> dict[str, float]:
        """Mean seconds a step, and of each part of it; the first two steps, which warm up, left out."""
        steady = self.seconds[2:] or self.seconds
        return {part: sum(s[part] for s in steady) / len(steady) for part in steady[0]}

    @endpoint
    def teardown(self) -> None:
        dist.destroy_process_group()

    def loss(self, x, y):
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def all_reduce(self, state, bucket):
        """What DDP does with a bucket of gradients. The last bucket is full when the backward pass is through:
        what `backward()` takes from there on is waiting for the other ranks."""
        if bucket.is_last():
            self.backward_ended = self.clock()
        return allreduce_hook(None, bucket)

    def clock(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()


# --- The script: what happens, in order. ---


def choose_device(wanted: str, procs: int) -> str:
    """The kind of device to train on. "auto" takes accelerators, of whatever make, when each process gets its own."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = torch.accelerator.device_count() if accelerator else 0
    if wanted == "auto":
        return accelerator.type if accelerator and found >= procs else "cpu"
    if wanted != "cpu" and (accelerator is None or accelerator.type != wanted or found < procs):
        kind = accelerator.type if accelerator else "accelerator"
        raise SystemExit(f"--device {wanted} --procs {procs}: this host has {found} {kind} devices; try --device cpu")
    return wanted


def show_progress(done: int, steps: int, loss: float, tokens_per_second: float) -> None:
    text = f"step {done}/{steps}  loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
    if sys.stdout.isatty():
        bar = "#" * (30 * done // steps)
        print(f"\r[{bar:<30}] {text}", end="\n" if done == steps else "", flush=True)
    elif done == steps or done % max(1, steps // 10) == 0:
        print(text, flush=True)


def show_throughput(ranks: list[dict[str, float]], tokens: int, device: str) -> None:
    parts = ["step", "forward", "backward", "all-reduce", "optimizer"]
    print(f"{'rank':>5} {'device':>8} {'tokens/s':>10} " + " ".join(f"{p + ' ms':>13}" for p in parts))
    for rank, seconds in enumerate(ranks):
        times = " ".join(f"{1000 * seconds[p]:>13.1f}" for p in parts)
        print(f"{rank:>5} {device:>8} {tokens / seconds['step']:>10,.0f} {times}")
    print(f"total {'':>8} {sum(tokens / seconds['step'] for seconds in ranks):>10,.0f}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on the standard library's source with DDP.")
    parser.add_argument("--procs", type=int, default=4, help="processes, each a rank (default 4)")
    parser.add_argument("--steps", type=int, default=120, help="training steps (default 120)")
    parser.add_argument("--batch", type=int, default=12, help="sequences a rank a step (default 12)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, xpu, ... (default auto)")
    args = parser.parse_args()
    settings = Settings(choose_device(args.device, args.procs), args.steps, args.batch)

    procs = this_host().spawn_procs({"gpus": args.procs})
    trainers = procs.spawn("trainers", Trainer, settings)
    port = await trainers.slice(gpus=0).listen.call_one()
    parameters = (await trainers.setup.call("127.0.0.1", port)).get(0)
    print(f"{args.procs} ranks on {settings.device}, a GPT of {parameters:,} parameters each")

    async def mean_losses() -> list[float]:
        return [sum(losses) / args.procs for losses in zip(*(await trainers.evaluate.call()).values())]

    train_start, val_start = await mean_losses()
    tokens, start = settings.batch * settings.context, time.perf_counter()
    for number in range(settings.steps):
        losses = (await trainers.step.call(number)).values()
        speed = (number + 1) * tokens * args.procs / (time.perf_counter() - start)
        show_progress(number + 1, settings.steps, math.fsum(losses) / args.procs, speed)
    train_end, val_end = await mean_losses()
    print(f"train loss {train_start:.3f} -> {train_end:.3f}")
    print(f"val   loss {val_start:.3f} -> {val_end:.3f}")

    sample = await trainers.slice(gpus=0).sample.call_one("def ", 200)
    print(f"\n--- a sample ---\n{sample}\n--- end of the sample ---\n")

    prints = (await trainers.fingerprint.call()).values()
    for rank, (digest, norm) in enumerate(prints):
        print(f"rank {rank}: parameters {digest[:16]}, norm {norm:.6f}")
    if len({digest for digest, _ in prints}) != 1:
        raise SystemExit("the ranks' parameters differ")
    print("parameters equal on all ranks\n")

    show_throughput((await trainers.mean_seconds.call()).values(), tokens, settings.device)
    await trainers.teardown.call()
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(main())
