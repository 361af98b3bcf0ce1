"""Channels, ports, receivers, and endpoints that answer through a port of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    send,
)

pytestmark = pytest.mark.procs
TIMEOUT = 30


class Sender(Actor):
    def __init__(self) -> None:
        self.kept: list[Port[Any]] = []

    @endpoint
    async def emit(self, port: Port[Any], values: list[Any]) -> int:
        for value in values:
            port.send(value)
        return len(values)

    @endpoint
    async def emit_error(self, port: Port[Any]) -> None:
        port.exception(KeyError("from afar"))

    @endpoint
    async def open(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    async def received(self) -> Any:
        return await self.receiver.recv()

    @endpoint
    async def forget_receiver(self) -> None:
        del self.receiver
        gc.collect()

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

    @endpoint(explicit_response_port=True)
    async def raises(self, port: Port[Any]) -> None:
        raise ValueError("beside the port")


class SyncSender(Actor):
    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)


@pytest.fixture
def senders(procs2: ProcMesh) -> Any:
    return procs2.spawn("sender", Sender)


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


def test_ports_travel_and_keep_the_order_of_each_sender(senders: Any) -> None:
    port, receiver = Channel[Any].open()
    calls = [
        senders.slice(gpus=n).emit.call_one(port, [(n, i, b"x" * (i % 7) * 20_000) for i in range(50)])
        for n in range(2)
    ]
    got = [receiver.recv().get(timeout=TIMEOUT) for _ in range(100)]
    for n in range(2):
        assert [i for sender, i, _ in got if sender == n] == list(range(50))
    assert [c.get(timeout=TIMEOUT) for c in calls] == [50, 50]


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


def test_an_exception_sent_to_a_port_is_raised_as_it_is(one: Any) -> None:
    port, receiver = Channel[Any].open()
    one.emit_error.call_one(port).get(timeout=TIMEOUT)
    port.send("after it")
    with pytest.raises(KeyError, match="from afar"):
        receiver.recv().get(timeout=TIMEOUT)
    assert receiver.recv().get(timeout=TIMEOUT) == "after it"


def test_a_receiver_cannot_be_an_argument(one: Any) -> None:
    _port, receiver = Channel[Any].open()
    with pytest.raises(TypeError, match="PortReceiver"):
        one.emit.call_one(receiver, [])


# --- ranked


def test_a_ranked_receiver_says_who_answered(senders: Any) -> None:
    port, receiver = Channel[Any].open_ranked()
    send(senders.answer_rank, (), {}, port=port)
    assert sorted(receiver.recv().get(timeout=TIMEOUT) for _ in range(2)) == [(0, 0), (1, 1)]


def test_ranked_turns_a_receiver_into_a_ranked_one(senders: Any) -> None:
    port, receiver = Channel[Any].open()
    send(senders.answer_rank, (), {}, port=port)
    ranked = receiver.ranked()
    assert sorted(ranked.recv().get(timeout=TIMEOUT) for _ in range(2)) == [(0, 0), (1, 1)]


# --- explicit response ports


def test_under_call_each_rank_answers_once(senders: Any) -> None:
    assert senders.answer.call(["a"]).get(timeout=TIMEOUT).values() == ["a", "a"]
    assert senders.answer_rank.call().get(timeout=TIMEOUT).values() == [0, 1]


def test_sync_actors_have_explicit_ports_too(procs2: ProcMesh) -> None:
    assert procs2.spawn("sync", SyncSender).answer.call([1]).get(timeout=TIMEOUT).values() == [1, 1]


def test_under_call_a_rank_that_does_not_answer_keeps_the_caller_waiting(senders: Any) -> None:
    future = senders.keep.call()
    senders.slice(gpus=0).use_kept.call_one("first").get(timeout=TIMEOUT)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.1)
    senders.slice(gpus=1).use_kept.call_one("second").get(timeout=TIMEOUT)
    assert future.get(timeout=TIMEOUT).values() == ["first", "second"]


def test_under_call_a_second_answer_kills_the_actor(one: Any, faults: Any) -> None:
    one.answer.call([1, 2])
    assert "OncePortRef already used" in faults.next().report()
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


def test_under_broadcast_an_exception_for_the_port_kills_the_actor(one: Any, faults: Any) -> None:
    one.answer_error.broadcast()
    assert "as it is" in faults.next().report()


def test_under_send_any_number_of_answers_arrives(senders: Any) -> None:
    port, receiver = Channel[Any].open()
    send(senders.answer, ([1, 2, 3],), {}, port=port)
    assert sorted(receiver.recv().get(timeout=TIMEOUT) for _ in range(6)) == [1, 1, 2, 2, 3, 3]


def test_an_exception_for_the_port_is_raised_unwrapped(senders: Any, one: Any) -> None:
    for future in (
        senders.answer_error.call(),
        one.answer_error.call_one(),
        next(iter(one.answer_error.stream())),
    ):
        with pytest.raises(KeyError, match="as it is"):
            future.get(timeout=TIMEOUT)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_the_return_value_beside_an_explicit_port_is_ignored(one: Any) -> None:
    assert one.answer.call_one(["through the port"]).get(timeout=TIMEOUT) == "through the port"


def test_an_exception_beside_an_explicit_port_kills_the_actor(one: Any, faults: Any) -> None:
    with pytest.raises(SupervisionError, match="beside the port"):
        one.raises.call_one().get(timeout=TIMEOUT)
    assert "beside the port" in faults.next(handled=True).report()


def test_a_response_port_can_be_used_after_the_endpoint_returned(one: Any) -> None:
    first, second = one.keep.call_one(), one.keep.call_one()
    one.use_kept.call_one("later").get(timeout=TIMEOUT)
    assert (first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)) == ("later", "later")


def test_a_response_port_can_be_used_from_a_thread(one: Any) -> None:
    assert one.answer_from_a_thread.call_one("from a thread").get(timeout=TIMEOUT) == "from a thread"


# --- nobody there


def test_a_message_for_a_receiver_that_is_gone_is_dropped(one: Any) -> None:
    port = one.open.call_one().get(timeout=TIMEOUT)
    one.forget_receiver.call_one().get(timeout=TIMEOUT)
    port.send("for nobody")
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_a_message_for_a_dropped_receiver_of_the_client_harms_no_actor(one: Any) -> None:
    port, receiver = Channel[Any].open()
    del receiver
    gc.collect()
    one.emit.call_one(port, [1, 2, 3]).get(timeout=TIMEOUT)
    assert one.alive.call_one().get(timeout=TIMEOUT) == "alive"


def test_a_message_for_a_stopped_actor_is_a_fault_of_its_sender(procs2: ProcMesh, faults: Any) -> None:
    mesh = procs2.slice(gpus=0).spawn("sender", Sender)
    port = mesh.open.call_one().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    assert port.return_undeliverable is True
    port.send("too late")
    failure = faults.next()
    assert failure.mesh_name == "<none>" and "undeliverable message" in failure.report()


def test_without_return_undeliverable_it_is_dropped(procs2: ProcMesh, faults: Any) -> None:
    mesh = procs2.slice(gpus=0).spawn("sender", Sender)
    port = mesh.open.call_one().get(timeout=TIMEOUT)
    loud = mesh.open.call_one().get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    port.return_undeliverable = False
    assert port.return_undeliverable is False
    port.send("quietly")
    loud.send("loudly")  # same sender and same process: what came of the first is known when this is
    assert "undeliverable message" in faults.next().report()
    assert faults.rest() == []
