"""Asynchronous GRPO with Ray's actors; each version of the weights is put into the object store once, for all generators."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import ray
from _grpo import Maker, Trainer, examples, settings
from _torch import torch
from _workload import Params, Samples, main
from ray_api import start


@ray.remote(num_cpus=0)
class Scorer:
    def __init__(self, params: Params) -> None:
        torch.set_num_threads(1)
        self.task = settings(params).task

    def score(self, prompts: Any, completions: Any) -> Any:
        return self.task.rewards(prompts, completions)


@ray.remote(num_cpus=0)
class Buffer:
    def __init__(self, params: Params) -> None:
        self.params = params
        self.batches: deque[Any] = deque()
        self.changed = asyncio.Condition()
        self.refused = 0

    async def put(self, samples: Any) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.batches) < self.params["capacity"])
            self.batches.append(samples)
            self.changed.notify_all()

    async def get(self, version: int) -> Any:
        async with self.changed:
            while True:
                await self.changed.wait_for(lambda: self.batches)
                samples = self.batches.popleft()
                self.changed.notify_all()
                if version - samples.version <= self.params["max_age"]:
                    return samples
                self.refused += 1

    async def count_refused(self) -> int:
        return self.refused


@ray.remote(num_cpus=0)
class Newest:
    """Where the newest weights are in the object store."""

    def __init__(self) -> None:
        self.version, self.reference = -1, None
        self.there = asyncio.Event()

    async def put(self, version: int, reference: list[Any]) -> None:
        self.version, self.reference = version, reference
        self.there.set()

    async def get(self) -> tuple[int, list[Any]]:
        await self.there.wait()
        return self.version, self.reference


@ray.remote(num_cpus=0)
class Learner:
    def __init__(self, params: Params) -> None:
        self.trainer = Trainer(params)

    def train(self, buffer: Any, newest: Any) -> Samples:
        trainer = self.trainer

        def publish() -> None:
            newest.put.remote(trainer.version, [ray.put(trainer.policy.state_dict())])

        publish()
        coming = buffer.get.remote(trainer.version)
        for _ in range(trainer.steps):
            begin = time.perf_counter()
            samples = ray.get(coming)
            coming = buffer.get.remote(trainer.version + 1)
            trainer.learn(samples, time.perf_counter() - begin)
            publish()
            trainer.done()
        del coming
        trainer.refused = ray.get(buffer.count_refused.remote())
        return trainer.figures()


@ray.remote(num_cpus=0)
class Generator:
    def __init__(self, params: Params, rank: int) -> None:
        self.maker = Maker(params, rank)

    def generate(self, newest: Any, scorer: Any, buffer: Any) -> None:
        from grpo import Samples as Batch

        maker = self.maker
        while True:
            version, (reference,) = ray.get(newest.get.remote())
            if version != maker.version:
                maker.policy.load_state_dict(ray.get(reference))
                maker.version = version
            prompts, completions, logprobs = maker.draw()
            rewards = ray.get(scorer.score.remote(prompts, completions))
            ray.get(buffer.put.remote(Batch(version, prompts, completions, logprobs, rewards)))


def train(params: Params) -> Samples:
    examples(params)
    start()
    scorer, buffer, newest = Scorer.remote(params), Buffer.remote(params), Newest.remote()
    generators = [Generator.remote(params, rank) for rank in range(params["generators"])]
    learner = Learner.remote(params)
    playing = [generator.generate.remote(newest, scorer, buffer) for generator in generators]
    figures: Samples = ray.get(learner.train.remote(buffer, newest))
    del playing
    return figures


if __name__ == "__main__":
    main({"train": train})
