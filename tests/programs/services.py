"""A service layer in user land: a service has replicas, each on processes of its own; requests wait in the queue of the
replica that has least to do, sessions stay with one, and a replica that dies is replaced while its requests go to another."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import MeshFailure, SupervisionError
from monarch._src.actor.actor_mesh import Actor, ActorError
from monarch._src.actor.concurrent import concurrent_endpoint
from monarch._src.actor.endpoint import EndpointProperty, endpoint
from monarch._src.actor.host_mesh import this_host
from monarch._src.actor.proc_mesh import ProcMesh


@dataclass
class Request:
    """A call that waits for a replica."""

    method: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any]
    tries: int = 0


@dataclass
class Replica:
    """An actor on its processes, and what waits for it."""

    number: int
    actor: Any
    healthy: bool = True
    queue: asyncio.Queue[Request] = field(default_factory=asyncio.Queue)
    active: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def load(self) -> int:
        return self.queue.qsize() + self.active


class Service(Actor):
    """Owns the replicas of one class."""

    def __init__(self, actor_class: type, ranks: int, at_once: int, *args: Any) -> None:
        self.actor_class, self.ranks, self.at_once, self.args = actor_class, ranks, at_once, args
        self.replicas: dict[int, Replica] = {}
        self.sessions: dict[str, int] = {}
        self.made = self.replaced = self.moved = 0

    @endpoint
    async def start(self, count: int) -> None:
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Starts one more replica."""
        number = self.made
        self.made += 1
        procs: ProcMesh = this_host().spawn_procs({"gpus": self.ranks})
        actor = procs.spawn(f"replica_{number}", self.actor_class, number, *self.args)
        actor._proc_mesh = procs  # to stop it with, later
        replica = Replica(number, actor)
        self.replicas[number] = replica
        replica.task = asyncio.create_task(self.serve(replica))

    async def serve(self, replica: Replica) -> None:
        """Takes requests out of the queue of a replica, so many at once."""
        slots = asyncio.Semaphore(self.at_once)
        while replica.healthy:
            await slots.acquire()
            request = await replica.queue.get()
            replica.active += 1
            task = asyncio.create_task(self.run(replica, request))
            task.add_done_callback(lambda _: slots.release())

    async def run(self, replica: Replica, request: Request) -> None:
        try:
            answers = await getattr(replica.actor, request.method).call(*request.args)
            request.answer.set_result(list(answers.values()))
        except ActorError as error:  # the replica's own: it lives
            request.answer.set_exception(ValueError(f"{request.method}: {type(error.exception).__name__}"))
        except SupervisionError:
            self.lost(replica)
            self.again(request)
        finally:
            replica.active -= 1

    def lost(self, replica: Replica) -> None:
        """Takes a replica out, and starts another in its place."""
        if not replica.healthy:
            return
        replica.healthy = False
        del self.replicas[replica.number]
        self.sessions = {name: number for name, number in self.sessions.items() if number != replica.number}
        self.replaced += 1
        self.add()
        while not replica.queue.empty():
            self.again(replica.queue.get_nowait())

    def again(self, request: Request) -> None:
        """Gives a request that was not answered to another replica."""
        self.moved += 1
        request.tries += 1
        if request.tries > 3:
            request.answer.set_exception(RuntimeError(f"{request.method}: lost three times"))
        else:
            self.choose("").queue.put_nowait(request)

    def choose(self, session: str) -> Replica:
        """Returns the replica of a session, or else the one with least to do."""
        found = self.replicas.get(self.sessions.get(session, -1))
        if found is None:
            found = min(self.replicas.values(), key=lambda one: (one.load, one.number))
            if session:
                self.sessions[session] = found.number
        return found

    @concurrent_endpoint
    async def route(self, method: str, session: str, *args: Any) -> Any:
        request = Request(method, args, asyncio.get_running_loop().create_future())
        self.choose(session).queue.put_nowait(request)
        return await request.answer

    @concurrent_endpoint
    async def together(self, method: str, calls: list[tuple[Any, ...]]) -> list[Any]:
        """Routes many requests that run beside each other."""
        requests = [Request(method, args, asyncio.get_running_loop().create_future()) for args in calls]
        for request in requests:
            self.choose("").queue.put_nowait(request)
        return await asyncio.gather(*(request.answer for request in requests))

    @endpoint
    async def fanout(self, method: str, *args: Any) -> list[Any]:
        called = [getattr(one.actor, method).call(*args) for one in self.replicas.values()]
        return [list((await answers).values()) for answers in called]

    @endpoint
    async def end_session(self, session: str) -> None:
        self.sessions.pop(session, None)

    @endpoint
    async def metrics(self) -> dict[str, Any]:
        return {
            "replicas": sorted(self.replicas), "sessions": len(self.sessions),
            "replaced": self.replaced, "moved": self.moved > 0,
        }  # fmt: skip

    @endpoint
    async def shut_down(self) -> None:
        for replica in self.replicas.values():
            replica.healthy = False
            if replica.task is not None:
                replica.task.cancel()
            await replica.actor._proc_mesh.stop()

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True  # whoever called it hears of it, and it is replaced there


