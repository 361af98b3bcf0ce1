"""Owners and what they own, across real processes: what ends with whom, in which order, and who is told.

Every row of the tables, on simulated processes, is in `tests/_mesh/failures/test_ledger_rows.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    SupervisionError,
    bind_context,
    context,
    endpoint,
    this_host,
)
from monarch.config import configured
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Node(Pid):
    """Owns nodes below it, each in a process of its own. Writes of its cleanup to a journal that all share, and sends what
    it is told to a port of the test."""

    def __init__(self, journal: str, told: Port[Any], name: str, below: list[str], handles: bool) -> None:
        self.journal = journal
        self.told = told
        self.name = name
        self.handles = handles
        self.kids: dict[str, Any] = {}
        if below:
            first, *rest = below
            for letter in first:
                args = (journal, told, name + letter, rest, handles)
                self.kids[letter] = this_host().spawn_procs().spawn("node", type(self), *args)

    def write(self, what: str) -> None:
        with open(self.journal, "a") as file:  # appended at once, so lines of several processes do not mix
            file.write(f"{self.name} {what}\n")

    @endpoint
    def kid(self, letter: str) -> Any:
        return self.kids[letter]

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.send((self.name, failure.report()))
        return self.handles

    def __cleanup__(self, exc: Exception | None) -> None:
        self.write("cleanup None" if exc is None else f"cleanup {type(exc).__name__}")


class AsyncNode(Node):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.send((self.name, failure.report()))
        return self.handles

    async def __cleanup__(self, exc: Exception | None) -> None:
        self.write("cleanup None" if exc is None else f"cleanup {type(exc).__name__}")


class Tree:
    """r -> ra, rb; ra -> rax, ray: the client's process at the root, then one each."""

    def __init__(self, procs: ProcMesh, kind: type[Node], journal: Path, handles: bool) -> None:
        self.journal = journal
        port, self._told = Channel[Any].open()
        self.root: Any = procs.spawn("node", kind, str(journal), port, "r", ["ab", "xy"], handles)
        self.a = self._kid(self.root, "a")
        self.nodes = {"r": self.root, "ra": self.a, "rb": self._kid(self.root, "b")}
        for parent in ("ra", "rb"):
            for letter in "xy":
                self.nodes[parent + letter] = self._kid(self.nodes[parent], letter)
        self.pids = {name: node.pid.call_one().get(timeout=TIMEOUT) for name, node in self.nodes.items()}

    def _kid(self, node: Any, letter: str) -> Any:
        return node.kid.call_one(letter).get(timeout=TIMEOUT)

    def below(self, name: str) -> list[int]:
        return [pid for other, pid in self.pids.items() if other.startswith(name) and other != name]

    def next_told(self) -> tuple[str, str]:
        """Returns who was asked next about a failure, and its report."""
        return self._told.recv().get(timeout=TIMEOUT)  # type: ignore[no-any-return]

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []


