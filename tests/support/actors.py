"""Actors of tests in memory that do what the test says and write down what happens to them, and a gate to hold them still."""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    MeshFailure,
    Port,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
)
from monarch.testing import Local
from tests.support.patience import TIMEOUT

Action = Local[Callable[..., Any]]


class Script:
    """A script of what the hooks of actors do, and what happened to them in order: shared between a test and its actors."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        self.hooks = hooks
        self.happened: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def note(self, *what: Any) -> None:
        """Writes down what happened: a tuple, or one thing alone."""
        self.happened.put(what[0] if len(what) == 1 else what)

    def act(self, hook: str, actor: Any, *args: Any, default: Any = None) -> Any:
        action = self.hooks.get(hook)
        return default if action is None else action(actor, *args)

    def run(self, hook: str, default: Any, actor: Any, *args: Any) -> Any:
        """Writes down that the hook was called, and does what it does."""
        self.note(hook, *args)
        return self.act(hook, actor, *args, default=default)

    def next(self) -> Any:
        """Returns what happened next; waits for it."""
        return self.happened.get(timeout=TIMEOUT)

    def until(self, *what: Any) -> list[Any]:
        """Returns what happened up to an event that begins like this, and that event; waits for it."""
        found = [self.next()]
        while (found[-1] if isinstance(found[-1], tuple) else (found[-1],))[: len(what)] != what:
            found.append(self.next())
        return found

    def next_supervised(self) -> MeshFailure:
        hook, failure = self.next()
        assert hook == "supervise"
        return failure  # type: ignore[no-any-return]

    def rest(self) -> list[Any]:
        """Returns what happened and was not taken yet, without waiting."""
        found = []
        while not self.happened.empty():
            found.append(self.happened.get_nowait())
        return found


Scripted = Local[Script]


class Gate:
    """Actors and hooks wait at it, blocking their threads: all that come there, or from the `held`-th on."""

    def __init__(self, held: int = 1) -> None:
        self.held = held
        self.came = 0
        self.entered = threading.Event()
        self.opened = threading.Event()

    def stand(self, *_: Any) -> None:
        """Serves as a hook of a script as well."""
        self.came += 1
        if self.came >= self.held:
            self.entered.set()
            assert self.opened.wait(TIMEOUT)

    def hold(self, mesh: Any) -> Any:
        """Holds a mesh of one still, from now on; returns the Future of that call."""
        future = mesh.do.call_one(Local(lambda actor: self.stand()))
        self.reached()
        return future

    def reached(self) -> None:
        assert self.entered.wait(TIMEOUT)

    def open(self) -> None:
        self.opened.set()


async def awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def do(mesh: Any, action: Callable[..., Any], *args: Any) -> Any:
    """Has a mesh of one run `action(actor, *args)` and waits for the result."""
    return mesh.do.call_one(Local(action), *args).get(TIMEOUT)


def raising(exc: BaseException) -> Callable[..., Any]:
    def action(*_: Any) -> Any:
        raise exc

    return action


def values(mesh: Any, method: str, *args: Any) -> list[Any]:
    """Calls all of a mesh and waits for the results."""
    return [value for _, value in getattr(mesh, method).call(*args).get(TIMEOUT)]


class Recorder(Actor):
    """Keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def add(self, value: Any = None) -> int:
        self.seen.append(value)
        return len(self.seen)

    @endpoint
    def all(self) -> list[Any]:
        return self.seen

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    @endpoint
    def do(self, action: Action, *args: Any) -> Any:
        return action.value(self, *args)


class Sync(Actor):
    """On a plain thread. Overrides no `__supervise__`."""

    def __init__(self, script: Scripted | None = None) -> None:
        self.script = Script() if script is None else script.value
        self.script.run("init", None, self)

    @endpoint
    def do(self, action: Action, *args: Any) -> Any:
        return action.value(self, *args)

    @endpoint
    def ping(self) -> str:
        return "pong"

    @endpoint
    def note(self, what: Any) -> None:
        self.script.note(what)

    @endpoint(explicit_response_port=True)
    def explicit(self, port: Port[Any], action: Action) -> None:
        action.value(self, port)

    def __cleanup__(self, exc: Exception | None) -> None:
        self.script.run("cleanup", None, self, exc)

    def _handle_undeliverable_message(self, envelope: Any) -> Any:
        return self.script.run("undeliverable", True, self, envelope)


class SyncOwner(Sync):
    """Handles failures unless its script says otherwise."""

    def __supervise__(self, failure: MeshFailure) -> Any:
        return self.script.run("supervise", True, self, failure)


class Async(Actor):
    """On an event loop. Overrides no `__supervise__`."""

    def __init__(self, script: Scripted | None = None) -> None:
        self.script = Script() if script is None else script.value
        self.script.run("init", None, self)

    @endpoint
    async def do(self, action: Action, *args: Any) -> Any:
        return await awaited(action.value(self, *args))

    @endpoint
    async def ping(self) -> str:
        return "pong"

    @endpoint
    async def note(self, what: Any) -> None:
        self.script.note(what)

    @endpoint(explicit_response_port=True)
    async def explicit(self, port: Port[Any], action: Action) -> None:
        await awaited(action.value(self, port))

    async def __cleanup__(self, exc: Exception | None) -> None:
        await awaited(self.script.run("cleanup", None, self, exc))

    async def _handle_undeliverable_message(self, envelope: Any) -> Any:
        return await awaited(self.script.run("undeliverable", True, self, envelope))


class AsyncOwner(Async):
    async def __supervise__(self, failure: MeshFailure) -> Any:
        return await awaited(self.script.run("supervise", True, self, failure))


class MixedOwner(Async):
    """Its endpoints are async, its `__supervise__` is not."""

    def __supervise__(self, failure: MeshFailure) -> Any:
        return self.script.run("supervise", True, self, failure)


class Concurrent(Async):
    @concurrent_endpoint
    async def do(self, action: Action, *args: Any) -> Any:
        return await awaited(action.value(self, *args))

    @concurrent_endpoint(explicit_response_port=True)
    async def explicit(self, port: Port[Any], action: Action) -> None:
        await awaited(action.value(self, port))


def own(owner: Any, kind: Any = Sync, script: Script | None = None, name: str = "child", **size: int) -> Any:
    """Has `owner` spawn processes and actors there; a reference to them, once they live."""
    spawned = Local(script or Script())

    def spawn_it(actor: Any) -> Any:
        procs = this_host().spawn_procs(size or {"gpus": 2}, name="owned")
        return procs.spawn(name, kind, spawned)

    child = do(owner, spawn_it)
    child.ping.call().get(TIMEOUT)
    return child


def fails(future: Any, match: str | None = None, error: type[BaseException] = SupervisionError) -> str:
    """Waits for a Future that is to raise; returns the text of what it raised."""
    with pytest.raises(error, match=match) as caught:
        future.get(TIMEOUT)
    return str(caught.value)
