"""Asynchronous GRPO as every contender of grpo.py runs it: what is computed, without how it travels.

Task, policy, loss and batch are those of examples/grpo, from the checkout that params["root"] names.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from _torch import torch
from _workload import Params, Samples

ARRAYS = ("prompts", "completions", "logprobs", "rewards")


def examples(params: Params) -> None:
    """Makes the modules of examples/grpo importable, here and in the processes that this one starts."""
    folder = os.path.join(params["root"], "examples", "grpo")
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])


def settings(params: Params) -> Any:
    from settings import Settings

    return Settings(**params["settings"])


class Maker:
    """A generator's part: draws answers, with the weights that it has."""

    def __init__(self, params: Params, rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank + 1)
        self.settings = settings(params)
        self.policy = self.settings.policy()
        self.dice = torch.Generator().manual_seed(rank + 1)
        self.version = -1

    def draw(self) -> tuple[Any, Any, Any]:
        """Prompts, completions and log-probabilities."""
        own = self.settings
        prompts = own.task.prompts(own.prompts, self.dice)
        return prompts, *self.policy.sample(prompts, own.group, own.task.digits)


class Trainer:
    """A learner's part, and its clock."""

    def __init__(self, params: Params) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.params = params
        self.settings = settings(params)
        self.policy = self.settings.policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.settings.rate)
        self.version = self.refused = 0
        self.ends: list[float] = []
        self.ages: list[float] = []
        self.waits: list[float] = []

    @property
    def steps(self) -> int:
        return int(self.params["warmup"] + self.params["count"])

    def fresh(self, version: int) -> bool:
        """Whether samples of that version may be used; counts those that may not."""
        self.refused += self.version - version > self.params["max_age"]
        return self.version - version <= self.params["max_age"]

    def learn(self, samples: Any, waited: float) -> None:
        """All of a step but the new weights' way to the generators."""
        from grpo import advantages, policy_loss
        from policy import logprobs

        self.ages.append(self.version - samples.version)
        new = logprobs(self.policy, samples.prompts, samples.completions)
        loss = policy_loss(new, samples.logprobs, advantages(samples.rewards))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.version += 1
        self.waits.append(waited)

    def done(self) -> None:
        """A step is: its weights are there for whoever wants them."""
        self.ends.append(time.perf_counter())

    def figures(self) -> Samples:
        return figures(self.params, self.ends, self.ages, self.waits, self.refused)


def figures(params: Params, ends: list[float], ages: list[float], waits: list[float], refused: int) -> Samples:
    """What the harness reads, of the steps after the warm-up."""
    first, own = params["warmup"], params["settings"]
    elapsed = ends[-1] - ends[first - 1]
    count = len(ends) - first
    return {
        "samples": [count * own["prompts"] * own["group"] / elapsed],
        "samples steps": [count / elapsed],
        "samples age": [sum(ages[first:]) / count],
        "samples waited": [sum(waits[first:]) / elapsed],
        "samples refused": [float(refused)],
    }
