"""Tests of what a process knows of others: no loop, no socket; connections, agents and the transport are the test's."""

from __future__ import annotations

import errno
import gc
import tracemalloc
from collections import deque
from typing import Any

import pytest

from monarch._runtime import processes as module
from monarch._runtime.hooks import Hooks
from monarch._runtime.incarnations import Incarnations, first_in
from monarch._runtime.processes import Processes
from monarch._runtime.replies import OneReply, Ports, Target
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.message import (
    Bounced,
    Call,
    Failure,
    Flushed,
    Hello,
    IncarnationAck,
    ProcEnded,
    ProcReachable,
    Watch,
    Welcome,
)
from monarch._wire.peer import Peer, PeerEnded
from monarch._wire.relay import Relay, enclose
from monarch._wire.transport.base import ConnectionLost

AGENT, M0 = "unix:/h/agent", "unix:/h/m.0"
REMOTE, REMOTE_AGENT = "tcp://10.0.0.2:1/m.0", "tcp://10.0.0.2:1/agent"


class Connection:
    route = b""
    queued = 0

    def __init__(self, remote: str = "") -> None:
        self.remote = remote
        self.pid = 0
        self.lost = False
        self.sent: list[Any] = []
        self.reason = ""

    def send(self, pieces: Any, *_how: Any) -> None:
        if self.lost:
            raise ConnectionLost("lost")
        data = b"".join(bytes(piece) for piece in pieces)
        self.sent.append(message.decode(data[module.frames.PREFIX.size :]))

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        if not self.queued:
            self.send([frame])
        return not self.queued

    def close(self, reason: str) -> None:
        self.lost, self.reason = True, reason

    finish = close


