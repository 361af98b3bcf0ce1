"""Links over connections: in memory, with virtual time and cuts; and over sockets, with the real I/O thread."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._runtime.loop import Loop
from monarch._wire import frame as frames
from monarch._wire import link, message
from monarch._wire.frame import Frame
from monarch._wire.link_connection import LinkConnection, LinkLimits, limits_from_settings
from monarch._wire.message import VERSION, Beat, Bye, HostEnded, LinkHello
from monarch._wire.transport.base import ConnectionLost, DialFailed
from monarch._wire.transport.stream import StreamConnection
from monarch.config import configure
from monarch.testing import VirtualClock
from monarch.testing.network import InprocTransport, Network
from tests.support.loops import in_loop, running
from tests.support.patience import TIMEOUT

A, B = "inproc:net/a", "inproc:net/b"
HEAD = message.encode(HostEnded("tcp://gone:1", "it ended"))


class Owner:
    """The handler of a link. `wait` waits until it has heard enough."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.lost: list[str] = []
        self.suspicions: list[str] = []
        self.ups = 0
        self.rooms = 0
        self.fails = False
        self._changed = threading.Condition()

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        with self._changed:
            self.frames += received
            self._changed.notify_all()
        if self.fails:
            raise RuntimeError("the handler failed")

    def connection_lost(self, connection: Any, reason: str) -> None:
        with self._changed:
            self.lost.append(reason)
            self._changed.notify_all()

    def link_suspected(self, link: LinkConnection, why: str) -> None:
        with self._changed:
            self.suspicions.append(why)
            self._changed.notify_all()

    def came_up(self) -> None:
        with self._changed:
            self.ups += 1
            self._changed.notify_all()

    def has_room(self) -> None:
        self.rooms += 1

    def wait(self, enough: Callable[[Owner], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self), TIMEOUT), (len(self.frames), self.lost, self.suspicions)

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(frame.body) for frame in self.frames]


class Door:
    """The owner of a listener: reads the first frame of a connection and passes it, and the connection, to the link."""

    def __init__(self, link: LinkConnection) -> None:
        self.link = link
        self.known: list[Any] = []

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        if connection in self.known:
            self.link.connection_received(connection, received)
            return
        self.known.append(connection)
        hello = message.decode(received[0].head)
        assert isinstance(hello, LinkHello)
        self.link.accept(connection, hello)
        if received[1:]:
            self.link.connection_received(connection, received[1:])

    def connection_lost(self, connection: Any, reason: str) -> None:
        self.link.connection_lost(connection, reason)


class Pair:
    """`near` dials `far`."""

    def __init__(self, loop: Loop, limits: LinkLimits, dial: Any) -> None:
        self.loop = loop
        self.owners = Owner(), Owner()
        self.near = self._link(0, limits, reached=B, dial=dial)
        self.far = self._link(1, limits)
        self.door = Door(self.far)

    def _link(self, side: int, limits: LinkLimits, **dialling: Any) -> LinkConnection:
        owner = self.owners[side]
        link = LinkConnection(
            self.loop,
            owner,
            uid="link-1",
            host=(A, "")[side],
            agent=f"agent-{side}",
            limits=limits,
            rng=random.Random(side),
            **dialling,
        )
        link.on_up, link.on_room = owner.came_up, owner.has_room
        return link

    def send(self, link: LinkConnection, *bodies: bytes) -> None:
        for body in bodies:
            link.send(frames.encode(HEAD, body))


class InMemory(Pair):
    def __init__(self, loop: Loop, clock: VirtualClock, limits: LinkLimits) -> None:
        super().__init__(loop, limits, self._dial)
        self.clock = clock
        self.network = Network()
        self.listening = InprocTransport(self.network, B, loop, self.door, lambda: (1 << 20, 0))
        self.listening.listen()
        self.dialling = InprocTransport(self.network, A, loop, self.near, lambda: (1 << 20, 0))
        self.failure: DialFailed | Exception | None = None

    def _dial(self, done: Callable[[Any], None]) -> None:
        if isinstance(self.failure, Exception) and not isinstance(self.failure, DialFailed):
            raise self.failure
        try:
            done(self.failure or self.dialling.dial(B))
        except ConnectionRefusedError as exc:
            done(DialFailed(str(exc), refused=True))

    def run(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)

    def begin(self) -> InMemory:
        self.near.start()
        self.run(1)
        assert self.near.up and self.far.up
        return self


