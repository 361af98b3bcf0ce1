"""Actors: what makes one, which thread it lives on, in what order it works, how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    EndpointProperty,
    Port,
    ProcMesh,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)
from monarch.config import configured

pytestmark = pytest.mark.procs
TIMEOUT = 30


class Cell(Actor):
    """Async, with everything a test wants to see from outside."""

    kind = "a class attribute"

    def __init__(self, value: Any = 0) -> None:
        self.value = value
        self.log: list[Any] = []

    @endpoint
    async def get(self) -> Any:
        return self.value

    @endpoint
    async def put(self, value: Any) -> None:
        self.value = value

    @endpoint
    async def note(self, what: Any) -> None:
        self.log.append(what)

    @endpoint
    async def notes(self) -> list[Any]:
        return self.log

    @endpoint
    async def hold(self, port: Port[Any]) -> Any:
        """Hands out a port and does not return before something was sent to it."""
        self.log.append("in")
        opened, receiver = Channel[Any].open()
        port.send(opened)
        result = await receiver.recv()
        self.log.append("out")
        return result

    @endpoint
    async def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    def plain(self, n: int) -> Any:
        return self.value, n

    async def plain_async(self, n: int) -> Any:
        await asyncio.sleep(0)
        return self.value, n

    @property
    def doubled(self) -> Any:
        return self.value * 2


class SyncCell(Actor):
    def __init__(self, value: Any = 0) -> None:
        self.value = value
        self.log: list[Any] = []

    @endpoint
    def get(self) -> Any:
        return self.value

    @endpoint
    def note(self, what: Any) -> None:
        self.log.append(what)

    @endpoint
    def notes(self) -> list[Any]:
        return self.log

    @endpoint
    def hold(self, port: Port[Any]) -> Any:
        self.log.append("in")
        opened, receiver = Channel[Any].open()
        port.send(opened)
        result = receiver.recv().get(timeout=TIMEOUT)
        self.log.append("out")
        return result

    async def plain_async(self) -> None: ...


def entered(actor: Any) -> tuple[Any, Port[Any]]:
    """Calls `hold` on a single actor and waits until it is inside: (its Future, a port to let it go on)."""
    port, receiver = Channel[Any].open()
    future = actor.hold.call_one(port)
    return future, receiver.recv().get(timeout=TIMEOUT)


# --- spawn


def test_constructor_arguments_arrive(procs2: ProcMesh) -> None:
    assert procs2.spawn("cell", Cell, {"a": [1]}).get.call().get(timeout=TIMEOUT).values() == [{"a": [1]}] * 2
    assert procs2.spawn("cell", Cell, value=3).get.call().get(timeout=TIMEOUT).values() == [3, 3]


def test_spawn_gives_a_mesh_and_not_an_instance(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("cell", Cell)
    assert isinstance(mesh, ActorMesh) and not isinstance(mesh, Cell)
    assert mesh.extent == procs2.extent and len(mesh) == 2


def test_the_repr_of_a_mesh_names_class_and_shape(procs2: ProcMesh) -> None:
    text = repr(procs2.spawn("cell", Cell))
    assert text.startswith("ActorMesh(class=") and "Cell" in text and "gpus=2" in text


class HeldInit(Actor):
    """Its constructor ends when the test says so."""

    def __init__(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        self.value = receiver.recv().get(timeout=TIMEOUT)

    @endpoint
    def get(self) -> Any:
        return self.value


def test_spawn_and_initialized_do_not_wait_for_the_constructor_but_endpoints_do(proc: ProcMesh) -> None:
    port, receiver = Channel[Any].open()
    mesh = proc.spawn("held", HeldInit, port)
    release = receiver.recv().get(timeout=TIMEOUT)
    assert mesh.initialized.get(timeout=TIMEOUT) is None
    value = mesh.get.call_one()
    release.send("late")
    assert value.get(timeout=TIMEOUT) == "late"


def test_equal_names_give_independent_meshes(proc: ProcMesh) -> None:
    first, second = proc.spawn("same", Cell, 1), proc.spawn("same", Cell, 2)
    assert first.get.call_one().get(timeout=TIMEOUT) == 1
    assert second.get.call_one().get(timeout=TIMEOUT) == 2
    assert first._name.get(timeout=TIMEOUT) != second._name.get(timeout=TIMEOUT)
    assert first._name.get(timeout=TIMEOUT).startswith("same-")


@pytest.mark.parametrize("name", ["", "two words", "größe-\N{SNOWMAN}", "a/b<c>.d", "x" * 300])
def test_any_string_is_a_name(proc: ProcMesh, name: str) -> None:
    assert proc.spawn(name, Cell, 4).get.call_one().get(timeout=TIMEOUT) == 4


# --- checks when spawning


class NoActor:
    pass


@pytest.mark.parametrize("thing", [NoActor, 3, Cell.plain])
def test_only_subclasses_of_actor_are_spawned(proc: ProcMesh, thing: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="must subclass"):
        proc.spawn("thing", thing)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [((1, 2), {}, "too many positional"), ((), {"speed": 1}, "unexpected keyword argument 'speed'")],
)
def test_constructor_arguments_that_do_not_fit_are_refused_at_the_call(
    proc: ProcMesh, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        proc.spawn("cell", Cell, *args, **kwargs)


class Needs(Actor):
    def __init__(self, needed: int) -> None: ...


def test_a_missing_constructor_argument_is_named(proc: ProcMesh) -> None:
    with pytest.raises(TypeError, match="needed"):
        proc.spawn("needs", Needs)


RESERVED = ["slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized"]
FREE = ["get", "name", "call", "send", "rank", "id", "items", "values", "keys", "shutdown", "spawn", "logger"]


async def _named(self: Any) -> str:
    return "here"


def _actor_with(name: str) -> Any:
    return type("Named", (Actor,), {name: endpoint(_named)})


@pytest.mark.parametrize("name", RESERVED)
def test_an_endpoint_cannot_have_the_name_of_a_mesh_attribute(proc: ProcMesh, name: str) -> None:
    with pytest.raises(ValueError, match=f"ActorMesh has an attribute that collides with an endpoint name.*{name}"):
        proc.spawn("named", _actor_with(name))


@pytest.mark.parametrize("name", FREE)
def test_other_names_are_free_for_endpoints(proc: ProcMesh, name: str) -> None:
    mesh = proc.spawn("named", _actor_with(name))
    assert getattr(mesh, name).call_one().get(timeout=TIMEOUT) == "here"


# --- what is and is not an endpoint


def test_a_method_that_is_no_endpoint_says_so_when_called(proc: ProcMesh) -> None:
    mesh = proc.spawn("cell", Cell)
    with pytest.raises(RuntimeError, match="is not annotated as an endpoint"):
        mesh.plain(1)
    assert not hasattr(mesh.plain, "call")


@pytest.mark.parametrize("name", ["doubled", "kind"])
def test_properties_and_class_attributes_are_no_endpoints_either(proc: ProcMesh, name: str) -> None:
    with pytest.raises(RuntimeError, match="is not annotated as an endpoint"):
        getattr(proc.spawn("cell", Cell), name)()


@pytest.mark.parametrize("name", ["value", "nothing_like_it"])
def test_what_the_class_does_not_have_is_an_attribute_error(proc: ProcMesh, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(proc.spawn("cell", Cell), name)


def test_an_endpoint_itself_is_not_callable(proc: ProcMesh) -> None:
    with pytest.raises(TypeError, match="not callable"):
        proc.spawn("cell", Cell).get()  # type: ignore[operator]


class Undecorated(Cell):
    async def get(self) -> Any:  # type: ignore[override]
        return "overridden"


def test_overriding_an_endpoint_without_the_decorator_makes_it_none(proc: ProcMesh) -> None:
    with pytest.raises(RuntimeError, match="is not annotated as an endpoint"):
        proc.spawn("cell", Undecorated).get()  # type: ignore[unused-coroutine]


class Derived(Cell):
    @endpoint
    async def get(self) -> Any:
        return ["derived", await super().get()]


def test_endpoints_are_inherited_and_super_works(proc: ProcMesh) -> None:
    mesh = proc.spawn("cell", Derived, 1)
    assert mesh.get.call_one().get(timeout=TIMEOUT) == ["derived", 1]
    mesh.put.call_one(2).get(timeout=TIMEOUT)
    assert mesh.get.call_one().get(timeout=TIMEOUT) == ["derived", 2]


class Options(Actor):
    @endpoint
    def bare(self) -> None: ...

    @endpoint(propagate="inspect", explicit_response_port=True, instrument=False)
    def full(self, port: Port[int], n: int) -> None:
        port.send(n)

    @concurrent_endpoint
    async def overlapping(self) -> None: ...


def test_the_descriptor_shows_the_options() -> None:
    assert isinstance(Options.bare, EndpointProperty)
    bare, full = Options.bare, Options.full
    assert (bare._propagator, bare._explicit_response_port, bare._instrument) == (None, False, True)
    assert (full._propagator, full._explicit_response_port, full._instrument) == ("inspect", True, False)
    assert Options.overlapping._explicit_response_port is True


def test_the_method_behind_a_descriptor_can_be_called() -> None:
    assert Options.bare._method(None) is None


def test_an_endpoint_with_every_option_works(proc: ProcMesh) -> None:
    assert proc.spawn("options", Options).full.call_one(3).get(timeout=TIMEOUT) == 3


def test_the_explicit_port_is_left_out_of_the_argument_check(proc: ProcMesh) -> None:
    with pytest.raises(TypeError, match="too many positional"):
        proc.spawn("options", Options).full.call_one(3, 4)


class SelfCaller(Actor):
    @endpoint
    def plain(self, n: int) -> list[Any]:
        return ["plain", n]

    @endpoint
    async def awaited(self, n: int) -> list[Any]:
        return ["awaited", n]

    @endpoint
    async def both(self, n: int) -> list[Any]:
        return [self.plain(n), await self.awaited(n=n), type(self).plain._method(self, n)]


def test_self_dot_endpoint_calls_the_method_here(proc: ProcMesh) -> None:
    result = proc.spawn("caller", SelfCaller).both.call_one(1).get(timeout=TIMEOUT)
    assert result == [["plain", 1], ["awaited", 1], ["plain", 1]]


# --- as_endpoint


def test_as_endpoint_gives_a_method_every_adverb(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("cell", Cell, 7)
    plain = as_endpoint(mesh.plain)
    assert plain.call(1).get(timeout=TIMEOUT).values() == [(7, 1), (7, 1)]
    assert plain.choose(2).get(timeout=TIMEOUT) == (7, 2)
    assert [f.get(timeout=TIMEOUT) for f in plain.stream(3)] == [(7, 3), (7, 3)]
    assert as_endpoint(mesh.slice(gpus=1).plain_async).call_one(n=4).get(timeout=TIMEOUT) == (7, 4)


def test_as_endpoint_takes_methods_of_actor_meshes_only(proc: ProcMesh) -> None:
    for thing in (print, Cell.plain, proc.spawn("cell", Cell).get, 3):
        with pytest.raises(ValueError, match=r"expected an? method of a spawned actor"):
            as_endpoint(thing)  # type: ignore[arg-type]


def test_as_endpoint_finds_wrong_arguments_on_the_other_side(proc: ProcMesh) -> None:
    with pytest.raises(ActorError, match="plain"):
        as_endpoint(proc.spawn("cell", Cell).plain).call_one(1, 2, 3).get(timeout=TIMEOUT)


def test_an_async_method_needs_an_actor_with_a_loop(proc: ProcMesh) -> None:
    with pytest.raises(ActorError, match="has no event loop to run on") as caught:
        as_endpoint(proc.spawn("cell", SyncCell).plain_async).call_one().get(timeout=TIMEOUT)
    assert isinstance(caught.value.exception, TypeError)


# --- threads and loops


def _loop_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _where() -> tuple[int, bool, bool]:
    """(thread, whether it is the main one, whether a loop is running in it)"""
    return threading.get_ident(), threading.current_thread() is threading.main_thread(), _loop_here()


class SyncThreads(Actor):
    def __init__(self) -> None:
        self.seen = [_where()]
        self.local = threading.local()
        self.local.value = "kept"

    @endpoint
    def where(self) -> list[tuple[int, bool, bool]]:
        self.seen.append(_where())
        return self.seen

    @endpoint
    def kept(self) -> str:
        return self.local.value

    @endpoint
    def run_a_loop(self) -> bool:
        async def main() -> bool:
            return _loop_here()

        return asyncio.run(main())

    @endpoint
    def warnings_of_get(self, cell: Any) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cell.get.call_one().get(timeout=TIMEOUT)
        return len(caught)


class AsyncThreads(Actor):
    def __init__(self) -> None:
        self.seen = [_where()]
        self.loop = asyncio.get_running_loop()

    @endpoint
    async def where(self) -> list[tuple[int, bool, bool]]:
        self.seen.append(_where())
        return self.seen

    @endpoint
    async def same_loop(self) -> bool:
        return asyncio.get_running_loop() is self.loop

    @endpoint
    async def warnings_of_get(self, cell: Any) -> list[tuple[str, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cell.get.call_one().get(timeout=TIMEOUT)
        return [(w.category.__name__, str(w.message)) for w in caught]


class MixedThreads(Actor):
    def __init__(self) -> None:
        self.seen = [_where()]

    @endpoint
    async def awaited(self) -> None:
        await asyncio.sleep(0)
        self.seen.append(_where())

    @endpoint
    def plain(self) -> None:
        self.seen.append(_where())

    @endpoint
    def all(self) -> list[tuple[int, bool, bool]]:
        return self.seen


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


def test_plain_and_async_endpoints_share_the_thread_and_plain_ones_see_no_loop(proc: ProcMesh) -> None:
    mesh = proc.spawn("threads", MixedThreads)
    mesh.plain.broadcast()
    mesh.awaited.broadcast()
    mesh.plain.broadcast()
    seen = mesh.all.call_one().get(timeout=TIMEOUT)
    assert len({thread for thread, _, _ in seen}) == 1
    assert [loop for _, _, loop in seen] == [True, False, True, False]


def test_actors_of_one_process_have_threads_of_their_own(proc: ProcMesh) -> None:
    meshes = [proc.spawn("threads", kind) for kind in (SyncThreads, SyncThreads, AsyncThreads, AsyncThreads)]
    assert len({m.where.call_one().get(timeout=TIMEOUT)[0][0] for m in meshes}) == 4


def test_thread_locals_last_from_call_to_call(proc: ProcMesh) -> None:
    assert proc.spawn("threads", SyncThreads).kept.call_one().get(timeout=TIMEOUT) == "kept"


def test_a_sync_endpoint_may_run_a_loop_of_its_own(proc: ProcMesh) -> None:
    assert proc.spawn("threads", SyncThreads).run_a_loop.call_one().get(timeout=TIMEOUT) is True


def test_get_warns_where_a_loop_runs_and_only_there(proc: ProcMesh) -> None:
    cell = proc.spawn("cell", Cell)
    assert proc.spawn("threads", SyncThreads).warnings_of_get.call_one(cell).get(timeout=TIMEOUT) == 0
    ((category, text),) = proc.spawn("threads", AsyncThreads).warnings_of_get.call_one(cell).get(timeout=TIMEOUT)
    assert category == "UserWarning"
    assert "Future.get() was called from within an active event loop" in text


# --- mixed kinds are allowed


class MixedHooks(Actor):
    """Sync endpoints, async cleanup."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def get(self) -> str:
        return "here"

    async def __cleanup__(self, exc: Exception | None) -> None:
        await asyncio.sleep(0)
        Path(self.path).write_text(f"async cleanup {exc}")


