"""Actors and processes that take the place of others: asked for by the program, or by a policy.

On an in-process cluster: what reaches its root client and is not taken by `cluster.next_failure()` fails the test, so every
test here also says that nothing else was reported, and that no thread, port or actor is left behind.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import monarch
from monarch._runtime.proc import Proc
from monarch._wire.message import StopActor
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    MeshFailure,
    RestartPolicy,
    SupervisionError,
    context,
    endpoint,
    this_host,
    this_proc,
)
from monarch.testing import InProcessCluster, Local, VirtualClock, patch_actor
from tests.support.actors import TIMEOUT, Action, Gate, Recorder, Script, Scripted, awaited, do, fails, values
from tests.support.threads import together
from tests.support.tiers import full

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


# --- Actors that write down what happens to them, and do what the test says.


class Worker(Recorder):
    """On a plain thread. Notes ("init", rank, name), ("restarted", rank), ("cleanup", rank)."""

    def __init__(self, diary: Scripted, name: str = "first", *, extra: Any = None) -> None:
        super().__init__()
        self.diary = diary.value
        self.rank = context().actor_instance.rank.rank
        self.name = name
        self.failure: MeshFailure | None = None
        self.diary.note("init", self.rank, name)
        self.diary.act("init", self)

    @endpoint
    def called(self) -> str:
        return self.name

    def __restarted__(self, failure: MeshFailure) -> Any:
        self.failure = failure
        self.diary.note("restarted", self.rank)
        self.diary.act("restarted", self, failure)

    def __cleanup__(self, exc: Exception | None) -> Any:
        self.diary.note("cleanup", self.rank)
        self.diary.act("cleanup", self, exc)


class AsyncWorker(Worker):
    """On an event loop."""

    @endpoint
    async def do(self, action: Action, *args: Any) -> Any:
        return await awaited(action.value(self, *args))

    async def __restarted__(self, failure: MeshFailure) -> None:
        await asyncio.sleep(0)
        super().__restarted__(failure)

    async def __cleanup__(self, exc: Exception | None) -> None:
        super().__cleanup__(exc)


class Owner(Worker):
    def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure)
        return self.diary.act("supervise", self, failure)


class AsyncOwner(AsyncWorker):
    async def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure)
        return await awaited(self.diary.act("supervise", self, failure))


KINDS = [Worker, AsyncWorker]
kinds = pytest.mark.parametrize("kind", KINDS)
owners = pytest.mark.parametrize("kind", [Owner, AsyncOwner])


@pytest.fixture
def diary() -> Script:
    return Script()


def spawn(diary: Script, kind: type = Worker, gpus: int = 2, procs: Any = None, name: str = "w", *args: Any) -> Any:
    mesh = (procs if procs is not None else this_host().spawn_procs({"gpus": gpus})).spawn(
        name, kind, Local(diary), *args
    )
    mesh.called.call().get(TIMEOUT)
    diary.rest()
    return mesh


def fail(cluster: InProcessCluster, mesh: Any, text: str = "as asked") -> MeshFailure:
    """Makes a mesh of one fail, and takes the failure."""
    mesh.fail.broadcast(text)
    return cluster.next_failure()


def restarts_are_over() -> None:
    """Waits for restarts by a policy that were begun."""
    for thread in threading.enumerate():
        if thread.name == "monarch-restart":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def actors_in(cluster: InProcessCluster, mesh: Any) -> list[list[str]]:
    """The names of the actors in each process under a mesh."""
    living = cluster.agent.living
    return [
        sorted(actor.name for actor in living[cluster.address_of(mesh, rank)].actors.values())
        for rank in range(len(mesh))
    ]


def sizes(cluster: InProcessCluster) -> dict[str, Any]:
    """Returns what the client keeps."""
    owned = cluster.proc.mesh.owned
    return {
        "proc": kept(cluster.proc),
        "receivers": cluster.root.numbering.sizes(),
        "ledger": {key: owned.ledger.ended_ranks(key) for key in owned.ledger},
        "troubled": len(owned.ledger.troubled),
        "meshes": len(owned.actors),
    }


def kept(proc: Proc) -> Any:
    """Returns what a process keeps, without what depends on the moment."""
    statistics = proc.statistics()
    return [statistics[name] for name in ("actors", "ports", "remembered")]


# --- Asked for: who is constructed again, with what.


@kinds
def test_a_failed_actor_is_constructed_again(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    mesh = spawn(diary, kind)
    assert values(mesh, "add", "before") == [1, 1]
    told = fail(cluster, mesh.slice(gpus=1), "no good")
    diary.rest()
    assert mesh.restart(failed=True).get(TIMEOUT) is None
    assert diary.rest() == [("init", 1, "first"), ("restarted", 1)]
    assert values(mesh, "add", "after") == [2, 1]
    assert values(mesh, "all") == [["before", "after"], ["after"]]
    assert actors_in(cluster, mesh) == [["w"], ["w"]]
    (failure,) = [do(mesh.slice(gpus=1), lambda actor: Local(actor.failure)).value]
    assert (failure.mesh_name, failure.crashed_ranks) == (told.mesh_name, [1])
    assert failure.report() == told.report() and "ValueError: no good" in failure.report()


@kinds
def test_a_living_actor_is_stopped_first_and_its_cleanup_runs(diary: Script, kind: type) -> None:
    mesh = spawn(diary, kind)
    values(mesh, "add", "before")
    ends: list[Any] = []
    diary.hooks["cleanup"] = lambda actor, exc: ends.append(exc)
    mesh.restart(gpus=1).get(TIMEOUT)
    assert diary.rest() == [("cleanup", 1), ("init", 1, "first"), ("restarted", 1)]
    assert values(mesh, "all") == [["before"], []]
    assert ends == [None]
    failure = do(mesh.slice(gpus=1), lambda actor: Local(actor.failure)).value
    assert "stopped: restarted by its owner" in failure.report()
    assert failure.crashed_ranks == [1]


SELECTIONS = [
    ({}, [0, 1, 2, 3, 4, 5]),
    ({"gpus": 1}, [1, 4]),
    ({"hosts": 1}, [3, 4, 5]),
    ({"hosts": 0, "gpus": 2}, [2]),
    ({"gpus": slice(1, 3)}, [1, 2, 4, 5]),
    ({"hosts": 1, "gpus": slice(0, 3, 2)}, [3, 5]),
]


@pytest.mark.parametrize(("selection", "ranks"), SELECTIONS)
def test_a_part_is_selected_as_for_slice(
    cluster: InProcessCluster, diary: Script, selection: dict[str, Any], ranks: list[int]
) -> None:
    """Selects ranks of the actors, and of the processes."""
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 3})
    mesh = spawn(diary, procs=procs)
    mesh.restart(**selection).get(TIMEOUT)
    assert sorted(rank for what, rank, *_ in diary.rest() if what == "init") == ranks
    before = pids(cluster, procs)
    procs.restart(**selection).get(TIMEOUT)
    after = pids(cluster, procs)
    assert [rank for rank in range(6) if before[rank] != after[rank]] == ranks
    assert sorted(diary.rest()) == [("cleanup", rank) for rank in ranks]
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 6


def test_failed_selects_among_the_others(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary, gpus=4)
    for rank in (1, 2):
        fail(cluster, mesh.slice(gpus=rank))
    diary.rest()
    mesh.restart(failed=True, gpus=slice(2, 4)).get(TIMEOUT)
    assert diary.rest() == [("init", 2, "first"), ("restarted", 2)]
    fails(mesh.slice(gpus=1).called.call_one(), "as asked")
    mesh.restart(failed=True).get(TIMEOUT)
    assert diary.rest() == [("init", 1, "first"), ("restarted", 1)]
    mesh.restart(failed=True).get(TIMEOUT)  # none is left, and that is no error
    assert diary.rest() == []
    assert values(mesh, "called") == ["first"] * 4


MISFIT = r"Worker\.__init__"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"hosts": 1}, TypeError, "hosts"),
        ({"gpus": 2}, IndexError, "gpus"),
        ({"gpus": "all"}, TypeError, "gpus"),
        ({"gpus": slice(1, 1)}, ValueError, "gpus"),
        ({"args": ()}, TypeError, MISFIT),  # too few
        ({"kwargs": {}}, TypeError, MISFIT),  # none at all
        ({"args": (1, 2, 3)}, TypeError, MISFIT),  # too many
        ({"args": (1,), "kwargs": {"nam": 1}}, TypeError, MISFIT),  # of another name
        ({"args": (threading.Lock(),)}, TypeError, "pickle"),
    ],
)
def test_a_part_it_does_not_have_and_arguments_that_do_not_fit_harm_nobody(
    diary: Script, given: dict[str, Any], error: type, text: str
) -> None:
    mesh = spawn(diary)
    with pytest.raises(error, match=text):
        mesh.restart(**given)
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_a_mesh_of_one_without_dimensions(diary: Script) -> None:
    procs = this_host().spawn_procs()
    mesh = spawn(diary, procs=procs)
    for _ in range(2):
        mesh.restart().get(TIMEOUT)
        assert diary.rest() == [("cleanup", 0), ("init", 0, "first"), ("restarted", 0)]
        procs.restart().get(TIMEOUT)
        mesh.restart().get(TIMEOUT)
        assert diary.rest() == [("cleanup", 0), ("init", 0, "first"), ("restarted", 0)]
        assert mesh.called.call_one().get(TIMEOUT) == "first"


def test_an_actor_in_the_clients_own_process(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary, procs=this_proc())
    mesh.add.call_one("before").get(TIMEOUT)
    fail(cluster, mesh)
    for _ in range(3):
        mesh.restart().get(TIMEOUT)
        assert mesh.add.call_one("after").get(TIMEOUT) == 1


def test_actors_spawned_on_a_slice_are_restarted_in_its_processes(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    mesh = spawn(diary, procs=procs.slice(gpus=slice(1, 3)))
    fail(cluster, mesh.slice(gpus=1))
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2
    assert actors_in(cluster, procs) == [[], ["w"], ["w"], []]


def test_restarts_can_be_awaited(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary)
    fail(cluster, mesh.slice(gpus=0))

    async def main() -> list[Any]:
        await mesh.restart(failed=True)
        return [value for _, value in await mesh.called.call()]

    assert asyncio.run(main()) == ["first"] * 2


# --- with other arguments


def test_other_arguments_hold_for_those_ranks_from_now_on(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary, gpus=3)
    mesh.restart(args=(Local(diary), "second"), gpus=1).get(TIMEOUT)
    assert values(mesh, "called") == ["first", "second", "first"]
    mesh.restart().get(TIMEOUT)
    assert values(mesh, "called") == ["first", "second", "first"]
    mesh.restart(kwargs={"diary": Local(diary), "name": "third"}, gpus=slice(0, 2)).get(TIMEOUT)
    fail(cluster, mesh.slice(gpus=0))
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["third", "third", "first"]


def test_the_first_arguments_are_kept_as_they_were() -> None:
    np = pytest.importorskip("numpy")
    array, items = np.ones(10_000), ["before"]  # the array's memory is not copied into the message

    class Keeper(Actor):
        def __init__(self, array: Any, items: list[str]) -> None:
            self.kept = float(array.sum()), items

        @endpoint
        def get(self) -> Any:
            return self.kept

    keeper = this_host().spawn_procs().spawn("keeper", Keeper, array, items)
    assert keeper.get.call_one().get(TIMEOUT) == (10_000.0, ["before"])
    array[:] = 0
    items.append("after")
    keeper.restart().get(TIMEOUT)
    assert keeper.get.call_one().get(TIMEOUT) == (10_000.0, ["before"])


def test_arguments_too_large_to_be_kept_have_to_be_given_again(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with monarch.configured(restart_argument_bytes=5000):
        large = procs.spawn("large", Worker, Local(diary), extra=b"x" * 6000)
        small = procs.spawn("small", Worker, Local(diary), extra=b"x" * 600)
    values(large, "called")
    with pytest.raises(RuntimeError, match=r"large-\w+ \(6\d\d\d bytes\) .* restart_argument_bytes.*restart\(args="):
        large.restart(gpus=0)
    assert values(large, "called") == ["first"] * 2
    small.restart(gpus=0).get(TIMEOUT)
    large.restart(gpus=0, args=(Local(diary), "again")).get(TIMEOUT)
    large.restart(gpus=0).get(TIMEOUT)
    assert values(large, "called") == ["again", "first"]
    with pytest.raises(RuntimeError, match="restart_argument_bytes"):
        large.restart()


# --- what stands in the way


def test_a_reference_does_not_restart(diary: Script) -> None:
    mesh = spawn(diary)
    for reference in (mesh.slice(gpus=0), mesh.flatten("all")):
        with pytest.raises(NotImplementedError, match=r"the object that spawn\(\) returned; restart\(gpus=1\)"):
            reference.restart()
    other = spawn(Script(), procs=this_host().spawn_procs())
    with pytest.raises(ActorError) as caught:
        do(other, lambda actor, sent: sent.restart(), mesh)
    assert isinstance(caught.value.exception, NotImplementedError)
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_a_stopped_mesh_is_not_restarted(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary)
    stopping = mesh.stop()
    with pytest.raises(RuntimeError, match=r"w-\w+ was stopped: spawn it anew"):
        mesh.restart()
    stopping.get(TIMEOUT)
    with pytest.raises(RuntimeError, match="was stopped"):
        mesh.restart(failed=True)


def test_an_actor_whose_process_is_gone_is_not_restarted_alone(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary)
    values(mesh, "add", 1)
    cluster.kill(mesh, 1)
    cluster.next_failure()
    with pytest.raises(
        RuntimeError, match=r"rank 1 of w-\w+ .*process inproc:.*\.1 .*Killed\(sig=9\).*procs\.restart\(failed=True\)"
    ):
        mesh.restart().get(TIMEOUT)
    assert diary.rest() == []  # and the other one was left alone
    assert values(mesh.slice(gpus=slice(0, 1)), "add", 2) == [2]


@pytest.mark.parametrize("hook", ["init", "restarted"])
@kinds
def test_a_constructor_or_hook_that_raises(cluster: InProcessCluster, diary: Script, kind: type, hook: str) -> None:
    mesh = spawn(diary, kind)

    def no_room(actor: Worker, *_: Any) -> None:
        raise OSError(f"no room for rank {actor.rank}")

    fail(cluster, mesh.slice(gpus=1))
    diary.hooks[hook] = no_room
    fails(mesh.restart(failed=True), "no room for rank 1")
    failure = cluster.next_failure()  # a failure as any other
    assert failure.crashed_ranks == [1] and "no room" in failure.report()
    fails(mesh.slice(gpus=1).called.call_one(), "no room")
    diary.hooks.clear()
    mesh.restart(failed=True).get(TIMEOUT)
    assert "no room" in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())
    assert values(mesh, "called") == ["first"] * 2


@kinds
def test_the_restarted_hook_runs_before_any_message(
    cluster: InProcessCluster, diary: Script, gate: Gate, kind: type
) -> None:
    """A caller that the actor before never heard from reaches the new one at any time, and waits for the hook."""
    mesh = spawn(diary, kind, procs=this_host().spawn_procs())
    asker = spawn(Script(), procs=this_host().spawn_procs())
    diary.hooks["restarted"] = gate.stand
    restart = mesh.restart()
    gate.reached()
    delivered = cluster.expect("Call", target=cluster.address_of(mesh))
    asked = asker.do.call_one(Local(lambda actor, other: other.add.call_one(1).get(TIMEOUT)), mesh)
    delivered.wait()
    with pytest.raises(TimeoutError):
        restart.get(0)
    with pytest.raises(TimeoutError):
        asked.get(0)
    gate.open()
    restart.get(TIMEOUT)
    assert asked.get(TIMEOUT) == 1


# --- Asked for inside an actor.


class Parent(Owner):
    """Owns a mesh of two in processes of its own, and restarts what fails of it."""

    def __init__(self, diary: Scripted, children: Scripted) -> None:
        super().__init__(diary)
        self.child = this_host().spawn_procs({"gpus": 2}).spawn("child", Worker, children)
        self.child.called.call().get(TIMEOUT)

    @endpoint
    def get_child(self) -> Any:
        return self.child

    def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure.crashed_ranks)
        self.child.restart(failed=True).get(TIMEOUT)
        self.diary.note("supervised")
        return True


class AsyncParent(AsyncOwner):
    def __init__(self, diary: Scripted, children: Scripted) -> None:
        super().__init__(diary)
        self.child = this_host().spawn_procs({"gpus": 2}).spawn("child", AsyncWorker, children)

    @endpoint
    async def get_child(self) -> Any:
        await self.child.called.call()
        return self.child

    async def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure.crashed_ranks)
        await self.child.restart(failed=True)
        self.diary.note("supervised")
        return True


parents = pytest.mark.parametrize("kind", [Parent, AsyncParent])


@parents
def test_an_owner_restarts_what_failed_and_lives_on(diary: Script, kind: type) -> None:
    children = Script()
    parent = spawn(diary, kind, 1, this_host().spawn_procs(), "parent", Local(children))
    child = parent.get_child.call_one().get(TIMEOUT)
    for rank in (1, 0, 1):
        child.slice(gpus=rank).fail.broadcast()
        assert diary.until("supervised") == [("supervise", [rank]), "supervised"]
        values(child, "add", rank)
    assert values(child, "all") == [[0, 1], [1]]
    assert parent.called.call_one().get(TIMEOUT) == "first"


@parents
def test_an_owner_whose_restart_fails_fails_with_it(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    children = Script()
    parent = spawn(diary, kind, 1, this_host().spawn_procs(), "parent", Local(children))
    child = parent.get_child.call_one().get(TIMEOUT)

    def broken(actor: Worker) -> None:
        raise OSError("no room")

    children.hooks["init"] = broken
    child.slice(gpus=1).fail.broadcast()
    failure = cluster.next_failure()
    assert failure.mesh_name.startswith("parent-")
    assert "no room" in failure.report() and "handling another failure" in failure.report()


def test_an_actor_that_did_not_spawn_the_mesh_may_not_restart_it(diary: Script) -> None:
    parent = spawn(diary, Parent, 1, this_host().spawn_procs(), "parent", Local(Script()))
    child = parent.get_child.call_one().get(TIMEOUT)
    with pytest.raises(NotImplementedError, match="requires an owned ActorMesh"):
        child.restart()


# --- References that others hold.


def ask(actor: Worker, mesh: Any) -> Any:
    """Runs in a plain actor: every adverb there is, on a view of two."""
    first = [value for _, value in mesh.add.call("call").get(TIMEOUT)]
    one = mesh.slice(gpus=1).add.call_one("one").get(TIMEOUT)
    streamed = sorted(future.get(TIMEOUT) for future in mesh.called.stream())
    mesh.add.broadcast("cast")
    chosen = mesh.called.choose().get(TIMEOUT)
    return first, one, streamed, chosen, [value for _, value in mesh.all.call().get(TIMEOUT)]


async def ask_async(actor: Worker, mesh: Any) -> Any:
    first = [value for _, value in await mesh.add.call("call")]
    one = await mesh.slice(gpus=1).add.call_one("one")
    streamed = sorted([await future for future in mesh.called.stream()])
    mesh.add.broadcast("cast")
    chosen = await mesh.called.choose()
    return first, one, streamed, chosen, [value for _, value in await mesh.all.call()]


ASKERS = [(Worker, ask), (AsyncWorker, ask_async)]
askers = pytest.mark.parametrize(("kind", "ask"), ASKERS, ids=["sync", "async"])
FRESH = ([1, 1], 2, ["first"] * 2, "first", [["call", "cast"], ["call", "one", "cast"]])


@askers
@pytest.mark.parametrize("how", ["failed", "living", "killed", "living processes"])
def test_references_held_elsewhere_work_again(
    cluster: InProcessCluster, diary: Script, kind: type, ask: Callable[..., Any], how: str
) -> None:
    """At once: nobody has to call twice. Those that called before, and those that did not."""
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, kind, procs=procs)
    view = mesh.flatten("gpus")
    heard, silent, late = (spawn(Script(), kind, procs=this_host().spawn_procs()) for _ in range(3))

    def replace() -> None:
        for rank in range(2):
            if how == "failed":
                fail(cluster, mesh.slice(gpus=rank))
            elif how == "killed":
                kill(cluster, procs, rank, mesh)
        if how in ("killed", "living processes"):
            procs.restart().get(TIMEOUT)
        mesh.restart().get(TIMEOUT)

    assert do(heard, ask, view) == FRESH
    held = do(silent, lambda actor, sent: (setattr(actor, "held", sent), Local(sent))[1], view).value
    for round in range(2):
        replace()
        assert do(heard, ask, view) == FRESH, round
        replace()
        assert do(silent, lambda actor: ask(actor, actor.held)) == FRESH, round
        replace()
        assert do(late, ask, held) == FRESH, round
        replace()  # and the owner's own
        assert [value for _, value in view.add.call(1).get(TIMEOUT)] == [1, 1]


@kinds
def test_endpoints_taken_before_a_restart_serve_after_it(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    mesh = spawn(diary, kind)
    add, part = mesh.add, mesh.slice(gpus=1).add
    add.call(0).get(TIMEOUT)
    fail(cluster, mesh.slice(gpus=1))
    mesh.restart(failed=True).get(TIMEOUT)
    assert [value for _, value in add.call(1).get(TIMEOUT)] == [2, 1]
    assert part.call_one(2).get(TIMEOUT) == 2


def test_references_sent_on_and_on(diary: Script) -> None:
    """Through a chain of actors, each in a process of its own that never called the actors it passes on."""
    mesh = spawn(diary)
    chain = spawn(Script(), gpus=3, name="chain")

    def pass_on(actor: Worker, chain: Any, mesh: Any) -> Any:
        step = chain.slice(gpus=slice(1, None)) if len(chain) > 1 else None
        return ask(actor, mesh) if step is None else do(step.slice(gpus=0), pass_on, step, mesh)

    for _ in range(2):
        mesh.restart().get(TIMEOUT)
        assert do(chain.slice(gpus=0), pass_on, chain, mesh) == FRESH


@kinds
def test_who_called_while_it_was_down_is_told_why_and_reaches_the_next(
    cluster: InProcessCluster, diary: Script, kind: type
) -> None:
    mesh = spawn(diary, kind, procs=this_host().spawn_procs())
    called, silent = (spawn(Script(), procs=this_host().spawn_procs()) for _ in range(2))

    def add(actor: Worker, sent: Any) -> Any:
        return sent.add.call_one(actor.name).get(TIMEOUT)

    do(called, add, mesh)
    fail(cluster, mesh, "worn out")
    for asker in (called, silent):
        for _ in range(3):
            with pytest.raises(ActorError, match="worn out") as caught:
                do(asker, add, mesh)
            assert isinstance(caught.value.exception, SupervisionError)
    mesh.restart(failed=True).get(TIMEOUT)
    assert [do(called, add, mesh), do(silent, add, mesh), do(called, add, mesh)] == [1, 2, 3]


# --- Messages under way.


@kinds
def test_calls_under_way_to_the_dead_fail_and_never_reach_the_living(diary: Script, kind: type) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn(diary, kind, procs=this_host().spawn_procs())
        sender = spawn(Script(), procs=this_host().spawn_procs())

        def add(actor: Worker, mesh: Any, *numbers: int) -> Any:
            actor.sent = [mesh.add.call_one(number) for number in numbers]

        def answers(actor: Worker) -> Any:
            return [future.exception(TIMEOUT) or future.get(TIMEOUT) for future in actor.sent]

        do(sender, add, mesh, 1)
        assert do(sender, answers) == [1]
        with cluster.network.hold(cluster.address_of(sender), cluster.address_of(mesh)):
            do(sender, add, mesh, 2, 3)
            fail(cluster, mesh)
            restart = mesh.restart(failed=True)
            assert diary.until("restarted", 0)
            clock.advance(1.0)  # the sender says that it knows, behind its calls: nobody waits for that for longer
            restart.get(TIMEOUT)
            assert mesh.add.call_one("mine").get(TIMEOUT) == 1
        for error in do(sender, answers):
            assert isinstance(error, SupervisionError)
            assert "was restarted after this message was sent" in str(error) and "w.add()" in str(error)
        do(sender, add, mesh, 4, 5)
        assert do(sender, answers) == [2, 3]
        assert mesh.all.call_one().get(TIMEOUT) == ["mine", 4, 5]


@kinds
def test_casts_under_way_to_the_dead_are_lost_and_harm_nobody(diary: Script, kind: type) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn(diary, kind, procs=this_host().spawn_procs())
        sender = spawn(Script(), procs=this_host().spawn_procs())

        def cast(actor: Worker, mesh: Any, *numbers: int) -> Any:
            for number in numbers:
                mesh.add.broadcast(number)

        do(sender, cast, mesh, 1)
        assert do(sender, lambda actor, mesh: mesh.all.call_one().get(TIMEOUT), mesh) == [1]
        bounced = cluster.expect("Bounced", target=cluster.address_of(sender))
        with cluster.network.hold(cluster.address_of(sender), cluster.address_of(mesh)):
            do(sender, cast, mesh, 2, 3)
            restart = mesh.restart()
            assert diary.until("restarted", 0)
            clock.advance(1.0)
            restart.get(TIMEOUT)
        bounced.wait()
        do(sender, cast, mesh, 4)
        assert do(sender, lambda actor, mesh: mesh.all.call_one().get(TIMEOUT), mesh) == [4]


@kinds
def test_a_sender_that_never_called_reaches_whoever_is_there(diary: Script, kind: type) -> None:
    """Its message was under way while the actor was restarted; nobody before had ever heard from it."""
    with InProcessCluster(clock=VirtualClock()) as cluster:
        mesh = spawn(diary, kind, procs=this_host().spawn_procs())
        sender = spawn(Script(), procs=this_host().spawn_procs())
        with cluster.network.hold(cluster.address_of(sender), cluster.address_of(mesh)):
            for number in range(3):
                do(sender, lambda actor, mesh, number: mesh.add.broadcast(number), mesh, number)
            mesh.restart().get(TIMEOUT)
        for number in range(3, 6):
            do(sender, lambda actor, mesh, number: mesh.add.broadcast(number), mesh, number)
        assert do(sender, lambda actor, mesh: mesh.all.call_one().get(TIMEOUT), mesh) == list(range(6))


def test_what_waits_in_the_mailbox_of_an_actor_that_is_restarted_is_refused(diary: Script, gate: Gate) -> None:
    mesh = spawn(diary, procs=this_host().spawn_procs())
    held = mesh.do.call_one(Local(gate.stand))
    gate.reached()
    waiting = [mesh.add.call_one(number) for number in range(3)]
    restart = mesh.restart()
    for future in waiting:
        fails(future, "stopped: restarted by its owner")
    gate.open()
    held.get(TIMEOUT)  # what it was doing, it finished
    restart.get(TIMEOUT)
    assert mesh.all.call_one().get(TIMEOUT) == []


@pytest.fixture
def orders(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[StopActor]:
    """Returns what the client has sent of orders to stop, once it is sent."""
    proc, sent = cluster.proc, queue.SimpleQueue[StopActor]()
    post = proc.post

    def noting(address: str, msg: Any, *rest: Any) -> None:
        post(address, msg, *rest)
        if type(msg) is StopActor:
            sent.put(msg)

    monkeypatch.setattr(proc, "post", noting)
    return sent


def test_a_first_spawn_that_was_lost_is_not_made_up_for_behind_the_order_to_make_room(
    cluster: InProcessCluster, diary: Script, orders: queue.SimpleQueue[StopActor]
) -> None:
    """The connection broke with the spawn, and the restart asked again first: two would live side by side."""
    network, procs = cluster.network, this_host().spawn_procs()
    here, there = cluster.address_of("client"), cluster.address_of(spawn(Script(), procs=procs))
    with network.hold(here, there):
        mesh = procs.spawn("w", Worker, Local(diary))
        restart = mesh.restart()
        orders.get(timeout=TIMEOUT)
        assert network.cut(here, there) == 1
    restart.get(TIMEOUT)
    assert mesh.called.call_one().get(TIMEOUT) == "first"
    assert diary.rest() == [("init", 0, "first"), ("restarted", 0)]


def test_nor_is_the_spawn_of_an_earlier_restart(
    cluster: InProcessCluster, diary: Script, orders: queue.SimpleQueue[StopActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, layer, mesh = cluster.network, cluster.proc.mesh, spawn(diary, procs=this_host().spawn_procs())
    here, there = cluster.address_of("client"), cluster.address_of(mesh)
    post_spawn, holds = layer.spawning.post_spawn, []
    spawned = threading.Event()

    def holding(*args: Any, **kwargs: Any) -> None:
        if not holds:
            holds.append(network.hold(here, there))
        post_spawn(*args, **kwargs)
        spawned.set()

    monkeypatch.setattr(layer.spawning, "post_spawn", holding)
    first = mesh.restart()
    assert spawned.wait(TIMEOUT)
    second = mesh.restart()
    assert [orders.get(timeout=TIMEOUT).incarnation for _ in range(2)] == [0, 1]
    assert network.cut(here, there) == 1
    holds[0].end()
    fails(first, "the connection to")
    second.get(TIMEOUT)
    assert mesh.called.call_one().get(TIMEOUT) == "first"
    assert diary.rest() == [("cleanup", 0), ("init", 0, "first"), ("restarted", 0)]


def test_what_waited_for_an_actor_that_never_came_does_not_reach_the_one_in_its_place(
    cluster: InProcessCluster, diary: Script, orders: queue.SimpleQueue[StopActor]
) -> None:
    network, procs = cluster.network, this_host().spawn_procs()
    here, there = cluster.address_of("client"), cluster.address_of(spawn(Script(), procs=procs))
    with network.hold(cluster.address_of("agent"), here):  # that its process lives: until then, what is sent is kept
        with network.hold(here, there):
            mesh = procs.spawn("w", Worker, Local(diary))
            assert network.cut(here, there) == 1
        waiting = mesh.add.call_one(1)
        restart = mesh.restart()
        orders.get(timeout=TIMEOUT)
    fails(waiting, "stopped: restarted by its owner")
    restart.get(TIMEOUT)
    assert mesh.all.call_one().get(TIMEOUT) == []


def test_an_order_to_make_room_that_comes_again_leaves_the_next_alone(
    cluster: InProcessCluster, diary: Script, orders: queue.SimpleQueue[StopActor]
) -> None:
    mesh = spawn(diary, procs=this_host().spawn_procs())
    mesh.restart().get(TIMEOUT)
    assert diary.rest() == [("cleanup", 0), ("init", 0, "first"), ("restarted", 0)]
    cluster.proc.post(cluster.address_of(mesh), orders.get(timeout=TIMEOUT))
    assert mesh.called.call_one().get(TIMEOUT) == "first"
    assert diary.rest() == []


@kinds
def test_each_senders_messages_keep_their_order_over_restarts(
    cluster: InProcessCluster, diary: Script, kind: type
) -> None:
    """Checks that of casts and calls of several senders each actor handled some first ones, and in order."""
    mesh = spawn(diary, kind)
    senders = [spawn(Script(), procs=this_host().spawn_procs()) for _ in range(2)]

    def flood(actor: Worker, mesh: Any, name: str, start: int) -> None:
        for number in range(start, start + 20):
            (mesh if number % 3 else mesh.slice(gpus=1)).add.broadcast((name, number))

    for start in range(0, 100, 20):
        flooding = [sender.do.call_one(Local(flood), mesh, str(i), start) for i, sender in enumerate(senders)]
        for future in flooding:
            future.get(TIMEOUT)
        for sender in senders:  # all of its messages are there
            do(sender, lambda actor, mesh: values(mesh, "called"), mesh)
        for rank, seen in enumerate(values(mesh, "all")):
            for name in "01":
                expected = [number for number in range(start, start + 20) if rank or number % 3]
                assert [number for who, number in seen if who == name] == expected
        if start % 40:
            fail(cluster, mesh.slice(gpus=0))
        mesh.restart().get(TIMEOUT)


# --- Ends while a restart is under way.


@pytest.mark.parametrize("where", ["cleanup", "init", "restarted"])
@kinds
def test_a_mesh_that_is_stopped_meanwhile_leaves_nothing(
    cluster: InProcessCluster, diary: Script, gate: Gate, kind: type, where: str
) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    spawn(Script(), kind, procs=procs, name="other")
    before = sizes(cluster)
    mesh = spawn(diary, kind, procs=procs)
    diary.hooks[where] = gate.stand
    restart = mesh.restart(gpus=1)
    gate.reached()
    stop = mesh.stop("enough")
    gate.open()
    stop.get(TIMEOUT)
    error = restart.exception(TIMEOUT)
    if error is not None or where == "cleanup":  # else it was restarted, and stopped then
        assert "was stopped" in str(error) or "stopped: enough" in str(error)
    restarts_are_over()
    cluster.settle()
    assert actors_in(cluster, procs) == [["other"], ["other"]]
    assert sizes(cluster) == before


@pytest.mark.parametrize(
    ("kind", "what", "where", "how"),
    [
        (Worker, "actors", "init", "stops"),
        (AsyncWorker, "actors", "init", "stops"),
        (Worker, "actors", "restarted", "fails"),
        (Worker, "processes", "cleanup", "stops"),
    ],
)
def test_an_owner_that_ends_while_what_it_owns_restarts_leaves_nothing(
    cluster: InProcessCluster, diary: Script, gate: Gate, kind: type, what: str, where: str, how: str
) -> None:
    children, procs = Script(), this_host().spawn_procs({"gpus": 2})
    owner = spawn(diary, Owner if kind is Worker else AsyncOwner, procs=this_host().spawn_procs(), name="owner")

    def own(actor: Worker) -> Any:
        actor.procs = procs if what == "actors" else this_host().spawn_procs({"gpus": 2})
        actor.child = actor.procs.spawn("child", kind, Local(children))
        return actor.child

    def begin(actor: Worker) -> None:
        (actor.child if what == "actors" else actor.procs).restart(gpus=1)

    values(do(owner, own), "called")
    children.hooks[where] = gate.stand
    do(owner, begin)
    gate.reached()
    if how == "stops":
        stop = owner.stop()
        gate.open()
        stop.get(TIMEOUT)
    else:
        owner.fail.broadcast("the owner fails")
        gate.open()
        assert "the owner fails" in cluster.next_failure().report()
        diary.until("cleanup", 0)  # after its meshes have stopped
    restarts_are_over()
    cluster.settle()
    assert actors_in(cluster, procs) == [[], []]
    assert len(cluster.agent.living) == 3  # these two, and that of the owner


def test_a_process_that_dies_meanwhile_fails_the_restart(cluster: InProcessCluster, diary: Script, gate: Gate) -> None:
    mesh = spawn(diary)
    diary.hooks["init"] = gate.stand
    restart = mesh.restart(gpus=1)
    gate.reached()
    cluster.kill(mesh, 1)
    fails(restart, r"Killed\(sig=9\)")
    assert cluster.next_failure().crashed_ranks == [1]
    fails(mesh.restart(failed=True), r"procs\.restart", error=RuntimeError)


def test_one_that_dies_while_the_actor_before_stops(cluster: InProcessCluster, diary: Script, gate: Gate) -> None:
    mesh = spawn(diary)
    diary.hooks["cleanup"] = gate.stand
    restart = mesh.restart(gpus=1)
    gate.reached()
    cluster.kill(mesh, 1)
    fails(restart, r"its process .* has ended .*Killed\(sig=9\)", error=RuntimeError)
    # It was being restarted, so nobody was told; who asked for it was.
    assert mesh.slice(gpus=0).called.call_one().get(TIMEOUT) == "first"


# --- Several at once.


@kinds
def test_restarts_of_the_same_actor_are_done_one_after_the_other(
    cluster: InProcessCluster, diary: Script, kind: type
) -> None:
    mesh = spawn(diary, kind)
    for _ in range(5):
        for error in [restart.exception(TIMEOUT) for restart in [mesh.restart() for _ in range(4)]]:
            # An actor was stopped in its hook by the next restart, or had come that far.
            assert error is None or "stopped: restarted by its owner" in str(error)
    mesh.restart().get(TIMEOUT)
    assert actors_in(cluster, mesh) == [["w"], ["w"]]
    assert values(mesh, "add", 1) == [1, 1]
    events = diary.rest()
    for rank in range(2):
        whats = [event[0] for event in events if event[1] == rank and event[0] != "restarted"]
        assert whats == ["cleanup", "init"] * 21


def test_restarts_of_different_meshes_do_not_wait_for_each_other(diary: Script, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    slow_diary = Script()
    slow, fast = spawn(slow_diary, procs=procs, name="slow"), spawn(diary, procs=procs, name="fast")
    slow_diary.hooks["cleanup"] = gate.stand
    waiting = slow.restart()
    gate.reached()
    fast.restart().get(TIMEOUT)
    assert not [event for event in slow_diary.rest() if event[0] == "init"]
    gate.open()
    waiting.get(TIMEOUT)


def test_restarts_from_many_threads(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary, gpus=4)
    errors: list[str] = []

    def restart(rank: int) -> None:
        errors.extend(str(error) for _ in range(10) if (error := mesh.restart(gpus=rank).exception(TIMEOUT)))

    together(*[functools.partial(restart, rank % 4) for rank in range(8)])
    assert [error for error in errors if "stopped: restarted by its owner" not in error] == []
    events = diary.rest()
    for rank in range(4):
        assert [event[0] for event in events if event[1] == rank] == ["cleanup", "init", "restarted"] * 20
    assert actors_in(cluster, mesh) == [["w"]] * 4
    assert values(mesh, "add", 1) == [1] * 4


# --- Bounds.


@full
def test_a_thousand_restarts_leave_what_one_leaves(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn(diary, gpus=2)
    sender = spawn(Script(), procs=this_host().spawn_procs())
    target = cluster.agent.living[cluster.address_of(mesh, 1)]
    source = cluster.agent.living[cluster.address_of(sender)]

    def round() -> None:
        mesh.restart(gpus=1).get(TIMEOUT)
        mesh.add.broadcast("cast")
        assert do(sender, lambda actor, mesh: mesh.slice(gpus=1).add.call_one(1).get(TIMEOUT), mesh) in (1, 2)
        values(mesh, "all")

    def everything() -> Any:
        cluster.settle()
        return sizes(cluster), kept(target), kept(source)

    for _ in range(3):
        round()
    before = everything()
    for _ in range(1000):
        round()
    assert everything() == before


# --- By a policy.


def spawn_under(policy: RestartPolicy, diary: Script, kind: type = Worker, gpus: int = 2, **options: Any) -> Any:
    with policy:
        return spawn(diary, kind, gpus, **options)


def until_restarted(cluster: InProcessCluster, diary: Script, *ranks: int) -> list[tuple[Any, ...]]:
    """Waits until so many actors say that they were restarted, the policy's work is done, and everybody knows."""
    events: list[tuple[Any, ...]] = []
    for _ in ranks:
        events += diary.until("restarted")
    restarts_are_over()
    cluster.settle()
    assert sorted(event[1] for event in events if event[0] == "restarted") == sorted(ranks)
    return events


