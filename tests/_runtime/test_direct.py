"""Direct links between two processes whose agents, and the way through them, are in the hands of the test."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime import direct
from monarch._runtime.direct import Directs
from monarch._runtime.loop import Loop
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.frame import Buffer, Decoder, Frame
from monarch._wire.ids import new_id
from monarch._wire.message import VERSION, AskDirect, Barrier, Envelope, Flushed, LinkHello, MayDial, ProcEnded
from monarch._wire.peer import Peer
from monarch._wire.relay import Relay, route
from monarch._wire.transport import unix
from monarch._wire.transport.base import ConnectionLost
from monarch._wire.transport.stream import StreamConnection
from monarch.config import configure
from tests.support.loops import RunningLoop, in_loop, loop_of_the_test
from tests.support.patience import TIMEOUT

A, B, C = "tcp://10.0.0.1:1/a.0", "tcp://10.0.0.2:1/b.0", "tcp://10.0.0.3:1/c.0"


class Way:
    """The connection to the agent: keeps what it is given, and can be made to hold a sender up."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.queued = 0
        self.blocked: threading.Event | None = None
        self.entered = threading.Event()

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        self.send([frame])
        return True

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        self.entered.set()
        if self.blocked is not None:
            assert self.blocked.wait(TIMEOUT)
        self.sent.append(b"".join(map(bytes, pieces)))

    def wait_room(self, timeout: float) -> bool:
        return True

    def messages(self) -> list[Any]:
        """Returns what was sent, taken out of its Envelopes."""
        return [opened(head)[0] for head in map(_frame, self.sent)]


def _frame(data: bytes) -> Frame:
    decoder = Decoder()
    decoder.get_buffer()[: len(data)] = data
    (received,) = decoder.received(len(data))
    return received


def opened(received: Frame) -> tuple[Any, bytes]:
    msg = message.decode(received.head)
    if type(msg) is Envelope:
        msg = message.decode(msg.head)
    return msg, bytes(received.body)


