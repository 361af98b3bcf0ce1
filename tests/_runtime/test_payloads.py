"""`Payloads` of two processes in one, with a loop and a transport that do what the test says, when it says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from monarch._runtime.payloads import Payloads
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.message import SegmentsGone, SharedPayload

KIB = 1024
SIZE = 300 * KIB


class Loop:
    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[tuple[float, Callable[[], Any]]] = []

    def now(self) -> float:
        return self.time

    def call_soon(self, fn: Callable[[], Any]) -> None:
        fn()

    def call_rarely(self, delay: float, fn: Callable[[], Any]) -> None:
        self.timers.append((self.time + delay, fn))

    def advance(self, seconds: float) -> None:
        self.time += seconds
        due = [timer for timer in self.timers if timer[0] <= self.time]
        self.timers = [timer for timer in self.timers if timer[0] > self.time]
        for _, fn in due:
            fn()


class Carrier:
    """Holds what is lent to the other process until that looks."""

    def __init__(self) -> None:
        self.other: Process | None = None
        self.kept: list[tuple[int, bytes]] = []
        self.broken = False

    def lend(self, address: str, fd: int, data: bytes) -> None:
        if self.broken:
            raise BlockingIOError(11, "it takes nothing at present")
        assert self.other is not None and address == self.other.address
        self.other.carrier.kept.append((os.dup(fd), data))

    def look(self) -> None:
        kept, self.kept = self.kept, []
        assert self.other is not None
        mine = self.other.carrier.other
        assert mine is not None
        for fd, data in kept:
            mine.payloads.take(fd, data)


class Process:
    def __init__(self, address: str, loop: Loop) -> None:
        self.address = address
        self.carrier = Carrier()
        self.told: list[tuple[str, Any]] = []
        self.payloads = Payloads(address, 0, loop, self.carrier, lambda to, msg: self.told.append((to, msg)))

    def send(self, to: Process, data: bytes, connection: Any = "c") -> tuple[SharedPayload, Frame]:
        placement = self.payloads.place(b"body", [memoryview(data)], [to.address])
        assert placement is not None
        assert self.payloads.introduce(placement.segment, to.address, connection)
        head = placement.message(to.address, b"head")
        placement.sent(to.address)
        placement.close()
        placed = message.decode(head)
        assert isinstance(placed, SharedPayload)
        return placed, Frame(head, placement.inline(b"body"), ())

    def got(self, sent: tuple[SharedPayload, Frame]) -> Frame:
        frame = self.payloads.open(*sent)
        assert frame is not None
        return frame


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def two(loop: Loop) -> tuple[Process, Process]:
    a, b = Process("unix:/x/a", loop), Process("unix:/x/b", loop)
    a.carrier.other, b.carrier.other = b, a
    return a, b


def test_a_message_is_what_it_was(two: tuple[Process, Process]) -> None:
    a, b = two
    data = os.urandom(SIZE)
    frame = b.got(a.send(b, data))
    assert (frame.head, frame.body, len(frame.buffers), frame.buffers[0]) == (b"head", b"body", 1, data)
    assert a.payloads.statistics()["busy"] == 1
    del frame
    assert a.payloads.statistics()["busy"] == 0


def test_a_large_body_is_placed_too(two: tuple[Process, Process]) -> None:
    a, b = two
    body = os.urandom(SIZE)
    placement = a.payloads.place(body, [memoryview(b"x" * 5000)], [b.address])
    assert placement is not None and placement.inline(body) == b""
    a.payloads.introduce(placement.segment, b.address, "c")
    placed: Any = message.decode(placement.message(b.address, b"head"))
    frame = b.got((placed, Frame(b"", b"", ())))
    assert frame.body == body and frame.buffers[0] == b"x" * 5000


def test_a_segment_is_lent_once_a_connection(two: tuple[Process, Process]) -> None:
    a, b = two
    for _ in range(3):
        b.got(a.send(b, b"x" * SIZE))
    assert b.carrier.kept == [] and a.payloads.statistics()["segments"] == 1
    a.payloads.broke(b.address)
    b.got(a.send(b, b"x" * SIZE, "another"))
    assert b.payloads.statistics()["lent"] == 1


def test_idle_segments_are_given_back_and_their_receivers_told(two: tuple[Process, Process], loop: Loop) -> None:
    a, b = two
    kept = b.got(a.send(b, b"x" * SIZE))
    b.got(a.send(b, b"x" * SIZE))
    loop.advance(10)
    loop.advance(10)
    assert a.payloads.statistics()["segments"] == 1
    del kept
    loop.advance(10)
    loop.advance(10)
    assert a.payloads.statistics() == {"segments": 0, "bytes": 0, "busy": 0, "lent": 0, "borrowed": 0}
    assert loop.timers == []
    assert [type(msg) for _, msg in a.told] == [SegmentsGone, SegmentsGone]
    for _, gone in a.told:
        b.payloads.gone(a.address, gone.segments)
    assert b.payloads.statistics()["lent"] == 0


def test_only_its_owner_takes_a_segment_away(two: tuple[Process, Process]) -> None:
    a, b = two
    placed, _ = sent = a.send(b, b"x" * SIZE)
    b.got(sent)
    b.payloads.gone("unix:/x/c", [placed.segment])
    assert b.payloads.statistics()["lent"] == 1


def test_a_message_whose_segment_is_not_here_is_refused(two: tuple[Process, Process]) -> None:
    a, b = two
    placed, frame = a.send(b, b"x" * SIZE)
    for wrong in (
        SharedPayload(b"", placed.segment + 1, 1, False, -1, [5]),
        SharedPayload(b"", placed.segment, 1, False, -1, [1 << 40]),
        SharedPayload(b"", placed.segment, 0, False, -1, [5]),
        SharedPayload(b"", placed.segment, 1, False, -1, [-5]),
    ):
        assert b.payloads.open(wrong, frame) is None


def test_what_a_receiver_cannot_be_lent_is_not_sent_so(two: tuple[Process, Process]) -> None:
    a, b = two
    a.carrier.broken = True
    placement = a.payloads.place(b"", [memoryview(b"x" * SIZE)], [b.address])
    assert placement is not None and not a.payloads.introduce(placement.segment, b.address, "c")
    placement.close()
    assert a.payloads.statistics()["busy"] == 0


def test_a_payload_that_comes_after_the_end_of_its_sender_is_there(two: tuple[Process, Process], loop: Loop) -> None:
    a, b = two
    sent = a.send(b, b"x" * SIZE)
    b.payloads.ended(a.address, 0)
    frame = b.got(sent)
    assert frame.buffers[0] == b"x" * SIZE
    loop.advance(10)
    assert b.payloads.statistics()["lent"] == 0
    assert frame.buffers[0] == b"x" * SIZE


def test_the_segments_of_a_successor_stay(two: tuple[Process, Process]) -> None:
    a, b = two
    a.payloads._incarnation = 1
    b.got(a.send(b, b"x" * SIZE))
    b.payloads.ended(a.address, 0)
    assert b.payloads.statistics()["lent"] == 1
    b.payloads.ended(a.address, 1)
    assert b.payloads.statistics()["lent"] == 0


def test_after_the_end_nothing_is_placed_and_what_is_used_stays(two: tuple[Process, Process]) -> None:
    a, b = two
    frame = b.got(a.send(b, b"x" * SIZE))
    b.payloads.close()
    a.payloads.close()
    assert a.payloads.place(b"", [memoryview(b"x" * SIZE)], [b.address]) is None
    assert frame.buffers[0] == b"x" * SIZE


def test_garbage_with_a_descriptor_is_dropped(two: tuple[Process, Process]) -> None:
    _, b = two
    before = len(os.listdir("/proc/self/fd"))
    b.payloads.take(os.open("/dev/null", os.O_RDONLY), b"garbage")
    assert len(os.listdir("/proc/self/fd")) == before and b.payloads.statistics()["lent"] == 0


def test_a_payload_with_others_is_private(two: tuple[Process, Process]) -> None:
    a, b = two
    data = bytearray(b"x" * SIZE)
    placement = a.payloads.place(b"", [memoryview(data)], [b.address, "unix:/x/c"])
    assert placement is not None
    a.payloads.introduce(placement.segment, b.address, "c")
    first: Any = message.decode(placement.message(b.address, b""))
    second: Any = message.decode(placement.message("unix:/x/c", b""))
    assert first.others and second.others and first.slot != second.slot
    view: Any = b.got((first, Frame(b"", b"", ()))).buffers[0]
    view[:] = b"y" * SIZE
    placement.sent(b.address)
    placement.close()  # nothing was sent to the other one
    assert a.payloads.statistics()["busy"] == 1
    del view
    assert a.payloads.statistics()["busy"] == 0