@kinds
def test_one_for_one_restarts_what_failed(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    mesh = spawn_under(RestartPolicy(), diary, kind)
    values(mesh, "add", "before")
    for _ in range(3):
        mesh.slice(gpus=1).fail.broadcast("now and then")
        assert until_restarted(cluster, diary, 1)[-2:] == [("init", 1, "first"), ("restarted", 1)]
        assert values(mesh, "all") == [["before"], []]
    assert "now and then" in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())


@kinds
def test_all_for_one_restarts_all_meshes_of_the_block(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    other = Script()
    with RestartPolicy("all_for_one"):
        mesh = spawn(diary, kind, procs=procs)
        second = spawn(other, kind, procs=procs.slice(gpus=slice(0, 1)), name="second")
    outside = spawn(Script(), kind, procs=procs, name="outside")
    for each in (mesh, second, outside):
        values(each, "add", "before")
    mesh.slice(gpus=0).fail.broadcast()
    events = until_restarted(cluster, diary, 0, 1)
    assert ("cleanup", 1) in events and events.index(("cleanup", 1)) < events.index(("init", 0, "first"))
    assert other.until("restarted", 0)[0] == ("cleanup", 0)
    assert [values(each, "all") for each in (mesh, second, outside)] == [[[], []], [[]], [["before"]] * 2]
    assert actors_in(cluster, procs) == [["outside", "second", "w"], ["outside", "w"]]
    for each in (mesh, second):  # all are told of the failure that it was for
        for rank in range(len(each)):
            assert "as asked" in do(each.slice(gpus=rank), lambda actor: actor.failure.report())


@kinds
def test_rest_for_one_restarts_what_came_after(cluster: InProcessCluster, kind: type) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    diaries = [Script() for _ in range(3)]
    with RestartPolicy("rest_for_one"):
        meshes = [spawn(diary, kind, procs=procs, name=f"w{i}") for i, diary in enumerate(diaries)]
    for mesh in meshes:
        values(mesh, "add", "before")
    meshes[1].slice(gpus=1).fail.broadcast()
    until_restarted(cluster, diaries[1], 1, 2)
    until_restarted(cluster, diaries[2], 0, 1, 2)
    old, new = ["before"], []
    assert [values(mesh, "all") for mesh in meshes] == [[old, old, old], [old, new, new], [new, new, new]]
    assert diaries[0].rest() == []


def test_a_mesh_of_the_block_that_was_stopped_stays_stopped(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    other = Script()
    with RestartPolicy("all_for_one"):
        stopped = spawn(other, procs=procs, name="stopped")
        mesh = spawn(diary, procs=procs)
    stopped.stop().get(TIMEOUT)
    other.rest()
    mesh.slice(gpus=0).fail.broadcast()
    until_restarted(cluster, diary, 0, 1)
    assert other.rest() == []


@pytest.mark.parametrize("what", ["actors", "processes"])
def test_what_its_owner_stops_is_not_restarted(cluster: InProcessCluster, diary: Script, what: str) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn_under(RestartPolicy("all_for_one"), diary, procs=procs)
    (mesh if what == "actors" else procs).stop().get(TIMEOUT)
    restarts_are_over()
    assert sorted(diary.rest()) == [("cleanup", 0), ("cleanup", 1)]
    living = cluster.agent.living.values()
    assert [proc.actors for proc in living] == ([{}, {}] if what == "actors" else [])


def test_an_actor_that_stops_by_itself_is_not_restarted(diary: Script) -> None:
    mesh = spawn_under(RestartPolicy(), diary)
    do(mesh.slice(gpus=0), lambda actor: context().actor_instance.stop("done"))
    assert diary.until("cleanup", 0) == [("cleanup", 0)]
    restarts_are_over()
    fails(mesh.slice(gpus=0).called.call_one(), "stopped: done")


# --- too often


@pytest.mark.parametrize(("way", "cause"), [("raised", "once too often"), ("killed", "Killed(sig=9)")])
def test_beyond_its_limit_a_failure_reaches_the_root(
    cluster: InProcessCluster, diary: Script, way: str, cause: str
) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn_under(RestartPolicy(max_restarts=2, within="1h"), diary, procs=procs)

    def end(rank: int) -> None:
        if way == "raised":
            mesh.slice(gpus=rank).fail.broadcast(cause)
        else:
            cluster.kill(procs, rank)

    for rank in (0, 1):
        end(rank)
        until_restarted(cluster, diary, rank)
    end(1)
    failure = cluster.next_failure()
    assert failure.crashed_ranks == [1]
    for text in (failure.report(), failure.event):
        assert cause in text
        assert "2 restarts within 3600 s are its limit (max_restarts, within)" in text
    fails(mesh.slice(gpus=1).called.call_one(), re.escape(cause))
    assert mesh.slice(gpus=0).called.call_one().get(TIMEOUT) == "first"
    procs.restart(failed=True).get(TIMEOUT)  # by hand it still can be
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


@owners
def test_beyond_its_limit_a_failure_reaches_its_owner(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    children = Script()
    owner = spawn(diary, kind, procs=this_host().spawn_procs(), name="owner")
    diary.hooks["supervise"] = lambda actor, failure: True

    def own(actor: Worker) -> Any:
        with RestartPolicy(max_restarts=1):
            actor.child = this_host().spawn_procs({"gpus": 2}).spawn("child", Worker, Local(children))
        return actor.child

    child = do(owner, own)
    values(child, "called")
    children.rest()
    child.slice(gpus=1).fail.broadcast("first")
    until_restarted(cluster, children, 1)
    assert diary.rest() == []  # its owner had nothing to do with it
    child.slice(gpus=1).fail.broadcast("second")
    ((_, failure),) = diary.until("supervise")
    assert "second" in failure.report() and "1 restarts within 60 s are its limit" in failure.event
    assert owner.called.call_one().get(TIMEOUT) == "first"


def test_without_restarts_a_policy_only_says_so(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn_under(RestartPolicy(max_restarts=0), diary)
    mesh.slice(gpus=0).fail.broadcast()
    assert "0 restarts within 60 s" in cluster.next_failure().report()


def test_after_some_time_it_restarts_again(diary: Script) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn_under(RestartPolicy(max_restarts=1, within=10), diary)
        one = mesh.slice(gpus=0)
        for _ in range(3):
            one.fail.broadcast()
            until_restarted(cluster, diary, 0)
            clock.advance(10)
        one.fail.broadcast()
        until_restarted(cluster, diary, 0)
        clock.advance(9.9)
        assert "1 restarts within 10 s" in fail(cluster, one).event


# --- how soon


@kinds
def test_restarts_wait_longer_each_time(diary: Script, kind: type) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn_under(RestartPolicy(max_restarts=9, within="1h", backoff=2, max_backoff=5), diary, kind)
        one, other = mesh.slice(gpus=0), mesh.slice(gpus=1)
        for delay in (2, 4, 5, 5):
            ended = cluster.expect("ActorEnded")
            one.fail.broadcast("for now")
            ended.wait()
            fails(one.called.call_one(), "for now")
            assert other.called.call_one().get(TIMEOUT) == "first"
            clock.advance(delay - 0.5)
            cluster.settle()
            assert [event for event in diary.rest() if event[0] == "init"] == []
            clock.advance(0.5)
            until_restarted(cluster, diary, 0)
            assert one.called.call_one().get(TIMEOUT) == "first"


def test_an_actor_restarted_by_hand_meanwhile_is_not_restarted_again(diary: Script) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn_under(RestartPolicy("all_for_one", backoff=2), diary)
        ended = cluster.expect("ActorEnded")
        mesh.slice(gpus=0).fail.broadcast()
        ended.wait()
        mesh.restart(failed=True).get(TIMEOUT)
        diary.rest()
        clock.advance(10)
        cluster.settle()
        restarts_are_over()
        assert diary.rest() == []
        ended = cluster.expect("ActorEnded")
        mesh.slice(gpus=1).fail.broadcast()  # and it is watched as ever
        ended.wait()
        clock.advance(4)
        until_restarted(cluster, diary, 0, 1)


def test_a_mesh_that_is_stopped_before_its_time_is_not_restarted(diary: Script) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn_under(RestartPolicy(backoff=2), diary)
        ended = cluster.expect("ActorEnded")
        mesh.slice(gpus=0).fail.broadcast()
        ended.wait()
        mesh.stop().get(TIMEOUT)
        diary.rest()
        clock.advance(10)
        cluster.settle()
        restarts_are_over()
        assert diary.rest() == []


# --- failures of and during restarts


@kinds
def test_a_restart_that_fails_is_tried_again(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    mesh = spawn_under(RestartPolicy(max_restarts=3), diary, kind)
    tries = iter(["no room", "no room", ""])

    def init(actor: Worker) -> None:
        if why := next(tries):
            raise OSError(why)

    diary.hooks["init"] = init
    mesh.slice(gpus=1).fail.broadcast()
    events = until_restarted(cluster, diary, 1)
    assert [event[0] for event in events] == ["cleanup", "init", "init", "init", "restarted"]
    assert "no room" in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())
    assert "limit" in fail(cluster, mesh.slice(gpus=1)).event  # each try counted


@kinds
@pytest.mark.parametrize("hook", ["init", "restarted"])
def test_a_restart_that_always_fails_ends_at_the_limit(
    cluster: InProcessCluster, diary: Script, kind: type, hook: str
) -> None:
    mesh = spawn_under(RestartPolicy(max_restarts=3), diary, kind)

    def broken(*_: Any) -> None:
        raise OSError("no room at all")

    diary.hooks[hook] = broken
    failure = fail(cluster, mesh.slice(gpus=1))
    assert "no room at all" in failure.report() and "3 restarts" in failure.report()
    assert [event[0] for event in diary.rest() if event[0] == "init"] == ["init"] * 3
    assert mesh.slice(gpus=0).called.call_one().get(TIMEOUT) == "first"


def test_an_actor_that_fails_faster_than_its_restart_goes_on(
    cluster: InProcessCluster, diary: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word of its failure is here before the thread that sent the spawn does anything else."""
    mesh = spawn_under(RestartPolicy(max_restarts=3), diary)
    layer = cluster.proc.mesh
    post_spawn = layer.spawning.post_spawn

    def slow(*args: Any) -> None:
        ended = cluster.expect("ActorEnded")
        post_spawn(*args)
        if "init" in diary.hooks:
            ended.wait()

    def broken(actor: Worker) -> None:
        if len(tries) == 2:
            del diary.hooks["init"]
        tries.append(actor)
        raise OSError("no room")

    tries: list[Worker] = []
    diary.hooks["init"] = broken
    monkeypatch.setattr(layer.spawning, "post_spawn", slow)
    mesh.slice(gpus=1).fail.broadcast()
    assert "no room" in cluster.next_failure().report()  # all three tries failed
    assert len(tries) == 3
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


def test_a_restart_does_not_overtake_the_first_spawn(
    cluster: InProcessCluster, diary: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank fails, and all are to be restarted, before the last one was spawned at all."""
    layer = cluster.proc.mesh
    post_spawn = layer.spawning.post_spawn
    tries = iter([True])

    def slow(owned: Any, rank: int, incarnation: int, *rest: Any) -> None:
        ended = cluster.expect("ActorEnded")
        post_spawn(owned, rank, incarnation, *rest)
        if rank == 0 and not incarnation:
            ended.wait()

    def broken(actor: Worker) -> None:
        if actor.rank == 0 and next(tries, False):
            raise OSError("no room")

    diary.hooks["init"] = broken
    procs = this_host().spawn_procs({"gpus": 2})
    procs.initialized.get(TIMEOUT)
    monkeypatch.setattr(layer.spawning, "post_spawn", slow)
    with RestartPolicy("all_for_one"):
        mesh = procs.spawn("w", Worker, Local(diary))
    until_restarted(cluster, diary, 0, 1)
    assert values(mesh, "add", 1) == [1, 1]
    assert sorted(event[:2] for event in diary.rest()) == []


def test_what_fails_while_it_is_stopped_for_a_restart_is_told_to_nobody(
    cluster: InProcessCluster, diary: Script
) -> None:
    mesh = spawn_under(RestartPolicy("all_for_one", max_restarts=1), diary, gpus=3)

    def cleanup(actor: Worker, exc: Any) -> None:
        raise OSError("trouble while cleaning up")

    diary.hooks["cleanup"] = cleanup
    mesh.slice(gpus=1).fail.broadcast()
    until_restarted(cluster, diary, 0, 1, 2)
    assert values(mesh, "called") == ["first"] * 3
    diary.hooks.clear()


def test_another_that_fails_meanwhile_is_restarted_as_well(
    cluster: InProcessCluster, diary: Script, gate: Gate
) -> None:
    mesh = spawn_under(RestartPolicy(), diary, gpus=3)
    diary.hooks["init"] = lambda actor: gate.stand() if actor.rank == 0 else None
    mesh.slice(gpus=0).fail.broadcast()
    gate.reached()
    mesh.slice(gpus=1).fail.broadcast()
    mesh.slice(gpus=2).fail.broadcast()
    assert {diary.until("restarted")[-1][1] for _ in range(2)} == {1, 2}
    gate.open()
    until_restarted(cluster, diary, 0)
    assert values(mesh, "called") == ["first"] * 3


def test_arguments_that_were_not_kept_end_it_at_once(cluster: InProcessCluster, diary: Script) -> None:
    with monarch.configured(restart_argument_bytes=5000), RestartPolicy("all_for_one"):
        mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(diary), extra=b"x" * 6000)
    values(mesh, "add", 1)
    diary.rest()
    failure = fail(cluster, mesh.slice(gpus=1))
    assert "it was not restarted: the constructor arguments of w-" in failure.report()
    assert "restart_argument_bytes" in failure.event
    assert diary.rest() == [("cleanup", 1)]  # the other one was left alone
    assert mesh.slice(gpus=0).add.call_one(2).get(TIMEOUT) == 2


# --- who else is concerned


@kinds
def test_casts_to_a_rank_that_is_down_harm_nobody(diary: Script, kind: type) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        mesh = spawn_under(RestartPolicy(backoff=10), diary, kind)
        sender = spawn(Script(), procs=this_host().spawn_procs())

        def cast(actor: Worker, mesh: Any, text: str) -> None:
            mesh.add.broadcast(text)

        do(sender, cast, mesh, "before")
        ended = cluster.expect("ActorEnded")
        mesh.slice(gpus=1).fail.broadcast()
        ended.wait()
        bounced = [cluster.expect("Bounced", target=cluster.address_of(who)) for who in ("client", sender)]
        mesh.add.broadcast("lost")
        do(sender, cast, mesh, "lost")
        for one in bounced:
            one.wait()
        clock.advance(10)
        until_restarted(cluster, diary, 1)
        do(sender, cast, mesh, "after")
        assert do(sender, lambda actor, mesh: values(mesh, "all"), mesh)[1] == ["after"]
        assert do(sender, lambda actor: actor.name) == "first"  # it lives, and so does the program


@kinds
def test_casts_to_a_rank_that_is_stopped_for_another_harm_nobody(
    cluster: InProcessCluster, diary: Script, gate: Gate, kind: type
) -> None:
    mesh = spawn_under(RestartPolicy("all_for_one"), diary, kind)
    sender = spawn(Script(), procs=this_host().spawn_procs())
    diary.hooks["cleanup"] = lambda actor, exc: gate.stand() if actor.rank == 0 else None
    mesh.slice(gpus=1).fail.broadcast()
    gate.reached()
    bounced = [cluster.expect("Bounced", target=cluster.address_of(who)) for who in ("client", sender)]
    mesh.slice(gpus=0).add.broadcast("lost")
    do(sender, lambda actor, mesh: mesh.slice(gpus=0).add.broadcast("lost"), mesh)
    for one in bounced:
        one.wait()
    gate.open()
    until_restarted(cluster, diary, 0, 1)
    assert values(mesh, "all") == [[], []]
    assert do(sender, lambda actor: actor.name) == "first"


def test_a_cast_to_a_mesh_that_was_stopped_is_an_error_as_ever(cluster: InProcessCluster, diary: Script) -> None:
    mesh = spawn_under(RestartPolicy(), diary)
    sender = spawn(Script(), procs=this_host().spawn_procs())
    do(sender, lambda actor, mesh: mesh.add.broadcast(1), mesh)
    mesh.stop().get(TIMEOUT)
    do(sender, lambda actor, mesh: mesh.add.broadcast(2), mesh)
    assert "undeliverable message" in cluster.next_failure().report()


def test_an_owner_is_restarted_with_what_it_owns(cluster: InProcessCluster, diary: Script) -> None:
    """Nested: the child's policy has enough, its owner fails with that, and the owner's policy makes both anew."""
    children = Script()

    class Nest(Worker):
        def __init__(self, diary: Scripted, children: Scripted) -> None:
            super().__init__(diary)
            with RestartPolicy(max_restarts=1):
                self.child = this_host().spawn_procs({"gpus": 2}).spawn("child", Worker, children)

        @endpoint
        def get_child(self) -> Any:
            return self.child

    with RestartPolicy(max_restarts=1):
        nest = this_host().spawn_procs().spawn("nest", Nest, Local(diary), Local(children))
    for life in range(2):
        child = nest.get_child.call_one().get(TIMEOUT)
        values(child, "called")
        children.rest()
        child.slice(gpus=0).fail.broadcast("small trouble")
        until_restarted(cluster, children, 0)
        child.slice(gpus=1).fail.broadcast("large trouble")
        if not life:
            until_restarted(cluster, diary, 0)
    failure = cluster.next_failure()
    assert failure.mesh_name.startswith("nest-") and "large trouble" in failure.report()
    assert "did not handle" in failure.event and "1 restarts" in failure.event


def test_a_policy_in_an_async_actor_holds_for_the_block_only(cluster: InProcessCluster, diary: Script) -> None:
    children = Script()
    owner = spawn(diary, AsyncOwner, procs=this_host().spawn_procs(), name="owner")
    diary.hooks["supervise"] = lambda actor, failure: True

    async def own(actor: Worker) -> Any:
        procs = this_host().spawn_procs({"gpus": 2})
        with RestartPolicy():
            actor.kept = procs.spawn("kept", Worker, Local(children))
            await actor.kept.called.call()
        actor.lost = procs.spawn("lost", Worker, Local(Script()))
        return actor.kept, actor.lost

    kept, lost = do(owner, own)
    values(lost, "called")
    children.rest()
    kept.slice(gpus=0).fail.broadcast()
    until_restarted(cluster, children, 0)
    lost.slice(gpus=0).fail.broadcast()
    ((_, failure),) = diary.until("supervise")
    assert failure.mesh_name.startswith("lost-")


# --- Processes, asked for.


def pids(cluster: InProcessCluster, mesh: Any) -> list[int]:
    living = cluster.agent.living
    return [living[cluster.address_of(mesh, rank)].pid for rank in range(len(mesh))]


def kill(cluster: InProcessCluster, mesh: Any, rank: int, *owned: Any, code: int = -9) -> list[MeshFailure]:
    """Kills one process under a mesh, and takes the failure of each mesh of the client that had an actor there."""
    cluster.kill(mesh, rank, code=code)
    failures = [cluster.next_failure() for _ in owned]
    assert sorted(failure.mesh_name for failure in failures) == sorted(mesh._mesh_name for mesh in owned)
    return failures


@kinds
def test_a_process_that_died_is_replaced_and_its_actors_after_it(
    cluster: InProcessCluster, diary: Script, kind: type
) -> None:
    """However it ended; each end is told once, and is that of the process that was there."""
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, kind, procs=procs)
    asker = spawn(Script(), procs=this_host().spawn_procs())
    before = pids(cluster, procs)
    for round, (code, text) in enumerate([(-9, "Killed(sig=9)"), (7, "non-zero code 7"), (-11, "Killed(sig=11)")]):
        values(mesh, "add", round)
        do(asker, lambda actor, mesh: values(mesh, "called"), mesh)
        (failure,) = kill(cluster, procs, 1, mesh, code=code)
        assert failure.crashed_ranks == [1] and f"pid {before[1]}" in failure.report()
        with pytest.raises(ActorError, match=rf"{re.escape(text)}[^']*pid {before[1]}"):
            do(asker, lambda actor, mesh: values(mesh, "called"), mesh)
        assert procs.restart(failed=True).get(TIMEOUT) is None
        assert actors_in(cluster, procs) == [["w"], []]
        fails(mesh.slice(gpus=1).called.call_one(), re.escape(text))
        mesh.restart(failed=True).get(TIMEOUT)
        assert diary.rest() == [("init", 1, "first"), ("restarted", 1)]
        assert values(mesh, "all") == [list(range(round + 1)), []]
        assert text in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())
        after = pids(cluster, procs)
        assert after[0] == before[0] and after[1] > before[1]
        before = after
    procs.restart(failed=True).get(TIMEOUT)  # none is left, and that is no error
    assert pids(cluster, procs) == before


@kinds
def test_a_living_process_is_stopped_in_order_first(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, kind, procs=procs)
    other = spawn(Script(), kind, procs=procs, name="other")
    values(mesh, "add", "before")
    procs.restart(gpus=0).get(TIMEOUT)
    assert diary.rest() == [("cleanup", 0)]
    assert actors_in(cluster, procs) == [[], ["other", "w"]]
    fails(mesh.slice(gpus=0).called.call_one(), "the process is being restarted")
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "all") == [[], ["before"]]
    assert actors_in(cluster, procs) == [["w"], ["other", "w"]]
    other.restart(failed=True).get(TIMEOUT)
    assert values(other, "called") == ["first"] * 2
    late = spawn(Script(), kind, procs=procs, name="late")  # and new meshes can be spawned there as ever
    assert values(late, "called") == ["first"] * 2


def test_what_is_no_part_of_it_or_not_ours_is_refused(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    for wrong, error in (({"hosts": 0}, TypeError), ({"gpus": 2}, IndexError)):
        with pytest.raises(error):
            procs.restart(**wrong)
    for reference in (procs.slice(gpus=0), this_proc()):
        with pytest.raises(ValueError, match=r"its owner, the object that spawn_procs\(\) returned"):
            reference.restart()
    other = spawn(Script(), procs=this_host().spawn_procs())
    with pytest.raises(ActorError, match="not owned"):
        do(other, lambda actor, sent: sent.restart(), procs)
    procs.stop().get(TIMEOUT)
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.restart()


def test_who_calls_between_the_restarts_of_process_and_actor(diary: Script) -> None:
    """Nobody is there for too long; and whoever comes after all is reached by the next call."""
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        procs = this_host().spawn_procs({"gpus": 2})
        mesh = spawn(diary, procs=procs)
        heard, silent = (spawn(Script(), procs=this_host().spawn_procs()) for _ in range(2))

        def call(actor: Worker, mesh: Any) -> Any:
            return mesh.slice(gpus=1).add.call_one(actor.name).exception(TIMEOUT)

        assert do(heard, call, mesh) is None
        kill(cluster, procs, 1, mesh)
        procs.restart(failed=True).get(TIMEOUT)
        for asker in (heard, silent):
            for _ in range(2):
                under_way = cluster.expect("Call", target=cluster.address_of(procs, 1))
                asked = asker.do.call_one(Local(call), mesh)
                under_way.wait()
                clock.advance(30)
                assert "does not exist in the process" in str(asked.get(TIMEOUT))
        under_way = cluster.expect("Call", target=cluster.address_of(procs, 1))
        early = heard.do.call_one(Local(call), mesh)  # that one waits for it
        under_way.wait()
        mesh.restart(failed=True).get(TIMEOUT)
        assert early.get(TIMEOUT) is None
        for asker in (silent, heard, silent):
            assert do(asker, call, mesh) is None
        assert values(mesh, "all")[1] == ["first"] * 4


def test_a_mesh_that_is_stopped_after_its_process_was_replaced_is_waited_for_by_nobody(
    cluster: InProcessCluster, diary: Script
) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, procs=procs)
    other = spawn(Script(), procs=this_host().spawn_procs())
    procs.restart(gpus=0).get(TIMEOUT)
    mesh.stop().get(TIMEOUT)

    def call(actor: Worker, mesh: Any) -> Any:
        return mesh.called.call_one().exception(TIMEOUT)

    for rank in range(2):
        fails(mesh.slice(gpus=rank).called.call_one(), "stopped")
        assert "stopped" in str(do(other, call, mesh.slice(gpus=rank)))
    mesh.slice(gpus=0).called.broadcast()
    assert "stopped" in cluster.next_failure().report()


def test_who_never_called_the_first_actor_of_a_new_process_reaches_the_one_in_its_place(
    cluster: InProcessCluster, diary: Script
) -> None:
    """It has heard of the process, and nobody tells it of an actor that it has not called."""
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, procs=procs)
    heard, silent = (spawn(Script(), procs=this_host().spawn_procs()) for _ in range(2))

    def call(actor: Worker, mesh: Any) -> Any:
        return [mesh.slice(gpus=1).add.call_one(actor.name) for _ in range(2)][-1].exception(TIMEOUT)

    assert do(heard, call, mesh) is None
    kill(cluster, procs, 1, mesh)
    procs.restart(failed=True).get(TIMEOUT)
    mesh.restart(failed=True).get(TIMEOUT)
    for _ in range(2):
        mesh.restart(gpus=1).get(TIMEOUT)
    for asker in (heard, silent, heard, silent):
        assert do(asker, call, mesh) is None
    assert values(mesh, "all")[1] == ["first"] * 8
    mesh.restart(gpus=1).get(TIMEOUT)
    for asker in (heard, silent):
        assert do(asker, call, mesh) is None