class Timers:
    """The part of a loop that is used, with a clock that the test sets."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, fn: Any) -> None:
        self.due.append((self.time + delay, fn))

    def call_soon(self, fn: Any) -> None:
        self.call_later(0.0, fn)

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        while self.due and min(self.due, key=lambda entry: entry[0])[0] <= until:
            entry = min(self.due, key=lambda entry: entry[0])
            self.due.remove(entry)
            self.time = entry[0]
            entry[1]()
        self.time = until


class Us:
    """The process, and its transport: whom it can dial is in `listening`."""

    address, host, pid = "unix:/h/client", "unix:/h", 7

    def __init__(self, incarnation: int = 0) -> None:
        self.incarnation = incarnation
        self.closed: BaseException | None = None
        self.transport: Any = self
        self.ports = Ports()
        self.hooks = Hooks()
        self.loop: Any = Timers()
        self.errors: deque[str] = deque()
        self.listening: set[str] = set()
        self.error = 0  # of the kernel, while dialling
        self.queued = 0  # bytes that a new connection does not take
        self.before = 0  # ports below it heard of the last break
        self.dialled = 0
        self.told: list[tuple[str, Any]] = []
        self.events: list[Any] = []
        self.incarnations = Incarnations()
        self.known = Processes(self, self.incarnations)

    def dial(self, address: str) -> Connection:
        self.dialled += 1
        if self.error:
            raise OSError(self.error, "as the test wants it")
        if address not in self.listening:
            raise ConnectionRefusedError
        connection = Connection(address)
        connection.queued = self.queued
        return connection

    def close(self) -> None: ...

    def check_open(self, address: str) -> None:
        if self.closed is not None:
            raise self.closed

    def tell(self, address: str, msg: message.Message) -> None:
        self.told.append((address, msg))

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        self.events.append([frame.head for frame in received])

    def on_process_ended(self, ended: ProcEnded) -> None:
        peer = self.known.ending(ended)
        assert peer is not None
        self.known.finish_connections(ended.address)
        self.known.ended(peer, ended)
        self.events.append(ended.detail)

    def on_connection_broke(self, peer: Peer, before: int, why: str) -> None:
        self.events.append(("broke", peer.address, sorted(peer.take_unsent())))
        self.before = before

    def tell_again(self, address: str) -> None:
        self.events.append(("told again", address))

    def on_busy(self, relay: Relay) -> None: ...

    def hello(self, address: str = M0, **fields: Any) -> tuple[Connection, str]:
        """A process dials us; the connection, and why it was refused."""
        connection = Connection()
        return connection, self.known.hello(connection, Hello(message.VERSION, address, 1, **fields))

    def end(self, address: str = M0, incarnation: int = 0) -> None:
        self.on_process_ended(ProcEnded(address, 1, -9, False, [], "killed", incarnation))


@pytest.fixture
def us() -> Us:
    return Us()


def send(us: Us, address: str = M0, port: int = 0) -> Any:
    peer, head = us.known.peer(address), message.encode(Flushed(1))
    return peer.send(module.frames.encode(enclose(peer.route, head) if peer.route else head), port=port)


# --- on one host


def test_a_process_is_dialled_with_the_first_message_and_says_hello_before_it(us: Us) -> None:
    us.listening.add(M0)
    connection = send(us)
    assert connection.sent == [Hello(message.VERSION, us.address, 7, 0, -1, False), Flushed(1)]
    assert us.known.connected() == [M0] and [address for address, _ in us.known.known()] == [M0]
    assert us.told == []


def test_the_agent_is_asked_for_one_that_does_not_listen_yet(us: Us) -> None:
    assert send(us) is None and us.told == [(AGENT, Watch(M0))]
    us.listening.add(M0)
    us.known.reachable(ProcReachable(M0))
    assert us.known.connected() == [M0] and us.known.incarnation_at(M0) == 0


def test_one_that_dials_us_is_sent_what_was_kept_for_it(us: Us) -> None:
    send(us)
    connection, why = us.hello()
    assert why == "" and (connection.remote, connection.pid) == (M0, 1)
    assert connection.sent == [Flushed(1)]


def test_nothing_is_sent_to_one_that_has_ended(us: Us) -> None:
    connection, _ = us.hello()
    us.end()
    assert connection.reason == "the process has ended" and us.known.connected() == []
    assert us.known.ending(ProcEnded(M0, 1, 0, False, [])) is None  # known already
    with pytest.raises(PeerEnded):
        send(us)
    end = us.known.end_of(M0)
    assert end is not None and end.code == -9 and us.known.end_of("unix:/h/m.1") is None


def test_a_closed_process_knows_nobody_new(us: Us) -> None:
    us.known.peer(M0)
    us.closed = RuntimeError("closed")
    us.known.peer(M0)
    with pytest.raises(RuntimeError, match="closed"):
        us.known.peer("unix:/h/m.1")


def test_ended_processes_are_remembered_up_to_a_bound(us: Us, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENDED_PEERS", 2)
    for rank in range(4):
        us.end(f"unix:/h/m.{rank}")
    assert [address for address, _ in us.known.known()] == ["unix:/h/m.2", "unix:/h/m.3"]


def test_who_dials_again_has_lost_the_connection_it_dialled_before(us: Us) -> None:
    """Gives the old one up: what is sent on the old one, answers above all, would reach nobody, and nobody would hear
    of it."""
    first, _ = us.hello()
    assert us.known.peer(M0).connection is first
    second, _ = us.hello()
    assert first.lost and first.reason == "that process has dialled again" and not second.lost
    us.known.lost(first, first.reason)
    third, _ = us.hello()
    assert second.lost and not third.lost
    for connection in (second, third):
        us.known.lost(connection, "closed")
    assert us.known._accepted == {}


def test_who_dials_keeps_the_connection_that_was_dialled_from_here(us: Us) -> None:
    us.listening.add(M0)
    ours = send(us)
    theirs, _ = us.hello()
    assert not ours.lost and not theirs.lost and us.known.peer(M0).connection is ours


def test_a_connection_that_broke_is_told_when_its_process_is_known_to_live(us: Us) -> None:
    us.listening.add(M0)
    connection = send(us)
    connection.lost = True
    us.listening.clear()
    assert us.known.lost(connection, "closed")
    send(us, port=5)  # this one finds it broken, and is kept
    assert us.told == [(AGENT, Watch(M0))] and us.events == []
    us.listening.add(M0)
    us.known.reachable(ProcReachable(M0))
    assert us.events == [("broke", M0, [5])]
    hello = us.known.peer(M0).connection.sent[0]  # type: ignore[union-attr]
    assert hello.again
    us.known.reachable(ProcReachable(M0))
    assert len(us.events) == 1


def test_of_two_connections_that_broke_younger_messages_are_told_too(us: Us) -> None:
    us.listening.add(M0)
    ours, (theirs, _) = send(us), us.hello()
    assert us.known.lost(theirs, "closed")
    us.known.peer(M0).lost(theirs)
    port = us.ports.count()  # of a message that ours takes, and whose answer comes on the next that they dial
    assert send(us, port=port) is ours
    again, _ = us.hello(again=True)
    assert us.known.lost(again, "closed")
    us.known.peer(M0).lost(again)
    us.known.reachable(ProcReachable(M0))  # the answer to the first question
    assert us.events == [("broke", M0, [])] and us.before > port


def test_a_connection_that_does_not_take_its_hello_is_given_up_and_dialled_again(us: Us) -> None:
    us.listening.add(M0)
    us.queued = 9  # should it break, nobody there would know whose it was, and ask again for what it was to carry
    assert send(us) is None
    assert us.known.statistics()["connected"] == 0 and us.told == []
    us.queued = 0
    us.loop.advance(1.0)
    connection: Any = us.known.peer(M0).connection
    assert [type(msg) for msg in connection.sent] == [Hello, Flushed] and us.dialled == 2


# --- one takes the place of another


def test_what_a_newcomer_sends_waits_until_the_end_of_the_one_before_it_is_known(us: Us) -> None:
    old, _ = us.hello()
    new, why = us.hello(incarnation=1)
    assert why == "" and us.told == [(AGENT, Watch(M0))]
    assert us.known.early(new, Frame(b"first", b"", ())) and not us.known.early(old, Frame(b"x", b"", ()))
    us.known.reachable(ProcReachable(M0, 1))
    assert us.events == ["was replaced by a new process", [b"first"]]
    assert (old.lost, new.lost) == (True, False) and us.known.peer(M0).connection is new  # type: ignore[comparison-overlap]
    assert us.told[-1] == (AGENT, IncarnationAck(M0, 1))
    assert us.incarnations.of("key", 0, M0) == first_in(1) and us.known.newcomers == {}
    assert us.hello()[1] == "another process has taken its place"


def test_a_newcomer_whose_connection_broke_is_not_told_as_lost(us: Us) -> None:
    us.hello()
    new, _ = us.hello(incarnation=1)
    new.lost = True
    assert not us.known.lost(new, "closed")
    us.known.reachable(ProcReachable(M0, 1))
    assert us.known.peer(M0).connection is None


def test_an_end_of_an_earlier_incarnation_is_old_news(us: Us) -> None:
    us.hello(incarnation=0)
    us.end()
    us.known.reachable(ProcReachable(M0, 1))
    assert us.known.ending(ProcEnded(M0, 1, 0, False, [])) is None
    assert us.known.end_of(M0) is None


def test_whoever_means_the_process_before_us_is_not_let_in() -> None:
    us = Us(incarnation=2)
    assert us.hello(target_incarnation=1)[1].startswith("that process has ended")
    connection, why = us.hello(target_incarnation=2)
    assert why == "" and connection.sent == [Welcome(2)]


def test_a_welcome_says_that_we_dialled_a_later_one(us: Us) -> None:
    us.listening.add(M0)
    send(us)
    us.known.welcome(M0, Welcome(3))
    us.known.welcome(M0, Welcome(2))
    assert us.known.incarnation_at(M0) == 3 and us.incarnations.of("key", 0, M0) == first_in(3)


def test_the_first_call_to_a_later_process_that_dials_us_at_the_same_time_is_not_lost(us: Us) -> None:
    """Both have just taken the place of others, of whom this one knows nothing."""
    us.listening.add(M0)
    dialled = send(us)
    new, _ = us.hello(incarnation=2)
    us.known.early(new, Frame(b"first", b"", ()))
    us.known.reachable(ProcReachable(M0, 2))  # before the Welcome to what was dialled
    us.known.welcome(M0, Welcome(2))
    assert us.events == [[b"first"]] and not dialled.lost and us.known.peer(M0).connection is dialled
    assert us.known.incarnation_at(M0) == 2 and us.incarnations.of("key", 0, M0) == first_in(2)
    us.known.lost(dialled, "closed")  # it had gone to the one before
    us.known.peer(M0).lost(dialled, port=3)
    us.known.reachable(ProcReachable(M0, 2))
    assert us.events[1:] == [("broke", M0, [3])]


def test_nor_one_that_was_kept_until_it_listens(us: Us) -> None:
    send(us)
    us.listening.add(M0)
    us.known.reachable(ProcReachable(M0, 2))
    connection: Any = us.known.peer(M0).connection
    assert us.events == [] and connection.sent[-1] == Flushed(1)


# --- on other hosts


def test_a_process_of_another_host_is_reached_through_the_agent_once_that_says_so(us: Us) -> None:
    agent = Connection(AGENT)
    us.known.use_agent(agent)  # type: ignore[arg-type]
    assert send(us, REMOTE) is None and us.told == [(REMOTE_AGENT, Watch(REMOTE))]
    us.known.reachable(ProcReachable(REMOTE))
    assert [type(sent) for sent in agent.sent] == [message.Envelope, message.Envelope]  # Hello and what was kept
    assert type(us.known.peer(REMOTE).connection) is Relay and us.known.remote_changes == 1


def test_their_ends_are_counted_apart_and_forgotten_with_their_host(us: Us) -> None:
    us.end(REMOTE)
    us.end(M0)
    assert us.known.ended_remote == {REMOTE}
    us.known.reachable(ProcReachable(REMOTE, 1))
    assert us.known.ended_remote == set()
    us.known.peer(REMOTE_AGENT)
    us.known.forget_agent(REMOTE_AGENT)
    us.known.forget_agent(AGENT)  # ours: never
    assert REMOTE_AGENT not in us.known.peers


def test_they_speak_through_relays(us: Us) -> None:
    assert us.known.relay_from(REMOTE, None) is None  # it has not said hello
    relay = us.known.relay_from(REMOTE, Hello(message.VERSION, REMOTE, 1))
    assert relay is us.known.relay_from(REMOTE, None) and relay is not None
    assert us.known.relay_from(REMOTE_AGENT, None) is not None  # agents need not


def test_one_of_another_host_is_watched_once(us: Us) -> None:
    us.known.watch(REMOTE)
    us.known.watch(REMOTE)
    us.known.watch(M0)
    assert us.told == [(REMOTE_AGENT, Watch(REMOTE))]


# --- out of descriptors


def call(port: int = 0) -> Call:
    return Call("key", "client.0", 1, "step", port, "", 0, b"", 0)


def waits(us: Us) -> OneReply:
    """A call to M0 that is sent, and what waits for its answer."""
    entry = OneReply(Target("worker.step", [M0], lambda address, ended: Failure("gone")))
    port = us.ports.add(entry)
    us.known.peer(M0).send(module.frames.encode(message.encode(call(port))), port=port)
    return entry


def test_out_of_descriptors_it_dials_again_and_the_call_goes_out(us: Us) -> None:
    us.listening.add(M0)
    us.error = errno.EMFILE
    entry = waits(us)
    us.loop.advance(5.0)
    peer = us.known.peer(M0)
    assert peer.connection is None and not entry.ready and us.told == []  # no agent could help
    us.error = 0
    us.loop.advance(1.0)
    assert peer.connection is not None
    assert [type(msg) for msg in peer.connection.sent] == [Hello, Call]  # type: ignore[attr-defined]
    assert us.loop.due == [] and us.known._redials == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.EMFILE, "Too many open files: this process may have"),
        (errno.ENFILE, "on the whole machine"),
        (errno.ENOMEM, "Cannot allocate memory"),
        (errno.EAGAIN, "its queue of connections is full"),
    ],
)
def test_what_waited_for_descriptors_too_long_fails_and_says_so(us: Us, error: int, said: str) -> None:
    bounced: list[Bounced] = []
    us.hooks.bounced = bounced.append  # type: ignore[method-assign]
    us.error = error
    entry = waits(us)
    us.known.peer(M0).send(module.frames.encode(message.encode(call())))  # a broadcast
    us.loop.advance(29.0)
    assert not entry.ready
    us.loop.advance(2.0)
    with pytest.raises(Exception, match=said) as caught:
        entry.value()
    assert f"from {us.address} (pid 7) to {M0}" in str(caught.value)
    assert [(b.sender, b.what) for b in bounced] == [("client.0", "step() (broadcast)")] and said in bounced[0].error
    assert us.dialled < 60 and us.known._redials == {} and us.known.peer(M0).queued == 0
    us.loop.advance(60.0)
    assert us.events == [("told again", M0)] and us.loop.due == []
    us.error = 0  # and the next is tried anew
    us.listening.add(M0)
    connection = send(us)
    assert connection.sent[0].again  # numbers may be missing there


def test_an_error_that_stays_fails_at_once(us: Us) -> None:
    us.error = errno.EACCES
    entry = waits(us)
    us.loop.advance(0.0)
    with pytest.raises(Exception, match="Permission denied"):
        entry.value()
    assert us.dialled == 1


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_what_is_dialled_while_another_thread_closes_is_closed(
    us: Us, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """Before the connection is known, or after it has sent its first frames, when its peer does not have it yet."""
    made: list[Connection] = []

    class ClosedMeanwhile(Connection):
        def __init__(self, remote: str) -> None:
            super().__init__(remote)
            made.append(self)
            self.look()

        def look(self) -> None:
            if len(self.sent) == sent:
                us.closed = RuntimeError("closed")
                us.known.close("this process is closing")

        def send(self, pieces: Any, *how: Any) -> None:
            super().send(pieces, *how)
            self.look()

    us.error = errno.EMFILE
    send(us)
    us.error = 0
    us.listening.add(M0)
    monkeypatch.setitem(Us.dial.__globals__, "Connection", ClosedMeanwhile)
    us.loop.advance(60.0)
    assert us.closed is not None and [connection.lost for connection in made] == [True]


def test_who_ends_while_it_is_to_be_dialled_again_has_ended(us: Us) -> None:
    us.error = errno.EMFILE
    send(us)
    us.end()
    us.loop.advance(60.0)
    assert us.known._redials == {} and us.events == ["killed"]
    with pytest.raises(PeerEnded):
        send(us)


# --- memory


def die(us: Us, number: int, stopped: bool) -> None:
    """A process that was spoken to, over a connection with a decoder's 256 KiB, and has ended."""
    address = f"unix:/h/m{number}.0"
    us.listening.add(address)
    connection = send(us, address)
    connection.memory = bytearray(256 * 1024)
    us.listening.discard(address)
    us.on_process_ended(ProcEnded(address, 1, 0 if stopped else -9, stopped, []))
    us.known.lost(connection, "closed")
    us.known.peers[address].lost(connection)
    us.told.clear()
    us.events.clear()