class Process:
    """A Proc, as much of one as a Directs uses. `log` says what was told to it, in order."""

    def __init__(self, address: str, loop: Loop, incarnation: int = 0) -> None:
        self.address = address
        self.loop = loop
        self.incarnation = incarnation
        self.closed: BaseException | None = None
        self.peers: dict[str, Peer] = {}
        self.ways: dict[str, Way] = {}
        self.asked: list[str] = []
        self._changed = threading.Condition()
        self.log: list[Any] = []
        self.directs = Directs(self)  # type: ignore[arg-type]

    def knows(self, other: Process, many: int = 0) -> Relay:
        """Does as if both had exchanged a Hello through their agents."""
        way = self.ways[other.address] = Way()
        relay = Relay(lambda: way, route(other.address, self.address), other.address, many, self._busy)
        peer = self.peers[other.address] = Peer(other.address, _no_dial, lambda peer: None, self.address)
        peer.connection, peer.incarnation = relay, other.incarnation
        return relay

    def _busy(self, relay: Relay) -> None:
        self.loop.call_soon(lambda: self.directs.busy(relay))

    def send(self, other: Process, number: int) -> None:
        connection = self.peers[other.address].connection
        assert connection is not None
        head = message.encode(Flushed(number))
        if connection.route:
            head = message.encode(Envelope(other.address, self.address, -1, head))
        connection.send(frames.encode(head))

    def deliver(self, other: Process) -> None:
        """Lets arrive what `other` has sent through the agents."""
        in_loop(self.loop, lambda: None)  # a Barrier that is due has been sent
        sent, other.ways[self.address].sent = other.ways[self.address].sent, []
        for received in map(_frame, sent):
            msg, _ = opened(received)
            relay = self.peers[other.address].connection
            assert relay is not None
            if type(msg) is Barrier:
                stand_in = Relay(lambda: None, b"x", other.address)
                in_loop(self.loop, partial(self.directs.barrier, stand_in, msg))
            else:
                self._tell(msg.token)

    def _tell(self, what: Any) -> None:
        with self._changed:
            self.log.append(what)
            self._changed.notify_all()

    def wait(self, enough: Callable[[list[Any]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.log), TIMEOUT), self.log

    # what Directs calls

    def known_peer(self, address: str) -> Peer | None:
        return self.peers.get(address)

    def limits(self) -> tuple[int, int]:
        return 1 << 20, 0

    def post(self, address: str, msg: Any) -> None:
        assert type(msg) is AskDirect
        self.asked.append(msg.address)
        self._tell("asked")

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        for each in received:
            self._tell(opened(each)[0].token)

    def connection_lost(self, connection: Any, reason: str) -> None:
        self._tell("lost")

    def on_process_ended(self, ended: ProcEnded) -> None:
        self.directs.end(ended.address, ended.incarnation)
        self._tell(f"ended {ended.address}")


def _no_dial(address: str) -> Any:
    raise AssertionError("nobody dials")


class Gate:
    """The agent at the port of a host: hands over what comes for its process."""

    def __init__(self, process: Process, net: Net) -> None:
        self._process = process
        self._net = net

    def connection_received(self, connection: StreamConnection, received: list[Frame]) -> None:
        sock = connection.detach() if len(received) == 1 else None
        if sock is None:
            connection.close("it said more than hello")
        elif self._net.held is not None:
            self._net.held.append((self._process, sock, received[0].head))
        else:
            self._process.directs.handed(sock, received[0].head)

    def connection_lost(self, connection: Any, reason: str) -> None: ...


class Net(RunningLoop):
    """Processes, one a host; `tcp.dial` leads to them. `dials` counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.processes: dict[str, Process] = {}
        self.dials = 0
        self.held: list[tuple[Process, socket.socket, bytes]] | None = None  # a list: handovers wait there
        monkeypatch.setattr(direct.tcp, "dial", self._dial)

    def process(self, address: str, incarnation: int = 0) -> Process:
        process = Process(address, self.loop, incarnation)
        self.processes[address.rpartition("/")[0]] = process
        return process

    def _dial(self, to: Any, loop: Loop, done: Callable[[Any], None], **_how: Any) -> Any:
        near, far = socket.socketpair()
        self.dials += 1
        gate = Gate(self.processes[str(to.dial)], self)

        def connected() -> None:
            StreamConnection(far, loop, gate, limit=1 << 20).start()
            done(near)

        loop.call_soon(connected)
        return _Attempt()

    def two(self) -> tuple[Process, Process]:
        a, b = self.process(A), self.process(B)
        a.knows(b), b.knows(a)
        return a, b

    def linked(self) -> tuple[Process, Process]:
        """Two that send to each other over a link."""
        a, b = self.two()
        self.dial(a, b)
        wait_for(self.loop, lambda: sending(a))
        b.deliver(a)
        a.deliver(b)
        assert in_loop(self.loop, lambda: (state(a), state(b))) == (("sending", "taking"), ("sending", "taking"))
        return a, b

    def dial(self, a: Process, b: Process) -> None:
        in_loop(self.loop, lambda: a.directs.may_dial(MayDial(b.address)))

    def cut(self, process: Process) -> None:
        """All connections break, for both ends."""
        for pair in process.directs.pairs:
            connection = pair.link._link.connection
            if connection is not None:  # else it is being made again
                connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for process in self.processes.values():
            in_loop(self.loop, lambda process=process: process.directs.close("the test is over"))
        in_loop(self.loop, lambda: None)
        assert self.loop.statistics()["descriptors"] == 0
        self.end()


class _Attempt:
    def cancel(self) -> None: ...


def state(process: Process) -> tuple[str, ...]:
    (pair,) = process.directs.pairs
    return tuple(word for word in ("sending", "taking") if getattr(pair, word))


def sending(process: Process) -> bool:
    return any(pair.sending for pair in process.directs.pairs)


def wait_for(loop: Loop, enough: Callable[[], Any]) -> None:
    """Looks once a turn of the loop."""
    done = threading.Event()

    def look() -> None:
        if enough():
            done.set()
        else:
            loop.call_soon(look)

    loop.call_soon(look)
    assert done.wait(TIMEOUT)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    made = Net(monkeypatch)
    yield made
    made.close()


# --- changing over


def test_after_so_many_messages_the_agent_is_asked_once(net: Net) -> None:
    a, b = net.process(A), net.process(B)
    a.knows(b, many=3)
    for number in range(2):
        a.send(b, number)
    in_loop(net.loop, lambda: None)
    assert a.asked == []
    for number in range(10):
        a.send(b, number)
    in_loop(net.loop, lambda: None)
    assert a.asked == [B]


def test_what_goes_over_the_link_waits_for_what_went_through_the_agents(net: Net) -> None:
    a, b = net.two()
    a.send(b, 1)
    a.send(b, 2)
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    a.send(b, 3)
    a.send(b, 4)
    wait_for(net.loop, lambda: b.directs.pairs[0].held)
    assert b.log == []
    b.deliver(a)
    b.wait(lambda log: len(log) == 4)
    assert b.log == [1, 2, 3, 4]
    a.send(b, 5)
    b.wait(lambda log: log[-1] == 5)


def test_the_other_direction_changes_over_by_itself(net: Net) -> None:
    a, b = net.two()
    b.send(a, 1)
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    assert not in_loop(net.loop, lambda: sending(b))
    b.deliver(a)  # the Barrier
    wait_for(net.loop, lambda: sending(b))
    b.send(a, 2)
    wait_for(net.loop, lambda: a.directs.pairs[0].held)
    assert a.log == []
    a.deliver(b)
    a.wait(lambda log: len(log) == 2)
    assert a.log == [1, 2]


def test_the_barrier_comes_after_those_who_are_still_sending(net: Net) -> None:
    a, b = net.two()
    way = a.ways[B]
    way.blocked = threading.Event()
    sender = threading.Thread(target=a.send, args=(b, 1))
    sender.start()
    assert way.entered.wait(TIMEOUT)
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    a.send(b, 2)  # over the link at once, whoever else is held up
    wait_for(net.loop, lambda: b.directs.pairs[0].held)
    assert way.sent == []
    way.blocked.set()
    sender.join(TIMEOUT)
    wait_for(net.loop, lambda: len(way.sent) == 2)
    assert [type(msg) for msg in way.messages()] == [Flushed, Barrier]
    b.deliver(a)
    b.wait(lambda log: len(log) == 2)
    assert b.log == [1, 2]


def test_one_who_still_holds_the_relay_sends_over_the_link(net: Net) -> None:
    a, b = net.two()
    relay = a.peers[B].connection
    assert relay is not None
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    b.deliver(a)
    head = message.encode(Envelope(B, A, -1, message.encode(Flushed(1))))
    relay.send([frames.encode_small(head, b"")])
    assert relay.send_small(frames.encode_small(message.encode(Envelope(B, A, -1, message.encode(Flushed(2)))), b""))
    b.wait(lambda log: len(log) == 2)
    assert b.log == [1, 2] and a.ways[B].sent == []


def test_messages_keep_their_order_whenever_things_happen(net: Net) -> None:
    """Both send without a pause while the link comes about, and what goes through the agents arrives in pieces."""
    a, b = net.two()
    count = 2000

    def talk(one: Process, other: Process) -> None:
        for number in range(count):
            one.send(other, number)

    threads = [threading.Thread(target=talk, args=ends) for ends in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    net.dial(a, b)
    while any(len(process.log) < count for process in (a, b)):
        b.deliver(a)
        a.deliver(b)
        in_loop(net.loop, lambda: None)
        if not any(thread.is_alive() for thread in threads) and not a.ways[B].sent and not b.ways[A].sent:
            a.wait(lambda log: len(log) >= count or a.ways[B].sent or b.ways[A].sent)
    for thread in threads:
        thread.join(TIMEOUT)
    assert a.log == b.log == list(range(count))


# --- links that are not wanted, or end


def test_a_host_that_cannot_be_dialled_is_not_asked_about_again(net: Net) -> None:
    a, b = net.process(A), net.process(B)
    first = a.knows(b, many=1)
    a.send(b, 1)
    a.wait(lambda log: log == ["asked"])
    in_loop(net.loop, lambda: a.directs.may_dial(MayDial(B, why="it has no address")))
    in_loop(net.loop, lambda: a.directs.busy(first))
    in_loop(net.loop, lambda: None)
    assert (a.asked, net.dials, a.directs.pairs) == ([B], 0, [])


def test_two_that_dial_each_other_end_up_with_one_link(net: Net) -> None:
    a, b = net.two()
    net.held = []
    in_loop(net.loop, lambda: (a.directs.may_dial(MayDial(B)), b.directs.may_dial(MayDial(A))))
    wait_for(net.loop, lambda: len(net.held or ()) == 2)
    handovers, net.held = net.held, None
    in_loop(net.loop, lambda: [process.directs.handed(sock, hello) for process, sock, hello in handovers])
    wait_for(net.loop, lambda: sending(a) and len(b.directs.pairs) == 1)
    b.deliver(a)
    a.deliver(b)
    assert in_loop(net.loop, lambda: (state(a), state(b))) == (("sending", "taking"), ("sending", "taking"))
    assert a.directs.pairs[0].link.uid == b.directs.pairs[0].link.uid
    assert "lost" not in a.log + b.log


def test_links_are_bounded(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MOST", 1)
    a, b = net.linked()
    c = net.process(C)
    c.knows(b), b.knows(c)
    net.dial(c, b)
    wait_for(net.loop, lambda: net.dials == 2 and not c.directs.pairs)
    assert len(b.directs.pairs) == 1
    c.send(b, 1)
    assert [type(msg) for msg in c.ways[B].messages()] == [Flushed]
    relay = b.peers[C].connection
    assert isinstance(relay, Relay)
    in_loop(net.loop, lambda: b.directs.busy(relay))
    in_loop(net.loop, lambda: None)
    assert b.asked == []
    assert a.log == b.log == c.log == []


@pytest.mark.parametrize(
    "changes",
    [
        {"to": "tcp://10.0.0.2:1/other.0"},
        {"target_incarnation": 1},
        {"target_incarnation": -1},
        {"incarnation": 1},
        {"resume": True},
    ],
)
def test_a_hello_that_does_not_fit(net: Net, changes: dict[str, Any]) -> None:
    a, b = net.process(A, incarnation=2), net.process(B)
    b.knows(a)
    hello = LinkHello(VERSION, A, "agent-a", new_id(), B, 0, False, B, 0, 2)
    for field, value in changes.items():
        setattr(hello, field, value)
    ours, theirs = socket.socketpair()
    with ours:
        in_loop(net.loop, lambda: b.directs.handed(theirs, message.encode(hello)))
        ours.settimeout(TIMEOUT)
        bye = _frame(ours.recv(4096))
        assert ours.recv(1) == b""
    assert type(message.decode(bye.head)).__name__ == "Bye"
    assert b.directs.pairs == []


@pytest.mark.parametrize("data", [b"", b"\xff\x00", message.encode(Flushed(1))])
def test_what_is_no_hello(net: Net, data: bytes) -> None:
    b = net.process(B)
    ours, theirs = socket.socketpair()
    with ours:
        in_loop(net.loop, lambda: b.directs.handed(theirs, data))
        ours.settimeout(TIMEOUT)
        assert ours.recv(1) == b""
    assert b.directs.pairs == []


def test_a_broken_connection_is_made_again(net: Net) -> None:
    a, b = net.linked()
    for number in range(300):
        a.send(b, number)
        b.send(a, number)
        if number % 100 == 50:
            in_loop(net.loop, lambda: net.cut(a))
    for process in (a, b):
        process.wait(lambda log: len(log) == 300)
        assert process.log == list(range(300))
    assert net.dials > 1


def test_a_link_that_dies_is_told_like_a_lost_connection(net: Net) -> None:
    a, b = net.linked()
    in_loop(net.loop, lambda: a.directs.pairs[0].link.close("on purpose"))
    for process in (a, b):
        process.wait(lambda log: log == ["lost"])
    assert (a.directs.pairs, b.directs.pairs) == ([], [])


def test_a_link_that_was_of_no_use_yet_dies_without_a_word(net: Net) -> None:
    a, b = net.two()
    net.processes[B.rpartition("/")[0]] = net.process("tcp://10.0.0.2:1/other.0")  # nobody of that name is there
    net.dial(a, b)
    wait_for(net.loop, lambda: net.dials == 1 and not a.directs.pairs)
    a.send(b, 1)
    assert a.log == [] and len(a.ways[B].sent) == 1


def test_what_a_dead_link_has_brought_counts_when_the_barrier_comes(net: Net) -> None:
    a, b = net.two()
    a.send(b, 1)
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    a.send(b, 2)
    wait_for(net.loop, lambda: b.directs.pairs[0].held)
    in_loop(net.loop, lambda: b.directs.pairs[0].link.close("on purpose"))
    assert b.log == []
    b.deliver(a)
    b.wait(lambda log: len(log) == 3)
    assert b.log == [1, 2, "lost"] and b.directs.pairs == []


# --- the end of a process


def test_the_end_waits_for_last_words(net: Net) -> None:
    a, b = net.linked()
    ended = ProcEnded(B, 1, 0, False, [])
    assert in_loop(net.loop, lambda: a.directs.ended(ended))
    b.send(a, 1)  # was on its way when the agents told of the end
    a.wait(lambda log: 1 in log)
    assert a.log == [1]
    in_loop(net.loop, lambda: net.cut(b))  # the kernel closes what it had
    a.wait(lambda log: len(log) == 2)
    assert a.log == [1, f"ended {B}"] and a.directs.pairs == []


def test_the_end_does_not_wait_for_ever(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the process may still hold its sockets."""
    monkeypatch.setattr(direct, "LAST_WORDS", 0.01)
    a, _ = net.linked()
    assert in_loop(net.loop, lambda: a.directs.ended(ProcEnded(B, 1, 0, False, [])))
    a.wait(lambda log: log == [f"ended {B}"])
    assert a.directs.pairs == []


def test_the_end_of_one_whose_barrier_is_lost(net: Net) -> None:
    """It was the last thing that went through the agents; nothing will come there any more."""
    a, b = net.two()
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    b.deliver(a)
    wait_for(net.loop, lambda: sending(b))
    b.send(a, 1)
    wait_for(net.loop, lambda: a.directs.pairs[0].held)
    assert in_loop(net.loop, lambda: a.directs.ended(ProcEnded(B, 1, 0, False, [])))
    a.wait(lambda log: log == [1])
    in_loop(net.loop, lambda: net.cut(b))
    a.wait(lambda log: log == [1, f"ended {B}"])


def test_an_end_that_was_put_off_is_told_before_the_next_process_is(net: Net) -> None:
    a, b = net.linked()
    assert in_loop(net.loop, lambda: a.directs.ended(ProcEnded(B, 1, 0, False, [])))
    in_loop(net.loop, lambda: a.directs.tell_end(B))
    assert a.log == [f"ended {B}"] and a.directs.pairs == []
    b.wait(lambda log: log == ["lost"])


def test_the_end_of_one_before_it_says_nothing_of_this_one(net: Net) -> None:
    a, b = net.process(A), net.process(B, incarnation=1)
    a.knows(b), b.knows(a)
    net.dial(a, b)
    wait_for(net.loop, lambda: sending(a))
    assert not in_loop(net.loop, lambda: a.directs.ended(ProcEnded(B, 1, 0, False, [], incarnation=0)))
    in_loop(net.loop, lambda: a.directs.end(B, 0))
    assert len(a.directs.pairs) == 1


def test_a_process_without_a_link_ends_at_once(net: Net) -> None:
    a, _ = net.two()
    assert not in_loop(net.loop, lambda: a.directs.ended(ProcEnded(B, 1, 0, False, [])))


def test_the_secret_is_shown_nowhere() -> None:
    assert "hidden" not in repr(MayDial(B, b"hidden")) and "hidden" not in f"{MayDial(B, b'hidden')}"


def test_an_idle_link_costs_nothing(net: Net) -> None:
    """No beats: silence is judged by others."""
    configure(message_ack_time_interval="1ms")
    a, b = net.linked()
    a.send(b, 1)
    wait_for(net.loop, lambda: not a.directs.pairs[0].link.queued)
    assert in_loop(net.loop, net.loop.next_timer) is None


def test_when_the_way_to_a_host_works_again_links_are_made_anew(net: Net) -> None:
    a, b = net.linked()
    in_loop(net.loop, lambda: a.directs.recovered("tcp://10.0.0.3:1"))
    in_loop(net.loop, lambda: b.directs.recovered("tcp://10.0.0.1:1"))  # it did not dial
    assert net.dials == 1
    in_loop(net.loop, lambda: a.directs.recovered("tcp://10.0.0.2:1"))
    for number in range(10):
        a.send(b, number)
        b.send(a, number)
    for process in (a, b):
        process.wait(lambda log: len(log) == 10)
        assert process.log == list(range(10))
    assert net.dials == 2


# --- handing sockets from process to process


class Keep:
    """Handler of connections that are only read."""

    def __init__(self) -> None:
        self.detached: list[Any] = []
        self.lost: list[str] = []

    def connection_received(self, connection: StreamConnection, received: list[Frame]) -> None:
        self.detached.append(connection.detach())

    def connection_lost(self, connection: Any, reason: str) -> None:
        self.lost.append(reason)


loop = pytest.fixture(loop_of_the_test, name="loop")


@pytest.mark.parametrize("rest", [b"", b"x"])
def test_a_connection_gives_its_socket_away_only_when_it_has_read_no_more(loop: Loop, rest: bytes) -> None:
    keep = Keep()
    near, far = socket.socketpair()
    with near, far:
        connection = StreamConnection(far, loop, keep, limit=1 << 20)
        near.send(frames.encode_small(b"hello", b"") + rest)
        in_loop(loop, connection.start)
        wait_for(loop, lambda: keep.detached)
        assert keep.lost == []
        if rest:
            assert keep.detached == [None] and not connection.lost
            connection.close("the test is over")
            wait_for(loop, lambda: keep.lost)
        else:
            assert keep.detached == [far] and connection.lost
            with pytest.raises(ConnectionLost):
                connection.send([b"more"])
            near.send(b"for the next owner")
            far.settimeout(TIMEOUT)
            assert far.recv(100) == b"for the next owner"
    assert loop.statistics()["descriptors"] == 0


class House:
    """A process that listens in a folder."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.folder = folder
        self.accepted: list[socket.socket] = []
        self.handed: list[tuple[socket.socket, bytes]] = []
        listening = unix.listen(f"{folder}/b.0")
        self.listener = unix.Listener(
            listening, loop, self.accepted.append, lambda sock, data: self.handed.append((sock, data))
        )

    def close(self) -> None:
        self.listener.close()
        for sock in [*self.accepted, *(sock for sock, _ in self.handed)]:
            sock.close()


@pytest.fixture
def house(loop: Loop, tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, loop)
    yield made
    in_loop(loop, made.close)
    assert loop.statistics()["descriptors"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["b.0"]


def test_a_socket_is_handed_over_with_its_bytes(loop: Loop, house: House) -> None:
    near, far = socket.socketpair()
    with near:
        with far:
            unix.hand_over(str(house.folder), "b.0", far, b"said hello")
        wait_for(loop, lambda: house.handed)
        ((sock, data),) = house.handed
        assert data == b"said hello" and house.accepted == []
        assert not os.get_inheritable(sock.fileno())
        sock.settimeout(TIMEOUT)
        near.send(b"to whoever has it")
        assert sock.recv(100) == b"to whoever has it"


def test_others_connect_as_before(loop: Loop, house: House) -> None:
    with unix.dial(f"{house.folder}/b.0") as sock:
        sock.send(b"x")
        wait_for(loop, lambda: house.accepted)
    assert house.handed == []


@pytest.mark.parametrize("send", [b"", b"bytes without a descriptor"])
def test_a_handover_without_a_socket(loop: Loop, house: House, send: bytes) -> None:
    path = f"{house.folder}/handover.99"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as carrier:
        carrier.bind(path)
        os.unlink(path)
        carrier.connect(f"{house.folder}/b.0")
        carrier.send(send)
        carrier.shutdown(socket.SHUT_WR)
        carrier.settimeout(TIMEOUT)
        assert carrier.recv(1) == b""
    assert (house.handed, house.accepted) == ([], [])


@pytest.mark.parametrize("name", ["nobody", "", "x" * 200])
def test_nobody_to_hand_it_to(house: House, name: str) -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(OSError):
        unix.hand_over(str(house.folder), name, far, b"hello")


def test_too_many_bytes_to_go_with_a_socket(house: House) -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(OSError, match="20000 bytes are too many"):
        unix.hand_over(str(house.folder), "b.0", far, bytes(20_000))
