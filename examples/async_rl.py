"""Asynchronous reinforcement learning: generators play with the newest weights there are while the trainer goes on training.

    python examples/async_rl.py --generators 3 --steps 300

The task is a bandit with a context: of ACTIONS actions one is rewarded, which one follows from the state by a rule that
nobody tells. Generators play games and send the trainer what happened; the trainer makes a step of policy gradient from each
batch. Weights never travel in messages: the trainer registers its model once, and generators read it out of the trainer's
memory between games, whole, while the trainer computes. A generator that comes late plays with weights that are a few
versions old; what it sends says how old.
"""

import argparse
import asyncio
import time

import torch

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host
from monarch.rdma import StateDict, StateDictHandle

STATES, ACTIONS, BATCH = 8, 4, 128
RULE = torch.Generator().manual_seed(7)
TRUTH = torch.randn(STATES, ACTIONS, generator=RULE)  # the rewarded action is the largest of state @ TRUTH


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(STATES, 64), torch.nn.Tanh(), torch.nn.Linear(64, ACTIONS))


class Trainer(Actor):
    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = policy()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.weights = StateDict(self.model)

    @endpoint
    def handle(self) -> StateDictHandle:
        """Names, shapes and where they are: small, and good for the whole run."""
        return self.weights.handle

    @endpoint
    def step(self, states: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> int:
        """One step of policy gradient; the version it made. Only the update itself keeps readers waiting."""
        chances = torch.distributions.Categorical(logits=self.model(states))
        loss = -(chances.log_prob(actions) * (rewards - 1 / ACTIONS)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        with self.weights.updating():
            self.optimizer.step()
        return self.weights.version

    @endpoint
    def close(self) -> None:
        self.weights.drop().get()


class Generator(Actor):
    def __init__(self, trainer: Trainer):
        torch.set_num_threads(1)
        self.trainer = trainer
        self.model = policy()
        self.rank = current_rank().rank
        torch.manual_seed(self.rank + 1)

    @endpoint
    async def play(self, steps: int, told: Port[tuple[int, int, int, float]]) -> None:
        """Plays until the trainer has made `steps` versions; tells of each batch who, version, age, mean reward."""
        handle = await self.trainer.handle.call_one()
        reader = handle.reader(self.model)
        made = 0
        while made < steps:
            version = await reader.read()
            states = torch.randn(BATCH, STATES)
            with torch.no_grad():
                actions = torch.distributions.Categorical(logits=self.model(states)).sample()
            rewards = (actions == (states @ TRUTH).argmax(1)).float()
            made = await self.trainer.step.call_one(states, actions, rewards)
            told.send((self.rank, version, made - 1 - version, float(rewards.mean())))


async def main(generators: int, steps: int) -> None:
    trainer_proc = this_host().spawn_procs()
    generator_procs = this_host().spawn_procs(per_host={"generators": generators})
    trainer = trainer_proc.spawn("trainer", Trainer)
    mesh = generator_procs.spawn("generators", Generator, trainer)
    handle = await trainer.handle.call_one()
    print(f"{len(handle.shapes)} tensors, {handle.nbytes} bytes, path: {handle.path}")
    told, heard = Channel[tuple[int, int, int, float]].open()
    start = time.perf_counter()
    playing = mesh.play.call(steps, told)
    batches = [await heard.recv() for _ in range(steps)]
    took = time.perf_counter() - start
    await playing
    tenth = max(1, steps // 10)
    for first in range(0, steps, tenth):
        part = batches[first : first + tenth]
        reward = sum(reward for _, _, _, reward in part) / len(part)
        age = sum(age for _, _, age, _ in part) / len(part)
        print(f"steps {first + 1} to {first + len(part)}: mean reward {reward:.2f}, weights {age:.1f} versions old")
    players = sorted({who for who, _, _, _ in batches})
    print(f"{steps} steps with batches of generators {players}, {steps / took:.0f} a second")
    await trainer.close.call_one()
    await generator_procs.stop()
    await trainer_proc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generators", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.generators, arguments.steps))
