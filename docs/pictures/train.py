"""What the pictures of docs/dashboard.md show: 64 ranks that train, of which 17 reads its data slowly and 42 is killed; then
all wait for rank 17."""

from __future__ import annotations

import os
import signal
import time

import monarch.dashboard
import monarch.metrics
from monarch.actor import Actor, current_rank, endpoint, this_host

RANKS = {"hosts": 8, "gpus": 8}
SLOW, KILLED, STEPS = 17, 42, 24


class Loader(Actor):
    @endpoint
    def next_batch(self) -> int:
        time.sleep(0.01)
        return 1


class Trainer(Actor):
    def __init__(self, loaders: Loader) -> None:
        self.loaders = loaders
        self.rank = current_rank().rank

    @endpoint
    def step(self, number: int) -> None:
        self.loaders.next_batch.choose().get()
        if number == STEPS and self.rank == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank == SLOW:
            self.read_data(0.8)
        self.compute()
        loss = 3.2 / (1 + 0.2 * number) + 0.03 * ((number * 7 + self.rank) % 5)
        monarch.metrics.log(step=number, loss=loss, **{"tokens/s": 800.0 if self.rank != SLOW else 310.0})

    @endpoint
    def last_step(self) -> None:
        if self.rank == SLOW:
            self.read_data(600)
        self.all_reduce()

    def read_data(self, seconds: float) -> None:
        time.sleep(seconds)

    def compute(self) -> None:
        time.sleep(0.5)

    def all_reduce(self) -> None:
        time.sleep(600)


def main() -> None:
    monarch.dashboard.start(port=0)
    procs = this_host().spawn_procs(RANKS, name="workers")
    trainers = procs.spawn("trainers", Trainer, procs.slice(gpus=0).spawn("loaders", Loader))
    try:
        for number in range(STEPS + 1):
            trainers.step.call(number).get()
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
    ranks = trainers.flatten("rank")
    waiting = [ranks.slice(rank=part).last_step.call() for part in (slice(0, KILLED), slice(KILLED + 1, 64))]
    print("waiting", flush=True)
    waiting[0].get()


if __name__ == "__main__":
    main()
