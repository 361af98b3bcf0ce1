"""Reinforcement learning with services: generators and a reward behind handles, new weights while they generate.

    python examples/rollouts.py --steps 12 --replicas 3

Rollouts go on all the time. Each episode says which weights made it; the trainer leaves out what is too old. In the middle a
generator is killed: its requests go to the others, and no episode is lost. The "policy" is one number, which has to find 42.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
from typing import NamedTuple

from monarch.actor import Actor, endpoint, this_host
from monarch.service import Service, batched, retried, serve

TARGET = 42.0


class Episode(NamedTuple):
    action: float
    reward: float
    version: int


class Generator(Actor):
    def __init__(self, weights: float) -> None:
        self.weights = weights
        self.drawn = random.Random(os.getpid())

    @endpoint
    @retried(3)
    @batched(max_batch=16)
    async def generate(self, spreads: list[float]) -> list[float]:
        await asyncio.sleep(0.002)  # a step of the model, whatever the size of the batch
        return [self.drawn.gauss(self.weights, spread) for spread in spreads]

    @endpoint
    def fetch(self, weights: float) -> float:
        return weights  # a real one reads a StateDict into new tensors here, beside requests

    @endpoint
    def use(self, weights: float) -> None:
        self.weights = weights

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Reward(Actor):
    @endpoint
    @retried(3)
    def grade(self, action: float) -> float:
        return -abs(action - TARGET)


class Trainer(Actor):
    @endpoint
    def step(self, episodes: list[Episode]) -> float:
        best = sorted(episodes, key=lambda episode: -episode.reward)[: len(episodes) // 4]
        return statistics.mean(episode.action for episode in best)


async def rollouts(policy: Service, reward: Service, episodes: asyncio.Queue[Episode]) -> None:
    while True:
        made = await policy.generate.answer(8.0)
        await episodes.put(Episode(made.value, await reward.grade.route(made.value), made.version))


async def main(steps: int, replicas: int, oldest: int) -> None:
    trainer = this_host().spawn_procs().spawn("trainer", Trainer)
    async with (
        serve(this_host(), Generator, 0.0, replicas=replicas, backoff=0.01, wait=True) as policy,
        serve(this_host(), Reward, replicas=2, wait=True) as reward,
    ):
        episodes: asyncio.Queue[Episode] = asyncio.Queue(64)
        rolling = [asyncio.create_task(rollouts(policy, reward, episodes)) for _ in range(32)]
        weights, version, left_out = 0.0, 0, 0
        for step in range(steps):
            batch: list[Episode] = []
            while len(batch) < 64:
                episode = await episodes.get()
                fresh = version - episode.version <= oldest
                batch += [episode] * fresh
                left_out += not fresh
            weights = await trainer.step.call_one(batch)
            version = await policy.update_in_place("fetch", weights, then="use")
            if step == steps // 2:
                os.kill(await policy.options(retries=3).pid.route(), signal.SIGKILL)
        lost = [task for task in rolling if task.done()]
        for task in rolling:
            task.cancel()
        status = await policy.status()
        print(
            f"{steps} steps, the policy is {'at' if abs(weights - TARGET) < 4 else 'far from'} {TARGET:g}, version {version}"
        )
        print(
            f"rollouts that ended: {len(lost)}, requests that died: {status.died}, generators: {len(status.replicas)}"
        )
        print(f"episodes that were too old: {left_out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--oldest", type=int, default=1, help="versions that an episode may be behind")
    given = parser.parse_args()
    asyncio.run(main(given.steps, given.replicas, given.oldest))