@pytest.fixture(params=first_of([Node, AsyncNode]), ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def children_first(lines: list[str]) -> None:
    """Checks that each was cleaned up after all below it."""
    names = [line.split()[0] for line in lines]
    for index, name in enumerate(names):
        later = [other for other in names[index + 1 :] if other.startswith(name)]
        assert later == [], f"{later} after {name}"


def test_a_stop_goes_down_the_tree_and_its_processes_end(proc: ProcMesh, kind: Any, journal: Path, watch: Any) -> None:
    tree = Tree(proc, kind, journal, handles=True)
    ending = watch(tree.below("r"))
    tree.root.stop("the end").get(timeout=TIMEOUT)
    assert sorted(tree.lines()) == [f"{name} cleanup None" for name in sorted(tree.nodes)]
    children_first(tree.lines())
    assert ending.survivors(TIMEOUT) == {}


@pytest.mark.parametrize("how", first_of(["killed", "raised"]))
def test_a_failure_nobody_handles_climbs_and_takes_all_with_it(
    proc: ProcMesh, kind: Any, journal: Path, watch: Any, faults: Any, how: str
) -> None:
    tree = Tree(proc, kind, journal, handles=False)
    ending = watch(tree.below("r"))
    if how == "killed":
        os.kill(tree.pids["rax"], signal.SIGKILL)
    else:
        tree.nodes["rax"].fail.broadcast()
    failure = faults.next()
    assert failure.mesh_name == tree.root._name.get(timeout=TIMEOUT)
    assert re.match(
        rf"The actor <root>(\.<\S*{kind.__name__} node>){{3}} and all its descendants have failed:\n", failure.report()
    )
    cause = rf"Killed\(sig=9\)(.|\n)*pid {tree.pids['rax']}" if how == "killed" else "ValueError: as asked"
    assert re.search(cause, failure.report())
    lines = tree.lines()
    children_first(lines)
    assert [line for line in lines if line.startswith("rax ")] == (
        [] if how == "killed" else ["rax cleanup ValueError"]
    )
    assert sorted(line for line in lines if not line.startswith("rax ")) == [
        "r cleanup RuntimeError",
        "ra cleanup RuntimeError",
        "ray cleanup None",
        "rb cleanup None",
        "rbx cleanup None",
        "rby cleanup None",
    ]
    assert ending.survivors(TIMEOUT) == {}
    assert faults.rest() == []


@full
def test_what_a_killed_owner_owned_ends_with_it(proc: ProcMesh, kind: Any, journal: Path, watch: Any) -> None:
    """It can tell nobody: its host agent ends the processes it had spawned."""
    tree = Tree(proc, kind, journal, handles=True)
    ending = watch(tree.below("ra"))
    os.kill(tree.pids["ra"], signal.SIGKILL)
    who, report = tree.next_told()
    assert who == "r" and "Killed(sig=9)" in report
    assert ending.survivors(TIMEOUT) == {}
    with pytest.raises(SupervisionError):
        tree.nodes["rax"].pid.call_one().get(timeout=TIMEOUT)
    assert tree.nodes["rbx"].pid.call_one().get(timeout=TIMEOUT) == tree.pids["rbx"]
    tree.root.stop().get(timeout=TIMEOUT)


# --- one actor among others of its process


class Worker(Pid):
    def __init__(self, name: str = "") -> None:
        self.name = name

    @endpoint
    def raise_it(self, exc: Any) -> None:
        raise exc

    @endpoint
    def raise_foreign(self) -> None:
        """An exception whose class only this process has."""
        module = types.ModuleType("only_here")
        exec("class Foreign(Exception): pass", module.__dict__)
        sys.modules["only_here"] = module
        module.Foreign.__module__ = "only_here"
        raise module.Foreign("from far away")

    @endpoint
    def end_in_a_thread(self, how: str, begun: Port[Any]) -> None:
        go, receiver = Channel[Any].open()
        begun.send(go)
        released = receiver.recv()

        def work() -> None:
            released.get(TIMEOUT)
            getattr(context().actor_instance, how)("from a thread")

        threading.Thread(target=bind_context(work)).start()

    @endpoint
    def cast(self, other: Any) -> None:
        other.pid.broadcast()


class AsyncWorker(Worker):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()


@pytest.fixture(params=[Worker, AsyncWorker], ids=["sync", "async"])
def worker(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_an_actor_that_wants_to_end_the_program_ends_itself_only(
    procs2: ProcMesh, worker: Any, faults: Any, exc: BaseException
) -> None:
    one = procs2.slice(gpus=0)
    mesh, other = one.spawn("worker", worker), one.spawn("other", worker)
    pid = other.pid.call_one().get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError, match=type(exc).__name__):
        mesh.raise_it.call_one(exc).get(timeout=TIMEOUT)
    assert type(exc).__name__ in faults.next(handled=True).report()
    assert other.pid.call_one().get(timeout=TIMEOUT) == pid
    assert one.spawn("fresh", worker).pid.call_one().get(timeout=TIMEOUT) == pid


def test_an_exception_that_only_the_actor_knows_comes_as_text(proc: ProcMesh, worker: Any) -> None:
    mesh = proc.spawn("worker", worker)
    with pytest.raises(ActorError) as caught:
        mesh.raise_foreign.call_one().get(timeout=TIMEOUT)
    assert "Foreign: from far away" in str(caught.value) and "in raise_foreign" in str(caught.value)
    assert isinstance(mesh.pid.call_one().get(timeout=TIMEOUT), int)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.mark.parametrize("how", ["abort", "kill", "stop"])
def test_a_thread_ends_an_actor_that_has_nothing_to_do(proc: ProcMesh, worker: Any, faults: Any, how: str) -> None:
    mesh = proc.spawn("worker", worker)
    port, receiver = Channel[Any].open()
    mesh.end_in_a_thread.call_one(how, port).get(timeout=TIMEOUT)
    receiver.recv().get(timeout=TIMEOUT).send(None)
    if how == "stop":
        ended = mesh.stop()  # ready when it has ended, by itself or so
        ended.get(timeout=TIMEOUT)
    else:
        assert "actor explicitly aborted due to: from a thread" in faults.next().report()
    with pytest.raises(SupervisionError):
        mesh.pid.call_one().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_a_lost_cast_of_an_actor_is_its_failure(procs2: ProcMesh, worker: Any, faults: Any) -> None:
    caster = procs2.slice(gpus=0).spawn("caster", worker)
    other = procs2.slice(gpus=1).spawn("other", worker)
    other.pid.call_one().get(timeout=TIMEOUT)
    other.stop("no more").get(timeout=TIMEOUT)
    caster.cast.call_one(other).get(timeout=TIMEOUT)
    failure = faults.next()
    assert failure.mesh_name == caster._name.get(timeout=TIMEOUT)
    assert re.search(r"undeliverable message for other-\w+\.pid\(\)", failure.report())
    assert "stopped: no more" in failure.report()
    with pytest.raises(SupervisionError, match="undeliverable"):
        caster.pid.call_one().get(timeout=TIMEOUT)
    assert faults.rest() == []


@full
def test_what_threads_and_tasks_raise_is_printed_and_harms_nobody(scripts: Any) -> None:
    done = scripts.run(
        """
        import asyncio, gc, threading
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            async def begin(self):
                async def task(exc):
                    raise exc
                def thread():
                    raise ValueError("in a thread")
                running = threading.Thread(target=thread)
                running.start()
                running.join()
                tasks = [asyncio.create_task(task(e)) for e in (ValueError("in a task"), SystemExit("in an exit"))]
                await asyncio.wait(tasks)
                del tasks
                gc.collect()

            @endpoint
            async def alive(self):
                gc.collect()
                return True

        procs = this_host().spawn_procs()
        a = procs.spawn("a", A)
        a.begin.call_one().get(timeout=300)
        assert a.alive.call_one().get(timeout=300)
        procs.stop().get(timeout=300)  # what it has written is here by then
        """
    )
    for text in ("ValueError: in a thread", "ValueError: in a task", "SystemExit: in an exit"):
        assert text in done.stderr


# --- cleanup


class Stubborn(Pid):
    """Its cleanup never returns."""

    def __init__(self, journal: str) -> None:
        self.journal = Path(journal)

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    def __cleanup__(self, exc: Exception | None) -> None:
        self.journal.write_text("cleanup")
        threading.Event().wait()


def test_a_cleanup_that_hangs_holds_up_neither_stop_nor_the_report_nor_its_process(
    spawn_procs: Any, journal: Path, faults: Any, watch: Any
) -> None:
    with configured(cleanup_timeout="100ms"):
        procs = spawn_procs()
        stopped = procs.spawn("stopped", Stubborn, str(journal))
        failed = procs.spawn("failed", Stubborn, str(journal))
        pid = stopped.pid.call_one().get(timeout=TIMEOUT)
        assert stopped.stop().get(timeout=TIMEOUT) is None
        assert journal.read_text() == "cleanup"
        failed.fail.broadcast()
        assert "as asked" in faults.next().report()
        assert procs.spawn("fresh", Worker).pid.call_one().get(timeout=TIMEOUT) == pid
        procs.stop().get(timeout=TIMEOUT)
    assert watch([pid]).survivors(TIMEOUT) == {}
    assert faults.rest() == []


class Late(Actor):
    """Spawns when it should not."""

    def __init__(self, journal: str) -> None:
        self.journal = Path(journal)

    @endpoint
    def agent(self) -> int:
        return os.getppid()

    def __cleanup__(self, exc: Exception | None) -> None:
        try:
            this_host().spawn_procs()
        except RuntimeError as error:
            self.journal.write_text(str(error))


def test_nothing_is_spawned_in_cleanup(proc: ProcMesh, journal: Path, descendants: Any) -> None:
    mesh = proc.spawn("late", Late, str(journal))
    agent = mesh.agent.call_one().get(timeout=TIMEOUT)
    before = descendants(agent)
    mesh.stop("no more").get(timeout=TIMEOUT)
    assert "cannot spawn any more" in journal.read_text()
    assert set(descendants(agent)) <= set(before)
