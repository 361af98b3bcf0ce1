"""`send` with a port: whoever reads it hears of the end of those who were to answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch._mesh.failures import observed
from monarch.actor import Actor, Channel, Port, endpoint, send, this_host
from monarch.testing import InProcessCluster, Local
from tests.support.actors import TIMEOUT, Gate, fails

pytestmark = pytest.mark.usefixtures("no_leaks")


class Holder(Actor):
    @endpoint
    def hold(self, gate: Local[Gate]) -> str:
        gate.value.stand()
        return "held"

    @endpoint(explicit_response_port=True)
    def keep(self, port: Port[str], kept: Local[threading.Event]) -> None:
        self.port = port
        kept.value.set()

    @endpoint
    def name(self) -> str:
        return "holder"


def test_the_receiver_is_told_of_each_rank_whose_process_ends(cluster: InProcessCluster, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    holders: Any = procs.spawn("holders", Holder)
    holders.name.call().get(TIMEOUT)
    port, receiver = Channel[Any].open_ranked()
    send(holders.name, (), {}, port)
    assert sorted(receiver.recv().get(TIMEOUT) for _ in range(2)) == [(0, "holder"), (1, "holder")]
    send(holders.slice(gpus=1).hold, (Local(gate),), {}, port)
    gate.reached()
    cluster.kill(procs, 1)
    fails(receiver.recv(), "Killed")
    cluster.next_failure(handled=True)
    cluster.kill(procs, 0)  # it has answered: nothing more is said
    cluster.next_failure()
    cluster.settle()
    with pytest.raises(TimeoutError):
        receiver.recv().get(0)


def test_each_failure_that_the_receiver_raises_is_told(cluster: InProcessCluster) -> None:
    """Tells those of two ranks, and of another mesh, one after another through one port."""
    kept = Local(threading.Event())
    meshes = [this_host().spawn_procs({"gpus": 2}), this_host().spawn_procs()]
    port, receiver = Channel[Any].open()
    for procs in meshes:
        send(procs.spawn("holders", Holder).keep, (kept,), {}, port)
    for procs, rank in ((meshes[0], 0), (meshes[0], 1), (meshes[1], 0)):
        cluster.kill(procs, rank)
        fails(receiver.recv())
        cluster.next_failure(handled=True)


def test_where_nobody_reads_it_is_a_fault(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Local(threading.Event())
    procs = this_host().spawn_procs({"gpus": 3})
    holders: Any = procs.spawn("holders", Holder)
    port, receiver = Channel[Any].open()
    send(holders.keep, (kept,), {}, port)
    cluster.kill(procs, 0)  # the receiver may still be read
    cluster.settle()
    monkeypatch.setattr(observed, "HELD_LONG", 0.1)
    cluster.kill(procs, 1)
    cluster.settle()
    fails(receiver.recv())
    cluster.next_failure(handled=True)
    del receiver
    cluster.next_failure()
    cluster.kill(procs, 2)
    cluster.next_failure()


def test_the_same_of_an_endpoint_that_answers_when_it_likes(cluster: InProcessCluster) -> None:
    kept = Local(threading.Event())
    procs = this_host().spawn_procs()
    holder: Any = procs.spawn("holder", Holder)
    port, receiver = Channel[Any].open(once=True)
    send(holder.keep, (kept,), {}, port)
    kept.value.wait(TIMEOUT)
    cluster.kill(procs)
    fails(receiver.recv())
    cluster.next_failure(handled=True)


def test_hosts_apart(gate: Gate) -> None:
    with InProcessCluster(hosts=3) as cluster:
        procs = cluster.hosts.spawn_procs({"gpus": 1})
        holders: Any = procs.spawn("holders", Holder)
        holders.name.call().get(TIMEOUT)
        port, receiver = Channel[Any].open()
        send(holders.hold, (Local(gate),), {}, port)
        gate.reached()
        cluster.kill(procs, 2)
        fails(receiver.recv())
        gate.open()
        assert [receiver.recv().get(TIMEOUT) for _ in range(2)] == ["held", "held"]
        cluster.next_failure(handled=True)