Connect = Callable[..., InMemory]


@pytest.fixture
def connect() -> Iterator[Connect]:
    clock = VirtualClock()
    with running(clock, expected="the handler failed") as loop:
        yield lambda **limits: InMemory(loop, clock, LinkLimits(**limits))


@pytest.fixture
def pair(connect: Connect) -> InMemory:
    return connect().begin()


def test_both_sides_send_and_hear_nothing_of_the_link_itself(pair: InMemory) -> None:
    pair.send(pair.near, b"one", b"two")
    pair.send(pair.far, b"three")
    pair.run(5)
    near, far = pair.owners
    assert (near.bodies, far.bodies) == ([b"three"], [b"one", b"two"])
    assert [frame.head for frame in far.frames] == [HEAD, HEAD]
    assert (near.ups, far.ups) == (1, 1)
    assert near.suspicions == far.suspicions == near.lost == far.lost == []
    assert (pair.near.queued, pair.far.queued) == (0, 0)
    assert (pair.near.remote, pair.far.remote) == (B, A)


def test_what_was_under_way_when_the_connection_was_cut_arrives_once_and_in_order(pair: InMemory) -> None:
    with pair.network.hold():
        pair.send(pair.near, b"1", b"2")
        pair.send(pair.far, b"a", b"b")
        pair.run()
        assert pair.network.cut() == 1
    pair.send(pair.near, b"3")
    pair.run(1)
    near, far = pair.owners
    assert (near.bodies, far.bodies) == ([b"a", b"b"], [b"1", b"2", b"3"])
    assert near.suspicions == [f"the connection to {B} broke: the connection was cut", ""]
    assert near.ups == 2
    assert near.lost == far.lost == []


def test_cut_after_cut_while_both_sides_send(pair: InMemory) -> None:
    disturbance = random.Random(7)
    rule = pair.network.delay(0.0, 0.2)
    for number in range(300):
        pair.send(pair.near, b"%d" % number)
        pair.send(pair.far, b"%d" % number)
        if number % 10 == 0:
            pair.network.cut()
        if number % 3 == 0:
            pair.run(disturbance.uniform(0, 0.3))
    rule.end()
    pair.run(10)
    expected = [b"%d" % number for number in range(300)]
    near, far = pair.owners
    assert near.bodies == expected
    assert far.bodies == expected
    assert near.ups > 20
    assert (pair.near.queued, pair.far.queued) == (0, 0)


def test_large_frames_with_buffers_survive_a_cut(pair: InMemory) -> None:
    memory = bytearray(b"before" * 100_000)
    with pair.network.hold():
        pair.near.send(frames.encode(HEAD, b"body" * 50_000, [memoryview(memory), memoryview(b"x" * (2 << 20))]))
        memory[:6] = b"after!"
        pair.network.cut()
    pair.run(1)
    (frame,) = pair.owners[1].frames
    assert bytes(frame.body) == b"body" * 50_000
    assert [bytes(buffer) for buffer in frame.buffers] == [b"before" * 100_000, b"x" * (2 << 20)]


def test_owned_pieces_are_kept_as_they_are(connect: Connect) -> None:
    pair = connect()
    memory = bytearray(b"before")
    pieces = frames.encode(HEAD, b"", [memoryview(memory)])
    pair.near.send(pieces, owned=True)
    memory[:] = b"after!"
    pair.begin()
    assert bytes(pair.owners[1].frames[0].buffers[0]) == b"after!"


