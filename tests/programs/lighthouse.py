"""Replicas that meet in a lighthouse: each step is of the replicas that have come to it, one that is killed costs the others
no state, and its successor takes theirs before it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import MeshFailure
from monarch._src.actor.actor_mesh import Actor
from monarch._src.actor.concurrent import concurrent_endpoint
from monarch._src.actor.endpoint import endpoint
from monarch._src.actor.host_mesh import this_host

STEPS = 12
DEATHS = {4: 1, 8: 2}  # at which step which replica is killed


class Lighthouse(Actor):
    """Says who takes part in a step: the replicas that are alive, once each has come."""

    def __init__(self) -> None:
        self.members: dict[int, int] = {}  # replica -> how far it is
        self.values: dict[int, dict[int, float]] = {}
        self.results: dict[int, float] = {}
        self.changed: asyncio.Condition | None = None

    def news(self) -> asyncio.Condition:
        self.changed = self.changed or asyncio.Condition()
        return self.changed

    @concurrent_endpoint
    async def join(self, replica: int, step: int) -> None:
        async with self.news():
            self.members[replica] = step
            self.news().notify_all()

    @concurrent_endpoint
    async def leave(self, replica: int) -> None:
        async with self.news():
            self.members.pop(replica, None)
            self.news().notify_all()

    @concurrent_endpoint
    async def mean(self, replica: int, step: int, value: float) -> float:
        """Returns the mean of what the members of a step have brought, the same for all of them."""
        async with self.news():
            self.members[replica] = step
            self.values.setdefault(step, {})[replica] = value
            self.news().notify_all()
            await self.news().wait_for(lambda: step in self.results or self.members.keys() <= self.values[step].keys())
            if step not in self.results:
                brought = self.values[step]
                self.results[step] = sum(brought.values()) / len(brought)
            return self.results[step]

    @concurrent_endpoint
    async def quorum(self) -> dict[int, int]:
        return dict(self.members)


class Trainer(Actor):
    """One rank of a replica."""

    def __init__(self, replica: int, lighthouse: Any) -> None:
        self.replica, self.lighthouse = replica, lighthouse
        self.step, self.weight = 0, 0.0

    @endpoint
    async def state(self) -> tuple[int, float]:
        return self.step, self.weight

    @endpoint
    async def load(self, step: int, weight: float) -> None:
        self.step, self.weight = step, weight

    @endpoint
    async def train(self, dies: bool) -> float:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.weight += await self.lighthouse.mean.call_one(self.replica, self.step, float(self.step))
        self.step += 1
        return self.weight


class Manager(Actor):
    """Owns the processes of one replica, and starts them anew when they have died."""

    def __init__(self, replica: int, lighthouse: Any) -> None:
        self.replica, self.lighthouse = replica, lighthouse
        self.attempts = 0
        self.failures: list[str] = []
        self.trainer: Any = None

    async def begin(self, state: tuple[int, float]) -> None:
        self.attempts += 1
        self.procs = this_host().spawn_procs({"gpus": 1})
        self.trainer = self.procs.spawn(f"trainer_{self.attempts}", Trainer, self.replica, self.lighthouse)
        await self.trainer.load.call_one(*state)
        await self.lighthouse.join.call_one(self.replica, state[0])

    @endpoint
    async def start(self) -> None:
        await self.begin((0, 0.0))

    @endpoint
    async def state(self) -> tuple[int, float]:
        return await self.trainer.state.call_one()

    @endpoint
    async def train(self, dies: bool) -> float | None:
        """Returns the weight after a step; None when the replica has died in it."""
        try:
            return await self.trainer.train.call_one(dies)
        except Exception as error:
            self.failures.append(type(error).__name__)
            await self.lighthouse.leave.call_one(self.replica)
            return None

    @endpoint
    async def recover(self, state: tuple[int, float]) -> None:
        await self.begin(state)

    @endpoint
    async def report(self) -> tuple[int, list[str]]:
        return self.attempts, self.failures

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True


async def use(lighthouse: Any, managers: list[Any]) -> None:
    await asyncio.gather(*(one.start.call_one() for one in managers))
    for step in range(STEPS):
        weights = await asyncio.gather(
            *(one.train.call_one(DEATHS.get(step) == number) for number, one in enumerate(managers))
        )
        lived = [number for number, weight in enumerate(weights) if weight is not None]
        assert len({weights[number] for number in lived}) == 1, weights
        for number in set(range(len(managers))) - set(lived):
            await managers[number].recover.call_one(await managers[lived[0]].state.call_one())
    states = await asyncio.gather(*(one.state.call_one() for one in managers))
    assert states == [(STEPS, float(sum(range(STEPS))))] * len(managers), states
    reports = await asyncio.gather(*(one.report.call_one() for one in managers))
    assert reports == [(1, []), (2, ["SupervisionError"]), (2, ["SupervisionError"])], reports
    assert sorted(await lighthouse.quorum.call_one()) == [0, 1, 2]
    print(STEPS, "steps, state:", states[0], "attempts:", [attempts for attempts, _ in reports])


def main() -> None:
    lighthouse = this_host().spawn_procs().spawn("lighthouse", Lighthouse)
    procs = this_host().spawn_procs({"replicas": 3})
    managers = [
        procs.slice(replicas=number).spawn(f"manager_{number}", Manager, number, lighthouse) for number in range(3)
    ]
    asyncio.run(use(lighthouse, managers))
    print("ok")


if __name__ == "__main__":
    main()
