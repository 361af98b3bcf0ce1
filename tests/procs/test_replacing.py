"""Hosts that are killed are replaced, with real processes: by spares, by workers at the same address, by policy."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    HostMesh,
    ReplacePolicy,
    RestartPolicy,
    SupervisionError,
    attach_to_workers,
    context,
    endpoint,
)
from monarch.config import configure
from tests.support.hosts import TRUST, Hosts, Worker
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs
TIMEOUT = 60


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0
        self.failure = ""

    def __restarted__(self, failure: Any) -> None:
        self.failure = failure.report()

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @endpoint
    def agent(self) -> int:
        return os.getsid(0)

    @endpoint
    def why(self) -> str:
        return self.failure

    @endpoint
    def ask(self, others: Any, times: int = 1) -> list[int]:
        """Often enough, two processes of different hosts talk over a link of their own."""
        for _ in range(times):
            values = list(others.add.call(1).get(TIMEOUT).values())
        return values

    @endpoint
    def address(self) -> str:
        return context().actor_instance.actor_id.addr


def lose(worker: Worker, counters: Any, host: int) -> None:
    """Kills the worker's agent, and returns when the test has been told."""
    os.kill(worker.agent, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        while True:
            counters.slice(hosts=host).add.call(0).get(TIMEOUT)


def attach(*workers: Worker, **how: Any) -> HostMesh:
    mesh = attach_to_workers(workers=[worker.address for worker in workers], ca=TRUST, **how)
    mesh.initialized.get(TIMEOUT)
    return mesh


@pytest.mark.parametrize("kind", first_of(["ipc", "tcp"]))
def test_a_spare_takes_the_place_of_a_killed_host(hosts: Hosts, kind: str) -> None:
    start = hosts.start if kind == "ipc" else hosts.start_tcp
    first, second, spare = start(), start(), start()
    mesh = attach(first, second, spares=[spare.address])
    procs = mesh.spawn_procs({"gpus": 2})
    counters = procs.spawn("counters", Counter)
    askers = procs.spawn("askers", Counter)
    asker = askers.slice(hosts=0, gpus=1)
    assert asker.ask.call_one(counters, 50).get(TIMEOUT) == [50] * 4  # over links of their own, then
    lose(second, counters, 1)
    with pytest.raises(
        RuntimeError, match=r"its host .* is gone .*: replace it first, with hosts.replace\(failed=True\)"
    ):
        procs.restart(failed=True).get(TIMEOUT)
    assert mesh.replace(failed=True).get(TIMEOUT) == [1]
    procs.restart(failed=True).get(TIMEOUT)
    counters.restart(failed=True).get(TIMEOUT)
    askers.restart(failed=True).get(TIMEOUT)
    assert [value for _, value in counters.agent.call().get(TIMEOUT)] == [first.agent] * 2 + [spare.agent] * 2
    assert set(counters.slice(hosts=1).address.call().get(TIMEOUT).values()) == {spare.address}
    assert asker.ask.call_one(counters, 50).get(TIMEOUT) == [100, 100, 50, 50]
    back = askers.slice(hosts=1, gpus=0)
    assert back.ask.call_one(counters, 50).get(TIMEOUT) == [150, 150, 100, 100]
    more = mesh.spawn_procs().spawn("more", Counter)
    assert [value for _, value in more.agent.call().get(TIMEOUT)] == [first.agent, spare.agent]
    mesh.shutdown().get(TIMEOUT)
    assert first.status() == spare.status() == 0


@full
@pytest.mark.usefixtures("calls_are_in_time")
def test_what_is_spawned_on_a_lost_host_fails_at_once(hosts: Hosts) -> None:
    """Again and again: nobody dials it until the time for attaching is over, which is TIMEOUT here."""
    first, second = hosts.start(), hosts.start()
    mesh = attach(first, second)
    lose(second, mesh.spawn_procs().spawn("counters", Counter), 1)
    for _ in range(3):
        procs = mesh.spawn_procs()
        counters = procs.spawn("counters", Counter)
        with pytest.raises(
            SupervisionError, match=r"replace host .*, with hosts\.replace\(failed=True\), or spawn on a"
        ):
            counters.add.call(1).get(TIMEOUT / 2)
        assert counters.slice(hosts=0).add.call_one(1).get(TIMEOUT) in (1, 2)
        with pytest.raises(RuntimeError, match=r"said goodbye|cannot be reached|refused|lost"):
            procs.initialized.get(TIMEOUT / 2)
    alive = mesh.slice(hosts=0).spawn_procs().spawn("counters", Counter)
    assert alive.add.call_one(1).get(TIMEOUT) == 1
    assert mesh.replace(failed=True, workers=[hosts.start().address]).get(TIMEOUT) == [1]
    assert len(mesh.spawn_procs().spawn("counters", Counter).add.call(1).get(TIMEOUT)) == 2
    mesh.shutdown().get(TIMEOUT)


@full
def test_a_worker_that_is_started_again_at_the_same_address(hosts: Hosts) -> None:
    first, second = hosts.start("a"), hosts.start("b")
    mesh = attach(first, second)
    procs = mesh.spawn_procs()
    counters = procs.spawn("counters", Counter)
    counters.add.call(5).get(TIMEOUT)
    lose(second, counters, 1)
    assert second.status() == 1
    replaced = mesh.replace(failed=True)  # it may come later
    again = hosts.start("b")
    assert replaced.get(TIMEOUT) == [1]
    procs.restart(failed=True).get(TIMEOUT)
    counters.restart(failed=True).get(TIMEOUT)
    assert list(counters.add.call(1).get(TIMEOUT).values()) == [6, 1]
    assert counters.slice(hosts=1).agent.call_one().get(TIMEOUT) == again.agent
    mesh.shutdown().get(TIMEOUT)
    assert again.status() == 0


@full
def test_by_policy_and_the_actors_come_back_by_theirs(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    first, second, spare = hosts.start(), hosts.start(), hosts.start()
    mesh = attach(first, second, spares=[spare.address], replace=ReplacePolicy())
    procs = mesh.spawn_procs({"gpus": 2})
    with RestartPolicy(max_restarts=4):
        counters = procs.spawn("counters", Counter)
    counters.add.call(3).get(TIMEOUT)
    with caplog.at_level(logging.WARNING, "monarch"):
        lose(second, counters, 1)
        counters.healthy(timeout=TIMEOUT).get()
    assert list(counters.add.call(1).get(TIMEOUT).values()) == [4, 4, 1, 1]
    assert {value for _, value in counters.slice(hosts=1).agent.call().get(TIMEOUT)} == {spare.agent}
    assert second.address in counters.slice(hosts=1, gpus=0).why.call_one().get(TIMEOUT)
    said = [record.getMessage() for record in caplog.records]
    assert any(f"host 1 of the mesh, {second.address}, was lost and is being replaced" in line for line in said)
    assert any(
        f"host 1 of the mesh, {second.address}, in whose place {spare.address} is, was replaced" in line
        for line in said
    )
    mesh.shutdown().get(TIMEOUT)


@full
def test_again_and_again_by_whoever_the_program_names(hosts: Hosts) -> None:
    """A worker that was lost takes the place of another one later: its address is the name of the first."""
    first, second = hosts.start("a"), hosts.start("b")
    mesh = attach(first, second)
    procs = mesh.spawn_procs()
    counters = procs.spawn("counters", Counter)
    askers = procs.spawn("askers", Counter)
    at = {0: first, 1: second}
    for number, (lost, name) in enumerate([(1, "c"), (0, "b"), (1, "a"), (1, "a"), (0, "c"), (1, "d")]):
        askers.ask.call(counters, 20).get(TIMEOUT)
        lose(at[lost], counters, lost)
        at[lost] = hosts.start(name)
        assert mesh.replace(failed=True, workers=lambda ranks, lost=lost: [at[lost].address]).get(TIMEOUT) == [lost]
        procs.restart(failed=True).get(TIMEOUT)
        counters.restart(failed=True).get(TIMEOUT)
        askers.restart(failed=True).get(TIMEOUT)
        found = [value for _, value in counters.agent.call().get(TIMEOUT)]
        assert found == [at[0].agent, at[1].agent], number
        assert counters.slice(hosts=lost).add.call_one(0).get(TIMEOUT) == 0
    mesh.shutdown().get(TIMEOUT)
    assert at[0].status() == at[1].status() == 0


@full
def test_what_cannot_be(hosts: Hosts) -> None:
    first, second = hosts.start(), hosts.start()
    mesh = attach(first, second)
    counters = mesh.spawn_procs().spawn("counters", Counter)
    assert mesh.replace(failed=True).get(TIMEOUT) == []
    with pytest.raises(RuntimeError, match=r"host 0 of the mesh, .*, is not dead, and only hosts that have died"):
        mesh.replace(hosts=0)
    with pytest.raises(RuntimeError, match="cannot replace hosts of `HostMesh` that is a reference"):
        mesh.slice(hosts=0).replace(failed=True)
    with pytest.raises(TypeError, match="workers is a sequence of addresses"):
        mesh.replace(failed=True, workers=first.address)
    lose(second, counters, 1)
    with pytest.raises(ValueError, match=r"1 hosts are lost \(ranks \[1\]\), and workers names 0"):
        mesh.replace(failed=True, workers=[])
    with pytest.raises(ValueError, match="unknown scheme"):
        mesh.replace(failed=True, workers=["http://node"])
    with pytest.raises(RuntimeError, match=f"{first.address} is host 0 of this mesh already") as raised:
        mesh.replace(failed=True, workers=[first.address]).get(TIMEOUT)
    assert "Name other workers: hosts.replace(failed=True, workers=[...])" in str(raised.value)
    assert f"host 1 of the mesh, {second.address}, was not replaced" in str(raised.value)

    def nobody(ranks: list[int]) -> list[str]:
        raise LookupError(f"no node for {ranks}")

    with pytest.raises(RuntimeError, match=r"no worker was found .* hosts \[1\]: LookupError: no node for \[1\]"):
        mesh.replace(failed=True, workers=nobody).get(TIMEOUT)
    mesh.shutdown().get(TIMEOUT)
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        mesh.replace(failed=True)


@full
def test_nobody_is_left(hosts: Hosts) -> None:
    first, second = hosts.start(), hosts.start()
    mesh = attach(first, second, spares=[hosts.address("nobody")])
    configure(mesh_attach_config_timeout="1ms")  # and some seconds of patience
    counters = mesh.spawn_procs().spawn("counters", Counter)
    lose(second, counters, 1)
    waits = mesh.replace(failed=True)
    with pytest.raises(RuntimeError, match="is being replaced already: wait for that"):
        mesh.replace(failed=True, workers=[first.address])
    with pytest.raises(RuntimeError, match=r"No spare is left\. Start a worker at its address") as raised:
        waits.get(TIMEOUT)
    assert hosts.address("nobody") in str(raised.value)
    assert f"{second.address}: attach failed" in str(raised.value)
    assert list(counters.slice(hosts=0).add.call(1).get(TIMEOUT).values()) == [1]
    mesh.shutdown().get(TIMEOUT)