# --- with a bootstrap function, or classes that are replaced


def test_a_bootstrap_function_runs_in_the_new_process_before_its_actors(
    cluster: InProcessCluster, diary: Script
) -> None:
    shared = Local(diary)
    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: shared.value.note("bootstrap"))
    mesh = spawn(diary, procs=procs)
    kill(cluster, procs, 1, mesh)
    procs.restart(failed=True).get(TIMEOUT)
    assert diary.rest() == ["bootstrap"]
    mesh.restart(failed=True).get(TIMEOUT)
    assert diary.rest() == [("init", 1, "first"), ("restarted", 1)]
    procs.restart(gpus=0).get(TIMEOUT)
    assert diary.rest() == [("cleanup", 0), "bootstrap"]
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


def test_a_bootstrap_function_that_raises_in_the_new_process(cluster: InProcessCluster, diary: Script) -> None:
    trouble: Local[list[str]] = Local([])

    def bootstrap() -> None:
        for text in trouble.value:
            raise OSError(text)

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap)
    mesh = spawn(diary, procs=procs)
    trouble.value.append("no licence")
    fails(procs.restart(gpus=1), "no licence", error=ActorError)
    fails(mesh.restart(gpus=1), "no licence", error=ActorError)
    fails(mesh.slice(gpus=1).called.call_one(), "no licence", error=ActorError)
    assert mesh.slice(gpus=0).called.call_one().get(TIMEOUT) == "first"
    trouble.value.clear()
    procs.restart(gpus=1).get(TIMEOUT)
    mesh.restart(gpus=1).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


