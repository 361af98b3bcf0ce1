"""Ports between actors, and endpoints that answer through a port of their own. Channels: tests/_runtime/test_port.py."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from monarch.actor import Actor, Channel, Port, ProcMesh, SupervisionError, current_rank, endpoint, send
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


class Sender(Actor):
    def __init__(self) -> None:
        self.kept: list[Port[Any]] = []

    @endpoint
    async def emit(self, port: Port[Any], values: list[Any]) -> int:
        for value in values:
            port.send(value)
        return len(values)

    @endpoint
    async def open(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    async def received(self) -> Any:
        return await self.receiver.recv()

    @endpoint
    async def alive(self) -> str:
        return "alive"

    @endpoint(explicit_response_port=True)
    async def answer(self, port: Port[Any], values: list[Any]) -> str:
        for value in values:
            port.send(value)
        return "ignored"

    @endpoint(explicit_response_port=True)
    async def answer_error(self, port: Port[Any]) -> None:
        port.exception(KeyError("as it is"))

    @endpoint(explicit_response_port=True)
    async def answer_rank(self, port: Port[Any]) -> None:
        port.send(current_rank().rank)

    @endpoint(explicit_response_port=True)
    async def keep(self, port: Port[Any]) -> None:
        self.kept.append(port)

    @endpoint
    async def use_kept(self, value: Any) -> None:
        for port in self.kept:
            port.send(value)

    @endpoint(explicit_response_port=True)
    async def answer_from_a_thread(self, port: Port[Any], value: Any) -> None:
        threading.Thread(target=port.send, args=(value,)).start()


class SyncSender(Actor):
    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)


@pytest.fixture
def procs(cluster: InProcessCluster) -> ProcMesh:
    return cluster.this_host().spawn_procs({"gpus": 2})


@pytest.fixture
def senders(procs: ProcMesh) -> Any:
    return procs.spawn("sender", Sender)


@pytest.fixture
def one(senders: Any) -> Any:
    return senders.slice(gpus=0)


# --- channels


def test_what_is_sent_is_a_copy() -> None:
    port, receiver = Channel[Any].open()
    mine = [1]
    port.send(mine)
    mine.append(2)
    received = receiver.recv().get(timeout=TIMEOUT)
    assert received == [1] and received is not mine


def test_recv_can_be_awaited(one: Any) -> None:
    async def main() -> Any:
        port, receiver = Channel[Any].open()
        one.emit.broadcast(port, ["a", "b"])
        return await receiver.recv(), await receiver.recv()

    assert asyncio.run(main()) == ("a", "b")


def test_an_actor_gives_a_port_and_receives_through_it(senders: Any) -> None:
    first, second = senders.slice(gpus=0), senders.slice(gpus=1)
    port = first.open.call_one().get(timeout=TIMEOUT)
    second.emit.call_one(port, ["from the other actor"]).get(timeout=TIMEOUT)
    assert first.received.call_one().get(timeout=TIMEOUT) == "from the other actor"
    port.send("from the client")
    assert first.received.call_one().get(timeout=TIMEOUT) == "from the client"


# --- explicit response ports


def test_under_call_each_rank_answers_once(senders: Any) -> None:
    assert senders.answer.call(["a"]).get(timeout=TIMEOUT).values() == ["a", "a"]
    assert senders.answer_rank.call().get(timeout=TIMEOUT).values() == [0, 1]


def test_sync_actors_have_explicit_ports_too(procs: ProcMesh) -> None:
    assert procs.spawn("sync", SyncSender).answer.call([1]).get(timeout=TIMEOUT).values() == [1, 1]


def test_under_call_a_rank_that_does_not_answer_keeps_the_caller_waiting(senders: Any) -> None:
    future = senders.keep.call()
    senders.slice(gpus=0).use_kept.call_one("first").get(timeout=TIMEOUT)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.1)
    senders.slice(gpus=1).use_kept.call_one("second").get(timeout=TIMEOUT)
    assert future.get(timeout=TIMEOUT).values() == ["first", "second"]


def test_under_call_a_second_answer_kills_the_actor(one: Any, cluster: InProcessCluster) -> None:
    one.answer.call([1, 2])
    assert "OncePortRef already used" in cluster.next_failure().report()
    with pytest.raises(SupervisionError, match="OncePortRef already used"):
        one.alive.call_one().get(timeout=TIMEOUT)


@pytest.mark.parametrize("adverb", ["call_one", "choose"])
def test_under_call_one_and_choose_the_first_answer_counts(one: Any, adverb: str) -> None:
    assert getattr(one.answer, adverb)(["first", "second", "third"]).get(timeout=TIMEOUT) == "first"
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_under_stream_the_first_arrivals_are_the_answers(senders: Any) -> None:
    answers = list(senders.answer.stream(["x", "x", "x"]))
    assert [f.get(timeout=TIMEOUT) for f in answers] == ["x", "x"]
    assert senders.alive.call().get(timeout=TIMEOUT).values() == ["alive"] * 2


def test_under_broadcast_the_port_swallows_what_is_sent(senders: Any) -> None:
    senders.answer.broadcast([1, 2, 3])
    assert senders.alive.call().get(timeout=TIMEOUT).values() == ["alive"] * 2


def test_under_broadcast_an_exception_for_the_port_kills_the_actor(one: Any, cluster: InProcessCluster) -> None:
    one.answer_error.broadcast()
    assert "as it is" in cluster.next_failure().report()


def test_under_send_any_number_of_answers_arrives(senders: Any) -> None:
    port, receiver = Channel[Any].open()
    send(senders.answer, ([1, 2, 3],), {}, port=port)
    assert sorted(receiver.recv().get(timeout=TIMEOUT) for _ in range(6)) == [1, 1, 2, 2, 3, 3]


def test_an_exception_for_the_port_is_raised_unwrapped(senders: Any, one: Any) -> None:
    for future in (senders.answer_error.call(), one.answer_error.call_one(), next(iter(one.answer_error.stream()))):
        with pytest.raises(KeyError, match="as it is"):
            future.get(timeout=TIMEOUT)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_a_response_port_can_be_used_from_a_thread(one: Any) -> None:
    assert one.answer_from_a_thread.call_one("from a thread").get(timeout=TIMEOUT) == "from a thread"


# --- nobody there


def test_a_message_for_a_stopped_actor_is_a_fault_of_its_sender(procs: ProcMesh, cluster: InProcessCluster) -> None:
    mesh = procs.slice(gpus=0).spawn("sender", Sender)
    port = mesh.open.call_one().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    assert port.return_undeliverable is True
    port.send("too late")
    failure = cluster.next_failure()
    assert failure.mesh_name == "<none>" and "undeliverable message" in failure.report()
