"""Real processes and actors that take the place of others: killed, stopped, restarted by hand and by policies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    PortReceiver,
    RestartPolicy,
    SupervisionError,
    context,
    default_bootstrap_cmd,
    endpoint,
)
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Node(Pid):
    """`news`: a port for what happens to it. `folder`: where its cleanup leaves a file."""

    def __init__(self, news: Port[Any] | None = None, folder: str = "") -> None:
        self.news = news
        self.folder = folder
        self.seen: list[Any] = []
        self.why = ""

    def __restarted__(self, failure: MeshFailure) -> None:
        self.why = failure.report()
        if self.news is not None:
            self.news.send((context().actor_instance.rank.rank, os.getpid()))

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.folder:
            Path(self.folder, str(os.getpid())).write_text("clean")

    @endpoint
    def add(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return self.seen

    @endpoint
    def why_restarted(self) -> str:
        return self.why

    @endpoint
    def exit(self, code: int) -> None:
        os._exit(code)

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    def surroundings(self, name: str) -> Any:
        return os.environ.get(name), os.getcwd(), sorted(os.sched_getaffinity(0)), os.getppid()


class Asker(Actor):
    """Calls others from a process of its own."""

    @endpoint
    def ask(self, other: Any, value: Any) -> list[Any]:
        return [answer for _, answer in other.add.call(value).get(TIMEOUT)]


class AsyncAsker(Actor):
    def __init__(self) -> None:
        self.held: Any = None

    @endpoint
    async def hold(self, other: Any) -> None:
        self.held = other

    @endpoint
    async def ask(self, other: Any, value: Any) -> list[Any]:
        return [answer for _, answer in await (self.held or other).add.call(value)]


def values(mesh: Any, method: str, *args: Any) -> list[Any]:
    return [value for _, value in getattr(mesh, method).call(*args).get(timeout=TIMEOUT)]


def kill(mesh: Any, rank: int) -> int:
    """Kills one process by SIGKILL; returns its pid."""
    pid = values(mesh, "pid")[rank]
    os.kill(pid, signal.SIGKILL)
    return pid  # type: ignore[no-any-return]


@pytest.fixture
def news() -> Iterator[tuple[Port[Any], PortReceiver[Any]]]:
    port, receiver = Channel[Any].open()
    yield port, receiver


def restarted(receiver: PortReceiver[Any]) -> tuple[int, int]:
    """Waits until a policy has restarted somebody: its rank and pid."""
    told = receiver.recv().get(timeout=TIMEOUT)
    for thread in threading.enumerate():
        if thread.name == "monarch-restart":
            thread.join(TIMEOUT)
    return told  # type: ignore[no-any-return]


# --- by hand


def test_after_kill_9_process_and_actor_are_restarted_and_everybody_reaches_them(
    spawn_procs: Any, procs2: Any, faults: Any
) -> None:
    procs = spawn_procs({"gpus": 2}, name="restarted")
    mesh = procs.spawn("node", Node)
    asker, holder = procs2.slice(gpus=0).spawn("asker", Asker), procs2.slice(gpus=1).spawn("holder", AsyncAsker)
    assert asker.ask.call_one(mesh, "a").get(timeout=TIMEOUT) == [["a"], ["a"]]
    holder.hold.call_one(mesh.flatten("all")).get(timeout=TIMEOUT)
    killed = []
    for round in range(2):
        before = values(mesh, "pid")
        killed.append(kill(mesh, 1))
        failure = faults.next()
        assert failure.crashed_ranks == [1] and f"pid {killed[-1]}" in failure.report()
        for who in (asker, holder):
            with pytest.raises(ActorError, match=r"Killed\(sig=9\)") as caught:
                who.ask.call_one(mesh, "down").get(timeout=TIMEOUT)
            assert isinstance(caught.value.exception, SupervisionError)
        procs.restart(failed=True).get(timeout=TIMEOUT)
        mesh.restart(failed=True).get(timeout=TIMEOUT)
        after = values(mesh, "pid")
        assert after[0] == before[0] and after[1] not in (before[1], *killed)
        assert asker.ask.call_one(mesh, round).get(timeout=TIMEOUT)[1] == [round]
        assert holder.ask.call_one(None, "held").get(timeout=TIMEOUT)[1] == [round, "held"]
        assert mesh.slice(gpus=1).add.call_one("mine").get(timeout=TIMEOUT) == [round, "held", "mine"]
        assert f"pid {killed[-1]}" in values(mesh, "why_restarted")[1]
    assert faults.rest() == []  # each death was told once


@full
def test_an_actor_alone(spawn_procs: Any, procs2: Any, faults: Any) -> None:
    mesh = spawn_procs({"gpus": 2}).spawn("node", Node)
    asker = procs2.slice(gpus=0).spawn("asker", Asker)
    pids = values(mesh, "pid")
    for _ in range(2):
        assert asker.ask.call_one(mesh, 1).get(timeout=TIMEOUT)[1] == [1]
        mesh.slice(gpus=1).fail.broadcast()
        assert "as asked" in faults.next().report()
        mesh.restart(failed=True).get(timeout=TIMEOUT)
    assert asker.ask.call_one(mesh, 1).get(timeout=TIMEOUT) == [[1, 1, 1], [1]]
    assert values(mesh, "pid") == pids


@full
def test_a_living_process_runs_its_cleanups_first(spawn_procs: Any, tmp_path: Path, watch: Any) -> None:
    procs = spawn_procs({"gpus": 2})
    mesh = procs.spawn("node", Node, None, str(tmp_path))
    before = values(mesh, "pid")
    old = watch([before[0]])
    procs.restart(gpus=0).get(timeout=TIMEOUT)
    assert old.survivors(0) == {}
    assert [file.name for file in tmp_path.iterdir()] == [str(before[0])]
    with pytest.raises(SupervisionError, match="the process is being restarted"):
        values(mesh, "pid")
    mesh.restart(failed=True).get(timeout=TIMEOUT)
    after = values(mesh, "pid")
    assert after[1] == before[1] and after[0] != before[0]


@full
@pytest.mark.parametrize("code", first_of([0, 7]))
def test_a_process_that_exited(spawn_procs: Any, faults: Any, code: int) -> None:
    procs = spawn_procs({"gpus": 2})
    mesh = procs.spawn("node", Node)
    with pytest.raises(SupervisionError, match=f"code {code}" if code else "exited cleanly"):
        mesh.slice(gpus=1).exit.call_one(code).get(timeout=TIMEOUT)
    if code:
        faults.next(handled=True)
    procs.restart(failed=True).get(timeout=TIMEOUT)
    mesh.restart(failed=True).get(timeout=TIMEOUT)
    assert values(mesh, "add", 1) == [[1], [1]]
    assert faults.rest() == []


def test_a_new_process_has_the_surroundings_of_the_first(
    spawn_procs: Any, faults: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    procs = spawn_procs({"gpus": 1}, env={"MINE": "first"}, proc_bind=[{"cpus": cpu}])
    mesh = procs.spawn("node", Node)
    before = values(mesh, "surroundings", "MINE")
    assert before[0][:3] == ("first", str(tmp_path / "here"), [int(cpu)])
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("MINE", "changed")
    kill(mesh, 0)
    faults.next()
    procs.restart().get(timeout=TIMEOUT)
    mesh.restart().get(timeout=TIMEOUT)
    assert values(mesh, "surroundings", "MINE") == before


@full
@pytest.mark.parametrize("bootstrap", first_of([False, True]))
def test_processes_that_are_executed(spawn_procs: Any, faults: Any, bootstrap: bool) -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = str(os.getpid())

    command = default_bootstrap_cmd().with_env({"COMMANDED": "yes"})
    procs = spawn_procs({"gpus": 2}, bootstrap_command=command, bootstrap=prepare if bootstrap else None)
    mesh = procs.spawn("node", Node)
    kill(mesh, 1)
    assert faults.next().mesh_name == mesh._mesh_name
    procs.restart(failed=True).get(timeout=TIMEOUT)
    mesh.restart(failed=True).get(timeout=TIMEOUT)
    assert [env for env, *_ in values(mesh, "surroundings", "COMMANDED")] == ["yes", "yes"]
    prepared = [str(pid) for pid in values(mesh, "pid")] if bootstrap else [None, None]
    assert [env for env, *_ in values(mesh, "surroundings", "PREPARED")] == prepared
    assert faults.rest() == []


@full
def test_stopped_after_restarts_no_process_is_left(spawn_procs: Any, faults: Any, watch: Any, descendants: Any) -> None:
    procs = spawn_procs({"gpus": 3})
    mesh = procs.spawn("node", Node)
    pids = set(values(mesh, "pid"))
    for rank in (0, 2):
        kill(mesh, rank)
        faults.next()
        procs.restart(gpus=slice(rank, None)).get(timeout=TIMEOUT)
        mesh.restart(failed=True).get(timeout=TIMEOUT)
        pids |= set(values(mesh, "pid"))
    assert len(pids) == 7
    every = watch(list(pids))
    procs.stop().get(timeout=TIMEOUT)
    assert every.survivors(0) == {}
    assert pids.isdisjoint(descendants(os.getpid()))
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.restart()


@full
def test_all_at_once(spawn_procs: Any, faults: Any) -> None:
    procs = spawn_procs({"a": 2, "b": 2})
    mesh = procs.spawn("node", Node)
    before = values(mesh, "pid")
    for pid in before[:3]:
        os.kill(pid, signal.SIGKILL)
    for _ in range(3):
        faults.next()
    procs.restart(a=0).get(timeout=TIMEOUT)
    procs.restart(failed=True).get(timeout=TIMEOUT)
    mesh.restart(failed=True).get(timeout=TIMEOUT)
    after = values(mesh, "pid")
    assert after[3] == before[3] and not set(after[:3]) & set(before)


# --- by policies


def test_a_policy_restarts_process_and_actor(spawn_procs: Any, procs2: Any, news: Any, faults: Any) -> None:
    port, receiver = news
    procs = spawn_procs({"gpus": 2})
    with RestartPolicy(max_restarts=2):
        mesh = procs.spawn("node", Node, port)
    asker = procs2.slice(gpus=0).spawn("asker", Asker)
    asker.ask.call_one(mesh, "before").get(timeout=TIMEOUT)
    killed = kill(mesh, 1)
    rank, pid = restarted(receiver)
    assert rank == 1 and pid != killed
    assert values(mesh, "pid")[1] == pid
    assert asker.ask.call_one(mesh, "after").get(timeout=TIMEOUT) == [["before", "after"], ["after"]]
    mesh.slice(gpus=0).fail.broadcast()  # and an actor alone
    assert restarted(receiver) == (0, values(mesh, "pid")[0])
    assert values(mesh, "add", "last") == [["last"], ["after", "last"]]
    assert faults.rest() == []
    kill(mesh, 0)
    failure = faults.next()
    assert failure.crashed_ranks == [0]
    assert "2 restarts within 60 s are its limit" in failure.report() and "Killed(sig=9)" in failure.report()


@full
def test_all_for_one(spawn_procs: Any, news: Any, faults: Any, tmp_path: Path) -> None:
    port, receiver = news
    procs = spawn_procs({"gpus": 3})
    with RestartPolicy("all_for_one"):
        mesh = procs.spawn("node", Node, port, str(tmp_path))
    before = values(mesh, "pid")
    values(mesh, "add", "before")
    kill(mesh, 1)
    assert sorted(restarted(receiver)[0] for _ in range(3)) == [0, 1, 2]
    after = values(mesh, "pid")
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert values(mesh, "add", "after") == [["after"]] * 3
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(str(pid) for pid in (before[0], before[2]))


def test_a_program_goes_on(scripts: Any) -> None:
    """Nothing but the policy: what is not restarted would end it."""
    done = scripts.run(
        """
        import os, signal
        from monarch.actor import Actor, Channel, RestartPolicy, SupervisionError, endpoint, this_host

        class Node(Actor):
            def __init__(self, port):
                self.port = port
            def __restarted__(self, failure):
                self.port.send(os.getpid())
            @endpoint
            def pid(self):
                return os.getpid()

        def main():
            port, receiver = Channel.open()
            with RestartPolicy(max_restarts=9, backoff=0.01):
                node = this_host().spawn_procs().spawn("node", Node, port)
            pids = {node.pid.call_one().get(300)}
            for _ in range(3):
                os.kill(pid_of(node), signal.SIGKILL)
                pids.add(receiver.recv().get(300))
            print(len(pids))

        def pid_of(node):
            while True:
                try:
                    return node.pid.call_one().get(300)
                except SupervisionError:
                    pass  # until it is back

        if __name__ == "__main__":
            main()
        """
    )
    assert done.stdout.strip() == "4"
    assert done.stderr.count("restarting node[0] under its RestartPolicy") == 3
