"""Training that is stopped, or killed, and goes on with another number of processes: the losses of a run without a stop.

    python examples/resume.py --folder run --ranks 4 --steps 60   # a checkpoint every 10 steps
    python examples/resume.py --folder run --ranks 2 --steps 90   # goes on from the newest one, on two processes
    python examples/resume.py --demo 4 2 3    # 4 ranks until kill -9, then 2, then 3; compares the losses

Each rank has a shard of the model (FSDP2) and writes it with torch's own torch.distributed.checkpoint, which gives every
rank of the next run the parts that it needs, whatever their number. What has been read of the data is one number, kept beside
the weights. Checkpoints are written while the training goes on. Needs torch >= 2.6.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from char_gpt import GPT, LEARNING_RATE, Settings, Text, loss_of, losses_alone

import monarch.metrics
from monarch.actor import Actor, current_rank, endpoint, setup_torch_distributed, this_host
from monarch.spmd import torch_device_mesh

BATCH = 12  # sequences a step, of all ranks together; their number divides it
TOLERANCE = 1e-3  # largest difference of a loss; sums over another number of ranks make some


class Trainer(Actor):
    def __init__(self, settings: Settings, device: str) -> None:
        self.settings, self.device = settings, device
        self.text = Text(settings.context)
        self.saved: Any = None

    @endpoint
    def build(self, checkpoint: Path | None) -> int:
        """This rank's shard of the model, as it was in the checkpoint. Returns how many sequences it has read."""
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.fsdp import fully_shard

        self.model = GPT(self.settings).to(self.device)
        for block in self.model.blocks.values():
            fully_shard(block, mesh=torch_device_mesh())
        fully_shard(self.model, mesh=torch_device_mesh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.writers = dist.new_group(backend="gloo")  # apart: what is written meets no collective of the training
        if checkpoint is None:
            return 0
        state = self.state(0)
        dcp.load(state, checkpoint_id=checkpoint)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(state["read"])

    def state(self, read: int) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "read": read}

    @endpoint
    def step(self, number: int) -> tuple[float, list[int]]:
        """One step on this rank's share of the batch: its loss, and the numbers of the sequences."""
        rank, share = current_rank().rank, BATCH // dist.get_world_size()
        numbers = [number * BATCH + rank * share + n for n in range(share)]
        text, wanted = (part.to(self.device) for part in self.text.batch(numbers))
        loss = loss_of(self.model(text), wanted)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        monarch.metrics.log(step=number, loss=loss)
        return float(loss.item()), numbers

    @endpoint
    def save(self, folder: Path, read: int) -> None:
        """Returns when this rank's shard is copied; a thread of torch's writes the copy."""
        self.wait()
        self.saved = dcp.async_save(self.state(read), checkpoint_id=folder, process_group=self.writers)

    @endpoint
    def finish(self) -> None:
        self.wait()
        dist.destroy_process_group()

    def wait(self) -> None:
        """Until the checkpoint before is whole."""
        if self.saved is not None:
            self.saved.result()


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: torch writes `.metadata` last."""
    for found in sorted(folder.glob("step-*"), reverse=True):
        if (found / ".metadata").exists():
            return found
        print(f"{found.name} is half-written, and left out")
    return None


def check_model(checkpoint: Path, settings: Settings) -> None:
    """Ends the program, saying why, when the checkpoint is of another model: before any process is started."""
    there = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    shapes = {name[len("model.") :]: tuple(data.size) for name, data in there.items() if name.startswith("model.")}
    wanted = {name: tuple(tensor.shape) for name, tensor in GPT(settings).state_dict().items()}
    for name in sorted(shapes.keys() | wanted.keys()):
        if shapes.get(name) != wanted.get(name):
            raise SystemExit(
                f"{checkpoint} is of another model: {name} is {shapes.get(name, 'not there')} in it, "
                f"and {wanted.get(name, 'not there')} here"
            )


def train(args: argparse.Namespace) -> None:
    """Up to step `args.steps`. Each step is a line of `losses.jsonl` in the folder; steps done again follow below."""
    settings, folder = Settings(width=args.width), args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    newest = newest_whole(folder)
    if newest is not None:
        check_model(newest, settings)
    procs = this_host().spawn_procs({"dp": args.ranks})
    setup_torch_distributed(procs, "gloo" if args.device == "cpu" else "nccl").get()
    trainers = procs.spawn("trainers", Trainer, settings, args.device)
    read = trainers.build.call(newest).get().values()[0]
    print(f"{args.ranks} ranks, from {newest.name if newest else 'the beginning'}: {read} sequences read", flush=True)
    with (folder / "losses.jsonl").open("a") as losses:
        for number in range(read // BATCH, args.steps):
            results = trainers.step.call(number).get().values()
            loss, numbers = fmean(loss for loss, _ in results), sorted(n for _, part in results for n in part)
            line = {"step": number, "loss": loss, "ranks": args.ranks, "sequences": numbers}
            print(json.dumps(line), file=losses, flush=True)
            done = number + 1
            if done % args.every == 0 or done == args.steps:
                print(f"step {done}: loss {loss:.4f}, saving", flush=True)
                trainers.save.call(folder / f"step-{done:06}", done * BATCH).get()
            if done == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    trainers.finish.call().get()
    procs.stop().get()


def demo(folder: Path, sizes: list[int], steps: int, every: int) -> None:
    """This program once for each number of ranks, killed the first time; the losses of all beside those of one process."""
    for part, ranks in enumerate(sizes):
        until = steps * (part + 1) // len(sizes)
        kill_at = 0 if part else until - every // 2
        command = [sys.executable, __file__, "--folder", str(folder), "--ranks", str(ranks)]
        command += ["--steps", str(until), "--every", str(every)]
        status = subprocess.run(command + (["--kill-at", str(kill_at)] if kill_at else []), check=False).returncode
        if status != (-signal.SIGKILL if kill_at else 0):
            raise SystemExit(f"the training on {ranks} ranks ended with status {status}")
        if kill_at:
            print(f"killed with signal 9 after step {kill_at}")
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    batches = [list(range(number * BATCH, (number + 1) * BATCH)) for number in range(steps)]
    expected = losses_alone(Settings(), batches)
    apart = max(abs(line["loss"] - expected[line["step"]]) for line in lines)
    twice, text = len(lines) - steps, ", ".join(map(str, sizes))
    same = all(line["sequences"] == batches[line["step"]] for line in lines)
    print(f"{steps} steps on {text} ranks, {twice} of them done again after the kill")
    print(f"the same sequences in each step: {same and {line['step'] for line in lines} == set(range(steps))}")
    print(f"losses differ by {apart:.1e} at most from one process without a stop")
    if apart > TOLERANCE or not same:
        raise SystemExit("this is not the training without a stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where checkpoints and losses go; every rank has to see it")
    parser.add_argument("--ranks", type=int, default=4, help=f"processes; they divide {BATCH} (default %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="steps, those of earlier runs included")
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--width", type=int, default=Settings.width, help="of the model (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="kill -9 of this program after a step, to try it")
    parser.add_argument(
        "--demo", type=int, nargs="*", metavar="RANKS", help="train, kill, go on with other numbers of ranks, compare"
    )
    args = parser.parse_args()
    sizes = [args.ranks] if args.demo is None else args.demo or [4, 2, 3]
    if any(ranks < 1 or BATCH % ranks for ranks in sizes):
        parser.error(f"the number of ranks has to divide the {BATCH} sequences of a batch")
    if args.demo is not None:
        with tempfile.TemporaryDirectory() as temporary:
            demo(args.folder or Path(temporary), sizes, args.steps, args.every)
    elif args.folder is None:
        parser.error("--folder is needed, or --demo")
    else:
        train(args)


if __name__ == "__main__":
    main()