def test_small_frames_count_like_others(pair: InMemory) -> None:
    with pair.network.hold():
        assert pair.near.send_small(frames.encode_small(HEAD, b"small"))
        pair.send(pair.near, b"other")
        pair.network.cut()
        pair.run()
    pair.run(1)
    assert pair.owners[1].bodies == [b"small", b"other"]


def test_small_frames_are_left_to_send_while_there_is_no_connection(connect: Connect) -> None:
    pair = connect()
    assert not pair.near.send_small(frames.encode_small(HEAD, b"small"))
    assert pair.near.queued == 0


def test_a_host_that_says_nothing_is_suspected_then_dead(connect: Connect) -> None:
    pair = connect(reconnect=20.0).begin()
    with pair.network.hold():
        pair.run(4)
        assert pair.owners[0].suspicions and pair.owners[1].suspicions
        assert not pair.near.lost
        pair.run(30)
    near, far = pair.owners
    assert len(near.lost) == len(far.lost) == 1
    assert "within 20 s (setting channel_reconnect_timeout)" in near.lost[0]
    assert not pair.near.orderly
    with pytest.raises(ConnectionLost, match="channel_reconnect_timeout"):
        pair.send(pair.near, b"too late")


def test_silence_for_a_moment_is_nothing(pair: InMemory) -> None:
    with pair.network.hold():
        pair.send(pair.near, b"one")
        pair.run(2)
    pair.run(10)
    assert pair.owners[0].suspicions == pair.owners[1].suspicions == []
    assert pair.owners[1].bodies == [b"one"]


def test_a_host_that_is_gone_is_noticed_at_once(pair: InMemory) -> None:
    pair.listening.close()
    pair.network.cut()
    pair.run(2)
    assert "the process has ended" in pair.owners[0].lost[0]


def test_close_says_goodbye(pair: InMemory) -> None:
    pair.send(pair.near, b"last")
    pair.near.close("the script is over")
    pair.run()
    near, far = pair.owners
    assert far.bodies == [b"last"]
    assert near.lost == ["the script is over"]
    assert far.lost == [f"{A} said goodbye: the script is over"]
    assert pair.near.orderly and pair.far.orderly
    assert pair.network.statistics()["connections"] == 0
    assert pair.clock.next_timer() is None


def test_finish_takes_what_was_sent_and_does_not_dial_again(pair: InMemory) -> None:
    pair.send(pair.far, b"last words")
    in_loop(pair.loop, lambda: pair.near.finish("the host ended"))
    pair.run()
    assert pair.owners[0].bodies == [b"last words"]
    assert pair.owners[0].lost == ["the host ended"]
    assert pair.owners[0].ups == 1


def test_attempts_that_fail_are_tried_again_unless_that_is_useless(connect: Connect) -> None:
    pair = connect()
    pair.failure = OSError("no descriptors left")
    pair.near.start()
    pair.run(1)
    assert pair.owners[0].lost == []
    pair.failure = DialFailed("the secret is another one", final=True)
    pair.run(2)
    assert pair.owners[0].lost == ["the secret is another one"]


def test_the_acceptor_refuses_a_link_that_it_does_not_know(pair: InMemory) -> None:
    fresh = LinkConnection(
        pair.loop,
        pair.owners[1],
        uid="link-1",
        host="",
        agent="agent-7",
        limits=LinkLimits(),
        rng=random.Random(0),
    )
    pair.door.link = fresh
    pair.network.cut(A, B)
    pair.run(1)
    assert "does not know the link link-1" in pair.owners[0].lost[0]
    assert not pair.near.orderly


def test_other_versions_are_refused_in_words(connect: Connect) -> None:
    pair = connect()
    owner = Owner()
    transport = InprocTransport(pair.network, A, pair.loop, owner, lambda: (1 << 20, 0))
    connection = transport.dial(B)
    hello = LinkHello(VERSION + 1, A, "agent-0", "link-1", B, 0, False)
    connection.send(frames.encode(message.encode(hello)))
    pair.run()
    why = f"protocol version {VERSION} meets version {VERSION + 1} of {A}: all hosts need one monarch version"
    assert [message.decode(frame.head) for frame in owner.frames] == [Bye(why)]
    assert pair.owners[1].lost == [why]
    assert connection.lost


