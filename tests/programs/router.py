"""A router before an engine of several ranks: requests arrive at any time, wait while others are under way, run as batches,
and stand still while new weights come in. Its endpoints overlap; one gives tokens one by one over a port of the caller."""

from __future__ import annotations

import asyncio
from typing import Any

from monarch._src.actor.actor_mesh import Actor, Channel, Port
from monarch._src.actor.concurrent import concurrent_endpoint
from monarch._src.actor.endpoint import endpoint
from monarch._src.actor.host_mesh import this_host

RANKS, MOST = 2, 8


class Engine(Actor):
    """Runs a batch in step with the other ranks; each has a part of the result."""

    def __init__(self) -> None:
        self.version = 0

    @endpoint
    async def step(self, batch: list[int], rank_count: int) -> list[int]:
        return [prompt // rank_count for prompt in batch]

    @endpoint
    async def load(self, version: int) -> None:
        self.version = version

    @endpoint
    async def loaded(self) -> int:
        return self.version


class Router(Actor):
    """Collects requests into batches."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.waiting: list[tuple[int, asyncio.Future[tuple[int, int]]]] = []
        self.batches: list[int] = []
        self.version = 0
        self.inside = self.most_inside = 0
        self.arrived: asyncio.Condition | None = None
        self.task: asyncio.Task[None] | None = None

    def ready(self) -> asyncio.Condition:
        if self.arrived is None:
            self.arrived = asyncio.Condition()
            self.task = asyncio.create_task(self.work())
        return self.arrived

    async def work(self) -> None:
        arrived = self.ready()
        while True:
            async with arrived:
                await arrived.wait_for(lambda: self.waiting)
                batch, self.waiting = self.waiting[:MOST], self.waiting[MOST:]
                parts = await self.engine.step.call([prompt for prompt, _ in batch], RANKS)
                self.batches.append(len(batch))
                columns = zip(*parts.values(), strict=True)
                for (_, answer), column in zip(batch, columns, strict=True):
                    answer.set_result((sum(column), self.version))

    @concurrent_endpoint
    async def submit(self, prompt: int) -> tuple[int, int]:
        """Returns the result, and the version of the weights that it comes from."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        arrived = self.ready()
        async with arrived:
            self.waiting.append((prompt, answer))
            arrived.notify()
        try:
            return await answer
        finally:
            self.inside -= 1

    @concurrent_endpoint
    async def update(self, version: int) -> None:
        """Loads weights between two batches; requests that come meanwhile wait."""
        async with self.ready():
            await self.engine.load.call(version)
            self.version = version

    @concurrent_endpoint
    async def tokens(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)
            await asyncio.sleep(0)
        port.send(-1)

    @concurrent_endpoint
    async def fail(self) -> None:
        raise ValueError("of this request only")

    @concurrent_endpoint
    async def statistics(self) -> tuple[int, int, int]:
        return sum(self.batches), len(self.batches), self.most_inside


async def use(router: Any, engine: Any) -> None:
    before = asyncio.gather(*(router.submit.call_one(2 * number) for number in range(60)))
    update = router.update.call_one(1)
    after = asyncio.gather(*(router.submit.call_one(2 * number) for number in range(60)))
    results = [await before, await after]
    await update
    for found in results:
        assert [value for value, _ in found] == [2 * number for number in range(60)], found
    versions = [version for found in results for _, version in found]
    assert set(versions) <= {0, 1} and sorted(versions) == versions, versions
    assert list((await engine.loaded.call()).values()) == [1, 1]

    try:
        await router.fail.call_one()
    except Exception as error:
        assert "of this request only" in str(error)
    else:
        raise AssertionError("a request that fails had a result")

    port, receiver = Channel[int].open()
    done = router.tokens.call_one(port, 5)
    tokens = []
    while (token := await receiver.recv()) >= 0:
        tokens.append(token)
    await done
    assert tokens == [0, 1, 2, 3, 4]

    requests, batches, most_inside = await router.statistics.call_one()
    assert requests == 120 and batches >= 120 // MOST and most_inside > 1
    print("requests:", requests, "in batches of up to", MOST)


def main() -> None:
    engine = this_host().spawn_procs({"ranks": RANKS}).spawn("engine", Engine)
    router = this_host().spawn_procs().spawn("router", Router, engine)
    asyncio.run(use(router, engine))
    print("ok")


if __name__ == "__main__":
    main()