class Real(Actor):
    @endpoint
    def who(self) -> str:
        return "real"


class Mock(Actor):
    @endpoint
    def who(self) -> str:
        return "mock"


def test_replaced_classes_hold_in_the_new_process(cluster: InProcessCluster, diary: Script) -> None:
    with patch_actor(Real, Mock):
        procs = this_host().spawn_procs({"gpus": 2})
        mesh = spawn(diary, procs=procs)

    def spawned(actor: Worker) -> Any:
        inner = this_proc().spawn("inner", Real)
        return inner.who.call_one().get(TIMEOUT)

    assert do(mesh.slice(gpus=1), spawned) == "mock"
    kill(cluster, procs, 1, mesh)
    procs.restart(failed=True).get(TIMEOUT)
    mesh.restart(failed=True).get(TIMEOUT)
    assert do(mesh.slice(gpus=1), spawned) == "mock"


# --- ends while processes restart


def test_several_restarts_of_a_process_at_once_are_one(cluster: InProcessCluster, diary: Script, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, procs=procs)
    before = len(cluster.agent.procs)
    diary.hooks["cleanup"] = gate.stand
    first = procs.restart(gpus=1)
    gate.reached()
    second = procs.restart()
    gate.open()
    for restart in (second, first):
        restart.get(TIMEOUT)
    assert sorted(diary.rest()) == [("cleanup", 0), ("cleanup", 1)]
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2
    assert len(cluster.agent.procs) == before + 2