@pytest.mark.parametrize(
    ("stopped", "most"),
    [
        (True, 100),  # stopped for good: as few as are remembered
        (False, 800),  # another may take its place: how it ended is remembered, of 2,000 of them
    ],
)
def test_what_a_thousand_processes_leave_that_have_ended(us: Us, stopped: bool, most: int) -> None:
    """Bytes that Python has allocated, a process, beyond the first 200; the objects that stay with it are counted too."""
    for number in range(200):
        die(us, number, stopped)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000, 2_000):
            die(us, number, stopped)
        gc.collect()
        left = (tracemalloc.get_traced_memory()[0] - before) / 1_000
    finally:
        tracemalloc.stop()
    assert left < most
    known = us.known
    assert len(known.peers) == (module._STOPPED_PEERS if stopped else 1_200)
    assert module._ENDED_PEERS * 800 < 2e6
    assert (
        known._connections
        == known._relays
        == known._broken
        == known._reasons
        == known._redials
        == known.newcomers
        == known._accepted
        == {}
    )


def test_one_that_was_forgotten_is_asked_for_again(us: Us) -> None:
    for number in range(module._STOPPED_PEERS + 1):
        die(us, number, stopped=True)
    assert send(us, "unix:/h/m0.0") is None
    assert us.told == [(AGENT, Watch("unix:/h/m0.0"))]
    us.on_process_ended(ProcEnded("unix:/h/m0.0", 1, 0, True, []))
    with pytest.raises(PeerEnded):
        send(us, "unix:/h/m0.0")
