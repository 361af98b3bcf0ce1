"""Actors and processes that take the place of others: asked for by the program, or by a policy.

On an in-process cluster: what reaches its root client and is not taken by `cluster.next_failure()` fails the test, so every
test here also says that nothing else was reported, and that no thread, port or actor is left behind.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import (
    Actor,
    ActorError,
    MeshFailure,
    ProcMesh,
    RestartPolicy,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from monarch.testing import InProcessCluster, Local, VirtualClock, patch_actor

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")
TIMEOUT = 30


# --- Actors that write down what happens to them, and do what the test says.


class Diary:
    """What happened to the actors of a test, in order. `hooks`: what they do then."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[..., Any]] = {}
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def note(self, what: str, *rest: Any) -> None:
        self._events.put((what, *rest))

    def run(self, hook: str, actor: Any, *args: Any) -> Any:
        action = self.hooks.get(hook)
        return None if action is None else action(actor, *args)

    def next(self) -> tuple[Any, ...]:
        """What happened next; waits for it."""
        return self._events.get(timeout=TIMEOUT)

    def until(self, *what: Any) -> list[tuple[Any, ...]]:
        """What happened up to an event that begins like this, and that event; waits for it."""
        found = [self.next()]
        while found[-1][: len(what)] != what:
            found.append(self.next())
        return found

    def rest(self) -> list[tuple[Any, ...]]:
        """What happened and was not taken yet, without waiting."""
        found = []
        while not self._events.empty():
            found.append(self._events.get_nowait())
        return found


Shared = Local[Diary]


class Worker(Actor):
    """On a plain thread. Notes ("init", rank, name), ("restarted", rank), ("cleanup", rank)."""

    def __init__(self, diary: Shared, name: str = "first", *, extra: Any = None) -> None:
        self.diary = diary.value
        self.rank = context().actor_instance.rank.rank
        self.name = name
        self.seen: list[Any] = []
        self.failure: MeshFailure | None = None
        self.diary.note("init", self.rank, name)
        self.diary.run("init", self)

    @endpoint
    def add(self, value: Any) -> int:
        self.seen.append(value)
        return len(self.seen)

    @endpoint
    def all(self) -> list[Any]:
        return self.seen

    @endpoint
    def called(self) -> str:
        return self.name

    @endpoint
    def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    @endpoint
    def do(self, action: Local[Callable[..., Any]], *args: Any) -> Any:
        return action.value(self, *args)

    def __restarted__(self, failure: MeshFailure) -> Any:
        self.failure = failure
        self.diary.note("restarted", self.rank)
        self.diary.run("restarted", self, failure)

    def __cleanup__(self, exc: Exception | None) -> Any:
        self.diary.note("cleanup", self.rank)
        self.diary.run("cleanup", self, exc)


class AsyncWorker(Worker):
    """On an event loop."""

    @endpoint
    async def do(self, action: Local[Callable[..., Any]], *args: Any) -> Any:
        return await awaited(action.value(self, *args))

    async def __restarted__(self, failure: MeshFailure) -> None:
        await asyncio.sleep(0)
        super().__restarted__(failure)

    async def __cleanup__(self, exc: Exception | None) -> None:
        super().__cleanup__(exc)


class Owner(Worker):
    def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure)
        return self.diary.run("supervise", self, failure)


class AsyncOwner(AsyncWorker):
    async def __supervise__(self, failure: MeshFailure) -> Any:
        self.diary.note("supervise", failure)
        return await awaited(self.diary.run("supervise", self, failure))


async def awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


KINDS = [Worker, AsyncWorker]
kinds = pytest.mark.parametrize("kind", KINDS)
owners = pytest.mark.parametrize("kind", [Owner, AsyncOwner])


@pytest.fixture
def diary() -> Diary:
    return Diary()


