"""`healthy()`: waiting until the ranks of a mesh are up, through restarts, and what is raised when they are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from monarch._wire.message import Failure
from monarch.actor import (
    Actor,
    ActorMesh,
    RestartPolicy,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from monarch.actor.lowlevel import hold_health
from monarch.testing import InProcessCluster, Local
from tests.support.actors import TIMEOUT, Gate, Recorder, awaited, fails
from tests.support.tiers import full

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


class Worker(Recorder):
    def __init__(self, gate: Local[Gate] | None = None) -> None:
        super().__init__()
        if gate is not None:
            gate.value.stand()


class Raising(Actor):
    """Its constructor raises on rank 1."""

    def __init__(self) -> None:
        if current_rank().rank == 1:
            raise ValueError("no such checkpoint")


def fails_with(error: type[BaseException], action: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


# --- actors


class Held(Recorder):
    @endpoint
    def hold(self, patience: float, held: Local[list[Any]]) -> None:
        held.value.append(hold_health(patience))

    @endpoint
    def work(self) -> None: ...


def test_a_process_that_is_held_is_not_healthy_until_it_is_let_go() -> None:
    held: list[Any] = []
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("h", Held)
    mesh.slice(gpus=1).hold.call_one(1e6, Local(held)).get(TIMEOUT)
    waiting = mesh.healthy()
    mesh.work.call().get(TIMEOUT)  # which the processes have been asked after
    assert "pending" in repr(waiting)
    held[0]()
    waiting.get(TIMEOUT)


def test_a_process_is_not_held_for_longer_than_was_said() -> None:
    mesh = this_host().spawn_procs().spawn("h", Held)
    mesh.hold.call_one(0.0, Local([])).get(TIMEOUT)
    mesh.healthy().get(TIMEOUT)


def test_a_mesh_and_its_slices_are_healthy_once_constructed(gate: Gate) -> None:
    gate.held = 2
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(gate))
    waiting = mesh.healthy()
    gate.reached()
    assert "pending" in repr(waiting)
    gate.open()
    waiting.get(TIMEOUT)
    mesh.slice(gpus=1).healthy().get(TIMEOUT)
    asyncio.run(awaited(mesh.healthy(timeout=TIMEOUT)))


def test_what_an_actor_is_busy_with_does_not_hold_it_up(gate: Gate) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker)
    mesh.do.broadcast(Local(gate.stand))
    gate.reached()
    mesh.healthy().get(TIMEOUT)


def test_a_timeout_names_the_ranks_that_are_not_up(gate: Gate) -> None:
    gate.held = 2
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(gate))
    gate.reached()
    text = fails_with(TimeoutError, lambda: mesh.healthy(timeout=0.05).get(TIMEOUT))
    assert "after 0.05 s 1 of 2 ranks of w-" in text
    assert "its constructor runs, or its process is stuck" in text


@pytest.mark.parametrize("round", range(3))
def test_after_a_death_it_waits_for_the_restart(cluster: InProcessCluster, round: int) -> None:
    """No call fails between `healthy` and the next death."""
    procs = this_host().spawn_procs({"gpus": 3})
    with RestartPolicy(max_restarts=20):
        mesh = procs.spawn("w", Worker)
    mesh.healthy().get(TIMEOUT)
    for number in range(5):
        cluster.kill(procs, number % 3)
        mesh.healthy().get(TIMEOUT)
        procs.healthy().get(TIMEOUT)
        mesh.add.call().get(TIMEOUT)


def test_calls_that_fail_are_followed_by_none(cluster: InProcessCluster, gate: Gate) -> None:
    """Goes on as a program recovers: the call under way fails, `healthy`, the call again."""
    procs = this_host().spawn_procs({"gpus": 2})
    with RestartPolicy(max_restarts=20):
        mesh = procs.spawn("w", Worker)
    for _ in range(5):
        under_way = mesh.slice(gpus=1).do.call_one(Local(gate.stand))
        gate.reached()
        gate.entered.clear()
        cluster.kill(procs, 1)
        fails(under_way)
        mesh.healthy().get(TIMEOUT)
        mesh.add.call().get(TIMEOUT)


def test_a_restart_that_is_held_up_is_waited_for_and_named(cluster: InProcessCluster, gate: Gate) -> None:
    gate.held = 3
    procs = this_host().spawn_procs({"gpus": 2})
    with RestartPolicy():
        mesh = procs.spawn("w", Worker, Local(gate))
    mesh.healthy().get(TIMEOUT)
    cluster.kill(procs, 1)
    gate.reached()
    waiting = mesh.healthy()
    assert "rank 1: " in fails_with(TimeoutError, lambda: mesh.healthy(timeout=0.05).get(TIMEOUT))
    mesh.slice(gpus=0).healthy().get(TIMEOUT)
    gate.open()
    waiting.get(TIMEOUT)


@pytest.mark.parametrize("how", ["process", "actor"])
def test_without_a_policy_it_says_at_once_that_a_rank_will_not_come_back(cluster: InProcessCluster, how: str) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("w", Worker)
    mesh.healthy().get(TIMEOUT)
    cluster.kill(procs, 1) if how == "process" else mesh.slice(gpus=1).fail.broadcast()
    cluster.next_failure()
    text = fails_with(SupervisionError, lambda: mesh.healthy().get(TIMEOUT))
    assert ("Killed(sig=9)" if how == "process" else "as asked") in text
    assert "restart(failed=True)" in text and "RestartPolicy" in text
    mesh.slice(gpus=0).healthy().get(TIMEOUT)
    if how == "process":
        assert "Killed(sig=9)" in fails_with(SupervisionError, lambda: procs.healthy().get(TIMEOUT))
        procs.restart(failed=True)
        procs.healthy().get(TIMEOUT)
    mesh.restart(failed=True)
    mesh.healthy().get(TIMEOUT)
    mesh.add.call().get(TIMEOUT)


def test_one_that_dies_while_it_is_waited_for(cluster: InProcessCluster, gate: Gate) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(gate))
    gate.reached()
    waiting = mesh.healthy()
    cluster.kill(mesh, 1)
    assert "Killed(sig=9)" in fails_with(SupervisionError, lambda: waiting.get(TIMEOUT))
    cluster.next_failure()


def test_a_constructor_that_raises(cluster: InProcessCluster) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Raising)
    assert "no such checkpoint" in fails_with(SupervisionError, lambda: mesh.healthy().get(TIMEOUT))
    cluster.next_failure()
    mesh.slice(gpus=0).healthy().get(TIMEOUT)


def test_a_policy_that_gives_up(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with RestartPolicy(max_restarts=1):
        mesh = procs.spawn("w", Worker)
    mesh.healthy().get(TIMEOUT)
    cluster.kill(procs, 1)
    mesh.healthy().get(TIMEOUT)
    cluster.kill(procs, 1)
    assert "Killed(sig=9)" in fails_with(SupervisionError, lambda: mesh.healthy().get(TIMEOUT))
    assert "does not restart it any more" in cluster.next_failure().report()
    assert "Killed(sig=9)" in fails_with(SupervisionError, lambda: procs.healthy().get(TIMEOUT))


def test_a_restart_that_cannot_be(cluster: InProcessCluster) -> None:
    with RestartPolicy(max_restarts=2):
        mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Raising)
    assert "no such checkpoint" in fails_with(SupervisionError, lambda: mesh.healthy().get(TIMEOUT))
    cluster.next_failure()


def test_siblings_that_are_restarted_with_it_are_waited_for(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    with RestartPolicy("all_for_one", max_restarts=9):
        mesh, other = procs.spawn("w", Worker), procs.spawn("v", Worker)
    mesh.add.call().get(TIMEOUT)
    for number in range(3):
        cluster.kill(procs, number)
        mesh.healthy().get(TIMEOUT)
        other.healthy().get(TIMEOUT)
        assert mesh.add.call().get(TIMEOUT).values() == [1, 1, 1]


def test_a_stopped_mesh_will_not_come_back(gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("w", Worker)
    part, all_procs = mesh.slice(gpus=0), procs.slice(gpus=0)
    mesh.stop().get(TIMEOUT)
    assert "was stopped" in fails_with(SupervisionError, lambda: mesh.healthy().get(TIMEOUT))
    assert "until it stops it" in fails_with(NotImplementedError, part.healthy)
    procs.stop().get(TIMEOUT)
    assert "was stopped" in fails_with(SupervisionError, lambda: procs.healthy().get(TIMEOUT))
    assert "was stopped" in fails_with(SupervisionError, lambda: all_procs.healthy().get(TIMEOUT))


def test_one_that_is_stopped_while_it_is_waited_for(gate: Gate) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(gate))
    gate.reached()
    waiting = mesh.healthy()
    stopped = mesh.stop()
    assert "stopped" in fails_with(SupervisionError, lambda: waiting.get(TIMEOUT))
    gate.open()
    stopped.get(TIMEOUT)


def test_elsewhere_it_is_not_known() -> None:
    mesh = this_host().spawn_procs().spawn("w", Worker)
    asker = this_host().spawn_procs().spawn("asker", Asker)
    assert "is known to the process that spawned it" in asker.ask.call_one(mesh).get(TIMEOUT)
    assert "is known to the process that spawned it" in fails_with(NotImplementedError, lambda: this_proc().healthy())


class Asker(Actor):
    @endpoint
    def ask(self, mesh: Any) -> str:
        return fails_with(NotImplementedError, mesh.healthy)


def test_an_endpoint_called_healthy_is_the_classs_own() -> None:
    service: Any = this_host().spawn_procs().spawn("service", Service)
    assert service.healthy.call_one().get(TIMEOUT) == "quite"
    ActorMesh.healthy(service).get(TIMEOUT)


class Service(Actor):
    @endpoint
    def healthy(self) -> str:
        return "quite"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1s"])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    mesh = this_host().spawn_procs().spawn("w", Worker)
    assert "invalid timeout" in fails_with(ValueError, lambda: mesh.healthy(timeout=timeout))


def test_dropped_futures_and_timeouts_leave_nothing(cluster: InProcessCluster, gate: Gate) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("w", Worker, Local(gate))
    gate.reached()
    for _ in range(10):
        mesh.healthy()
        mesh.healthy(timeout=1000)
        fails(mesh.healthy(timeout=0), error=TimeoutError)
    gate.open()
    mesh.healthy().get(TIMEOUT)
    cluster.settle()
    assert not cluster.proc.mesh.health._checks


# --- processes


def test_processes_are_healthy_when_their_bootstrap_function_has_returned(gate: Gate) -> None:
    local = Local(gate)

    def prepare() -> None:
        local.value.stand()

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=prepare)
    gate.reached()
    waiting = procs.healthy()
    assert "its bootstrap function runs" in fails_with(TimeoutError, lambda: procs.healthy(timeout=0.05).get(TIMEOUT))
    gate.open()
    waiting.get(TIMEOUT)
    procs.slice(gpus=0).healthy().get(TIMEOUT)


def test_a_bootstrap_function_that_raises(cluster: InProcessCluster) -> None:
    tries = Local([])

    def prepare() -> None:
        tries.value.append(1)
        if len(tries.value) < 2:
            raise ValueError("no data set here")

    procs = this_host().spawn_procs(bootstrap=prepare)
    assert "no data set here" in fails_with(SupervisionError, lambda: procs.healthy().get(TIMEOUT))
    procs.restart().get(TIMEOUT)
    procs.healthy().get(TIMEOUT)


@full
def test_many_deaths_at_once(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 8})
    with RestartPolicy(max_restarts=1000):
        mesh = procs.spawn("w", Worker)
    for _ in range(10):
        for rank in range(8):
            cluster.kill(procs, rank)
        mesh.healthy().get(TIMEOUT)
        mesh.add.call().get(TIMEOUT)


def test_what_is_known_of_failures_is_a_plain_value() -> None:
    """A policy's patience, as the ledger says it."""
    from monarch._mesh.failures.ledger import Ledger

    class Mesh:
        key, addresses, mesh_name = "k", ["a", "b", "c"], "m"

        def display(self, rank: int) -> str:
            return f"m{rank}"

    ledger = Ledger()
    ledger.add(Mesh(), "owner")
    ledger.actor_ended(Failure("died", "k", "m", [1], "died"))
    assert ledger.standing("k", [0, 2], policy=False).lost is None
    assert ledger.standing("k", [0, 1], policy=False).lost is not None
    assert list(ledger.standing("k", [0, 1], policy=False, asked={1}).coming) == [1]
    assert list(ledger.standing("k", [0, 1], policy=True).coming) == [1]  # before anybody has begun
    ledger.restarting("k", [1])
    assert ledger.restarted_at("b") and not ledger.restarted_at("a")
    ledger.not_restarted("k", [1])
    assert ledger.standing("k", [0, 1], policy=True).lost is not None
    ledger.restarting("k", [1])
    ledger.restarted("k", 1, 1)
    assert not ledger.standing("k", [0, 1, 2], policy=True).coming
    ledger.mesh_stopped("k", "enough")
    assert "enough" in ledger.standing("k", [0], policy=True).lost.report  # type: ignore[union-attr]
    assert ledger.standing("gone", [0], policy=True).lost is not None
