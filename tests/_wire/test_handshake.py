"""One connection until it may speak: over a socket pair, the test plays the far end; time is the test's own."""

from __future__ import annotations

import random
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch._wire import auth, frame
from monarch._wire.auth import Acceptor, Challenge, Dialler, HandshakeFailure, Secret
from monarch._wire.transport import handshake as handshaking
from monarch._wire.transport.handshake import DEADLINE, Handshake
from monarch.testing.clock import VirtualClock
from tests.support.examples import examples
from tests.support.loops import RunningLoop
from tests.support.patience import TIMEOUT

SECRET = Secret("a long and random text")


class World(RunningLoop):
    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__(self.clock)
        self.outcomes: list[Any] = []
        self._come = threading.Semaphore(0)
        self.far: list[socket.socket] = []

    def shake_hands(self, challenge: Challenge) -> tuple[Handshake, socket.socket]:
        here, far = socket.socketpair()
        far.settimeout(TIMEOUT)
        self.far.append(far)
        handshake = Handshake(here, self.loop, challenge, self.done)
        self.loop.call_soon(handshake.start)
        return handshake, far

    def done(self, outcome: Any) -> None:
        assert self.loop.in_loop()
        self.outcomes.append(outcome)
        self._come.release()

    def outcome(self) -> Any:
        """The next one there is."""
        assert self._come.acquire(timeout=TIMEOUT)
        return self.outcomes.pop(0)

    def settle(self) -> None:
        self.clock.advance(0)

    def close(self) -> None:
        self.settle()
        assert self.loop.statistics()["descriptors"] == 0
        self.end()
        for far in self.far:
            far.close()
        assert self.outcomes == []


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, "the connection was closed"
        data += more
    return data


def converse(far: socket.socket, machine: Challenge) -> None:
    """Plays the far end."""
    far.sendall(machine.start())
    while not machine.done and machine.failure is None:
        said = machine.received(read(far, machine.wanted))
        if said:  # the other end may have closed when there is nothing left to say
            far.sendall(said)


def test_who_closes_behind_his_last_word_is_known_from_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names nobody at the other end of a connection that was closed there."""
    acceptor = Acceptor(SECRET)
    monkeypatch.setattr(handshaking, "stranger_at", lambda sock: "" if acceptor.done else "it belongs to somebody else")
    _, far = world.shake_hands(acceptor)
    converse(far, Dialler(SECRET))
    failure = world.outcome()
    assert isinstance(failure, HandshakeFailure)
    assert failure.text == "it belongs to somebody else" and failure.final


@pytest.mark.parametrize("secret", [SECRET, None])
@pytest.mark.parametrize(("here", "there"), [(Acceptor, Dialler), (Dialler, Acceptor)])
def test_the_socket_comes_out_ready(
    world: World, here: type[Challenge], there: type[Challenge], secret: Secret | None
) -> None:
    _, far = world.shake_hands(here(secret))
    converse(far, there(secret))
    sock = world.outcome()
    far.sendall(b"after")
    sock.settimeout(TIMEOUT)
    assert read(sock, 5) == b"after"
    sock.close()


def test_nothing_that_follows_is_swallowed(world: World) -> None:
    """Frames may come in the same packet as the last word of the handshake."""
    _, far = world.shake_hands(Dialler(SECRET))
    machine = Acceptor(SECRET)
    machine.start()
    for _ in range(2):
        far.sendall(machine.received(read(far, machine.wanted)))
    last = machine.received(read(far, machine.wanted))
    assert machine.done
    far.sendall(last + b"the first frame")
    sock = world.outcome()
    sock.settimeout(TIMEOUT)
    assert read(sock, 15) == b"the first frame"
    sock.close()


def test_the_other_side_is_told_before_the_socket_closes(world: World) -> None:
    _, far = world.shake_hands(Acceptor(SECRET))
    machine = Dialler(Secret("another"))
    converse(far, machine)
    assert machine.failure is not None
    assert "another secret" in machine.failure.text
    assert far.recv(1) == b""
    failure = world.outcome()
    assert failure.final
    assert "another secret" in failure.text


def test_whoever_drips_bytes_is_given_up_at_the_deadline(world: World) -> None:
    """A byte a second would keep a limit between bytes happy for ever."""
    _, far = world.shake_hands(Acceptor(SECRET))
    world.settle()
    hello = Dialler(SECRET).start()
    for second in range(int(DEADLINE) - 1):
        far.sendall(hello[second : second + 1])
        world.clock.advance(1.0)
        assert world.outcomes == []
    world.clock.advance(1.0)
    failure = world.outcome()
    assert failure == HandshakeFailure(
        "the handshake was not over within 5 s; the other side may hang, or not be a monarch host", final=False
    )
    assert far.recv(1) == b""


def test_whoever_says_nothing_is_given_up_at_the_deadline(world: World) -> None:
    for kind in (Acceptor, Dialler):
        world.shake_hands(kind(SECRET))
        world.settle()
        world.clock.advance(DEADLINE - 0.5)
        assert world.outcomes == []
        world.clock.advance(0.5)
        assert "was not over within 5 s" in world.outcome().text


def test_a_deadline_that_was_met_does_nothing(world: World) -> None:
    handshake, far = world.shake_hands(Acceptor(None))
    converse(far, Dialler(None))
    sock = world.outcome()
    world.clock.advance(2 * DEADLINE)
    handshake.give_up("too late")
    assert sock.fileno() >= 0
    sock.close()


@pytest.mark.parametrize("count", range(auth.HELLO_BYTES + auth.PROOF_BYTES))
def test_a_connection_that_ends_at_any_byte_fails(world: World, count: int) -> None:
    _, far = world.shake_hands(Acceptor(SECRET))
    machine = Dialler(SECRET)
    hello = machine.start()
    far.sendall(hello[:count])
    if count > auth.HELLO_BYTES:
        machine.received(read(far, machine.wanted))
        far.sendall(machine.received(read(far, machine.wanted))[: count - auth.HELLO_BYTES])
    far.shutdown(socket.SHUT_WR)
    failure = world.outcome()
    assert not failure.final
    assert "closed the connection in the middle of the handshake" in failure.text


def test_a_connection_that_is_reset_fails(world: World) -> None:
    here, far = tcp_pair()
    handshake = Handshake(here, world.loop, Acceptor(SECRET), world.done)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    world.loop.call_soon(handshake.start)
    assert "the connection broke" in world.outcome().text


def test_a_refusal_is_no_reset(world: World) -> None:
    """Bytes that nobody wants are read all the same, or the kernel would answer them with a reset."""
    here, far = tcp_pair()
    far.settimeout(TIMEOUT)
    far.sendall(b"\x16\x03\x01" + bytes(500))
    world.loop.call_soon(Handshake(here, world.loop, Acceptor(SECRET), world.done).start)
    assert "it speaks TLS" in world.outcome().text
    assert read(far, 7) == auth.TLS_ALERT
    assert far.recv(1) == b""
    far.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    return here, far


def test_bytes_that_are_too_many_are_not_read(world: World) -> None:
    """They wait in the kernel, whose buffer is bounded, until the socket is closed."""
    _, far = world.shake_hands(Acceptor(SECRET))
    far.setblocking(False)
    sent = 0
    try:
        while sent < 1 << 24:
            sent += far.send(b"x" * 65536)
    except (BlockingIOError, ConnectionError):
        pass
    failure = world.outcome()
    assert failure.text == "the other side is not a monarch host"
    assert sent < 1 << 24


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test when a frame, a message or a pickle is decoded."""
    import pickle

    import cloudpickle
    import msgspec

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a decoder was reached before the other side had shown who it is")

    monkeypatch.setattr(frame.Decoder, "__init__", never)
    monkeypatch.setattr(frame.Decoder, "received", never)
    for module in (pickle, cloudpickle):
        for name in ("loads", "load", "Unpickler"):
            monkeypatch.setattr(module, name, never, raising=False)
    monkeypatch.setattr(msgspec.msgpack, "decode", never)


