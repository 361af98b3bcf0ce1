"""A service of generators: requests in batches, weights that are replaced while it answers, and a replica that is killed.

    python examples/service.py --replicas 3 --requests 200

The "model" adds its weights to each token. What is shown is that no request is lost, and that no answer mixes two versions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator

from monarch.actor import Actor, endpoint, this_host
from monarch.service import Service, batched, retried, serve


class Generator(Actor):
    def __init__(self, weights: int) -> None:
        self.weights = weights
        self.largest = 0

    @endpoint
    @retried(3)
    @batched(max_batch=8)
    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        self.largest = max(self.largest, len(prompts))
        return [[token + self.weights for token in prompt] for prompt in prompts]

    @endpoint
    def tokens(self, prompt: list[int]) -> Iterator[int]:
        for token in prompt:
            yield token + self.weights

    @endpoint
    def load(self, weights: int) -> None:
        self.weights = weights

    @endpoint
    def fetch(self, weights: int) -> int:  # in a thread, beside requests
        return weights

    @endpoint
    def use(self, weights: int) -> None:
        self.weights = weights

    @endpoint
    def about(self) -> tuple[int, int]:
        return os.getpid(), self.largest


async def client(service: Service, requests: int) -> Counter[int]:
    """Makes requests, sixteen at a time; counts the versions that answered."""
    versions: Counter[int] = Counter()
    patient = service.options(wait=True, timeout=60)

    async def ask(first: int) -> None:
        for number in range(first, requests, 16):
            answer = await patient.generate.answer([number] * 4)
            assert answer.value == [number + answer.version] * 4, "an answer of another version than it says"
            versions[answer.version] += 1

    await asyncio.gather(*(ask(first) for first in range(16)))
    return versions


async def main(replicas: int, requests: int) -> None:
    async with serve(this_host(), Generator, 0, replicas=replicas, backoff=0.01) as service:
        print("a stream:", [token async for token in service.tokens.stream([1, 2, 3])])

        asking = asyncio.create_task(client(service, requests))
        pid, _largest = await service.options(wait=True, retries=3).about.route()
        os.kill(pid, signal.SIGKILL)
        await service.update("load", 1)  # one replica after another
        await service.update_in_place("fetch", 2, then="use")  # next to the old ones, without a pause
        versions = await asking

        print(f"{versions.total()} answers of {requests} requests, of versions {sorted(versions)}")
        assert await service.generate.route([10]) == [12]
        print(await service.status())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    given = parser.parse_args()
    asyncio.run(main(given.replicas, given.requests))