def test_a_process_may_be_replaced_before_the_mesh_has_started(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    restart = procs.restart(gpus=2)
    assert procs.initialized.get(TIMEOUT) is True
    restart.get(TIMEOUT)
    assert values(spawn(diary, procs=procs), "called") == ["first"] * 3


@pytest.mark.parametrize("bootstrap", [None, lambda: None], ids=["plain", "bootstrap"])
def test_processes_that_are_stopped_while_they_restart_leave_nothing(
    cluster: InProcessCluster, diary: Script, gate: Gate, bootstrap: Any
) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap)
    mesh = spawn(diary, procs=procs)
    diary.hooks["cleanup"] = lambda actor, exc: gate.stand() if actor.rank == 1 else None
    restart = procs.restart()
    gate.reached()
    stop = procs.stop("enough")
    gate.open()
    fails(restart, "was stopped while it was being restarted: enough", error=RuntimeError)
    stop.get(TIMEOUT)
    cluster.settle()
    assert cluster.agent.living == {}
    with pytest.raises(RuntimeError, match=r"was stopped|cannot be restarted"):
        mesh.restart(failed=True).get(TIMEOUT)


def test_a_new_process_that_dies_at_once(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, procs=procs)
    kill(cluster, procs, 1, mesh)
    address = cluster.address_of(procs, 1)
    with cluster.network.hold(source=address):  # it runs, and nobody hears of it
        restart = procs.restart(failed=True)
        started = threading.Event()
        while not started.is_set():
            cluster.settle()
            if address in cluster.agent.living:
                started.set()
        cluster.kill(procs, 1, code=3)
        fails(restart, "ended before it was ready: exited with non-zero code 3", error=RuntimeError)
    procs.restart(failed=True).get(TIMEOUT)
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


