"""The in-memory network: whole frames in order, and what rules do to them. One loop, virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._runtime.loop import Loop
from monarch._wire import frame as frames
from monarch._wire.frame import Frame
from monarch._wire.transport.base import ConnectionLost
from monarch.testing import VirtualClock
from monarch.testing.network import DeliveredFrame, InprocConnection, InprocTransport, Network
from tests.support.loops import running

A, B = "inproc:net/a", "inproc:net/b"


class End:
    """A handler that keeps what it hears."""

    def __init__(self, network: Network, address: str, loop: Loop, limit: int = 1000) -> None:
        self.received: list[Frame] = []
        self.lost: list[str] = []
        self.accepted: list[InprocConnection] = []
        self.transport = InprocTransport(network, address, loop, self, lambda: (limit, 1 << 20))

    def connection_received(self, connection: InprocConnection, received: list[Frame]) -> None:
        self.received += received
        if connection not in self.accepted:
            self.accepted.append(connection)

    def connection_lost(self, connection: InprocConnection, reason: str) -> None:
        self.lost.append(reason)

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(frame.body) for frame in self.received]


class Pair:
    """`a` has dialled `b`."""

    def __init__(self, clock: VirtualClock, loop: Loop, seed: int = 0) -> None:
        self.network = Network(seed)
        self.loop = loop
        self.clock = clock
        self.a, self.b = End(self.network, A, loop), End(self.network, B, loop)
        self.b.transport.listen()
        self.connection = self.a.transport.dial(B)

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.connection.send(frames.encode(b"head", body))

    def settle(self) -> None:
        self.clock.advance(0)

    def back(self) -> InprocConnection:
        """b's end, known once something has arrived there."""
        return self.b.accepted[0]


Connect = Callable[..., Pair]


@pytest.fixture
def connect() -> Iterator[Connect]:
    clock = VirtualClock()
    with running(clock) as loop:
        yield lambda seed=0: Pair(clock, loop, seed)


@pytest.fixture
def pair(connect: Connect) -> Pair:
    return connect()


def test_frames_arrive_whole_and_in_order(pair: Pair) -> None:
    pair.send(b"one", b"", b"three")
    pair.connection.send(frames.encode(b"big", b"x" * 600_000, [memoryview(b"buffer")]))
    pair.settle()
    assert pair.b.bodies == [b"one", b"", b"three", b"x" * 600_000]
    assert [bytes(buffer) for buffer in pair.b.received[3].buffers] == [b"buffer"]


def test_the_sender_may_change_its_memory_after_send(pair: Pair) -> None:
    memory = bytearray(b"before")
    pair.connection.send(frames.encode(b"head", b"", [memoryview(memory)]))
    memory[:] = b"after!"
    pair.settle()
    assert bytes(pair.b.received[0].buffers[0]) == b"before"


def test_both_ends_send(pair: Pair) -> None:
    pair.send(b"ping")
    pair.settle()
    pair.back().send(frames.encode(b"head", b"pong"))
    pair.settle()
    assert pair.a.bodies == [b"pong"]


def test_dialling_where_nobody_listens_is_refused(pair: Pair) -> None:
    with pytest.raises(ConnectionRefusedError):
        pair.a.transport.dial("inproc:net/nobody")
    pair.b.transport.close()
    with pytest.raises(ConnectionRefusedError):
        pair.a.transport.dial(B)


def test_an_address_is_listened_at_once(pair: Pair) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        End(pair.network, B, pair.loop).transport.listen()


def test_what_was_sent_before_closing_still_arrives(pair: Pair) -> None:
    pair.send(b"last words")
    pair.connection.close("enough")
    pair.settle()
    assert pair.b.bodies == [b"last words"]
    assert (pair.a.lost, pair.b.lost) == (["enough"], ["the other process closed the connection"])
    with pytest.raises(ConnectionLost, match="enough"):
        pair.send(b"more")
    assert pair.network.statistics()["connections"] == 0


def test_a_cut_loses_what_is_under_way_and_both_ends_hear_of_it(pair: Pair) -> None:
    pair.network.hold(target=B)
    pair.send(b"lost")
    assert pair.network.cut(A, B) == 1
    pair.settle()
    assert pair.b.bodies == []
    assert pair.a.lost == pair.b.lost == ["the connection was cut"]
    assert pair.network.cut(A, B) == 0
    with pytest.raises(ConnectionLost, match="cut"):
        pair.send(b"more")


@pytest.mark.parametrize(("source", "target", "count"), [(B, A, 1), ("*", "*", 1), ("*/a", "*", 1), (A, A, 0)])
def test_a_cut_finds_connections_by_pattern_whoever_dialled(pair: Pair, source: str, target: str, count: int) -> None:
    assert pair.network.cut(source, target) == count


def test_bytes_that_are_no_frame_end_the_connection(pair: Pair) -> None:
    pair.connection.send([b"\xff" * 64])
    pair.settle()
    assert "not a frame of ours" in pair.b.lost[0]
    assert pair.a.lost == ["the other process closed the connection"]


# --- Rules.


