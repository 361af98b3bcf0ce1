"""A tour of the actor API, one line of output a stop.

    python examples/getting_started.py

Every call returns a Future: `.get()` waits for it in ordinary code, as here; `await` does so in async code.
"""

import asyncio
import os

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)
from monarch.config import configured


# An actor is a class whose endpoints can be called from other processes.
class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def divide(self, by: int) -> float:
        return self.value / by

    @endpoint
    def whereabouts(self) -> str:
        name = context().actor_instance.name
        return f"{name} {current_rank()['gpus'] + 1} of {current_rank().size('gpus')}"

    @endpoint
    def count_down(self, port: Port[int]) -> None:
        for number in (3, 2, 1):
            port.send(number)


# Plain endpoints run one after the other; concurrent ones may overlap: here one waits for the other.
class Gate(Actor):
    def __init__(self) -> None:
        self.opened = asyncio.Event()

    @concurrent_endpoint
    async def wait(self) -> str:
        await self.opened.wait()
        return "went through"

    @concurrent_endpoint
    async def open(self) -> None:
        self.opened.set()


class Fragile(Actor):
    @endpoint
    async def work(self) -> None:
        raise RuntimeError("out of luck")


# Whoever spawns a mesh owns it, and hears of its failures.
class Manager(Actor):
    def __init__(self) -> None:
        self.heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.workers = this_host().spawn_procs({"workers": 2}).spawn("fragile", Fragile)

    @endpoint
    async def watch_a_failure(self) -> str:
        self.workers.slice(workers=1).work.broadcast()  # nobody waits for an answer, so the owner is told
        return await self.heard

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.heard.set_result(failure.mesh_name.split("-")[0])
        return True  # handled: I go on; False would make it my failure, and my owner's business


def main() -> None:
    # Processes form a mesh with named dimensions; actors spawned on it form a mesh of the same shape.
    procs = this_host().spawn_procs({"gpus": 4})
    counters = procs.spawn("counter", Counter, 10)
    pids = counters.pid.call().get().values()
    print(f"spawn: {len(counters)} actors in {len({*pids} - {os.getpid()})} other processes")

    # `call` asks every actor and gathers the answers in a ValueMesh: a value for every point of the mesh.
    sums = counters.add.call(1).get()
    print(f"call: {sums.values()}, at gpus=2: {sums.item(gpus=2)}")
    for point, value in sums.slice(gpus=slice(0, 2)):
        print(f"value mesh: {dict(point)} has {value}")

    # A slice of a mesh is a mesh. `broadcast` sends without waiting; what I send an actor arrives in order.
    counters.slice(gpus=slice(2, 4)).add.broadcast(100)
    print(f"slice: {counters.add.call(0).get().values()}")
    print(f"call one: {counters.slice(gpus=3).add.call_one(1).get()}")

    # `stream` gives the answers as they come; an Accumulator folds them.
    print(f"stream: {sorted(answer.get() for answer in counters.add.stream(0))}")
    print(f"accumulate: {Accumulator(counters.add, 0, lambda a, b: a + b).accumulate(0).get()}")

    # An exception in an endpoint reaches its caller with the remote traceback; the actor lives on.
    try:
        counters.divide.call(0).get()
    except ActorError as error:
        print(f"error: {type(error.exception).__name__}: {error.exception}")
    print(f"alive: {counters.divide.call(1).get().get(0)}")

    # Code in an actor can ask who and where it is.
    print(f"context: {counters.whereabouts.call().get().values()}")

    # A port is where messages go, and can be sent anywhere; its receiver is where they come out.
    port, receiver = Channel[int].open()
    counters.slice(gpus=0).count_down.broadcast(port)
    print(f"port: {[receiver.recv().get() for _ in range(3)]}")

    # Async endpoints marked concurrent overlap. Everything can be awaited, too.
    async def through_the_gate() -> str:
        gate = procs.slice(gpus=0).spawn("gate", Gate)
        waiting = gate.wait.call_one()
        await gate.open.call_one()
        return await waiting

    print(f"concurrent: {asyncio.run(through_the_gate())}")

    # Failures nobody waits for go to the owner of the actor that failed.
    manager = procs.slice(gpus=0).spawn("manager", Manager)
    print(f"supervision: heard of {manager.watch_a_failure.call_one().get()}")

    with configured(cleanup_timeout="90s") as config:
        print(f"config: {config['cleanup_timeout']} to clean up")
    procs.stop().get()
    print("stopped")


if __name__ == "__main__":
    main()
