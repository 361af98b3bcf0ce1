"""FSDP2, tensor parallelism and a pipeline of torch, alone and together, in actors of one mesh: equal to one process.

    python examples/parallel.py --dp 2 --tp 2            # parameters sharded over "dp", each matrix cut over "tp"
    python examples/parallel.py --pp 2 --schedule GPipe  # two stages, four micro-batches
    python examples/parallel.py --pp 2 --dp 2 --tp 2     # all three on eight processes
    python examples/parallel.py --dp 4 --tp 2 --device cuda  # one process a device

Each rank asks for its mesh as torch's DeviceMesh (`torch_device_mesh`) and does with it what torch's manuals do:
`fully_shard`, `parallelize_module`, `PipelineStage`. The script drives the ranks and compares every loss with that of a
single process that trains on all of the data. Needs torch >= 2.6.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch
from char_gpt import GPT, LEARNING_RATE, Settings, Text, loss_of, losses_alone

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, setup_torch_distributed, this_host
from monarch.spmd import torch_device_mesh

BATCH = 8  # sequences a step, of all ranks together
PARTS = 4  # micro-batches of a pipeline: what one stage passes on while another computes
TOLERANCE = 1e-3  # largest difference of a loss from that of one process; sums in another order make some


class Trainer(Actor):
    def __init__(self, settings: Settings, device: str, schedule: str) -> None:
        self.settings, self.device, self.schedule_name = settings, device, schedule
        self.text = Text(settings.context)

    @endpoint
    def build(self) -> int:
        """This rank's part of the model. Returns how many of its numbers that are."""
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.pipelining import PipelineStage, schedules
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh, rank = torch_device_mesh(), current_rank()
        self.stage, self.stages = rank["pp"], rank.size("pp")
        self.model = GPT(self.settings, self.stage, self.stages).to(self.device)
        for block in self.model.blocks.values():
            if rank.size("tp") > 1:
                columns = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
                rows = {name: RowwiseParallel() for name in ("out", "down")}
                parallelize_module(block, mesh["tp"], columns | rows)
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(self.model, mesh=mesh["dp"])
        if self.stages > 1:
            group = mesh["pp"].get_group()
            stage = PipelineStage(self.model, self.stage, self.stages, torch.device(self.device), group=group)
            self.schedule = getattr(schedules, f"Schedule{self.schedule_name}")(stage, PARTS, loss_fn=loss_of)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, foreach=False)
        return sum(parameter.to_local().numel() for parameter in self.model.parameters())

    @endpoint
    def step(self, number: int) -> float | None:
        """One step on the sequences of this rank's "dp": the loss, where it is known, on the last stage."""
        rank = current_rank()
        share = BATCH // rank.size("dp")
        first = number * BATCH + rank["dp"] * share
        text, wanted = (part.to(self.device) for part in self.text.batch(range(first, first + share)))
        loss = self.through_the_pipeline(text, wanted) if self.stages > 1 else self.at_once(text, wanted)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def at_once(self, text: torch.Tensor, wanted: torch.Tensor) -> float:
        loss = loss_of(self.model(text), wanted)
        loss.backward()  # FSDP averages the gradients over "dp"
        return float(loss.item())

    def through_the_pipeline(self, text: torch.Tensor, wanted: torch.Tensor) -> float | None:
        """Forwards and backwards in the order of the schedule; activations and their gradients go from stage to stage."""
        inputs = (text,) if self.stage == 0 else ()
        if self.stage < self.stages - 1:
            self.schedule.step(*inputs)
            return None
        losses: list[torch.Tensor] = []
        self.schedule.step(*inputs, target=wanted, losses=losses)
        return float(torch.stack(losses).mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline (default %(default)s)")
    parser.add_argument("--dp", type=int, default=1, help="ranks that share parameters and data (default %(default)s)")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each matrix (default %(default)s)")
    parser.add_argument("--schedule", choices=["1F1B", "GPipe"], default="1F1B", help="of the pipeline")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps (default %(default)s)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="the losses of both as JSON")
    args = parser.parse_args()
    settings = Settings()
    if min(args.pp, args.dp, args.tp) < 1 or BATCH % args.dp or settings.heads % args.tp or settings.layers < args.pp:
        parser.error(
            f"--dp has to divide the {BATCH} sequences of a batch, --tp the {settings.heads} heads, and --pp is at most "
            f"the {settings.layers} layers"
        )
    if args.pp > 1 and BATCH // args.dp < PARTS:
        parser.error(f"with --pp, --dp is at most {BATCH // PARTS}: each rank divides its sequences into {PARTS} parts")

    procs: ProcMesh = this_host().spawn_procs({"pp": args.pp, "dp": args.dp, "tp": args.tp})
    setup_torch_distributed(procs, "gloo" if args.device == "cpu" else "nccl").get()
    trainers = procs.spawn("trainers", Trainer, settings, args.device, args.schedule)
    kept = trainers.build.call().get().values()
    whole = sum(parameter.numel() for parameter in GPT(settings).parameters())
    print(f"pp {args.pp} x dp {args.dp} x tp {args.tp}: {whole:,} parameters, {min(kept):,} to {max(kept):,} a rank")

    batches = (range(number * BATCH, (number + 1) * BATCH) for number in range(args.steps))
    expected, losses = losses_alone(settings, batches), list[float]()
    for number in range(args.steps):
        losses.append(fmean(loss for loss in trainers.step.call(number).get().values() if loss is not None))
        if number % 5 == 0 or number == args.steps - 1:
            print(f"step {number:2}  loss {losses[-1]:.4f}  in one process {expected[number]:.4f}")
    furthest = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    print(f"losses differ by {furthest:.1e} at most")
    procs.stop().get()
    if args.record:
        args.record.write_text(json.dumps({"losses": losses, "alone": expected}))
    if furthest > TOLERANCE:
        raise SystemExit(f"that is more than {TOLERANCE:g}: this is not the training of one process")


if __name__ == "__main__":
    main()
