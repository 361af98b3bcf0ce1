"""Actors in real processes: where they run, and what reaches them. What they are: tests/_mesh/actors/test_actors.py."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    get_or_spawn_controller,
)
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.threads import where

pytestmark = pytest.mark.procs


class Cell(Actor):
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    @endpoint
    async def get(self) -> Any:
        return self.value


def test_constructor_arguments_arrive(procs2: ProcMesh) -> None:
    assert procs2.spawn("cell", Cell, {"a": [1]}).get.call().get(timeout=TIMEOUT).values() == [{"a": [1]}] * 2
    assert procs2.spawn("cell", Cell, value=3).get.call().get(timeout=TIMEOUT).values() == [3, 3]


class SyncThreads(Actor):
    def __init__(self) -> None:
        self.seen = [where()]

    @endpoint
    def where(self) -> list[tuple[int, bool, bool]]:
        self.seen.append(where())
        return self.seen


class AsyncThreads(Actor):
    def __init__(self) -> None:
        self.seen = [where()]
        self.loop = asyncio.get_running_loop()

    @endpoint
    async def where(self) -> list[tuple[int, bool, bool]]:
        self.seen.append(where())
        return self.seen

    @endpoint
    async def same_loop(self) -> bool:
        return asyncio.get_running_loop() is self.loop


def test_a_sync_actor_has_one_thread_and_no_loop(proc: ProcMesh) -> None:
    mesh = proc.spawn("threads", SyncThreads)
    mesh.where.call_one().get(timeout=TIMEOUT)
    first, *rest = mesh.where.call_one().get(timeout=TIMEOUT)
    assert rest == [first, first]
    assert first[1:] == (False, False)


def test_an_async_actor_has_one_thread_with_its_loop(proc: ProcMesh) -> None:
    mesh = proc.spawn("threads", AsyncThreads)
    mesh.where.call_one().get(timeout=TIMEOUT)
    first, *rest = mesh.where.call_one().get(timeout=TIMEOUT)
    assert rest == [first, first]
    assert first[1:] == (False, True)
    assert mesh.same_loop.call_one().get(timeout=TIMEOUT) is True


def test_actors_of_one_process_have_threads_of_their_own(proc: ProcMesh) -> None:
    meshes = [proc.spawn("threads", kind) for kind in (SyncThreads, SyncThreads, AsyncThreads, AsyncThreads)]
    assert len({m.where.call_one().get(timeout=TIMEOUT)[0][0] for m in meshes}) == 4


class Overlap(Actor):
    def __init__(self) -> None:
        self.started: list[Any] = []
        self.all_here = asyncio.Event()

    @concurrent_endpoint
    async def meet(self, count: int, name: Any) -> list[Any]:
        self.started.append(name)
        if len(self.started) == count:
            self.all_here.set()
        await self.all_here.wait()
        return self.started


def test_concurrent_calls_start_in_the_order_sent(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    calls = [mesh.meet.call_one(20, n) for n in range(20)]
    assert calls[-1].get(timeout=TIMEOUT) == list(range(20))


class Journal(Actor):
    """Writes down what happens to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.write("init")

    def write(self, what: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{what}\n")

    @endpoint
    async def get(self) -> None: ...

    @endpoint
    async def hold(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        try:
            await receiver.recv()
        except asyncio.CancelledError:
            self.write("cancelled")
            raise

    @endpoint
    async def note(self, what: str) -> None:
        self.write(what)

    async def __cleanup__(self, exc: Exception | None) -> None:
        await asyncio.sleep(0)
        self.write(f"cleanup {exc}")


def test_stop_cancels_the_async_endpoint_in_progress_and_drops_the_queue(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    port, receiver = Channel[Any].open()
    held = mesh.hold.call_one(port)
    _release = receiver.recv().get(timeout=TIMEOUT)
    queued = mesh.note.call_one("never")
    mesh.stop("no more").get(timeout=TIMEOUT)
    for future in (held, queued, mesh.get.call_one()):
        with pytest.raises(SupervisionError, match="stopped"):
            future.get(timeout=TIMEOUT)
    assert journal.read_text().splitlines() == ["init", "cancelled", "cleanup None"]


class Caller(Actor):
    @endpoint
    async def call(self, mesh: Any) -> list[Any]:
        return (await mesh.get.call()).values()

    @endpoint
    async def back(self, mesh: Any) -> Any:
        return mesh


def test_actor_meshes_are_sent_even_before_they_are_ready(spawn_procs: Any, proc: ProcMesh) -> None:
    caller = proc.spawn("caller", Caller)
    mesh = spawn_procs({"gpus": 2}).spawn("cell", Cell, 3)
    assert caller.call.call_one(mesh).get(timeout=TIMEOUT) == [3, 3]
    back = caller.back.call_one(mesh.slice(gpus=1)).get(timeout=TIMEOUT)
    assert back.get.call_one().get(timeout=TIMEOUT) == 3


class ControllerUser(Actor):
    @endpoint
    async def use(self, name: str) -> tuple[int, Any]:
        found = await get_or_spawn_controller(name, Inhabitant, "from an actor")
        return await found.pid.call_one(), await found.get.call_one()


class Inhabitant(Pid):
    def __init__(self, value: Any = None) -> None:
        self.value = value

    @endpoint
    def get(self) -> Any:
        return self.value


def test_a_controller_is_made_once_and_found_again(proc: ProcMesh) -> None:
    first = get_or_spawn_controller("registry", Inhabitant, "first").get(timeout=TIMEOUT)
    again = get_or_spawn_controller("registry", Cell, "ignored").get(timeout=TIMEOUT)
    assert first.get.call_one().get(timeout=TIMEOUT) == "first"
    assert again.get.call_one().get(timeout=TIMEOUT) == "first"
    user = proc.spawn("user", ControllerUser)
    assert user.use.call_one("registry").get(timeout=TIMEOUT) == (os.getpid(), "first")


def test_a_controller_first_asked_for_in_an_actor_lives_in_the_client(proc: ProcMesh) -> None:
    user = proc.spawn("user", ControllerUser)
    assert user.use.call_one("asked for afar").get(timeout=TIMEOUT) == (os.getpid(), "from an actor")
    here = get_or_spawn_controller("asked for afar", Inhabitant).get(timeout=TIMEOUT)
    assert here.get.call_one().get(timeout=TIMEOUT) == "from an actor"
