"""Hosts that die are replaced in place: handles reach the new ones, and nobody hears the old ones any more."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.meshes.attaching import PATIENCE
from monarch._mesh.start import transports
from monarch._runtime import log_thread
from monarch._wire import message
from monarch.actor import Actor, ReplacePolicy, RestartPolicy, SupervisionError, context, current_rank, endpoint
from monarch.config import settings
from monarch.testing import InProcessCluster, VirtualClock
from monarch.testing.network import DeliveredFrame
from tests.support.patience import TIMEOUT
from tests.support.tiers import full


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @endpoint
    def address(self) -> str:
        return context().actor_instance.actor_id.addr

    @endpoint
    def ask(self, others: Any) -> list[int]:
        return list(others.add.call(1).get(TIMEOUT).values())

    @endpoint
    def tell(self, others: Any, amount: int) -> None:
        others.add.broadcast(amount)

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


class Owner(Actor):
    """Spawns on hosts that belong to another."""

    @endpoint
    def spawn(self, hosts: Any) -> None:
        self.procs = hosts.spawn_procs()
        self.counters = self.procs.spawn("its", Counter)
        self.counters.add.call(0).get(TIMEOUT)

    def __supervise__(self, failure: Any) -> bool:
        return True

    @endpoint
    def restart(self) -> list[int]:
        self.procs.restart(failed=True).get(TIMEOUT)
        self.counters.restart(failed=True).get(TIMEOUT)
        return list(self.counters.add.call(1).get(TIMEOUT).values())


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster(hosts=3, spares=2) as cluster:
        cluster.hosts.initialized.get(TIMEOUT)
        yield cluster


def lose(cluster: InProcessCluster, counters: Any, host: int, there: int | None = None) -> None:
    """Kills the worker that is that host of the mesh, and returns when the test has been told."""
    cluster.kill_agent(host if there is None else there)
    with pytest.raises(SupervisionError):
        while True:
            counters.slice(hosts=host).add.call(0).get(TIMEOUT)


def test_a_spare_takes_the_place_and_every_handle_reaches_it(cluster: InProcessCluster) -> None:
    procs = cluster.hosts.spawn_procs({"gpus": 2})
    counters = procs.spawn("counters", Counter, 10)
    one = counters.slice(hosts=1)
    sent = pickle.loads(pickle.dumps(counters))
    assert list(counters.add.call(1).get(TIMEOUT).values()) == [11] * 6
    lose(cluster, counters, 1)
    assert list(counters.slice(hosts=slice(0, 3, 2)).add.call(1).get(TIMEOUT).values()) == [12] * 4

    assert cluster.hosts.replace(failed=True).get(TIMEOUT) == [1]
    with pytest.raises(SupervisionError):  # nothing runs there yet
        one.add.call(1).get(TIMEOUT)
    procs.restart(failed=True).get(TIMEOUT)
    counters.restart(failed=True).get(TIMEOUT)
    assert list(counters.add.call(1).get(TIMEOUT).values()) == [13, 13, 11, 11, 13, 13]
    assert list(one.add.call(1).get(TIMEOUT).values()) == [12, 12]
    assert list(sent.add.call(1).get(TIMEOUT).values()) == [14, 14, 13, 13, 14, 14]
    assert set(one.address.call().get(TIMEOUT).values()) == {cluster.worker(3)}
    # New meshes, on the whole and on a slice that was made before.
    again = cluster.hosts.spawn_procs().spawn("more", Counter)
    assert list(again.rank.call().get(TIMEOUT).values()) == [0, 1, 2]
    assert cluster.hosts.replace(failed=True).get(TIMEOUT) == []


def test_actors_of_other_hosts_reach_it(cluster: InProcessCluster) -> None:
    """One by one, by casts over trees, and who had called before, or never."""
    procs = cluster.hosts.spawn_procs({"gpus": 2})
    counters = procs.spawn("counters", Counter)
    askers = procs.spawn("askers", Counter)
    first, second = askers.slice(hosts=0, gpus=0), askers.slice(hosts=2, gpus=1)
    assert first.ask.call_one(counters).get(TIMEOUT) == [1] * 6
    lose(cluster, counters, 1)
    cluster.hosts.replace(failed=True).get(TIMEOUT)
    with pytest.raises(Exception, match="not restarted"):
        first.ask.call_one(counters).get(TIMEOUT)
    procs.restart(failed=True).get(TIMEOUT)
    counters.restart(failed=True).get(TIMEOUT)
    for asker in (first, second):
        values = asker.ask.call_one(counters).get(TIMEOUT)
        assert values[2] == values[3] < values[0]
    second.tell.call_one(counters, 100).get(TIMEOUT)
    second.ask.call_one(counters).get(TIMEOUT)  # behind the broadcast
    assert all(value > 100 for value in counters.add.call(0).get(TIMEOUT).values())


def test_hosts_are_replaced_again_and_again(cluster: InProcessCluster) -> None:
    procs = cluster.hosts.spawn_procs()
    counters = procs.spawn("counters", Counter)
    askers = procs.spawn("askers", Counter)
    at = {0: 0, 1: 1, 2: 2}
    spare = [3, 4]
    for lost in (1, 2, 1, 1, 0):
        there = at[lost]
        lose(cluster, counters, lost, there)
        if spare:
            at[lost] = spare.pop(0)
        else:
            cluster.start_host(there)
        assert cluster.hosts.replace(failed=True).get(TIMEOUT) == [lost]
        procs.restart(failed=True).get(TIMEOUT)
        counters.restart(failed=True).get(TIMEOUT)
        askers.restart(failed=True).get(TIMEOUT)
        assert counters.add.call(0).get(TIMEOUT).values()[lost] == 0  # it was constructed anew
        counted = [values[lost] for values in askers.ask.call(counters).get(TIMEOUT).values()]
        assert sorted(counted) == [1, 2, 3]
        assert counters.slice(hosts=lost).address.call_one().get(TIMEOUT) == cluster.worker(at[lost])


@full
def test_hosts_that_died_together_are_replaced_side_by_side() -> None:
    """Both are asked while neither has answered; each hears of the other what came to pass while it was attached."""
    with InProcessCluster(hosts=3) as cluster:
        cluster.hosts.initialized.get(TIMEOUT)
        procs = cluster.hosts.spawn_procs()
        counters, askers = procs.spawn("counters", Counter), procs.spawn("askers", Counter)
        for lost in (1, 2):
            lose(cluster, counters, lost)
            cluster.start_host(lost)
        workers = [cluster.worker(index) for index in (1, 2)]
        asked = [cluster.expect("LinkHello", target=f"{worker}/agent") for worker in workers]
        held = [cluster.network.hold(source=f"{worker}/agent") for worker in workers]
        replaced = cluster.hosts.replace(failed=True)
        for expected in asked:
            expected.wait()
        told = cluster.expect("HostReplaced", target=f"{cluster.worker(0)}/agent")
        held[1].end()  # the second is there, and everybody but the first knows, before that one has answered
        told.wait()
        cluster.settle()
        held[0].end()
        assert replaced.get(TIMEOUT) == [1, 2]
        assert cluster._agents[workers[0]].routes.generation(workers[1]) == 1
        for mesh in (procs, counters, askers):
            mesh.restart(failed=True).get(TIMEOUT)
        assert [len(answer) for answer in askers.ask.call(counters).get(TIMEOUT).values()] == [3, 3, 3]


@full
def test_the_time_of_several_is_that_of_one_and_each_failure_is_told() -> None:
    """Nobody listens at two of the addresses: both are given up at the same time, and the third is there."""
    clock, attaching = VirtualClock(), threading.Semaphore(0)

    def seen(sent: DeliveredFrame) -> None:
        msg = message.decode(sent.head)
        if type(msg) is message.Envelope and type(message.decode(msg.head)) is message.Attach:
            attaching.release()

    with InProcessCluster(hosts=4, clock=clock) as cluster:
        cluster.hosts.initialized.get(TIMEOUT)
        for lost in (1, 2, 3):
            cluster.kill_agent(lost)
        clock.advance(5.0)  # so that it is known
        cluster.start_host(2)
        cluster.network.tap(seen, cluster.proc.address)
        second, replaced = cluster.hosts.replace(hosts=2), cluster.hosts.replace(failed=True)
        for _ in (1, 2, 3):
            assert attaching.acquire(timeout=TIMEOUT)  # each has its timer now
        assert second.get(TIMEOUT) == [2]
        clock.advance(PATIENCE + settings.mesh_attach_config_timeout())
        with pytest.raises(RuntimeError) as raised:
            replaced.get(TIMEOUT)
        for rank in (1, 3):
            assert f"host {rank} of the mesh, {cluster.worker(rank)}, was not replaced" in str(raised.value)


def test_by_policy_with_every_actor_back_under_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessCluster(hosts=3, spares=2, replace=ReplacePolicy(max_replacements=2)) as cluster:
        cluster.hosts.initialized.get(TIMEOUT)
        procs = cluster.hosts.spawn_procs()
        with RestartPolicy(max_restarts=3, within="1h"):
            counters = procs.spawn("counters", Counter)
        for lost in (1, 2):
            lose(cluster, counters, lost)
            counters.healthy(timeout=TIMEOUT).get()
            assert list(counters.add.call(0).get(TIMEOUT).values()) == [0, 0, 0]
        assert counters.slice(hosts=2).address.call_one().get(TIMEOUT) == cluster.worker(4)
        counters.stop().get(TIMEOUT)
        counters = procs.spawn("others", Counter)  # without a policy of their own
        lose(cluster, counters, 0)  # the third within an hour
        cluster.start_host(0)
        assert cluster.hosts.replace(failed=True).get(TIMEOUT) == [0]
        procs.restart(failed=True).get(TIMEOUT)
        counters.restart(failed=True).get(TIMEOUT)
        assert list(counters.add.call(0).get(TIMEOUT).values()) == [0, 0, 0]
    log_thread.flush(TIMEOUT)
    said = [record.getMessage() for record in caplog.records]
    assert any("is not replaced any more: ReplacePolicy(max_replacements=2" in line for line in said)


def test_owners_of_processes_elsewhere_start_them_again(cluster: InProcessCluster) -> None:
    """An actor of another host owns processes on the one that is lost, under a name that only handles carry."""
    owner = cluster.hosts.slice(hosts=0).spawn_procs().spawn("owner", Owner)
    owner.spawn.call_one(cluster.hosts).get(TIMEOUT)
    counters = cluster.hosts.spawn_procs().spawn("counters", Counter)
    lose(cluster, counters, 2)
    cluster.hosts.replace(failed=True).get(TIMEOUT)
    assert owner.restart.call_one().get(TIMEOUT) == [1, 1, 1]


def test_a_host_that_is_not_dead_and_a_mesh_that_is_not_ours(cluster: InProcessCluster) -> None:
    with pytest.raises(RuntimeError, match="is not dead"):
        cluster.hosts.replace(hosts=1)
    with pytest.raises(RuntimeError, match="is a reference"):
        cluster.hosts.slice(hosts=1).replace(failed=True)
    counters = cluster.hosts.spawn_procs().spawn("counters", Counter)
    lose(cluster, counters, 2)
    cluster.hosts.stop().get(TIMEOUT)
    with pytest.raises(RuntimeError, match="already been stopped"):
        cluster.hosts.replace(failed=True)


def test_through_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's agent has a link to the first host alone, which dials the others, and is told where."""
    with InProcessCluster(hosts=3, spares=1, gateway=0) as cluster:
        monkeypatch.setattr(transports, "_gateway", cluster.worker(0))  # as after `attach`
        cluster.hosts.initialized.get(TIMEOUT)
        procs = cluster.hosts.spawn_procs()
        counters = procs.spawn("counters", Counter)
        askers = procs.spawn("askers", Counter)
        askers.ask.call(counters).get(TIMEOUT)
        lose(cluster, counters, 1)
        assert cluster.hosts.replace(failed=True).get(TIMEOUT) == [1]
        procs.restart(failed=True).get(TIMEOUT)
        counters.restart(failed=True).get(TIMEOUT)
        askers.restart(failed=True).get(TIMEOUT)
        assert len(askers.ask.call(counters).get(TIMEOUT).values()) == 3
        assert counters.slice(hosts=1).address.call_one().get(TIMEOUT) == cluster.worker(3)


def test_an_order_to_end_is_not_for_who_took_the_address(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given when the host's end is known to the program's agent, and not to the program yet: it goes over a new link,
    to another worker."""
    cluster.hosts.spawn_procs().spawn("counters", Counter).add.call(1).get(TIMEOUT)
    routes = cluster.agent.routes
    tell_lost = routes._tell_lost
    over: list[Any] = []

    def order_first(host: str, why: str) -> None:
        if not over:
            cluster.start_host(1)
            over.append(cluster.hosts.shutdown())
        tell_lost(host, why)

    monkeypatch.setattr(routes, "_tell_lost", order_first)
    ordered = cluster.expect("Shutdown", target=cluster.worker(1) + "*")
    cluster.kill_agent(1)
    ordered.wait(TIMEOUT)
    over[0].get(TIMEOUT)
    cluster.settle()
    with pytest.raises(ValueError, match="host 1 has not ended"):
        cluster.start_host(1)