@full
def test_hundreds_of_restarts_of_a_process_leave_what_one_leaves(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn(diary, procs=procs)
    sender = spawn(Script(), procs=this_host().spawn_procs())
    source = cluster.agent.living[cluster.address_of(sender)]

    def round(number: int) -> None:
        if number % 2:
            kill(cluster, procs, 1, mesh)
        procs.restart(gpus=1).get(TIMEOUT)
        mesh.restart(failed=True).get(TIMEOUT)
        do(sender, lambda actor, mesh: values(mesh, "add", 1), mesh)

    def everything() -> Any:
        cluster.settle()
        return (
            sizes(cluster),
            kept(source),
            cluster.network.statistics()["connections"],
            len(cluster.agent.living),
        )

    for number in range(2):
        round(number)
    before = everything()
    for number in range(200):
        round(number)
    assert everything() == before


# --- by a policy


@kinds
def test_a_policy_restarts_process_and_actor(cluster: InProcessCluster, diary: Script, kind: type) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn_under(RestartPolicy(), diary, kind, procs=procs)
    asker = spawn(Script(), procs=this_host().spawn_procs())
    do(asker, lambda actor, mesh: values(mesh, "add", "before"), mesh)
    for code in (-9, 7, -11):
        before = pids(cluster, procs)
        cluster.kill(procs, 1, code=code)
        assert until_restarted(cluster, diary, 1) == [("init", 1, "first"), ("restarted", 1)]
        after = pids(cluster, procs)
        assert after[0] == before[0] and after[1] != before[1]
        assert do(asker, lambda actor, mesh: values(mesh, "all"), mesh) == [["before"], []]
        assert values(mesh, "all") == [["before"], []]
    assert "Killed(sig=11)" in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())