class Gate:
    """Holds an actor still inside a hook: `hook` goes into a diary."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def hook(self, *_: Any) -> None:
        self.entered.set()
        self.opened.wait(TIMEOUT)

    def wait_entered(self) -> None:
        assert self.entered.wait(TIMEOUT)


@pytest.fixture
def gate(cluster: InProcessCluster) -> Iterator[Gate]:
    """Opened before the cluster is left, so that a failing test does not wait for the actors it held."""
    gate = Gate()
    yield gate
    gate.opened.set()


def spawn(diary: Diary, kind: type = Worker, gpus: int = 2, procs: Any = None, name: str = "w", *args: Any) -> Any:
    mesh = (procs if procs is not None else this_host().spawn_procs({"gpus": gpus})).spawn(
        name, kind, Local(diary), *args
    )
    mesh.called.call().get(TIMEOUT)
    diary.rest()
    return mesh


def do(mesh: Any, action: Callable[..., Any], *args: Any) -> Any:
    """Has a mesh of one run `action(actor, *args)` and waits for the result."""
    return mesh.do.call_one(Local(action), *args).get(TIMEOUT)


def values(mesh: Any, method: str, *args: Any) -> list[Any]:
    return [value for _, value in getattr(mesh, method).call(*args).get(TIMEOUT)]


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
    living = cluster._agent.living
    return [
        sorted(actor.name for actor in living[cluster.address_of(mesh, rank)].actors.values())
        for rank in range(len(mesh))
    ]


def sizes(cluster: InProcessCluster) -> dict[str, Any]:
    """What the client keeps."""
    proc = cluster._proc
    return {
        "ports": len(proc.ports),
        "ledger": proc.mesh.ledger.statistics(),
        "troubled": len(proc.mesh.ledger.troubled),
        "meshes": len(proc.mesh.actors),
        "numbering": {key: len(counts) for key, counts in cluster._root.numbering._counts.items()},
        "incarnations": {key: len(ranks) for key, ranks in proc.incarnations._actors.items()},
        "peers": len(proc._peers),
    }


# --- Asked for: who is constructed again, with what.


@kinds
def test_a_failed_actor_is_constructed_again(cluster: InProcessCluster, diary: Diary, kind: type) -> None:
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
def test_a_living_actor_is_stopped_first_and_its_cleanup_runs(diary: Diary, kind: type) -> None:
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
def test_a_part_is_selected_as_for_slice(diary: Diary, selection: dict[str, Any], ranks: list[int]) -> None:
    mesh = spawn(diary, procs=this_host().spawn_procs({"hosts": 2, "gpus": 3}))
    mesh.restart(**selection).get(TIMEOUT)
    assert sorted(rank for what, rank, *_ in diary.rest() if what == "init") == ranks


def test_failed_selects_among_the_others(cluster: InProcessCluster, diary: Diary) -> None:
    mesh = spawn(diary, gpus=4)
    for rank in (1, 2):
        fail(cluster, mesh.slice(gpus=rank))
    diary.rest()
    mesh.restart(failed=True, gpus=slice(2, 4)).get(TIMEOUT)
    assert diary.rest() == [("init", 2, "first"), ("restarted", 2)]
    with pytest.raises(SupervisionError, match="as asked"):
        mesh.slice(gpus=1).called.call_one().get(TIMEOUT)
    mesh.restart(failed=True).get(TIMEOUT)
    assert diary.rest() == [("init", 1, "first"), ("restarted", 1)]
    mesh.restart(failed=True).get(TIMEOUT)  # none is left, and that is no error
    assert diary.rest() == []
    assert values(mesh, "called") == ["first"] * 4


@pytest.mark.parametrize(
    ("selection", "error"),
    [
        ({"hosts": 1}, TypeError),
        ({"gpus": 2}, IndexError),
        ({"gpus": "all"}, TypeError),
        ({"gpus": slice(1, 1)}, ValueError),
    ],
)
def test_a_selection_the_mesh_does_not_have(diary: Diary, selection: dict[str, Any], error: type) -> None:
    mesh = spawn(diary)
    with pytest.raises(error, match=next(iter(selection))):
        mesh.restart(**selection)
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_a_mesh_of_one_without_dimensions(diary: Diary) -> None:
    mesh = spawn(diary, procs=this_host().spawn_procs())
    mesh.restart().get(TIMEOUT)
    assert diary.rest() == [("cleanup", 0), ("init", 0, "first"), ("restarted", 0)]
    assert mesh.called.call_one().get(TIMEOUT) == "first"


def test_an_actor_in_the_clients_own_process(cluster: InProcessCluster, diary: Diary) -> None:
    mesh = spawn(diary, procs=this_proc())
    mesh.add.call_one("before").get(TIMEOUT)
    fail(cluster, mesh)
    for _ in range(3):
        mesh.restart().get(TIMEOUT)
        assert mesh.add.call_one("after").get(TIMEOUT) == 1


def test_actors_spawned_on_a_slice_are_restarted_in_its_processes(cluster: InProcessCluster, diary: Diary) -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    mesh = spawn(diary, procs=procs.slice(gpus=slice(1, 3)))
    fail(cluster, mesh.slice(gpus=1))
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2
    assert actors_in(cluster, procs) == [[], ["w"], ["w"], []]


def test_restarts_can_be_awaited(cluster: InProcessCluster, diary: Diary) -> None:
    mesh = spawn(diary)
    fail(cluster, mesh.slice(gpus=0))

    async def main() -> list[Any]:
        await mesh.restart(failed=True)
        return [value for _, value in await mesh.called.call()]

    assert asyncio.run(main()) == ["first"] * 2


# --- with other arguments


def test_other_arguments_hold_for_those_ranks_from_now_on(cluster: InProcessCluster, diary: Diary) -> None:
    mesh = spawn(diary, gpus=3)
    mesh.restart(args=(Local(diary), "second"), gpus=1).get(TIMEOUT)
    assert values(mesh, "called") == ["first", "second", "first"]
    mesh.restart().get(TIMEOUT)
    assert values(mesh, "called") == ["first", "second", "first"]
    mesh.restart(kwargs={"diary": Local(diary), "name": "third"}, gpus=slice(0, 2)).get(TIMEOUT)
    fail(cluster, mesh.slice(gpus=0))
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["third", "third", "first"]


@pytest.mark.parametrize(
    "given",
    [{"args": ()}, {"kwargs": {}}, {"args": (1, 2, 3)}, {"args": (1,), "kwargs": {"nam": 1}}],
    ids=["too few", "none at all", "too many", "of another name"],
)
def test_arguments_that_do_not_fit_harm_nobody(diary: Diary, given: dict[str, Any]) -> None:
    mesh = spawn(diary)
    with pytest.raises(TypeError, match=r"Worker\.__init__"):
        mesh.restart(**given)
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_arguments_that_cannot_be_pickled_harm_nobody(diary: Diary) -> None:
    mesh = spawn(diary)
    with pytest.raises(TypeError, match="pickle"):
        mesh.restart(args=(threading.Lock(),))
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_the_first_arguments_are_kept_as_they_were(diary: Diary) -> None:
    np = pytest.importorskip("numpy")
    array, items = np.ones(10_000), ["before"]  # the array's memory is not copied into the message
    mesh = this_host().spawn_procs().spawn("w", Worker, Local(diary), extra=None)
    mesh.stop().get(TIMEOUT)

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


def test_arguments_too_large_to_be_kept_have_to_be_given_again(cluster: InProcessCluster, diary: Diary) -> None:
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


def test_a_reference_does_not_restart(diary: Diary) -> None:
    mesh = spawn(diary)
    for reference in (mesh.slice(gpus=0), mesh.flatten("all")):
        with pytest.raises(NotImplementedError, match=r"the object that spawn\(\) returned; restart\(gpus=1\)"):
            reference.restart()
    other = spawn(Diary(), procs=this_host().spawn_procs())
    with pytest.raises(ActorError) as caught:
        do(other, lambda actor, sent: sent.restart(), mesh)
    assert isinstance(caught.value.exception, NotImplementedError)
    assert diary.rest() == [] and values(mesh, "called") == ["first"] * 2


def test_a_stopped_mesh_is_not_restarted(cluster: InProcessCluster, diary: Diary) -> None:
    mesh = spawn(diary)
    stopping = mesh.stop()
    with pytest.raises(RuntimeError, match=r"w-\w+ was stopped: spawn it anew"):
        mesh.restart()
    stopping.get(TIMEOUT)
    with pytest.raises(RuntimeError, match="was stopped"):
        mesh.restart(failed=True)


def test_an_actor_whose_process_is_gone_is_not_restarted_alone(cluster: InProcessCluster, diary: Diary) -> None:
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


@kinds
def test_a_constructor_that_raises(cluster: InProcessCluster, diary: Diary, kind: type) -> None:
    mesh = spawn(diary, kind)

    def no_room(actor: Worker) -> None:
        raise OSError(f"no room for rank {actor.rank}")

    fail(cluster, mesh.slice(gpus=1))
    diary.hooks["init"] = no_room
    with pytest.raises(SupervisionError, match="no room for rank 1"):
        mesh.restart(failed=True).get(TIMEOUT)
    failure = cluster.next_failure()  # a failure as any other
    assert failure.crashed_ranks == [1] and "no room" in failure.report()
    with pytest.raises(SupervisionError, match="no room"):
        mesh.slice(gpus=1).called.call_one().get(TIMEOUT)
    diary.hooks.clear()
    mesh.restart(failed=True).get(TIMEOUT)
    assert "no room" in do(mesh.slice(gpus=1), lambda actor: actor.failure.report())
    assert values(mesh, "called") == ["first"] * 2


@kinds
def test_a_restarted_hook_that_raises(cluster: InProcessCluster, diary: Diary, kind: type) -> None:
    mesh = spawn(diary, kind)

    def lost(actor: Worker, failure: MeshFailure) -> None:
        raise LookupError("the checkpoint is lost")

    diary.hooks["restarted"] = lost
    with pytest.raises(SupervisionError, match="the checkpoint is lost"):
        mesh.restart(gpus=0).get(TIMEOUT)
    assert "checkpoint" in cluster.next_failure().report()
    assert diary.until("restarted", 0)
    diary.hooks.clear()
    mesh.restart(failed=True).get(TIMEOUT)
    assert values(mesh, "called") == ["first"] * 2


@kinds
def test_the_restarted_hook_runs_before_any_message(
    cluster: InProcessCluster, diary: Diary, gate: Gate, kind: type
) -> None:
    """A caller that the actor before never heard from reaches the new one at any time, and waits for the hook."""
    mesh = spawn(diary, kind, gpus=1).slice(gpus=0)
    owned = mesh  # a view is called, the owner restarts
    asker = spawn(Diary(), procs=this_host().spawn_procs())
    diary.hooks["restarted"] = gate.hook
    with pytest.raises(NotImplementedError):
        owned.restart()
    whole = spawn(diary, kind, gpus=1, name="whole")
    restart = whole.restart()
    gate.wait_entered()
    diary.rest()
    delivered = cluster.expect("Call", target=cluster.address_of(whole))
    asked = asker.do.call_one(Local(lambda actor, other: other.slice(gpus=0).add.call_one(1).get(TIMEOUT)), whole)
    delivered.wait()
    with pytest.raises(TimeoutError):
        restart.get(0)
    with pytest.raises(TimeoutError):
        asked.get(0)
    gate.opened.set()
    restart.get(TIMEOUT)
    assert asked.get(TIMEOUT) == 1
