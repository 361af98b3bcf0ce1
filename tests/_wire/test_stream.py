"""Connections over a socket pair, with the real I/O thread; the test plays the far end."""

from __future__ import annotations

import errno
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._runtime.loop import Loop
from monarch._wire import frame
from monarch._wire.frame import Decoder, Frame, encode_small
from monarch._wire.transport.base import ConnectionLost
from monarch._wire.transport.stream import StreamConnection
from tests.support.interrupts import Steps
from tests.support.loops import in_loop, loop_of_the_test
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start

LIMIT = 1 << 20


class Owner:
    """Collects what a connection tells; `wait` waits until it has told enough."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.losses: list[str] = []
        self._changed = threading.Condition()

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        with self._changed:
            self.frames += frames
            self._changed.notify_all()

    def connection_lost(self, connection: Any, reason: str) -> None:
        with self._changed:
            self.losses.append(reason)
            self._changed.notify_all()

    def wait(self, enough: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(enough, TIMEOUT), (len(self.frames), self.losses)

    def wait_frames(self, count: int) -> list[Frame]:
        self.wait(lambda: len(self.frames) >= count)
        return self.frames

    def wait_lost(self) -> str:
        self.wait(lambda: bool(self.losses))
        return self.losses[0]


loop = pytest.fixture(loop_of_the_test, name="loop")


class Ends:
    """A connection under test, its owner, and the socket at the far end."""

    def __init__(self, loop: Loop, limit: int = LIMIT, frame_limit: int = 0) -> None:
        self.loop = loop
        here, self.far = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.far.settimeout(TIMEOUT)
        self.owner = Owner()
        self.connection = StreamConnection(here, loop, self.owner, limit=limit, frame_limit=frame_limit)
        self.connection.start()
        self.decoder = Decoder()
        self.received: list[Frame] = []

    def read(self, count: int) -> list[bytes]:
        """The heads of the next `count` frames at the far end."""
        while len(self.received) < count:
            size = self.far.recv_into(self.decoder.get_buffer())
            assert size, "the connection was closed"
            self.received += self.decoder.received(size)
        taken, self.received = self.received[:count], self.received[count:]
        return [bytes(one.head) for one in taken]

    def close(self) -> None:
        self.connection.close("the test is over")
        self.owner.wait_lost()
        self.far.close()
        in_loop(self.loop, lambda: None)


@pytest.fixture
def ends(loop: Loop) -> Iterator[Ends]:
    ends = Ends(loop)
    yield ends
    ends.close()


def pieces(head: bytes, body: bytes = b"", *buffers: bytes) -> list[frame.Buffer]:
    return frame.encode(head, body, [memoryview(buffer) for buffer in buffers])


def fill(ends: Ends) -> int:
    """Sends until the socket takes no more and bytes are queued; returns how many frames that took."""
    count = 0
    while not ends.connection.queued:
        ends.connection.send(pieces(b"fill", bytes(10_000)))
        count += 1
    return count


# --- in order, all of them


@pytest.mark.parametrize("coalesce_within", [0.0, 1.0])
@pytest.mark.parametrize("size", [0, 9000])
def test_every_senders_frames_arrive_once_and_in_its_order(ends: Ends, size: int, coalesce_within: float) -> None:
    senders, each = 8, 200

    def send(sender: int) -> None:
        for number in range(each):
            buffers = [bytes(100)] if number % 3 == 0 else []
            head = struct.pack("<HI", sender, number)
            within = coalesce_within if number % 7 else 0.0
            if buffers or number % 2 or not ends.connection.send_small(frame.encode_small(head, bytes(size)), within):
                ends.connection.send(pieces(head, bytes(size), *buffers), coalesce_within=within)

    threads = [start(send, sender) for sender in range(senders)]
    heads = ends.read(senders * each)
    join(*threads)
    seen: list[list[int]] = [[] for _ in range(senders)]
    for head in heads:
        sender, number = struct.unpack("<HI", head)
        seen[sender].append(number)
    assert seen == [list(range(each))] * senders


def test_large_frames_between_two_connections(loop: Loop) -> None:
    left, right = socket.socketpair()
    owners = Owner(), Owner()
    both = [StreamConnection(sock, loop, owner, limit=LIMIT) for sock, owner in zip((left, right), owners, strict=True)]
    for connection in both:
        connection.start()
    body, buffer = bytes(range(256)) * 20_000, b"xyz" * 700_000
    threads = [
        start(lambda c=connection, w=wait: [c.send(pieces(b"%d" % n, body, buffer), w) for n in range(4)])  # type: ignore[misc]
        for connection in both
        for wait in (False, True)
    ]
    join(*threads)
    for owner in owners:
        for received in owner.wait_frames(8):
            assert bytes(received.body) == body and bytes(received.buffers[0]) == buffer
        assert sorted(bytes(one.head) for one in owner.frames) == sorted(b"%d" % n for n in range(4) for _ in range(2))
    both[0].close("enough")
    assert [owner.wait_lost() for owner in owners] == ["enough", "the other process closed the connection"]


def test_more_pieces_than_one_system_call_takes(ends: Ends) -> None:
    buffers = [b"%d" % n for n in range(3000)]
    ends.connection.send(pieces(b"many", b"body", *buffers))
    assert ends.read(1) == [b"many"]


def test_frames_that_arrive_in_dribs(ends: Ends) -> None:
    stream = b"".join(bytes(piece) for n in range(3) for piece in pieces(b"head%d" % n, b"body"))
    for byte in stream:
        ends.far.sendall(bytes([byte]))
    assert [bytes(one.head) for one in ends.owner.wait_frames(3)] == [b"head0", b"head1", b"head2"]


# --- more than the socket takes


def test_what_the_socket_does_not_take_is_queued_in_order(ends: Ends) -> None:
    count = fill(ends)
    for number in range(50):
        ends.connection.send(pieces(b"%d" % number))
    assert ends.connection.queued > 0 and "bytes queued" in repr(ends.connection)
    heads = ends.read(count + 50)
    assert heads[:count] == [b"fill"] * count
    assert heads[count:] == [b"%d" % number for number in range(50)]
    assert ends.connection.wait_room(TIMEOUT)


def test_queued_memory_is_the_senders_again(ends: Ends) -> None:
    fill(ends)
    ends.read(1)
    memory = bytearray(b"a" * 3_000_000)
    ends.connection.send(frame.encode(b"mine", b"", [memoryview(memory)]))
    memory[:] = bytes(len(memory))
    while (received := ends.read(1)) != [b"mine"]:
        assert received == [b"fill"]
    assert in_loop(ends.loop, lambda: ends.connection.queued) == 0


def test_memory_that_nobody_changes_is_queued_as_it_is(ends: Ends) -> None:
    count = fill(ends)
    memory = bytearray(b"a" * 3_000_000)
    ends.connection.send(frame.encode(b"mine", b"", [memoryview(memory)]), owned=True)
    queued = ends.connection.queued
    memory[:] = bytes(len(memory))  # nobody should; here it shows that there is no copy
    assert queued >= len(memory)
    received: list[Any] = []
    while len(received) <= count:
        received += ends.decoder.received(ends.far.recv_into(ends.decoder.get_buffer()))
    assert bytes(received[-1].buffers[0]) == bytes(len(memory))


def test_a_waiting_sender_keeps_its_memory_until_it_has_left(ends: Ends) -> None:
    memory = bytearray(b"a" * 3_000_000)
    entered = threading.Event()

    def send() -> None:
        entered.set()
        ends.connection.send(frame.encode(b"mine", b"", [memoryview(memory)]), wait=True)
        memory[:] = bytes(len(memory))

    thread = start(send)
    assert entered.wait(TIMEOUT)
    decoder, frames = ends.decoder, []
    while not frames:
        frames = decoder.received(ends.far.recv_into(decoder.get_buffer()))
    join(thread)
    assert bytes(frames[0].buffers[0]) == b"a" * 3_000_000


def test_wait_room_waits_for_the_reader_and_no_longer(loop: Loop) -> None:
    ends = Ends(loop, limit=100_000)
    count = 0
    while ends.connection.queued < 100_000:
        ends.connection.send(pieces(b"x", bytes(10_000)))
        count += 1
    assert not ends.connection.wait_room(0.0)
    result: list[bool] = []
    waiting = [start(lambda: result.append(ends.connection.wait_room(TIMEOUT))) for _ in range(4)]
    assert result == []  # nobody has read
    ends.read(count)
    join(*waiting)
    assert result == [True] * 4
    ends.close()


# --- the I/O thread never waits for a sender


def test_frames_of_the_io_thread_pass_to_the_sender_that_holds_the_lock(ends: Ends) -> None:
    connection = ends.connection
    assert connection._lock.acquire(timeout=TIMEOUT)
    memory = bytearray(b"body")
    in_loop(ends.loop, lambda: [connection.send([*pieces(b"deferred%d" % n, bytes(memory))]) for n in range(3)])
    connection._lock.release()
    connection.send(pieces(b"last"))
    assert ends.read(4) == [b"deferred0", b"deferred1", b"deferred2", b"last"]


def test_frames_deferred_under_a_sender_that_waits_for_room_follow_it(ends: Ends) -> None:
    sender = start(lambda: ends.connection.send(pieces(b"large", b"", bytes(4_000_000)), wait=True))
    assert ends.far.recv(1, socket.MSG_PEEK)  # it writes, holds the lock, and nobody reads
    in_loop(ends.loop, lambda: ends.connection.send(pieces(b"from the loop")))
    assert sender.is_alive()
    assert ends.read(2) == [b"large", b"from the loop"]
    join(sender)


def test_many_senders_and_the_io_thread_at_once(ends: Ends) -> None:
    each = 300
    threads = [start(lambda: [ends.connection.send(pieces(b"t", bytes(700))) for _ in range(each)]) for _ in range(4)]
    for number in range(each):
        ends.loop.call_soon(lambda n=number: ends.connection.send(pieces(b"loop%d" % n)))  # type: ignore[misc]
    heads = ends.read(5 * each)
    join(*threads)
    assert [head for head in heads if head != b"t"] == [b"loop%d" % n for n in range(each)]


def test_the_io_thread_does_not_try_again_and_again_while_a_sender_has_the_lock(ends: Ends) -> None:
    connection, tried = ends.connection, list[str]()
    writable, mend, enough = connection._writable, connection._mend, threading.Event()

    def trying() -> None:
        tried.append("write")
        writable()

    def mending() -> None:
        tried.append("wait")
        if tried.count("wait") == 5:
            enough.set()
        mend()

    count = fill(ends)
    assert connection._lock.acquire(timeout=TIMEOUT)
    connection._writable, connection._mend = trying, mending  # type: ignore[method-assign]
    ends.read(count - 1)  # which makes room in the socket
    assert enough.wait(TIMEOUT)
    connection._lock.release()
    assert tried[: 2 * tried.count("wait")].count("write") <= tried.count("wait") + 1
    assert ends.read(1) == [b"fill"]


# --- put off


def send_lazily(ends: Ends, small: bool) -> list[bytes]:
    """Sends a hundred frames, of which all but the first may wait; returns their heads."""
    heads = [b"%d" % number for number in range(100)]
    for head in heads:
        if not small:
            ends.connection.send(pieces(head), coalesce_within=3600.0)
        else:
            assert ends.connection.send_small(frame.encode_small(head, b""), 3600.0)
    return heads


@pytest.mark.parametrize("small", [False, True])
def test_lazy_frames_leave_before_the_next_that_is_not(ends: Ends, small: bool) -> None:
    heads = send_lazily(ends, small)
    ends.connection.send(pieces(b"now"))
    assert ends.read(101) == [*heads, b"now"]


@pytest.mark.parametrize("small", [False, True])
def test_lazy_frames_leave_by_themselves(ends: Ends, small: bool) -> None:
    assert send_lazily(ends, small) == ends.read(100)


def test_what_waits_leaves_with_a_small_frame_that_comes_later(ends: Ends) -> None:
    """Its sender could wait as well, but has sent nothing for a while."""
    lazily: list[bytes] = []

    def send() -> None:
        lazily.extend(send_lazily(ends, True))
        ends.connection._last_coalesced = -3600.0
        small = frame.encode_small(b"later", b"")
        assert not ends.connection.send_small(small, 1800.0)
        ends.connection.send([small], coalesce_within=1800.0)
        assert not ends.connection.queued

    in_loop(ends.loop, send)
    assert ends.read(101) == [*lazily, b"later"]


def test_a_small_frame_that_may_wait_is_not_taken_where_the_socket_is_full_or_the_connection_lost(ends: Ends) -> None:
    fill(ends)
    assert not ends.connection.send_small(frame.encode_small(b"first", b""), 3600.0)
    ends.connection.close("enough")
    ends.owner.wait_lost()
    assert not ends.connection.send_small(frame.encode_small(b"late", b""), 3600.0)


# --- the end


@pytest.mark.parametrize("who", ["thread", "io thread"])
def test_closing_is_told_once_and_ends_sending(ends: Ends, who: str) -> None:
    if who == "thread":
        ends.connection.close("enough")
        ends.connection.close("really")
    else:
        in_loop(ends.loop, lambda: [ends.connection.close("enough"), ends.connection.close("really")])
    assert ends.owner.wait_lost() == "enough"
    assert ends.far.recv(1) == b""
    assert ends.connection.lost and "lost: enough" in repr(ends.connection)
    with pytest.raises(ConnectionLost, match="enough"):
        ends.connection.send(pieces(b"late"))
    with pytest.raises(ConnectionLost, match="enough"):
        ends.connection.send(pieces(b"late"), coalesce_within=1.0)
    assert ends.connection.wait_room(0.0)
    in_loop(ends.loop, lambda: None)
    assert ends.owner.losses == ["enough"]
    assert in_loop(ends.loop, ends.loop.statistics)["descriptors"] == 0


def test_the_other_end_closing_is_told_once_after_what_it_sent(ends: Ends) -> None:
    ends.far.sendall(b"".join(bytes(piece) for piece in pieces(b"last words")))
    ends.far.close()
    assert ends.owner.wait_lost() == "the other process closed the connection"
    assert [bytes(one.head) for one in ends.owner.frames] == [b"last words"]
    in_loop(ends.loop, lambda: None)
    assert len(ends.owner.losses) == 1


def test_closing_while_a_sender_waits_for_room_ends_its_wait(ends: Ends) -> None:
    outcome: list[BaseException] = []

    def send() -> None:
        try:
            ends.connection.send(pieces(b"large", b"", bytes(4_000_000)), wait=True)
        except ConnectionLost as exc:
            outcome.append(exc)

    sender = start(send)
    assert ends.far.recv(1, socket.MSG_PEEK)
    ends.connection.close("enough")
    assert ends.owner.wait_lost() == "enough"
    join(sender)
    with pytest.raises(ConnectionLost):
        ends.connection.send(pieces(b"late"))
    in_loop(ends.loop, lambda: None)
    assert ends.far.fileno() >= 0 and ends.owner.losses == ["enough"]


def test_closing_lets_go_of_those_who_wait_for_room(loop: Loop) -> None:
    ends = Ends(loop, limit=1)
    fill(ends)
    result: list[bool] = []
    waiting = start(lambda: result.append(ends.connection.wait_room(TIMEOUT)))
    ends.far.close()
    join(waiting)
    assert result == [True]
    ends.close()


def test_the_socket_is_closed_and_the_queue_given_up(ends: Ends) -> None:
    fill(ends)
    sock = ends.connection._sock
    ends.connection.close("enough")
    ends.owner.wait_lost()
    in_loop(ends.loop, lambda: None)
    assert sock.fileno() == -1 and ends.connection.queued == 0


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"\xff" * 64, "not a frame of ours"),
        (frame.PREFIX.pack(4, 10_000, 0) + bytes(frame.PREFIX.size), None),
        (frame.PREFIX.pack(4, 3 << 20, 0), "over the limit"),
    ],
)
def test_what_is_no_frame_ends_the_connection(loop: Loop, stream: bytes, why: str | None) -> None:
    ends = Ends(loop, frame_limit=1 << 20)
    ends.far.sendall(stream)
    if why is None:  # it may become a frame yet
        ends.far.close()
        assert "closed" in ends.owner.wait_lost()
    else:
        assert why in ends.owner.wait_lost()
        assert ends.far.recv(1) == b""
    assert ends.owner.frames == []
    ends.close()


def test_senders_and_closing_race(loop: Loop) -> None:
    """Shows that whatever moment the end comes at, senders get ConnectionLost or nothing, and it is told once."""
    for turn in range(60):
        ends = Ends(loop)
        ready = threading.Barrier(4, timeout=TIMEOUT)
        wrong: list[BaseException] = []

        def send(ends: Ends = ends, ready: threading.Barrier = ready, wrong: list[BaseException] = wrong) -> None:
            ready.wait()
            try:
                for _ in range(40):
                    ends.connection.send(pieces(b"x", bytes(20_000)), coalesce_within=0.001)
            except ConnectionLost:
                pass
            except BaseException as exc:
                wrong.append(exc)

        threads = [start(send) for _ in range(3)]
        ready.wait()
        if turn % 2:
            ends.connection.close("enough")
        else:
            ends.far.close()
        join(*threads)
        ends.connection.close("enough")
        ends.owner.wait_lost()
        in_loop(loop, lambda: None)
        assert wrong == [] and len(ends.owner.losses) == 1
        ends.far.close()


class Short:
    """A socket for which the machine is out of memory for a while, in either direction."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.left = 3

    def _check(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError([errno.ENOBUFS, errno.ENOMEM][self.left % 2], "for a while")

    def send(self, data: Any) -> int:
        self._check()
        return self._sock.send(data)

    def sendmsg(self, buffers: Any) -> int:
        self._check()
        return self._sock.sendmsg(buffers)

    def recv_into(self, buffer: Any) -> int:
        self._check()
        return self._sock.recv_into(buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("how", ["small", "pieces", "waiting"])
def test_a_machine_out_of_memory_for_a_while_breaks_no_connection(loop: Loop, how: str) -> None:
    here, far = socket.socketpair()
    far.settimeout(TIMEOUT)
    owner, short = Owner(), Short(here)
    connection = StreamConnection(short, loop, owner, limit=LIMIT)
    connection.start()
    big = b"x" * (300_000 if how == "waiting" else 10)
    threading.Thread(target=lambda: connection.send(frame.encode(b"head", big), how == "waiting"), daemon=True).start()
    decoder, received = Decoder(), list[Frame]()
    while not received:
        received += decoder.received(far.recv_into(decoder.get_buffer()))
    assert (bytes(received[0].head), bytes(received[0].body)) == (b"head", big)
    short.left = 3
    far.sendall(b"".join(frame.encode(b"back", b"body")))
    assert bytes(owner.wait_frames(1)[0].head) == b"back"
    assert owner.losses == []
    connection.close("the test is over")
    owner.wait_lost()
    far.close()
    in_loop(loop, lambda: None)


# --- handlers of signals that send


@pytest.mark.parametrize("size", [10, 9000])
def test_a_handler_that_sends_at_any_step_of_a_send_waits_for_nobody(ends: Ends, size: int) -> None:
    """Both frames arrive, whole and once: small ones, and ones that the socket takes in parts."""

    def send(head: bytes, body: bytes) -> None:
        frame = encode_small(head, body)
        if len(frame) > 1000 or not ends.connection.send_small(frame):
            ends.connection.send(pieces(head, body))

    steps, step = Steps(), 0
    for step in itertools.count():
        with steps.at(step, lambda: send(b"inner", bytes(size))):
            send(b"outer", bytes(size))
        heads = ends.read(1 + steps.came)
        assert sorted(heads) == sorted([b"outer", b"inner"][: 1 + steps.came])
        if not steps.came:
            break
    assert step > 20
    assert ends.connection.queued == 0 and not ends.connection._deferred
