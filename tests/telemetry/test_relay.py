"""Tests of what waits in the client for the observer: bounded, and fair to every process."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire.message import Recorded
from monarch.telemetry import frames
from monarch.telemetry.relay import RowRelay, WaitingBatches


def drained(waiting: WaitingBatches) -> list[bytes]:
    found = []
    while data := waiting.next():
        found.append(data)
    return found


def test_sources_take_turns_each_in_its_order() -> None:
    waiting = WaitingBatches()
    for data in (b"a1", b"a2", b"a3", b"b1", b"c1", b"b2"):
        waiting.put(data[:1].decode(), data)
    assert drained(waiting) == [b"a1", b"b1", b"c1", b"a2", b"b2", b"a3"]
    assert waiting.bytes == 0


def test_one_that_floods_takes_nothing_from_the_others() -> None:
    waiting = WaitingBatches(most=100)
    for _ in range(1000):
        waiting.put("flood", b"x" * 10)
    for number in range(5):
        waiting.put("quiet", b"q%d" % number + b"." * 8)
    assert waiting.bytes <= 100
    assert [data[:2] for data in drained(waiting) if data.startswith(b"q")] == [b"q0", b"q1", b"q2", b"q3", b"q4"]
    assert waiting.dropped == 995


def test_what_is_larger_than_all_there_is_room_for_is_dropped() -> None:
    waiting = WaitingBatches(most=10)
    waiting.put("a", b"x" * 11)
    waiting.put("a", b"y")
    assert drained(waiting) == [b"y"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), max_size=60))
def test_it_never_holds_more_and_keeps_each_order(puts: list[tuple[str, int]]) -> None:
    waiting = WaitingBatches(most=100)
    for number, (source, size) in enumerate(puts):
        waiting.put(source, source.encode() + number.to_bytes(2, "big") + b"." * size)
        assert waiting.bytes <= 100
    found = drained(waiting)
    assert len(found) + waiting.dropped == len(puts)
    for source in "abc":
        numbers = [data[1:3] for data in found if data[:1] == source.encode()]
        assert numbers == sorted(numbers)


# --- the relay itself


class OwnLoop:
    """A loop whose turns are taken at once."""

    def __init__(self) -> None:
        self.call_soon = lambda work: work()
        self.in_loop = lambda: True
        self.add = self.want_write = lambda *_: None
        self.remove = lambda _: None


@pytest.fixture
def relay() -> Any:
    answers: list[Any] = []
    proc: Any = SimpleNamespace(loop=OwnLoop(), receivers={}, closed=None, answer=lambda *it: answers.append(it))
    made = RowRelay(proc, lambda: None)

    def come(body: bytes) -> None:
        proc.receivers[Recorded](SimpleNamespace(remote="unix:x/m.0"), Recorded(1), SimpleNamespace(body=body))

    return SimpleNamespace(relay=made, come=come, answers=answers)


def read(sock: socket.socket, count: int) -> list[bytes]:
    sock.settimeout(60)
    return [frames.receive(sock)[1] for _ in range(count)]


def test_a_batch_that_is_too_large_never_gets_to_the_observer(relay: Any) -> None:
    """Drops a batch for which the observer would close the connection."""
    here, there = socket.socketpair()
    with here, there:
        relay.relay.connect(here)
        for body in (b"one", b"x" * (frames.LARGEST + 1), b"x" * (frames.LARGEST_BATCH + 1), b"two"):
            relay.come(body)
        assert read(there, 2) == [b"one", b"two"]
        assert (relay.relay.dropped, len(relay.answers)) == (2, 4)
        relay.relay.close()


def test_what_comes_while_there_is_no_observer_waits_for_the_next_one_and_after_the_end_for_nothing(relay: Any) -> None:
    first, there = socket.socketpair()
    with there:
        relay.relay.connect(first)
        relay.come(b"one")
        assert read(there, 1) == [b"one"]
    relay.relay._on_event(0)  # it has gone
    relay.come(b"two")
    second, there = socket.socketpair()
    with there:
        relay.relay.connect(second)
        assert read(there, 1) == [b"two"]
    relay.relay._on_event(0)
    relay.come(b"three")
    relay.relay.close()
    for _ in range(100):
        relay.come(b"x" * 1_000)
    assert (relay.relay._waiting.bytes, relay.relay.dropped, len(relay.answers)) == (0, 101, 103)
