"""Tests of how what was recorded leaves a process: with a client that answers, is slow, is gone or comes back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from monarch._mesh.inspection import recording as recordings
from monarch._mesh.inspection.outgoing_batches import MOST_BYTES, BatchHead
from monarch._mesh.inspection.recording import WINDOW, Recording, pause, process_name
from monarch._runtime.recorder import LOG, SPAN
from monarch._runtime.replies import Ports
from monarch._wire.message import VALUE, Recorded

YES = msgspec.msgpack.encode((0.0, 0.0))


def part(number: int, name: str) -> tuple[Any, ...]:
    return (SPAN, number, name, "actor", None, 0, 1.0, 2.0, "main", "")


class Client:
    """The program as a process sees it: it keeps what was sent, and answers when it is told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.entries: list[Any] = []
        timer = SimpleNamespace(cancel=lambda: None)
        self.proc: Any = SimpleNamespace(
            root_name="",
            address="unix:x/client",
            client="unix:x/client",
            closed=None,
            frame_limit=0,
            actors={},
            ports=Ports(),
            loop=SimpleNamespace(call_later=lambda *_: timer, call_soon=lambda _: None),
            post=self._post,
        )

    def _post(self, to: str, message: Recorded, body: bytes) -> None:
        self.bodies.append(body)
        self.entries.append(self.proc.ports.get(message.port))

    def answer(self, number: int) -> None:
        self.entries[number].receive((0, VALUE, YES, ()))

    def times_out(self, number: int) -> None:
        self.entries[number].give_up(TimeoutError())

    def batch(self, number: int) -> tuple[BatchHead, list[Any]]:
        return msgspec.msgpack.decode(self.bodies[number], type=tuple[BatchHead, list[Any]])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    made = SimpleNamespace(now=1_000.0)
    time = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now)
    monkeypatch.setattr(recordings, "time", time)
    yield made


def test_a_line_that_cannot_be_sent_costs_no_other_and_recording_goes_on(clock: SimpleNamespace) -> None:
    client = Client()
    recording = Recording(client.proc, include_system=False)
    for number in range(3 * WINDOW):
        recording.recorder.add((LOG, "name", "INFO", "caf\udce9", number))
        recording.recorder.add((LOG, "name", "INFO", object(), number))
        recording.recorder.add((LOG, "name", "INFO", "plain", number))
        assert recording._send()
        client.answer(number)
        head, events = client.batch(number)
        assert [event[3] for event in events] == ["caf\\udce9", "plain"]
        assert (head.number, head.dropped) == (number + 1, number + 1)


def test_long_names_make_more_batches_and_no_larger_ones(clock: SimpleNamespace) -> None:
    client = Client()
    recording = Recording(client.proc, include_system=False)
    for number in range(1_000):
        recording.recorder.add_text(part(number, "\U0001f600" * 1_000))
    while recording._send():
        client.answer(-1)
    assert [len(body) <= MOST_BYTES for body in client.bodies] == [True] * 4
    found = [event[1] for number in range(4) for event in client.batch(number)[1]]
    assert found == list(range(1_000))


def test_a_message_has_no_more_than_the_program_allows(clock: SimpleNamespace) -> None:
    client = Client()
    client.proc.frame_limit = 2_000
    recording = Recording(client.proc, include_system=False)
    for number in range(100):
        recording.recorder.add_text(part(number, "x" * 100))
    while recording._send():
        client.answer(-1)
    assert max(map(len, client.bodies)) <= 2_000
    assert sum(len(client.batch(number)[1]) for number in range(len(client.bodies))) == 100


def test_a_client_that_does_not_answer_is_sent_little_until_it_does(clock: SimpleNamespace) -> None:
    client = Client()
    recording = Recording(client.proc, include_system=False)

    def send() -> int:
        count = 0
        while True:
            recording.recorder.add_text(part(1, "x"))
            if not recording._send():
                return count
            count += 1

    assert send() == WINDOW
    for number in range(WINDOW):
        client.times_out(number)
    waited = []
    for _ in range(3):
        began = clock.now
        recording.recorder.add_text(part(1, "x"))
        while not recording._send():
            clock.now += 1.0
        waited.append(clock.now - began)
        client.times_out(-1)
    assert waited == [pause(0), pause(1), pause(2)] == [10.0, 20.0, 40.0]
    assert pause(5) == pause(10_000) == 300.0
    clock.now += pause(3)
    recording.recorder.add_text(part(1, "x"))
    assert recording._send()
    client.answer(-1)
    assert send() == WINDOW


def test_names_of_processes_are_fit_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setenv("HYPERACTOR_PROCESS_NAME", "caf\udce9" + "x" * 5_000)
    name = process_name(client.proc)
    assert name.startswith("caf\\udce9") and len(name) == 1_000
