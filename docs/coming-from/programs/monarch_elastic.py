"""Training that survives the death of a rank: that one is replaced, and takes the state of a survivor."""

import os
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from monarch.actor import (
    Actor,
    ActorError,
    RestartPolicy,
    SupervisionError,
    current_rank,
    endpoint,
    setup_torch_distributed,
    this_host,
)


class Trainer(Actor):
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.step = torch.nn.Linear(4, 1), 0

    @endpoint
    def steps(self) -> int:
        return self.step

    @endpoint
    def state(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "step": self.step}

    @endpoint
    def begin(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.step = state["step"]
        self.model = DDP(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)

    @endpoint
    def train(self, first_time: bool) -> Any:
        """The weights, after 100 steps."""
        rank = current_rank().rank
        while self.step < 100:
            if self.step == 50 and rank == 1 and first_time:
                os._exit(1)  # the accident
            dice = torch.Generator().manual_seed(1000 * self.step + rank)
            x = torch.randn(32, 4, generator=dice)
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()  # raises when the other rank is gone: the step did not happen
            self.optimizer.step()
            self.step += 1
        return self.net.weight.detach().flatten().tolist()


def main() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with RestartPolicy(max_restarts=3):
        trainers = procs.spawn("trainers", Trainer)
    attempts = 0
    weights: list[float] = []
    while not weights:
        try:
            trainers.healthy(timeout=60).get()
            setup_torch_distributed(procs, "gloo").get()
            steps = trainers.steps.call().get().values()
            furthest = trainers.slice(gpus=steps.index(max(steps)))
            trainers.begin.call(furthest.state.call_one().get()).get()
            attempts += 1
            weights = trainers.train.call(first_time=attempts == 1).get().values()[0]
        except (SupervisionError, ActorError) as error:
            print("again, after", type(error).__name__)  # again, after ...
    print(100, "steps", [round(weight, 2) for weight in weights])  # 100 steps [0.98, 0.99, 0.98, 0.98]
    procs.stop().get()


if __name__ == "__main__":
    main()
