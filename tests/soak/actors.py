"""The actors of soak programs: each notes what it handles, and who sent it, before anything else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from monarch.actor import Actor, ActorError, MeshFailure, concurrent_endpoint, context, endpoint
from monarch.testing import Local
from tests.soak.history import Born, Ended, Handled, Heard, History, Receipt, Sent, Told
from tests.soak.message_log import record_here
from tests.soak.program import BROADCAST, STREAM, Cast, Spawn

record_here()

HELD = 60.0  # real seconds after which an actor that was held goes on, should the program have died


class PlannedError(Exception):
    """An error that programs raise on purpose."""


class Plain(Actor):
    """On a plain thread. `life` tells an actor from those whose place it took."""

    def __init__(self, history: Local[History], mesh: str, place: Sequence[str], broken: Sequence[int], handles: bool):
        instance = context().actor_instance
        self.shared, self.history = history, history.value
        self.actor = (mesh, instance.rank.rank)
        self.life = instance._instance.incarnation
        self.name = f"{mesh}[{self.actor[1]}]~{self.life}"
        self.place = place[self.actor[1]]
        self.handles = handles
        self.meshes: list[Any] = []
        self.history.note(Born(self.actor, self.life))
        if self.actor[1] in broken:
            raise PlannedError("constructed on purpose to fail")

    def handled(self, sender: str, number: int, method: str) -> Receipt:
        self.history.note(Handled(self.actor, self.life, sender, number, method))
        return Receipt(self.actor, self.life, number)

    @endpoint
    def work(self, sender: str, number: int) -> Receipt:
        return self.handled(sender, number, "work")

    @endpoint
    def fail(self, sender: str, number: int) -> None:
        self.handled(sender, number, "fail")
        raise PlannedError(f"number {number}")

    @endpoint
    def abort(self, sender: str, number: int) -> Receipt:
        receipt = self.handled(sender, number, "abort")
        context().actor_instance.abort("on purpose")
        return receipt

    @endpoint
    def leave(self, sender: str, number: int) -> Receipt:
        receipt = self.handled(sender, number, "leave")
        context().actor_instance.stop("on purpose")
        return receipt

    @endpoint
    def exit(self, sender: str, number: int) -> None:
        self.handled(sender, number, "exit")
        raise SystemExit(1)

    @endpoint
    def hold(self, sender: str, number: int, gate: Local[threading.Event]) -> None:
        self.handled(sender, number, "hold")
        gate.value.wait(HELD)

    @endpoint
    def relay(self, sender: str, cast: Cast, target: Any) -> Receipt:
        receipt = self.handled(sender, cast.number, "relay")
        for waiting in send(self.history, self.name, self.place, cast, target):
            hear(self.history, self.name, cast, waiting.get)
        return receipt

    @endpoint
    def adopt(self, sender: str, number: int, spawn: Spawn, procs: Any, places: tuple[str, ...]) -> Any:
        self.handled(sender, number, "adopt")
        mesh = spawn_on(self.shared, spawn, spawn.meshes[0], procs, places)
        self.meshes.append(mesh)
        return mesh

    def __supervise__(self, failure: MeshFailure) -> bool:
        note_failure(self.history, self.name, failure)
        return self.handles

    def __cleanup__(self, exc: Exception | None) -> None:
        self.history.note(Ended(self.actor, self.life, exc is not None))


class Looped(Plain):
    """With an event loop."""

    @endpoint
    async def work(self, sender: str, number: int) -> Receipt:
        return self.handled(sender, number, "work")

    @endpoint
    async def relay(self, sender: str, cast: Cast, target: Any) -> Receipt:
        receipt = self.handled(sender, cast.number, "relay")
        for waiting in send(self.history, self.name, self.place, cast, target):
            await hear_async(self.history, self.name, cast, waiting)
        return receipt


class Concurrent(Looped):
    """With an event loop on which calls overlap."""

    @concurrent_endpoint
    async def relay(self, sender: str, cast: Cast, target: Any) -> Receipt:
        receipt = self.handled(sender, cast.number, "relay")
        for waiting in send(self.history, self.name, self.place, cast, target):
            await hear_async(self.history, self.name, cast, waiting)
        return receipt


CLASSES = {cls.__name__: cls for cls in (Plain, Looped, Concurrent)}


def spawn_on(history: Local[History], spawn: Spawn, mesh: str, procs: Any, places: tuple[str, ...]) -> Any:
    """Spawns one of the operation's meshes, from whatever actor this runs in."""
    return procs.spawn(mesh, CLASSES[spawn.kind], history, mesh, places, spawn.broken, spawn.handles)


def note_failure(history: History, owner: str, failure: MeshFailure) -> None:
    mesh = failure.mesh_name.rpartition("-")[0] or failure.mesh_name
    history.note(Told(owner, mesh, tuple(failure.crashed_ranks), failure.report()))


# --- sending and hearing, in the client and in actors alike


def send(history: History, sender: str, place: str, cast: Cast, target: Any) -> list[Any]:
    """Sends and returns the Futures that were kept: one for each answer."""
    ranks = tuple(range(len(target))) if cast.rank is None else (cast.rank,)
    called = getattr(target, cast.method)
    if cast.deadline is not None:
        called = called.with_timeout(cast.deadline)
    with history.sending(Sent(sender, place, cast.number, cast.mesh, ranks, cast.adverb, cast.method, cast.deadline)):
        made = getattr(called, cast.adverb)(sender, cast.number)
    if cast.adverb == BROADCAST or not cast.kept:
        return []
    return list(made) if cast.adverb == STREAM else [made]


def hear(history: History, sender: str, cast: Cast, get: Any) -> None:
    """Waits for an answer and notes it."""
    try:
        history.note(Heard(sender, cast.number, _receipts(get())))
    except Exception as exc:
        history.note(_failed(sender, cast, exc))


async def hear_async(history: History, sender: str, cast: Cast, future: Any) -> None:
    try:
        history.note(Heard(sender, cast.number, _receipts(await future)))
    except Exception as exc:
        history.note(_failed(sender, cast, exc))


def _receipts(value: Any) -> tuple[Receipt, ...]:
    """Returns those of one actor, or of a ValueMesh in the order of its ranks."""
    return (value,) if isinstance(value, Receipt) else tuple(receipt for _, receipt in value)


def _failed(sender: str, cast: Cast, exc: Exception) -> Heard:
    raised = exc.exception if isinstance(exc, ActorError) else exc
    kind = type(exc).__name__ + (f"({type(raised).__name__})" if raised is not exc else "")
    return Heard(sender, cast.number, (), kind, str(exc))
