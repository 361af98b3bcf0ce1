"""A pool of generators behind a router: prompts in, samples out one by one. Knows nothing of models, and needs no torch.

streaming.py trains with it; simulate.py tries it out in memory, with generators that draw nothing.

The Router owns the generators. It gives each prompt to the least busy one, and asks again what a killed one had. What it
promises: the samples of every prompt come, each once. At most `under_way` groups are asked for and not taken.
"""

import asyncio
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from monarch.actor import (
    Actor,
    Channel,
    Port,
    PortReceiver,
    RestartPolicy,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
)


@dataclass(frozen=True)
class Prompt:
    number: int
    tokens: tuple[int, ...]
    length: int  # of an answer


@dataclass
class Sample:
    prompt: Prompt
    index: int  # in its group
    generator: int
    version: int = -1  # of the weights that drew its first token
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of each token, by the weights that drew it

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.prompt.length


Group = list[Sample]  # all samples of one prompt


@dataclass(frozen=True)
class Death:
    """What the router tells of a generator's end."""

    generator: int
    asked_again: int  # samples


class Generator(Actor):
    """Works on up to `slots` samples at a time, a token for each in turn; one that has ended makes place for another.

    A subclass says how: `refresh` and `draw`.
    """

    def __init__(self, slots: int) -> None:
        self.rank = current_rank().rank
        self.slots = slots
        self.waiting: deque[Sample] = deque()
        self.running: list[Sample] = []
        self.asked = asyncio.Event()

    async def refresh(self) -> int:
        """Takes the newest weights there are; their version."""
        raise NotImplementedError

    async def draw(self, samples: list[Sample]) -> None:
        """Appends a token and its log-probability to each of these."""
        raise NotImplementedError

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def ask(self, prompt: Prompt, indices: list[int]) -> None:
        self.waiting.extend(Sample(prompt, index, self.rank) for index in indices)
        self.asked.set()

    @concurrent_endpoint
    async def serve(self, samples: Port[Sample]) -> None:
        """Sends what was asked for, each sample as soon as it has ended. Does not return."""
        while True:
            if not self.waiting and not self.running:
                self.asked.clear()
                await self.asked.wait()
            if self.waiting and len(self.running) < self.slots:
                version = await self.refresh()  # what is half done goes on with the newer weights
                while self.waiting and len(self.running) < self.slots:
                    self.running.append(self.waiting.popleft())
                    self.running[-1].version = version
            await self.draw(self.running)
            for sample in self.running:
                if sample.ended:
                    samples.send(sample)
            self.running = [sample for sample in self.running if not sample.ended]
            await asyncio.sleep(0)  # lets messages in


class Router(Actor):
    def __init__(
        self, kind: type[Generator], args: tuple[Any, ...], generators: int, group: int, under_way: int
    ) -> None:
        """`generators` of that class, made with these arguments; `group` samples of each prompt."""
        procs = this_host().spawn_procs({"gpus": generators}, name="generators")
        with RestartPolicy(max_restarts=20, within="1m"):
            self.generators = procs.spawn("generators", kind, *args)
        self.group = group
        self.room = asyncio.Semaphore(under_way)
        self.busy: list[dict[tuple[int, int], Prompt]] = [{} for _ in range(generators)]  # by number and index
        self.up: dict[int, int] = {}  # the process of each generator that is there
        self.unsent: list[tuple[Prompt, list[int]]] = []  # while none is
        self.incomplete: dict[int, dict[int, Sample]] = {}  # by number, then index
        self.complete: deque[Group] = deque()
        self.too_old: list[int] = []
        self.closed = False
        self.changed = asyncio.Condition()

    @concurrent_endpoint
    async def run(self, told: Port[Death]) -> None:
        """Returns when every group is complete and no prompt will come; raises when a generator cannot be kept up."""
        port, samples = Channel[Sample].open()
        keepers = [self.keep(rank, port, told) for rank in range(len(self.busy))]
        tasks = [asyncio.ensure_future(one) for one in (self.all_complete(), self.collect(samples), *keepers)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def keep(self, rank: int, port: Port[Sample], told: Port[Death]) -> None:
        """One generator, and those that take its place."""
        generator = self.generators.slice(gpus=rank)
        while True:
            try:
                self.up[rank] = await generator.pid.call_one()
                unsent, self.unsent = self.unsent, []
                for prompt, indices in unsent:
                    self.send(prompt, indices)
                await generator.serve.call_one(port)  # until its process ends
            except SupervisionError:
                self.up.pop(rank, None)
                lost, self.busy[rank] = self.busy[rank], {}
                told.send(Death(rank, len(lost)))
                for (_, index), prompt in lost.items():
                    self.send(prompt, [index])
                await generator.healthy(timeout=60)  # the policy has put another process in its place

    def send(self, prompt: Prompt, indices: list[int]) -> None:
        if not self.up:
            self.unsent.append((prompt, indices))
            return
        rank = min(self.up, key=lambda rank: (len(self.busy[rank]), rank))  # the least busy
        self.busy[rank] |= {(prompt.number, index): prompt for index in indices}
        self.generators.slice(gpus=rank).ask.broadcast(prompt, indices)

    async def collect(self, samples: PortReceiver[Sample]) -> None:
        while True:
            sample = await samples.recv()
            number, index = sample.prompt.number, sample.index
            self.busy[sample.generator].pop((number, index), None)
            group = self.incomplete.get(number)
            if group is None or index in group:
                continue  # it was asked again, and the first one was on its way after all
            group[index] = sample
            if len(group) == self.group:
                async with self.changed:
                    self.complete.append(list(self.incomplete.pop(number).values()))
                    self.changed.notify_all()

    @concurrent_endpoint
    async def ask(self, prompt: Prompt) -> None:
        """Returns as soon as there is room for it."""
        await self.room.acquire()
        self.incomplete[prompt.number] = {}
        self.send(prompt, list(range(self.group)))

    @concurrent_endpoint
    async def take(self, oldest: int, least: int, most: int) -> list[Group]:
        """The groups that are there, once they are enough; none at the end.

        Those with a sample of older weights than `oldest` are dropped.
        """
        taken: list[Group] = []
        while True:
            while self.complete and len(taken) < most:
                group = self.complete.popleft()
                self.room.release()
                if min(sample.version for sample in group) < oldest:
                    self.too_old.append(group[0].prompt.number)
                else:
                    taken.append(group)
            if len(taken) >= least or (self.closed and not self.incomplete and not self.complete):
                return taken
            async with self.changed:
                await self.changed.wait_for(lambda: self.complete or (self.closed and not self.incomplete))

    async def all_complete(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.closed and not self.incomplete)

    @endpoint
    async def close(self) -> None:
        """No prompt comes any more."""
        async with self.changed:
            self.closed = True
            self.changed.notify_all()

    @endpoint
    async def processes(self) -> dict[int, int]:
        """The process of each generator that is up, by its rank."""
        return self.up

    @endpoint
    async def dropped(self) -> list[int]:
        """The numbers of the prompts whose groups were too old."""
        return self.too_old
