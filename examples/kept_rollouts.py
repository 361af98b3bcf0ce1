"""Reinforcement learning whose rollouts stay where they were made, and go from there to who learns from them.

    python examples/kept_rollouts.py

Four generators play a bandit with five arms, and keep what they have played: this program gets references at once, and hands
them to two trainers, as they are made. A trainer's parameter `Fetched[...]` is the rollouts themselves, in memory that it
shares with the generator: none of them comes through this program. They are freed when no reference is left, at the end of
each step. What a step needs of all of them, its mean reward, is a task beside the training.
"""

import math
import random
from typing import NamedTuple

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.references import Fetched, ObjectRef, as_completed, put, task

CHANCES = [0.1, 0.3, 0.5, 0.9, 0.2]  # of a reward, by arm
GENERATORS, TRAINERS = 4, 2
STEPS, PLAYS, RATE = 12, 500, 2.0


class Rollouts(NamedTuple):
    """What was played: the arms, and the reward of each."""

    arms: list[int]
    rewards: list[int]


def probabilities(policy: list[float]) -> list[float]:
    weights = [math.exp(value) for value in policy]
    return [weight / sum(weights) for weight in weights]


class Generator(Actor):
    """Plays by a policy."""

    @endpoint
    def play(self, policy: Fetched[list[float]], step: int) -> Rollouts:
        chance = random.Random(1000 * step + current_rank().rank)
        arms = chance.choices(range(len(CHANCES)), probabilities(policy), k=PLAYS)
        return Rollouts(arms, [int(chance.random() < CHANCES[arm]) for arm in arms])


class Trainer(Actor):
    """Says in which direction a policy is better."""

    @endpoint
    def gradient(self, rollouts: Fetched[Rollouts], policy: Fetched[list[float]]) -> list[float]:
        mean = sum(rollouts.rewards) / PLAYS
        found = [0.0] * len(policy)
        for arm, reward in zip(*rollouts, strict=True):
            for other, chance in enumerate(probabilities(policy)):
                found[other] += (reward - mean) * ((other == arm) - chance) / PLAYS
        return found


@task(retries=1)
def mean_reward(*all_rollouts: Rollouts) -> float:
    return sum(sum(rollouts.rewards) for rollouts in all_rollouts) / (PLAYS * len(all_rollouts))


def main() -> None:
    procs = this_host().spawn_procs({"trainer": TRAINERS})
    generators = this_host().spawn_procs({"generator": GENERATORS}).spawn("generators", Generator)
    trainers = procs.spawn("trainers", Trainer)
    policy = [0.0] * len(CHANCES)
    means: list[ObjectRef[float]] = []
    for step in range(STEPS):
        shared = put(policy)
        refs = generators.play.keep.call(shared, step).values()
        means.append(mean_reward.submit(procs, *refs))
        asked = {}
        for turn, ref in enumerate(as_completed(refs)):
            trainer = trainers.slice(trainer=turn % TRAINERS)
            asked[ref] = trainer.gradient.call_one(ref, shared)
        gradients = [asked[ref].get() for ref in refs]
        policy = [value + RATE * sum(parts) / GENERATORS for value, *parts in zip(policy, *gradients, strict=True)]
        del refs, ref, asked  # which frees the rollouts
    first, *_, last = [mean.get() for mean in means]
    best = max(range(len(policy)), key=policy.__getitem__)
    print(f"mean reward {first:.2f} at first, {last:.2f} after {STEPS} steps of {GENERATORS * PLAYS} plays")
    print(f"arm {best} is the best")


if __name__ == "__main__":
    main()
