"""A GPT in stages, one process each, as a compiled graph: each micro-batch is an execution, and the order is 1F1B.

    python examples/pipeline_graph.py --stages 2

The graph says once where a micro-batch goes: forward through the stages, backward through them again. Several are under way
at a time, and an actor that could go on with more than one takes the oldest: what comes back goes before what is new. That is
the schedule that pipelines call 1F1B, and nothing here says so. `depth` bounds how many activations a stage keeps. Checked
against the same model in one process. Needs torch.
"""

import argparse
from collections import deque

import torch
from char_gpt import GPT, LEARNING_RATE, Settings, Text, loss_of, losses_alone

from monarch import graph
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.graph import InputNode

BATCH, PARTS, STEPS = 16, 4, 12


class Stage(Actor):
    """A stage of the model. What went forward and has not come back yet waits in order."""

    def __init__(self, settings: Settings, stages: int) -> None:
        torch.set_num_threads(1)
        self.model = GPT(settings, current_rank().rank, stages)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.under_way: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    @endpoint
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.model(x.requires_grad_(x.is_floating_point()))
        self.under_way.append((x, made))
        return made.detach()

    @endpoint
    def loss(self, x: torch.Tensor, wanted: torch.Tensor) -> tuple[float, torch.Tensor | None]:
        """Goes forward and back at the last stage; returns the loss, and the gradient of what came."""
        loss = loss_of(self.model(x.requires_grad_()), wanted) / PARTS
        loss.backward()
        return loss.item(), x.grad

    @endpoint
    def backward(self, behind: tuple[float, torch.Tensor]) -> tuple[float, torch.Tensor | None]:
        """Goes back with what the stage behind has returned."""
        loss, grad = behind
        x, made = self.under_way.popleft()
        made.backward(grad)
        return loss, x.grad

    @endpoint
    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=2, help="2 or more")
    count = parser.parse_args().stages
    settings = Settings(layers=2 * count)
    steps = [range(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
    procs = this_host().spawn_procs({"stage": count})
    stages = procs.spawn("stages", Stage, settings, count)
    *before, last = [stages.slice(stage=number) for number in range(count)]

    with InputNode() as given:
        value = given["read"]
        for stage in before:
            value = stage.forward.bind(value)
        back = last.loss.bind(value, given["wanted"])
        for stage in reversed(before):
            back = stage.backward.bind(back)

    losses, text = [], Text(settings.context)
    with graph.compile(back, depth=count + 1, buffer="1MiB") as pipeline:
        for numbers in steps:
            parts = zip(*(tensor.chunk(PARTS) for tensor in text.batch(numbers)), strict=True)
            under_way = [pipeline.execute(read=read, wanted=wanted) for read, wanted in parts]
            losses.append(sum(future.get()[0] for future in under_way))
            stages.step.call().get()
    procs.stop().get()

    alone = losses_alone(settings, steps)
    for step in range(0, STEPS, 4):
        print(f"step {step}: loss {losses[step]:.4f} in {count} stages, {alone[step]:.4f} in one process")
    apart = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    print(f"largest difference of {STEPS} losses: {apart:.0e}")
    if apart > 1e-4:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
