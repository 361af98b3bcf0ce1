"""Meshes as notebooks draw them: what is shown is what this process has heard, and nobody is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch._errors import SupervisionError
from monarch._mesh.meshes.attach import Workers
from monarch._mesh.meshes.host_mesh import HostMesh
from monarch._runtime.promise import Promise
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.drawings import Drawing

TIMEOUT = 30


class Idle(Actor):
    @endpoint
    def nothing(self) -> None: ...


def states(mesh: Any) -> list[str]:
    """Returns the state of each rank, as its square says."""
    return [title.partition(": ")[2] for _, title in Drawing(mesh._repr_html_()).squares]


def text(mesh: Any) -> str:
    return Drawing(mesh._repr_html_()).text


@pytest.fixture
def procs(cluster: InProcessCluster) -> Any:
    made = cluster.this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="<script>")
    made.initialized.get(TIMEOUT)
    return made


@pytest.fixture
def actors(procs: Any) -> Any:
    made = procs.spawn("idlers", Idle)
    made.nothing.call().get(TIMEOUT)
    return made


def test_what_runs(procs: Any, actors: Any) -> None:
    assert states(procs) == states(actors) == ["running"] * 4
    assert text(procs).startswith("ProcMesh \n<script> hosts=2, gpus=2 \n4 ranks") and "this object: owned" in text(
        procs
    )
    assert "endpoints: nothing" in text(actors) and "this object: owned" in text(actors)
    part = actors.slice(hosts=1)
    assert [square for square, _ in Drawing(part._repr_html_()).squares] == ["2", "3"]
    assert "this object: a reference" in text(part)


def test_what_died_and_what_took_its_place(cluster: InProcessCluster, procs: Any, actors: Any) -> None:
    cluster.kill(procs, 3)
    cluster.next_failure()
    *others, last = states(actors)
    assert others == ["running"] * 3 and last.startswith("dead, the process this actor was running on failed")
    assert "\u2715 rank 3 dead: the process this actor was running on failed: Killed(sig=9)\n" in text(actors)
    assert states(procs)[3] == "dead, Killed(sig=9)"
    assert states(procs.slice(hosts=0)) == ["running"] * 2
    procs.restart(failed=True).get(TIMEOUT)
    assert states(procs) == ["running"] * 3 + ["restarted"]
    assert states(actors)[3].startswith("dead")
    actors.restart(failed=True).get(TIMEOUT)
    assert states(actors) == ["running"] * 3 + ["restarted"]


def test_what_was_stopped(procs: Any, actors: Any) -> None:
    actors.stop().get(TIMEOUT)
    assert states(actors) == ["stopped"] * 4 and states(procs) == ["running"] * 4
    procs.stop().get(TIMEOUT)
    assert states(procs) == states(procs.slice(gpus=1)) * 2 == ["stopped"] * 4


def test_what_belongs_to_another_process_is_unknown(cluster: InProcessCluster, procs: Any) -> None:
    class Spawner(Actor):
        @endpoint
        def spawn(self) -> Any:
            return this_host().spawn_procs({"gpus": 2})

    given = procs.slice(hosts=0, gpus=0).spawn("spawner", Spawner).spawn.call_one().get(TIMEOUT)
    assert states(given) == ["unknown"] * 2
    assert "How its ranks are is known to the process that spawned it." in text(given)


def test_hosts(no_leaks: None) -> None:
    clock = VirtualClock()
    with InProcessCluster(hosts=3, clock=clock) as cluster:
        hosts = cluster.hosts
        hosts.initialized.get(TIMEOUT)
        assert states(hosts) == ["running"] * 3
        actors: Any = hosts.spawn_procs({"gpus": 1}).spawn("idlers", Idle)
        actors.nothing.call().get(TIMEOUT)
        cluster.kill_host(1)
        answer = actors.nothing.call()
        limit = clock.now() + 100
        while "pending" in repr(answer) and clock.now() < limit:
            clock.advance(1)
        with pytest.raises(SupervisionError):
            answer.get(TIMEOUT)
        for mesh in (hosts, actors, actors._spec.proc_mesh):
            assert [state[:6] for state in states(mesh)] == ["runnin", "dead, ", "runnin"]
        assert [state[:6] for state in states(hosts.slice(hosts=1))] == ["dead, "]


def test_addresses_that_are_not_known_yet_are_not_waited_for(cluster: InProcessCluster) -> None:
    later: Promise[str] = Promise()
    hosts = HostMesh(Workers([later.future]), Shape(["hosts"], NDSlice.new_row_major([1])))
    assert states(hosts) == ["unknown"] and "hosts: not all are known yet" in text(hosts)


def test_in_another_thread(actors: Any) -> None:
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(states(actors)))
    thread.start()
    thread.join(TIMEOUT)
    assert found == [["running"] * 4]


def test_after_the_end_of_the_program() -> None:
    with InProcessCluster() as cluster:
        procs: Any = cluster.this_host().spawn_procs({"gpus": 2})
        actors = procs.spawn("idlers", Idle)
        host = cluster.this_host()
    assert states(actors) in (["stopped"] * 2, ["unknown"] * 2)
    assert states(procs) in (["stopped"] * 2, ["unknown"] * 2)
    assert states(host) == ["unknown"]


class Waits(Actor):
    @endpoint
    def wait(self, gates: Local[list[threading.Event]]) -> None:
        gates.value[current_rank().rank].wait(TIMEOUT)


def test_a_call_that_waits_names_who_has_not_answered(cluster: InProcessCluster, procs: Any) -> None:
    gates = [threading.Event(), threading.Event()]
    part = procs.spawn("waits", Waits).slice(hosts=1)
    future = part.wait.call(Local(gates))
    assert text(future).startswith("Future of \nwaits.wait(): pending for ")
    assert "no answer yet from rank(s) 2-3\n" in text(future)
    gates[0].set()
    part.slice(gpus=0).wait.call(Local(gates)).get(TIMEOUT)  # behind it
    assert "1 of 2 rank(s) answered" in text(future) and "no answer yet from rank(s) 3\n" in text(future)
    with pytest.raises(TimeoutError, match=r"from waits.wait\(\), rank\(s\) 3;"):
        future.get(0.01)
    gates[1].set()
    future.get(TIMEOUT)
    assert text(future).startswith("Future: done: ValueMesh\n")