def test_held_frames_count_as_queued_and_arrive_in_order_at_the_end(pair: Pair) -> None:
    rule = pair.network.hold(A, B)
    pair.send(b"1", b"2", b"3")
    pair.settle()
    assert pair.b.bodies == []
    assert pair.connection.queued == sum(len(frames.encode(b"head", b"1")[0]) for _ in range(3))
    rule.end()
    pair.settle()
    assert pair.b.bodies == [b"1", b"2", b"3"]
    assert pair.connection.queued == 0


def test_a_hold_of_one_direction_lets_the_other_pass(pair: Pair) -> None:
    pair.send(b"hello")
    pair.settle()
    with pair.network.hold(A, B):
        pair.send(b"held")
        pair.back().send(frames.encode(b"head", b"passes"))
        pair.settle()
        assert (pair.a.bodies, pair.b.bodies) == ([b"passes"], [b"hello"])


def test_two_holds_must_both_end(pair: Pair) -> None:
    first, second = pair.network.hold(A), pair.network.hold(target=B)
    pair.send(b"x")
    first.end()
    pair.settle()
    assert pair.b.bodies == []
    second.end()
    second.end()
    pair.settle()
    assert pair.b.bodies == [b"x"]


def test_a_full_connection_has_room_again_once_the_other_end_reads(pair: Pair) -> None:
    with pair.network.hold():
        pair.send(b"x" * 2000)
        assert not pair.connection.wait_room(0)
    assert pair.connection.wait_room(30)


def test_a_sender_that_waits_for_room_wakes_when_the_connection_is_lost(pair: Pair) -> None:
    with pair.network.hold():
        pair.send(b"x" * 2000)
        pair.network.cut()
        assert pair.connection.wait_room(30)


def test_a_delay_is_measured_by_the_receivers_clock(pair: Pair) -> None:
    with pair.network.delay(2.0, source=A):
        pair.send(b"x")
    pair.clock.advance(1.5)
    assert pair.b.bodies == []
    pair.clock.advance(0.5)
    assert pair.b.bodies == [b"x"]


def test_delays_differ_and_keep_the_order(pair: Pair) -> None:
    times: list[float] = []
    pair.network.tap(lambda sent: times.append(pair.clock.now()))
    with pair.network.delay(0.0, 10.0):
        pair.send(*(b"%d" % number for number in range(20)))
    pair.clock.advance(10.0)
    assert pair.b.bodies == [b"%d" % number for number in range(20)]
    assert times == sorted(times)
    assert len(set(times)) > 1


def fates(pair: Pair) -> tuple[list[bytes], list[float]]:
    """Returns what becomes of twenty frames under every chance there is."""
    times: list[float] = []
    pair.network.tap(lambda sent: times.append(pair.clock.now()))
    start = pair.clock.now()
    with pair.network.drop(0.3), pair.network.duplicate(0.3), pair.network.delay(0.0, 1.0):
        pair.send(*(b"%d" % number for number in range(20)))
    pair.clock.advance(1.0)
    return pair.b.bodies, [round(time - start, 9) for time in times]


def test_chances_repeat_with_their_seed(connect: Connect) -> None:
    first, again, other = fates(connect(seed=1)), fates(connect(seed=1)), fates(connect(seed=2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("rule", "arrived"), [("drop", [b"after"]), ("duplicate", [b"x", b"x", b"y", b"y", b"after"])])
def test_frames_are_lost_or_doubled_as_long_as_the_rule_holds(pair: Pair, rule: str, arrived: list[bytes]) -> None:
    with getattr(pair.network, rule)():
        pair.send(b"x", b"y")
    pair.send(b"after")
    pair.settle()
    assert pair.b.bodies == arrived


def test_dropped_and_doubled_ends_of_a_connection_still_end_it_once(pair: Pair) -> None:
    with pair.network.drop(), pair.network.duplicate():
        pair.connection.close("enough")
    pair.settle()
    assert len(pair.b.lost) == 1


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_are_checked(pair: Pair, share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        pair.network.drop(share)
    with pytest.raises(ValueError, match="from 0 to 1"):
        pair.network.duplicate(share)


@pytest.mark.parametrize("bounds", [(-1.0, None), (2.0, 1.0)])
def test_delays_are_checked(pair: Pair, bounds: Any) -> None:
    with pytest.raises(ValueError, match="0 <= least <= most"):
        pair.network.delay(*bounds)


def test_a_tap_sees_what_is_delivered_on_its_path_until_it_ends(pair: Pair) -> None:
    seen: list[DeliveredFrame] = []
    end = pair.network.tap(seen.append, A, B)
    pair.send(b"x")
    pair.settle()
    pair.back().send(frames.encode(b"head", b"other way"))
    pair.settle()
    end()
    pair.send(b"y")
    pair.settle()
    assert [(sent.source, sent.target, bytes(sent.head)) for sent in seen] == [(A, B, b"head")]


def test_statistics_and_repr_say_what_is_there(pair: Pair) -> None:
    with pair.network.hold():
        pair.send(b"x", b"y")
        assert pair.network.statistics() == {"listening": 1, "connections": 1, "frames": 2, "rules": 1}
        assert repr(pair.network) == "<Network seed=0 (1 listening, 1 connections, 2 frames, 1 rules)>"
    pair.settle()
    assert repr(pair.connection) == f"<InprocConnection to {B} (0 bytes queued)>"
    pair.connection.close("enough")
    assert repr(pair.connection) == f"<InprocConnection to {B} (lost: enough)>"
