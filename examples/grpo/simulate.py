"""The router of streaming.py tried out in memory: no processes, no model, every case in milliseconds.

    python examples/grpo/simulate.py           # runs each case, and says how long it took

Router, ports, restarts and their order are the real ones. Generators draw nothing: a sample gets its next token when the case
says so, so it is decided here who is in the middle of what when a process dies.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from pool import Death, Generator, Prompt, Router, Sample

from monarch.actor import ActorError, Channel, Future, endpoint, this_host
from monarch.testing import InProcessCluster, Local


class Weights:
    """What the learner would publish."""

    version = 0


class HeldGenerator(Generator):
    def __init__(self, weights: Local[Weights]) -> None:
        super().__init__(slots=100)
        self.weights = weights.value
        self.tokens = asyncio.Semaphore(0)

    async def refresh(self) -> int:
        return self.weights.version

    async def draw(self, samples: list[Sample]) -> None:
        await self.tokens.acquire()
        for sample in samples:
            sample.tokens.append(0)
            sample.logprobs.append(0.0)

    @endpoint
    async def allow(self, tokens: int) -> None:
        """So many more for each sample."""
        for _ in range(tokens):
            self.tokens.release()

    @endpoint
    async def samples(self) -> int:
        return len(self.waiting) + len(self.running)


class BrokenGenerator(HeldGenerator):
    async def draw(self, samples: list[Sample]) -> None:
        raise ValueError("no such token")


class OpenRouter(Router):
    @endpoint
    async def pool(self) -> Generator:
        return self.generators

    @endpoint
    async def healthy_pool(self) -> None:
        await self.generators.healthy()


class Case:
    """A router in memory, with two generators, groups of two samples, and at most four groups under way."""

    def __init__(self, cluster: InProcessCluster, kind: type[HeldGenerator]) -> None:
        self.cluster, self.weights = cluster, Weights()
        self.router = (
            this_host()
            .spawn_procs()
            .spawn("router", OpenRouter, kind, (Local(self.weights),), generators=2, group=2, under_way=4)
        )
        port, self.deaths = Channel[Death].open()
        self.running: Future[None] = self.router.run.call_one(port)
        self.pool = cast(HeldGenerator, self.router.pool.call_one().get())
        while len(self.router.processes.call_one().get()) < 2:  # until both are up
            pass

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.router.ask.call_one(Prompt(number, tokens=(1, 2), length=3)).get()
        self.cluster.settle()  # generators have them

    def take(self, least: int, oldest: int = 0) -> list[int]:
        groups = self.router.take.call_one(oldest, least, 100).get()
        assert all(sorted(sample.index for sample in group) == [0, 1] for group in groups), "each sample once"
        return sorted(group[0].prompt.number for group in groups)


@contextmanager
def case(kind: type[HeldGenerator] = HeldGenerator) -> Iterator[Case]:
    with InProcessCluster() as cluster:
        yield Case(cluster, kind)


def test_prompts_go_to_the_least_busy() -> None:
    with case() as here:
        here.ask(0, 1, 2, 3)
        assert here.pool.samples.call().get().values() == [4, 4]
        here.pool.slice(gpus=1).allow.broadcast(100)
        assert here.take(2) == [1, 3]
        here.ask(4, 5)
        assert here.take(2) == [4, 5], "the other one is still busy"


def test_what_a_killed_generator_had_is_asked_again() -> None:
    with case() as here:
        here.ask(0, 1, 2, 3)
        here.pool.slice(gpus=0).allow.call_one(2).get()  # of three: its samples are in the middle
        here.cluster.kill(here.pool, 0)
        assert here.deaths.recv().get() == Death(generator=0, asked_again=4)
        here.pool.slice(gpus=1).allow.broadcast(100)  # the other one has them now
        assert here.take(4) == [0, 1, 2, 3]


def test_all_generators_may_die() -> None:
    with case() as here:
        here.ask(0, 1, 2, 3)
        for rank in range(2):
            here.cluster.kill(here.pool, rank)
        assert sum(here.deaths.recv().get().asked_again for _ in range(2)) >= 8
        here.router.healthy_pool.call_one().get()
        here.pool.allow.broadcast(100)
        assert here.take(4) == [0, 1, 2, 3]


def test_groups_of_old_weights_are_dropped() -> None:
    with case() as here:
        here.ask(0, 1)
        here.pool.samples.call().get()  # they have begun, with version 0
        here.weights.version = 5
        here.ask(2, 3)
        here.pool.allow.broadcast(100)
        here.router.close.call_one().get()
        assert here.take(4, oldest=3) == [2, 3]
        assert sorted(here.router.dropped.call_one().get()) == [0, 1]


def test_a_prompt_waits_until_there_is_room() -> None:
    with case() as here:
        here.ask(0, 1, 2, 3)
        fifth = here.router.ask.call_one(Prompt(4, tokens=(1, 2), length=3))
        here.cluster.settle()
        assert "pending" in repr(fifth)
        here.pool.allow.broadcast(100)
        here.take(1)
        fifth.get()


def test_at_the_end_the_learner_gets_what_is_left_and_then_nothing() -> None:
    with case() as here:
        here.ask(0, 1)
        here.pool.allow.broadcast(100)
        here.router.close.call_one().get()
        here.running.get()
        assert (here.take(100), here.take(100)) == ([0, 1], [])


def test_a_generator_that_raises_ends_the_run() -> None:
    with case(BrokenGenerator) as here:
        here.ask(0)
        error = here.running.exception()
        assert isinstance(error, ActorError)
        assert "no such token" in str(error)


def main() -> None:
    logging.getLogger("monarch").setLevel(logging.ERROR)  # which generators are restarted is no news here
    cases: list[Callable[[], None]] = [value for name, value in globals().items() if name.startswith("test_")]
    for one in cases:
        start = time.perf_counter()
        one()
        print(f"{one.__name__.removeprefix('test_').replace('_', ' ')}: {1000 * (time.perf_counter() - start):.0f} ms")


if __name__ == "__main__":
    main()