@pytest.mark.parametrize("what", ["true", "no text", "too deep"])
def test_bytes_that_are_no_message_cost_the_connection_only(pair: InMemory, what: str) -> None:
    if what == "true":
        broken = message.encode(Beat(1))[:-1] + b"\xc3"
    elif what == "no text":
        broken = message.encode(Bye("x"))[:-1] + b"\xff"
    else:  # one field more than it has
        whole = message.encode(Beat(1))
        broken = bytes([whole[0] + 1]) + whole[1:] + b"\x91" * 200_000 + b"\xc0"
    (end,) = pair.network.ends_of(pair.dialling)
    end.send(frames.encode(broken))
    pair.send(pair.near, b"goes on")
    pair.run(1)
    assert pair.owners[1].bodies == [b"goes on"]
    assert pair.owners[1].ups == 2


def test_a_handler_that_fails_gets_no_frame_twice_and_none_is_lost(pair: InMemory) -> None:
    pair.owners[1].fails = True
    pair.send(pair.near, b"1", b"2")
    pair.run()
    pair.owners[1].fails = False
    pair.network.cut()
    pair.send(pair.near, b"3")
    pair.run(1)
    assert pair.owners[1].bodies == [b"1", b"2", b"3"]


def test_senders_wait_for_room_until_frames_are_acknowledged(connect: Connect) -> None:
    pair = connect(queue=1000).begin()
    rule = pair.network.hold()
    pair.send(pair.near, b"x" * 2000)
    assert pair.near.full
    assert not pair.near.wait_room(0)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(pair.near.wait_room(TIMEOUT)), daemon=True)
    thread.start()
    rule.end()
    pair.run(1)
    thread.join(TIMEOUT)
    assert waited == [True]
    assert pair.owners[0].rooms == 1
    assert not pair.near.full


def test_death_wakes_who_waits_for_room(connect: Connect) -> None:
    pair = connect(queue=1000)
    pair.send(pair.near, b"x" * 2000)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(pair.near.wait_room(TIMEOUT)), daemon=True)
    thread.start()
    pair.near.close("enough")
    pair.run()
    thread.join(TIMEOUT)
    assert waited == [True]


def test_a_link_without_a_dialler_does_not_start(connect: Connect) -> None:
    pair = connect()
    with pytest.raises(ValueError, match="does not dial"):
        pair.far.start()
    with pytest.raises(ValueError, match="go together"):
        pair._link(0, LinkLimits(), reached=B)


def test_limits_come_from_settings() -> None:
    assert limits_from_settings() == LinkLimits()
    configure(outgoing_queue_bytes=1000, server_heartbeat_interval="2s")
    limits = limits_from_settings()
    assert (limits.queue, limits.ack_bytes, limits.heartbeat) == (1000, 250, 2.0)


# --- sockets


class OverSockets(Pair):
    """`cut` shuts the sockets down."""

    def __init__(self, loop: Loop, limits: LinkLimits) -> None:
        super().__init__(loop, limits, self._dial)
        self.ends: list[StreamConnection] = []
        self.frame_limit = 0  # of what `far` accepts

    def _dial(self, done: Callable[[Any], None]) -> None:
        here, there = socket.socketpair()
        far = StreamConnection(there, self.loop, self.door, limit=1 << 20, frame_limit=self.frame_limit)
        near = StreamConnection(here, self.loop, self.near, limit=1 << 20)
        self.ends += [near, far]
        far.start()
        near.start()
        done(near)

    def cut(self) -> None:
        for end in self.ends[-2:]:
            end.close("cut")


