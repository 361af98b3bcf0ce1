"""Tests of where answers go: the table of ports, the ends that wait there, and the ports that programs hold."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import pytest

from monarch._errors import ActorError, NotSendableError, SupervisionError
from monarch._runtime import context
from monarch._runtime.future import Future, Source, done_future, make_future
from monarch._runtime.hooks import Hooks
from monarch._runtime.port import Channel, Port, PortReceiver, RankedPortReceiver, SinkPort
from monarch._runtime.queue import Arrival, Queue
from monarch._runtime.remote_errors import RemoteError, encode_error
from monarch._runtime.replies import Gather, OneReply, Ports, Target
from monarch._wire import codec, message
from monarch._wire.message import ERROR, FAILED, RAISED, VALUE, Answer, Failure, ProcEnded
from tests.support.patience import TIMEOUT

Raw = tuple[int, int, Any, Sequence[Any]]


class Loop:
    """Timers that the test fires."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0

    def call_later(self, delay: float, fn: Callable[[], None]) -> Any:
        self.timers.append((delay, fn))
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class FakeProc:
    """Delivers to its own ports, and records what would go to another process."""

    address = "unix:/h/client"
    root_name = "client.0"

    def __init__(self) -> None:
        self.ports = Ports()
        self.loop = Loop()
        self.hooks = Hooks()
        self.sent: list[tuple[str, Answer, bytes]] = []
        self.suspected: dict[str, str] = {}

    def answer(self, address: str, answer: Answer, body: bytes, buffers: Any) -> None:
        self.sent.append((address, answer, body))
        if address == self.address:
            self.ports.receive(answer.port, (answer.rank, answer.kind, body, buffers))


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    proc = FakeProc()
    monkeypatch.setattr(context, "_home", proc)
    yield proc


def value(rank: int, obj: Any) -> Raw:
    return (rank, VALUE, *codec.encode(obj))


def error(rank: int, exc: BaseException) -> Raw:
    return (rank, ERROR, *encode_error(exc, RemoteError("where it was", "its traceback")))


def failure(rank: int, report: str = "it died", error: bytes = b"") -> Raw:
    return rank, FAILED, message.encode(Failure(report, error=error)), ()


def target(*addresses: str) -> Target:
    return Target("worker.step", addresses, lambda address, ended: Failure(f"{address} ended: {ended.code}"))


def ended(address: str) -> ProcEnded:
    return ProcEnded(address, 7, -9, False, [])


def result(source: Source) -> Any:
    return make_future(source).get(TIMEOUT)


# --- one answer


def test_one_reply_leaves_the_table_with_its_answer(proc: Any) -> None:
    entry = OneReply(target("p0"))
    number = proc.ports.add(entry)
    assert len(proc.ports) == 1 and not entry.ready
    assert proc.ports.receive(number, value(0, {"a": 1}))
    assert result(entry) == {"a": 1} and len(proc.ports) == 0
    assert not proc.ports.receive(number, value(0, "late"))


def test_port_numbers_are_never_used_again(proc: Any) -> None:
    numbers = []
    for _ in range(5):
        numbers.append(proc.ports.add(entry := OneReply(None)))
        entry.close()
    assert numbers == [1, 2, 3, 4, 5] and len(proc.ports) == 0


def test_what_an_answer_carries(proc: Any) -> None:
    for raw, kind, text in (
        (error(0, ValueError("x")), ActorError, "where it was\n its traceback"),
        ((0, RAISED, *codec.encode(KeyError("k"))), KeyError, "k"),
        (failure(0), SupervisionError, r"Endpoint call worker\.step\(\) failed, it died"),
        (failure(0, error=codec.encode(OSError("as it is"))[0]), OSError, "as it is"),
    ):
        entry = OneReply(target("p0"))
        proc.ports.receive(proc.ports.add(entry), raw)
        with pytest.raises(kind, match=text):
            result(entry)


class Unreplayable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("only one argument is kept")


@pytest.mark.parametrize("exc", [Unreplayable(1, 2), ValueError(threading.Lock())])
def test_an_exception_that_cannot_travel_leaves_its_text_and_a_stand_in(proc: Any, exc: Exception) -> None:
    entry = OneReply(target("p0"))
    proc.ports.receive(proc.ports.add(entry), error(0, exc))
    with pytest.raises(ActorError) as caught:
        result(entry)
    assert type(caught.value.exception).__name__ == type(exc).__name__ and "its traceback" in str(caught.value)


def test_an_exception_keeps_its_large_memory(proc: Any) -> None:
    entry = OneReply(target("p0"))
    proc.ports.receive(proc.ports.add(entry), error(0, ValueError(pickle.PickleBuffer(bytes(10_000)))))
    with pytest.raises(ActorError) as caught:
        result(entry)
    assert isinstance(caught.value.exception, ValueError)


# --- one answer from each


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 2, 0]])
def test_gather_puts_answers_into_rank_order(proc: Any, order: list[int]) -> None:
    entry = Gather(target("p0", "p1", "p2"), 3, list)
    number = proc.ports.add(entry)
    for rank in order:
        assert not entry.ready
        proc.ports.receive(number, value(rank, rank * 10))
    assert result(entry) == [0, 10, 20] and len(proc.ports) == 0