class MixedHooksOther(Actor):
    """Async endpoints, sync cleanup."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def get(self) -> str:
        return "here"

    def __cleanup__(self, exc: Exception | None) -> None:
        Path(self.path).write_text(f"sync cleanup {exc}")


@pytest.mark.parametrize(("kind", "text"), [(MixedHooks, "async cleanup None"), (MixedHooksOther, "sync cleanup None")])
def test_hooks_and_endpoints_may_be_of_different_kinds(
    proc: ProcMesh, tmp_path: Path, kind: type[MixedHooks], text: str
) -> None:
    mesh = proc.spawn("mixed", kind, str(tmp_path / "said"))
    assert mesh.get.call_one().get(timeout=TIMEOUT) == "here"
    mesh.stop().get(timeout=TIMEOUT)
    assert (tmp_path / "said").read_text() == text


# --- one message at a time


@pytest.mark.parametrize("kind", [Cell, SyncCell])
def test_the_next_endpoint_starts_when_the_one_before_has_ended(proc: ProcMesh, kind: type[Cell]) -> None:
    mesh = proc.spawn("cell", kind)
    held, release = entered(mesh)
    mesh.note.broadcast("next")
    log = mesh.notes.call_one()
    release.send("done")
    assert held.get(timeout=TIMEOUT) == "done"
    assert log.get(timeout=TIMEOUT) == ["in", "out", "next"]


@pytest.mark.parametrize("kind", [Cell, SyncCell])
def test_a_held_actor_does_not_hold_the_others_of_its_process(proc: ProcMesh, kind: type[Cell]) -> None:
    held, release = entered(proc.spawn("held", kind))
    for other in (Cell, SyncCell):
        assert proc.spawn("free", other, 2).get.call_one().get(timeout=TIMEOUT) == 2
    release.send(None)
    held.get(timeout=TIMEOUT)


class Recursive(Actor):
    @endpoint
    async def nothing(self) -> None: ...

    @endpoint
    async def call_me(self, me: Any) -> str:
        try:
            await me.nothing.with_timeout(0.2).call_one()
        except TimeoutError:
            return "nobody answered"
        return "answered"


def test_an_actor_that_waits_for_a_call_of_itself_waits_in_vain(proc: ProcMesh) -> None:
    mesh = proc.spawn("recursive", Recursive)
    assert mesh.call_me.call_one(mesh).get(timeout=TIMEOUT) == "nobody answered"
    assert mesh.nothing.call_one().get(timeout=TIMEOUT) is None


class Background(Actor):
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.result: Any = None

    @endpoint
    async def begin(self) -> None:
        async def later() -> None:
            await self.gate.wait()
            self.result = dict(current_rank())

        self.task = asyncio.create_task(later())

    @endpoint
    async def finish(self) -> Any:
        self.gate.set()
        await self.task
        return self.result, dict(current_rank())


def test_a_background_task_goes_on_and_keeps_the_context_of_its_message(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("background", Background)
    mesh.begin.call().get(timeout=TIMEOUT)
    one = mesh.slice(gpus=1)
    assert one.finish.call_one().get(timeout=TIMEOUT) == ({"gpus": 1}, {})


# --- concurrent endpoints


class Overlap(Actor):
    def __init__(self, log: str | None = None) -> None:
        self.started: list[Any] = []
        self.all_here = asyncio.Event()
        self.path = log
        self.log: list[str] = []

    @concurrent_endpoint
    async def meet(self, count: int, name: Any = None) -> list[Any]:
        self.started.append(name)
        if len(self.started) == count:
            self.all_here.set()
        await self.all_here.wait()
        return self.started

    @concurrent_endpoint
    async def forever(self, port: Port[Any]) -> None:
        try:
            port.send("in")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    @concurrent_endpoint
    async def fail(self) -> None:
        raise ValueError("while others run")

    @concurrent_endpoint(explicit_response_port=True)
    async def through_port(self, port: Port[Any], value: Any) -> None:
        await asyncio.sleep(0)
        port.send(value)

    @concurrent_endpoint(explicit_response_port=True)
    async def fail_with_port(self, port: Port[Any]) -> None:
        raise ValueError("escaped")

    @endpoint
    async def get(self) -> str:
        return "alive"

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.path:
            Path(self.path).write_text(" ".join([*self.log, "cleanup", str(exc)]))


def test_concurrent_calls_overlap(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    calls = [mesh.meet.call_one(3) for _ in range(3)]
    assert [len(c.get(timeout=TIMEOUT)) for c in calls] == [3, 3, 3]


def test_concurrent_calls_start_in_the_order_sent(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    calls = [mesh.meet.call_one(20, n) for n in range(20)]
    assert calls[-1].get(timeout=TIMEOUT) == list(range(20))


def test_other_endpoints_run_while_a_concurrent_one_waits(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    waiting = mesh.meet.call_one(2)
    assert mesh.get.call_one().get(timeout=TIMEOUT) == "alive"
    mesh.meet.broadcast(2)
    assert len(waiting.get(timeout=TIMEOUT)) == 2


def test_an_exception_of_a_concurrent_endpoint_goes_to_the_caller(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    with pytest.raises(ActorError, match="while others run") as caught:
        mesh.fail.call_one().get(timeout=TIMEOUT)
    assert caught.value.message == "Actor call overlap.fail failed."
    assert mesh.get.call_one().get(timeout=TIMEOUT) == "alive"


def test_an_exception_of_a_concurrent_broadcast_is_no_failure(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    mesh.fail.broadcast()
    with pytest.raises(ActorError):
        mesh.fail.call_one().get(timeout=TIMEOUT)
    assert mesh.get.call_one().get(timeout=TIMEOUT) == "alive"


def test_a_concurrent_endpoint_may_answer_through_its_port(proc: ProcMesh) -> None:
    assert proc.spawn("overlap", Overlap).through_port.call_one(5).get(timeout=TIMEOUT) == 5


def test_an_exception_beside_an_explicit_port_is_a_failure_of_the_actor(proc: ProcMesh, faults: Any) -> None:
    mesh = proc.spawn("overlap", Overlap)
    with pytest.raises(SupervisionError, match="escaped"):
        mesh.fail_with_port.call_one().get(timeout=TIMEOUT)
    assert "escaped" in faults.next(handled=True).report()


def test_stop_cancels_concurrent_calls_before_cleanup(proc: ProcMesh, tmp_path: Path) -> None:
    mesh = proc.spawn("overlap", Overlap, str(tmp_path / "log"))
    port, receiver = Channel[str].open()
    waiting = mesh.forever.call_one(port)
    receiver.recv().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    assert (tmp_path / "log").read_text() == "cancelled cleanup None"
    with pytest.raises(SupervisionError, match="stopped"):
        waiting.get(timeout=TIMEOUT)


def test_only_async_methods_can_be_concurrent() -> None:
    with pytest.raises(ValueError, match="can only wrap async endpoints"):

        @concurrent_endpoint
        def plain(self: Any) -> None: ...


def test_concurrent_endpoint_does_not_stack_with_endpoint() -> None:
    with pytest.raises(ValueError, match="does not wrap @endpoint"):

        @concurrent_endpoint
        @endpoint
        async def both(self: Any) -> None: ...


# --- the instance


class Inside(Actor):
    @endpoint
    def mesh_attributes(self) -> dict[str, str]:
        said = {}
        for name in ("sizes", "extent", "initialized"):
            try:
                getattr(self, name)
            except NotImplementedError as exc:
                said[name] = str(exc)
        for name in ("slice", "flatten", "stop", "size"):
            try:
                getattr(self, name)(*(["x"] if name == "flatten" else []))
            except NotImplementedError as exc:
                said[name] = str(exc)
        return said

    @endpoint
    def logger_facts(self) -> tuple[str, int, bool]:
        return self.logger.name, self.logger.level, self.logger is self.logger

    @endpoint
    def class_attribute(self) -> bool:
        return isinstance(type(self).logger_facts, EndpointProperty)


def test_an_instance_is_not_a_mesh(proc: ProcMesh) -> None:
    said = proc.spawn("inside", Inside).mesh_attributes.call_one().get(timeout=TIMEOUT)
    assert set(said) == {"sizes", "extent", "initialized", "slice", "flatten", "stop", "size"}
    assert all("actor implementations are not meshes" in text for text in said.values())


def test_every_actor_has_a_logger_of_its_class(proc: ProcMesh) -> None:
    assert proc.spawn("inside", Inside).logger_facts.call_one().get(timeout=TIMEOUT) == (
        "Inside",
        logging.DEBUG,
        True,
    )


# --- hooks


class InitFacts(Actor):
    def __init__(self) -> None:
        at = context()
        self.facts = (
            dict(current_rank()),
            dict(at.actor_instance.rank),
            at.message_rank.rank,
            at.actor_instance.name,
        )

    @endpoint
    async def get(self) -> Any:
        return self.facts


def test_the_constructor_knows_where_it_is(procs2: ProcMesh) -> None:
    facts = procs2.spawn("facts", InitFacts).get.call().get(timeout=TIMEOUT).values()
    assert facts == [({"gpus": n}, {"gpus": n}, n, "facts") for n in range(2)]


class SendsInInit(Actor):
    def __init__(self, cell: Any) -> None:
        cell.note.broadcast("from init")
        cell.note.call_one("and waited for").get(timeout=TIMEOUT)

    @endpoint
    def get(self) -> None: ...


def test_what_the_constructor_sends_arrives(proc: ProcMesh) -> None:
    cell = proc.spawn("cell", Cell)
    proc.spawn("sender", SendsInInit, cell).get.call_one().get(timeout=TIMEOUT)
    assert cell.notes.call_one().get(timeout=TIMEOUT) == ["from init", "and waited for"]


class Journal(Actor):
    """Writes down what happens to it."""

    def __init__(self, path: str, name: str = "me", fail: bool = False) -> None:
        self.path, self.name = path, name
        self.write("init")
        if fail:
            raise OSError("in the constructor")
        self.child: Any = None

    def write(self, what: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{self.name} {what}\n")

    @endpoint
    async def have_child(self) -> None:
        self.child = this_host().spawn_procs().spawn("child", Journal, self.path, "child")
        await self.child.get.call_one()

    @endpoint
    async def get(self) -> str:
        return self.name

    @endpoint
    async def hold(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        try:
            await receiver.recv()
        except asyncio.CancelledError:
            self.write("cancelled")
            raise
        self.write("finished")

    @endpoint
    def hold_sync(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        receiver.recv().get(timeout=TIMEOUT)
        self.write("finished")

    @endpoint
    async def note(self, what: str) -> None:
        self.write(what)

    @endpoint
    async def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    async def end(self, how: str, reason: str | None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "replied"

    async def __cleanup__(self, exc: Exception | None) -> None:
        await asyncio.sleep(0)
        self.write("cleanup " + ("None" if exc is None else "Exception"))


def test_cleanup_runs_once_when_an_actor_is_stopped(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    assert mesh.stop().get(timeout=TIMEOUT) is None
    assert mesh.stop().get(timeout=TIMEOUT) is None
    assert journal.read_text().splitlines() == ["me init", "me cleanup None"]


def test_cleanup_of_a_failed_actor_gets_an_exception(proc: ProcMesh, journal: Path, faults: Any) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    mesh.fail.broadcast()
    assert "as asked" in faults.next().report()
    assert journal.read_text().splitlines() == ["me init", "me cleanup Exception"]


def test_an_actor_whose_constructor_failed_is_not_cleaned_up(proc: ProcMesh, journal: Path, faults: Any) -> None:
    mesh = proc.spawn("journal", Journal, str(journal), fail=True)
    with pytest.raises(SupervisionError, match="in the constructor"):
        mesh.get.call_one().get(timeout=TIMEOUT)
    assert "in the constructor" in faults.next(handled=True).report()
    assert mesh.initialized.get(timeout=TIMEOUT) is None
    mesh.stop().get(timeout=TIMEOUT)
    assert journal.read_text().splitlines() == ["me init"]


def test_what_an_actor_owns_is_stopped_before_its_cleanup(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal), "parent")
    mesh.have_child.call_one().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    lines = journal.read_text().splitlines()
    assert lines == ["parent init", "child init", "child cleanup None", "parent cleanup None"]


class SlowCleanup(Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def get(self) -> None: ...

    async def __cleanup__(self, exc: Exception | None) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Path(self.path).write_text("cut short")
            raise


def test_an_endless_cleanup_is_cut_short(spawn_procs: Any, tmp_path: Path, faults: Any) -> None:
    with configured(cleanup_timeout="200ms"):
        procs = spawn_procs()
        mesh = procs.spawn("slow", SlowCleanup, str(tmp_path / "said"))
        mesh.get.call_one().get(timeout=TIMEOUT)
    assert mesh.stop().get(timeout=TIMEOUT) is None
    assert (tmp_path / "said").read_text() == "cut short"


# --- stopping


def test_stop_cancels_the_async_endpoint_in_progress_and_drops_the_queue(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    held, _release = entered(mesh)
    queued = mesh.note.call_one("never")
    mesh.stop("no more").get(timeout=TIMEOUT)
    for future in (held, queued, mesh.get.call_one()):
        with pytest.raises(SupervisionError, match="stopped"):
            future.get(timeout=TIMEOUT)
    assert journal.read_text().splitlines() == ["me init", "me cancelled", "me cleanup None"]


def test_a_sync_endpoint_in_progress_runs_to_its_end(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    port, receiver = Channel[Any].open()
    mesh.hold_sync.call_one(port)
    release = receiver.recv().get(timeout=TIMEOUT)
    stopped = mesh.stop()
    release.send(None)
    stopped.get(timeout=TIMEOUT)
    assert journal.read_text().splitlines() == ["me init", "me finished", "me cleanup None"]


def test_calls_on_a_stopped_actor_name_the_endpoint_and_the_reason(proc: ProcMesh) -> None:
    mesh = proc.spawn("cell", Cell)
    mesh.stop("done with it").get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError) as caught:
        mesh.get.call_one().get(timeout=TIMEOUT)
    assert "cell" in str(caught.value) and "get()" in str(caught.value)
    assert "stopped: done with it" in str(caught.value)


def test_the_process_goes_on_when_an_actor_is_stopped(proc: ProcMesh) -> None:
    proc.spawn("cell", Cell).stop().get(timeout=TIMEOUT)
    assert proc.spawn("cell", Cell, 1).get.call_one().get(timeout=TIMEOUT) == 1


def test_an_actor_that_stops_itself_replies_first(proc: ProcMesh, journal: Path) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    assert mesh.end.call_one("stop", "work is done").get(timeout=TIMEOUT) == "replied"
    with pytest.raises(SupervisionError, match="stopped: work is done"):
        mesh.get.call_one().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)  # callers are told before its cleanup runs, this one after
    assert journal.read_text().splitlines() == ["me init", "me cleanup None"]


@pytest.mark.parametrize(("reason", "text"), [("lost faith", "lost faith"), (None, "no reason provided")])
@pytest.mark.parametrize("how", ["abort", "kill"])
def test_an_actor_that_aborts_itself_replies_first_and_has_failed(
    proc: ProcMesh, faults: Any, journal: Path, how: str, reason: str | None, text: str
) -> None:
    mesh = proc.spawn("journal", Journal, str(journal))
    assert mesh.end.call_one(how, reason).get(timeout=TIMEOUT) == "replied"
    assert text in faults.next().report()
    with pytest.raises(SupervisionError, match=text):
        mesh.get.call_one().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_references_cannot_be_stopped(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("cell", Cell)
    references = [
        mesh.slice(gpus=0),
        mesh.rename(gpus="ranks"),
        mesh.flatten("ranks"),
        mesh.split(gpus=("x", "y"), x=2),
        cloudpickle.loads(cloudpickle.dumps(mesh)),
    ]
    for reference in references:
        with pytest.raises(
            NotImplementedError, match="Cannot call stop on an ActorMeshRef, requires an owned ActorMesh"
        ):
            reference.stop().get(timeout=TIMEOUT)
    assert mesh.get.call().get(timeout=TIMEOUT).values() == [0, 0]


# --- meshes as values


def test_a_pickled_actor_mesh_calls_the_same_actors(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("cell", Cell)
    copy = cloudpickle.loads(cloudpickle.dumps(mesh))
    copy.put.call("through the copy").get(timeout=TIMEOUT)
    assert mesh.get.call().get(timeout=TIMEOUT).values() == ["through the copy"] * 2
    assert copy.extent == mesh.extent


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


# --- controllers


class ControllerUser(Actor):
    @endpoint
    async def use(self, name: str) -> tuple[int, Any]:
        found = await get_or_spawn_controller(name, Inhabitant, "from an actor")
        return await found.pid.call_one(), await found.get.call_one()


class Inhabitant(Actor):
    def __init__(self, value: Any = None) -> None:
        self.value = value

    @endpoint
    def get(self) -> Any:
        return self.value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("a controller failed")


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


def test_a_controller_is_a_reference(proc: ProcMesh) -> None:
    found = get_or_spawn_controller("reference", Inhabitant).get(timeout=TIMEOUT)
    assert len(found) == 1 and dict(found.sizes) == {}
    with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef"):
        found.stop().get(timeout=TIMEOUT)


def test_a_failed_controller_harms_nobody_else(proc: ProcMesh) -> None:
    other = get_or_spawn_controller("sound", Inhabitant, "sound").get(timeout=TIMEOUT)
    found = get_or_spawn_controller("frail", Inhabitant).get(timeout=TIMEOUT)
    found.fail.broadcast()
    with pytest.raises(SupervisionError, match="a controller failed"):
        found.get.call_one().get(timeout=TIMEOUT)
    with pytest.raises(ActorError, match="Failure on frail"):
        get_or_spawn_controller("frail", Inhabitant).get(timeout=TIMEOUT)
    assert other.get.call_one().get(timeout=TIMEOUT) == "sound"
    fresh = get_or_spawn_controller("after a failure", Inhabitant, 1).get(timeout=TIMEOUT)
    assert fresh.get.call_one().get(timeout=TIMEOUT) == 1


def test_actors_on_this_proc_are_actors_like_others() -> None:
    mesh = this_proc().spawn("cell", Cell, 1)
    held, release = entered(mesh)
    mesh.note.broadcast("next")
    release.send("done")
    assert held.get(timeout=TIMEOUT) == "done"
    assert mesh.notes.call_one().get(timeout=TIMEOUT) == ["in", "out", "next"]
    mesh.stop().get(timeout=TIMEOUT)