@pytest.fixture
def sockets() -> Iterator[OverSockets]:
    with running() as loop:
        pair = OverSockets(loop, LinkLimits(queue=1 << 20, ack_bytes=1 << 18, heartbeat=0))
        pair.near.start()
        for owner in pair.owners:
            owner.wait(lambda owner: owner.ups == 1)
        yield pair
        pair.near.close("the test is over")
        for owner in pair.owners:
            owner.wait(lambda owner: bool(owner.lost))
        in_loop(loop, lambda: None)  # sockets are closed in the turn after
        in_loop(loop, lambda: None)


def test_frames_cross_cut_sockets_whole(sockets: OverSockets) -> None:
    body = random.Random(3).randbytes(3 << 20)
    for number in range(8):
        sockets.near.send(frames.encode(HEAD, b"%d" % number, [memoryview(body)]), wait=True)
        sockets.far.send(frames.encode(HEAD, b"%d" % number, [memoryview(body)]))
        if number % 2:
            sockets.cut()
    for owner in sockets.owners:
        owner.wait(lambda owner: len(owner.frames) == 8)
        assert owner.bodies == [b"%d" % number for number in range(8)]
        assert all(bytes(frame.buffers[0]) == body for frame in owner.frames)


def test_memory_that_is_changed_after_it_was_sent_arrives_as_it_was(sockets: OverSockets) -> None:
    """Its copies lie in memory that is used again and again."""
    memory = bytearray(3 << 20)
    for number in range(1, 13):
        memory[:] = bytes([number]) * len(memory)
        assert sockets.near.wait_room(TIMEOUT)
        sockets.near.send(frames.encode(HEAD, b"%d" % number, [memoryview(memory)]))
        if not number % 4:
            sockets.cut()
    memory[:] = bytes(len(memory))
    owner = sockets.owners[1]
    owner.wait(lambda owner: len(owner.frames) == 12)
    assert owner.bodies == [b"%d" % number for number in range(1, 13)]
    for number, frame in enumerate(owner.frames, 1):
        assert bytes(frame.buffers[0]) == bytes([number]) * len(memory)


def test_a_frame_that_cannot_be_taken_ends_the_link_and_both_sides_know_why(
    sockets: OverSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FRAME_REFUSALS", 3)
    sockets.frame_limit = 1 << 20
    sockets.cut()
    for owner in sockets.owners:
        owner.wait(lambda owner: owner.ups == 2)
    began = len(sockets.ends)
    sockets.near.send(frames.encode(HEAD, bytes(2 << 20)))
    for owner in sockets.owners:
        owner.wait(lambda owner: bool(owner.lost))
        assert f"could not be taken, 3 times: a frame of {2 << 20} bytes, over the limit" in owner.lost[0]
    assert sockets.owners[1].frames == [] and len(sockets.ends) == began + 2 * 3


def test_threads_that_send_while_sockets_are_cut(sockets: OverSockets) -> None:
    def run(name: int) -> None:
        for number in range(400):
            sockets.near.wait_room(TIMEOUT)
            frame = frames.encode_small(HEAD, b"%d %d" % (name, number))
            if not sockets.near.send_small(frame):
                sockets.near.send([frame])
            if number % 100 == 50 and name == 0:
                sockets.cut()

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    owner = sockets.owners[1]
    owner.wait(lambda owner: len(owner.frames) >= 1200)
    for name in range(3):
        mine = [body for body in owner.bodies if body.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, number) for number in range(400)]


def test_reading_stays_paused_over_a_new_connection(sockets: OverSockets) -> None:
    far, owner = sockets.far, sockets.owners[1]
    in_loop(sockets.loop, far.pause_reading)
    sockets.send(sockets.near, b"1")
    sockets.cut()
    for one in sockets.owners:
        one.wait(lambda owner: owner.ups == 2)
    sockets.send(sockets.near, b"2")
    in_loop(sockets.loop, lambda: None)
    in_loop(sockets.loop, lambda: None)
    assert b"2" not in owner.bodies  # "1" may have come when its connection broke
    in_loop(sockets.loop, far.resume_reading)
    owner.wait(lambda owner: len(owner.frames) == 2)
    assert owner.bodies == [b"1", b"2"]