def test_gather_raises_the_error_of_the_lowest_rank_once_all_have_answered(proc: Any) -> None:
    entry = Gather(target("p0", "p1", "p2"), 3, list)
    number = proc.ports.add(entry)
    proc.ports.receive(number, error(2, ValueError("two")))
    proc.ports.receive(number, error(1, ValueError("one")))
    assert not entry.ready and entry.unanswered() == [0]
    proc.ports.receive(number, value(0, None))
    with pytest.raises(ActorError) as caught:
        result(entry)
    assert str(caught.value.exception) == "one"


def test_gather_fails_as_soon_as_one_of_them_has_failed(proc: Any) -> None:
    entry = Gather(target("p0", "p1"), 2, list)
    number = proc.ports.add(entry)
    proc.ports.receive(number, failure(1))
    with pytest.raises(SupervisionError, match="it died"):
        result(entry)
    assert not proc.ports.receive(number, value(0, "late")) and len(proc.ports) == 0


@pytest.mark.parametrize("rank", [-1, 2, 99])
def test_gather_ignores_answers_of_ranks_it_did_not_ask(proc: Any, rank: int) -> None:
    entry = Gather(target("p0", "p1"), 2, list)
    proc.ports.receive(proc.ports.add(entry), value(rank, "?"))
    assert entry.unanswered() == [0, 1]


# --- the end of those who should answer


def test_the_end_of_a_process_fails_those_who_wait_for_it_and_no_others(proc: Any) -> None:
    entries = {
        "one": OneReply(target("p1")),
        "other": OneReply(target("p0")),
        "gather": Gather(target("p0", "p1"), 2, list),
        "answered": Gather(target("p0", "p1"), 2, list),
        "stream": Queue(target("p0", "p1"), 2),
        "heard": Queue(target("p0", "p1"), 2),
        "channel": Queue(),
    }
    numbers = {name: proc.ports.add(entry) for name, entry in entries.items()}
    for name in ("answered", "heard"):
        proc.ports.receive(numbers[name], value(1, "there before"))
    proc.ports.process_ended(ended("p1"))
    for source in (entries["one"], entries["gather"], Arrival(entries["stream"])):  # type: ignore[arg-type]
        with pytest.raises(SupervisionError, match="p1 ended: -9"):
            result(source)
    assert [name for name, number in numbers.items() if number in proc.ports._entries] == [
        "other", "answered", "heard", "channel",
    ]  # fmt: skip


def test_closing_fails_everything(proc: Any) -> None:
    entries = [OneReply(None), Gather(target("p0"), 1, list), Queue()]
    for entry in entries:
        proc.ports.add(entry)
    arrival = Arrival(entries[2])  # type: ignore[arg-type]
    arrival.begin()
    proc.ports.close_all(Failure("the client is closed"))
    for source in (entries[0], entries[1], arrival, Arrival(entries[2])):  # type: ignore[arg-type]
        with pytest.raises(SupervisionError, match="the client is closed"):
            result(source)
    assert len(proc.ports) == 0


def test_a_time_limit_names_who_has_not_answered(proc: Any) -> None:
    entry = Gather(target("p0", "p1", "p2"), 3, list)
    number = proc.ports.add(entry)
    entry.expire_after(proc, 2.5)
    proc.ports.receive(number, value(1, None))
    ((delay, fire),) = proc.loop.timers
    fire()
    with pytest.raises(TimeoutError, match=r"worker\.step\(\) got no answer within 2\.5 s from rank\(s\) 0, 2;"):
        result(entry)
    assert delay == 2.5 and proc.loop.cancelled == 1 and len(proc.ports) == 0


def test_an_answer_cancels_the_time_limit(proc: Any) -> None:
    entry = OneReply(target("p0"))
    number = proc.ports.add(entry)
    entry.expire_after(proc, 2.5)
    proc.ports.receive(number, value(0, 1))
    assert proc.loop.cancelled == 1
    proc.loop.timers[0][1]()
    assert result(entry) == 1


# --- answers as they come


def test_a_queue_gives_the_first_message_to_the_first_that_waits(proc: Any) -> None:
    queue = Queue()
    number = proc.ports.add(queue)
    proc.ports.receive(number, value(0, "a"))
    late, first, second = (Arrival(queue) for _ in range(3))
    assert not first.ready
    first.begin()
    first.begin()
    second.begin()
    for text in "bc":
        proc.ports.receive(number, value(0, text))
    assert (result(first), result(second), result(late)) == ("a", "b", "c")


def test_a_limited_queue_leaves_the_table_when_it_has_them_all(proc: Any) -> None:
    queue = Queue(target("p0", "p1"), 2)
    number = proc.ports.add(queue)
    proc.ports.receive(number, value(1, "a"))
    assert queue.unanswered() == [0]
    proc.ports.receive(number, value(0, "b"))
    assert len(proc.ports) == 0
    assert [result(Arrival(queue)), result(Arrival(queue))] == ["a", "b"]