class ServiceEndpoint:
    """One endpoint of the replicas' class."""

    def __init__(self, service: Any, name: str) -> None:
        self.service, self.name = service, name

    async def route(self, *args: Any, session: str = "") -> Any:
        return await self.service.route.call_one(self.name, session, *args)

    async def together(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        return await self.service.together.call_one(self.name, calls)

    async def fanout(self, *args: Any) -> list[Any]:
        return await self.service.fanout.call_one(self.name, *args)


class Interface:
    """The handle of a service for its users: it has an attribute for each endpoint of the class."""

    def __init__(self, service: Any, actor_class: type) -> None:
        self._service = service
        for name in dir(actor_class):
            if isinstance(getattr(actor_class, name), EndpointProperty):
                setattr(self, name, ServiceEndpoint(service, name))


class Policy(Actor):
    """Answers, counts, fails and dies."""

    def __init__(self, number: int, scale: int) -> None:
        self.number, self.scale, self.asked = number, scale, 0

    @endpoint
    async def generate(self, prompt: int) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        return self.scale * prompt

    @endpoint
    async def who(self) -> int:
        return self.number

    @endpoint
    async def divide(self, number: int) -> float:
        return self.scale / number

    @endpoint
    async def die_once(self, place: str, prompt: int) -> int:
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return self.scale * prompt
        os._exit(1)


async def use(service: Any) -> None:
    policy: Any = Interface(service, Policy)
    assert {"generate", "who", "divide", "die_once"} <= set(vars(policy))
    await service.start.call_one(2)
    assert await policy.generate.route(5) == [15]
    assert await policy.generate.together([(number,) for number in range(40)]) == [[3 * number] for number in range(40)]
    first = await policy.who.route(session="a")
    assert [await policy.who.route(session="a") for _ in range(4)] == [first] * 4
    assert sorted(await policy.who.fanout()) == [[0], [1]]
    try:
        await policy.divide.route(0)
    except Exception as error:
        assert "divide: ZeroDivisionError" in str(error)
    else:
        raise AssertionError("a division by zero had a result")
    print("served:", await service.metrics.call_one())

    place = os.path.abspath("died_once")
    assert await policy.die_once.route(place, 7, session="a") == [21]
    os.unlink(place)
    metrics = await service.metrics.call_one()
    print("after a death:", metrics)
    assert metrics["replaced"] == 1 and metrics["moved"] and len(metrics["replicas"]) == 2
    assert await policy.generate.together([(number,) for number in range(8)]) == [[3 * number] for number in range(8)]
    await service.end_session.call_one("a")
    await service.shut_down.call_one()


def main() -> None:
    service = this_host().spawn_procs().spawn("service", Service, Policy, 1, 4, 3)
    asyncio.run(use(service))
    print("ok")


if __name__ == "__main__":
    main()