def test_a_process_that_exits_cleanly_is_not_restarted_by_a_policy(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn_under(RestartPolicy(), diary, procs=procs)
    ended = cluster.expect("ProcEnded", target=cluster.address_of("client"))
    cluster.kill(procs, 1, code=0)
    ended.wait()
    restarts_are_over()
    assert diary.rest() == []
    fails(mesh.slice(gpus=1).called.call_one(), "exited cleanly")
    procs.restart(failed=True).get(TIMEOUT)  # by hand it can be
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


def test_meshes_of_different_policies_share_the_restart_of_their_process(cluster: InProcessCluster) -> None:
    diaries = [Script() for _ in range(4)]
    procs = this_host().spawn_procs({"gpus": 2})
    meshes = [
        spawn_under(RestartPolicy(strategy), diary, procs=procs, name=f"w{i}")
        for i, (strategy, diary) in enumerate(
            zip(["one_for_one", "all_for_one", "rest_for_one"], diaries, strict=False)
        )
    ]
    meshes.append(spawn(diaries[3], procs=procs, name="w3"))  # and one without
    for mesh in meshes:
        values(mesh, "add", "before")
    kill(cluster, procs, 0, meshes[3])
    for diary, ranks in zip(diaries, [[0], [0, 1], [0, 1]], strict=False):
        until_restarted(cluster, diary, *ranks)
    old, new = ["before"], []
    assert [values(mesh, "all") for mesh in meshes[:3]] == [[new, old], [new, new], [new, new]]
    assert actors_in(cluster, procs) == [["w0", "w1", "w2"], ["w0", "w1", "w2", "w3"]]
    meshes[3].restart(failed=True).get(TIMEOUT)
    assert values(meshes[3], "all") == [new, old]


def test_a_policy_and_a_bootstrap_function(cluster: InProcessCluster, diary: Script) -> None:
    shared = Local(diary)
    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: shared.value.note("bootstrap"))
    mesh = spawn_under(RestartPolicy("all_for_one"), diary, procs=procs)
    for _ in range(2):
        cluster.kill(procs, 1)
        events = until_restarted(cluster, diary, 0, 1)
        assert events[0] == ("cleanup", 0) and "bootstrap" in events
        assert events.index("bootstrap") < events.index(("init", 1, "first"))
        assert values(mesh, "called") == ["first"] * 2


