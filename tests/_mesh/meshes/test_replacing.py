"""Hosts that die are replaced in place: handles reach the new ones, and nobody hears the old ones any more."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, SupervisionError, context, current_rank, endpoint
from monarch.testing import InProcessCluster

TIMEOUT = 60


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
