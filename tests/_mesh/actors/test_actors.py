"""Actors: what makes one, what is an endpoint, in what order it works. How one fails and ends: tests/_mesh/failures."""

from __future__ import annotations

import asyncio
import logging
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
)
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT
from tests.support.threads import where

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


@pytest.fixture
def proc(cluster: InProcessCluster) -> ProcMesh:
    return cluster.this_host().spawn_procs()


@pytest.fixture
def procs2(cluster: InProcessCluster) -> ProcMesh:
    return cluster.this_host().spawn_procs({"gpus": 2})


class Cell(Actor):
    """Async, with everything a test wants to see from outside."""

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

    def plain(self, n: int) -> Any:
        return self.value, n

    async def plain_async(self, n: int) -> Any:
        await asyncio.sleep(0)
        return self.value, n


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


def test_spawn_gives_a_mesh_and_not_an_instance(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("cell", Cell)
    assert isinstance(mesh, ActorMesh) and not isinstance(mesh, Cell)
    assert mesh.extent == procs2.extent and len(mesh) == 2


def test_the_repr_of_a_mesh_names_class_and_shape(procs2: ProcMesh) -> None:
    text = repr(procs2.spawn("cell", Cell))
    assert text.startswith("ActorMesh(class=") and "Cell" in text and "shape={gpus=2}, inner=" in text
    assert text.count("(") == text.count(")")


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


class MixedThreads(Actor):
    def __init__(self) -> None:
        self.seen = [where()]

    @endpoint
    async def awaited(self) -> None:
        await asyncio.sleep(0)
        self.seen.append(where())

    @endpoint
    def plain(self) -> None:
        self.seen.append(where())

    @endpoint
    def all(self) -> list[tuple[int, bool, bool]]:
        return self.seen


def test_plain_and_async_endpoints_share_the_thread_and_plain_ones_see_no_loop(proc: ProcMesh) -> None:
    mesh = proc.spawn("threads", MixedThreads)
    mesh.plain.broadcast()
    mesh.awaited.broadcast()
    mesh.plain.broadcast()
    seen = mesh.all.call_one().get(timeout=TIMEOUT)
    assert len({thread for thread, _, _ in seen}) == 1
    assert [loop for _, _, loop in seen] == [True, False, True, False]


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
    def __init__(self) -> None:
        self.started: list[Any] = []
        self.all_here = asyncio.Event()

    @concurrent_endpoint
    async def meet(self, count: int, name: Any = None) -> list[Any]:
        self.started.append(name)
        if len(self.started) == count:
            self.all_here.set()
        await self.all_here.wait()
        return self.started

    @concurrent_endpoint(explicit_response_port=True)
    async def through_port(self, port: Port[Any], value: Any) -> None:
        await asyncio.sleep(0)
        port.send(value)

    @endpoint
    async def get(self) -> str:
        return "alive"


def test_other_endpoints_run_while_a_concurrent_one_waits(proc: ProcMesh) -> None:
    mesh = proc.spawn("overlap", Overlap)
    waiting = mesh.meet.call_one(2)
    assert mesh.get.call_one().get(timeout=TIMEOUT) == "alive"
    mesh.meet.broadcast(2)
    assert len(waiting.get(timeout=TIMEOUT)) == 2


def test_a_concurrent_endpoint_may_answer_through_its_port(proc: ProcMesh) -> None:
    assert proc.spawn("overlap", Overlap).through_port.call_one(5).get(timeout=TIMEOUT) == 5


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


# --- stopping


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


# --- controllers


class Inhabitant(Actor):
    def __init__(self, value: Any = None) -> None:
        self.value = value

    @endpoint
    def get(self) -> Any:
        return self.value

    @endpoint
    def fail(self) -> None:
        raise ValueError("a controller failed")


def test_a_controller_is_a_reference() -> None:
    found = get_or_spawn_controller("reference", Inhabitant).get(timeout=TIMEOUT)
    assert len(found) == 1 and dict(found.sizes) == {}
    with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef"):
        found.stop().get(timeout=TIMEOUT)


def test_a_failed_controller_harms_nobody_else(cluster: InProcessCluster) -> None:
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