def random_bytes(rng: random.Random) -> bytes:
    """Noise, noise behind something that begins well, and things that other protocols begin with."""
    begins = (
        b"",
        b"",
        auth.MAGIC,
        Dialler(SECRET).start(),
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n",
        b"\x80\x04\x95",
        b"\x94\x32",
    )
    return rng.choice(begins) + rng.randbytes(rng.choice((0, 1, 5, 40, 200)))


@pytest.mark.usefixtures("no_decoder")
def test_ten_thousand_random_streams_never_reach_a_decoder(world: World) -> None:
    rng = random.Random(7)

    def play(count: int) -> None:
        for _ in range(count):
            _, far = world.shake_hands(rng.choice((Acceptor, Dialler))(SECRET))
            try:
                far.sendall(random_bytes(rng))
                far.shutdown(socket.SHUT_WR)
            except OSError:  # refused meanwhile
                pass
            assert isinstance(world.outcome(), HandshakeFailure)
            world.far.remove(far)
            far.close()

    play(200)
    world.clock.advance(2 * DEADLINE)  # the timers of what is over go too
    tracemalloc.start()
    try:
        play(10_000)
        world.clock.advance(2 * DEADLINE)
        grown, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 500_000
    assert peak < 8_000_000  # ten thousand cancelled timers and what they hold, at most


@pytest.mark.usefixtures("no_decoder")
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=60), max_size=6),
    begin=st.sampled_from([b"", auth.MAGIC, Dialler(SECRET).start()]),
)
def test_no_bytes_in_any_pieces_pass(world: World, chunks: list[bytes], begin: bytes) -> None:
    _, far = world.shake_hands(Acceptor(SECRET))
    try:
        far.sendall(begin)
        for chunk in chunks:
            far.sendall(chunk)
        far.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    failure = world.outcome()
    assert isinstance(failure, HandshakeFailure)
    assert "long and random" not in failure.text


def test_it_can_be_seen_where_a_handshake_is(world: World) -> None:
    handshake, far = world.shake_hands(Acceptor(SECRET))
    far.sendall(auth.MAGIC)
    world.settle()
    world.settle()
    assert repr(handshake) == "<Handshake <Acceptor wants 35 bytes>>"
    world.loop.call_soon(lambda: handshake.give_up("enough"))
    assert world.outcome() == HandshakeFailure("enough", final=False)
    assert repr(handshake) == "<Handshake over>"