def test_messages_that_came_are_given_out_before_the_failure(proc: Any) -> None:
    queue = Queue(target("p0", "p1"), 2)
    number = proc.ports.add(queue)
    proc.ports.receive(number, value(0, "a"))
    proc.ports.receive(number, failure(1))
    assert result(Arrival(queue)) == "a"
    for _ in range(2):
        with pytest.raises(SupervisionError):
            result(Arrival(queue))


# --- channels


def test_a_channel_passes_values_and_exceptions(proc: Any) -> None:
    port, receiver = Channel.open()
    for item in (1, [2], None):
        port.send(item)
    port.exception(ValueError("sent"))
    assert [receiver.recv().get(TIMEOUT) for _ in range(3)] == [1, [2], None]
    with pytest.raises(ValueError, match="sent"):
        receiver.recv().get(TIMEOUT)


def test_recv_is_lazy_and_stays_armed_after_a_timeout(proc: Any) -> None:
    port, receiver = Channel.open()
    first, second = receiver.recv(), receiver.recv()
    with pytest.raises(TimeoutError):
        second.get(timeout=0)
    port.send("to the one that was observed")
    port.send("to the other")
    assert (first.get(TIMEOUT), second.get(TIMEOUT)) == ("to the other", "to the one that was observed")


def test_iterating_a_receiver_gives_futures(proc: Any) -> None:
    port, receiver = Channel.open()
    for number in range(3):
        port.send(number)
    futures = iter(receiver)
    assert [next(futures).get(TIMEOUT) for _ in range(3)] == [0, 1, 2]


def test_a_once_channel_takes_and_gives_one_message(proc: Any) -> None:
    port, receiver = Channel.open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.send(2)
    with pytest.raises(RuntimeError, match="already used"):
        port.exception(ValueError())
    assert receiver.recv().get(TIMEOUT) == 1 and len(proc.ports) == 0
    with pytest.raises(ValueError, match=r"OncePort is already used.*exactly one message"):
        receiver.recv()


def test_ranked_receivers_say_who_sent(proc: Any) -> None:
    _, receiver = Channel.open()
    ranked = receiver.ranked()
    number = next(iter(proc.ports._entries))
    proc.ports.receive(number, value(3, "a"))
    proc.ports.receive(number, value(-1, "b"))
    assert ranked.recv().get(TIMEOUT) == (3, "a")
    with pytest.raises(ValueError, match="RankedPort receiver got a message without a rank"):
        ranked.recv().get(TIMEOUT)
    assert isinstance(Channel.open_ranked()[1], RankedPortReceiver)


def test_a_dropped_receiver_closes_its_port_and_a_dropped_view_of_it_does_not(proc: Any) -> None:
    _, receiver = Channel.open()
    ranked = receiver.ranked()
    del receiver
    assert len(proc.ports) == 1
    pending = ranked.recv()
    del ranked
    assert len(proc.ports) == 1  # somebody may yet observe the future
    del pending
    assert len(proc.ports) == 0


def test_a_port_sent_elsewhere_sends_to_where_it_was_opened(proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port, _receiver = Channel.open(once=True)
    port.return_undeliverable = False
    pickled = pickle.dumps(port)
    other = FakeProc()
    other.address = "unix:/h/m.0"
    monkeypatch.setattr(context, "_home", other)
    there = pickle.loads(pickled)
    there.send("x")
    ((address, answer, body),) = other.sent
    assert (address, answer.port, answer.kind, answer.sender) == (proc.address, port._number, VALUE, "")
    assert codec.decode(body) == "x"
    with pytest.raises(RuntimeError, match="already used"):
        there.send("y")


def test_what_cannot_be_sent_is_not_sent(proc: Any) -> None:
    port, receiver = Channel.open(once=True)
    for unsendable in (done_future(1), receiver, [receiver.ranked()]):
        with pytest.raises(NotSendableError, match="cannot be sent to another process"):
            port.send(unsendable)
    with pytest.raises(TypeError, match="generator"):
        port.send(item for item in ())
    with pytest.raises(TypeError, match="expects an exception, got str"):
        port.exception("text")  # type: ignore[arg-type]
    port.send("still usable")
    assert receiver.recv().get(TIMEOUT) == "still usable"
    for thing, dumps in itertools.product((receiver, done_future(1)), (pickle.dumps, cloudpickle.dumps)):
        with pytest.raises(TypeError, match="send"):
            dumps(thing)


def test_nobody_listens_to_a_sink(proc: Any) -> None:
    sink = SinkPort(proc, proc.address, 0)
    sink.send(1)
    assert proc.sent == []
    with pytest.raises(ValueError, match="raised here"):
        sink.exception(ValueError("raised here"))


def test_repr_and_types(proc: Any) -> None:
    port, receiver = Channel.open()
    assert repr(port) == f"<Port {port._number} of unix:/h/client>"
    assert isinstance(port, Port) and isinstance(receiver, PortReceiver) and isinstance(receiver.recv(), Future)