def test_processes_of_others_are_not_restarted(cluster: InProcessCluster, diary: Script) -> None:
    """The actors are the owner's, the processes are not: it is told what can be done."""
    procs = this_host().spawn_procs({"gpus": 2})
    owner = spawn(diary, Owner, procs=this_host().spawn_procs(), name="owner")
    diary.hooks["supervise"] = lambda actor, failure: True
    children = Script()

    def own(actor: Worker, procs: Any) -> Any:
        with RestartPolicy("all_for_one", max_restarts=9):
            actor.child = procs.spawn("child", Worker, Local(children))
        actor.child.called.call().get(TIMEOUT)
        return actor.child

    child = do(owner, own, procs)
    cluster.kill(procs, 1)
    ((_, failure),) = diary.until("supervise")
    assert "it was not restarted: its process" in failure.event
    assert "is not this owner's" in failure.event and "procs.restart(failed=True)" in failure.event
    restarts_are_over()
    procs.restart(failed=True).get(TIMEOUT)
    do(owner, lambda actor: actor.child.restart(failed=True).get(TIMEOUT))
    assert values(child, "called") == ["first"] * 2


def test_a_process_that_dies_while_its_actor_is_restarted(cluster: InProcessCluster, diary: Script, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = spawn_under(RestartPolicy("all_for_one"), diary, procs=procs)
    first = iter([True])
    diary.hooks["cleanup"] = lambda actor, exc: gate.stand() if actor.rank == 0 and next(first, False) else None
    mesh.slice(gpus=1).fail.broadcast()
    gate.reached()
    cluster.kill(procs, 1)  # the actor there has failed; now its process is gone as well
    gate.open()
    until_restarted(cluster, diary, 0, 1)
    assert values(mesh, "add", 1) == [1, 1]


def test_all_processes_die_at_once(cluster: InProcessCluster, diary: Script) -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    mesh = spawn_under(RestartPolicy(max_restarts=4), diary, procs=procs)
    values(mesh, "add", "before")
    cluster.kill(procs)
    until_restarted(cluster, diary, 0, 1, 2, 3)
    assert values(mesh, "all") == [[]] * 4


class Service(Actor):
    """A service of a program that knows of no restarts of ours."""

    def __init__(self) -> None:
        self.restarts = 0

    @endpoint
    def restart(self, by: int) -> int:
        self.restarts += by
        return self.restarts


def test_an_endpoint_called_restart_is_the_classs_own(cluster: InProcessCluster) -> None:
    service: Any = this_host().spawn_procs({"gpus": 2}).spawn("service", Service)
    assert service.restart.call(2).get(TIMEOUT).values() == [2, 2]
    assert service.slice(gpus=1).restart.call_one(1).get(TIMEOUT) == 3
    ActorMesh.restart(service, gpus=1).get(TIMEOUT)
    assert service.restart.call(1).get(TIMEOUT).values() == [3, 1]
