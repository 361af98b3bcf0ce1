"""Latency in the API that ours and torchmonarch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from _callers import AsyncCalls, Calls
from _latency import actors_in_a_process, latency
from _workload import Usage, main
from monarch_latency_actors import AsyncTimed, Timed

from monarch.actor import Channel, shutdown_context, this_host


class Actors:
    """`count` actors in a process of their own."""

    def __init__(self, style: str, count: int) -> None:
        procs = this_host().spawn_procs({"procs": 1})
        cls = AsyncTimed if style == "async" else Timed
        self.meshes = [procs.spawn(f"timed{number}", cls) for number in range(count)]
        for mesh in self.meshes:
            mesh.echo.call_one(1).get()

    def callers(self, actors: Sequence[int]) -> Calls:
        return [lambda mesh=self.meshes[actor]: mesh.echo.call_one(1).get() for actor in actors]

    def tasks(self, actors: Sequence[int]) -> AsyncCalls:
        return [lambda mesh=self.meshes[actor]: mesh.echo.call_one(1) for actor in actors]

    def compute(self, actor: int) -> Callable[[], object]:
        port, receiver = Channel[None].open()
        future = self.meshes[actor].compute.call_one(port)
        receiver.recv().get()

        def stop() -> None:
            self.meshes[0].finish.call_one().get()
            future.get()

        return stop

    def usage(self) -> Usage:
        return self.meshes[0].usage.call_one().get()


if __name__ == "__main__":
    try:
        main({"latency": latency(Actors), "actors_in_a_process": actors_in_a_process(Actors)})
    finally:
        shutdown_context().get()
