"""Streams between two processes; the agents between them are in the hands of the test."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._errors import NoStreamError
from monarch._runtime import streams
from monarch._runtime.loop import Loop
from monarch._runtime.streams import Streams
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.auth import Secret
from monarch._wire.host_address import parse
from monarch._wire.message import AskDirect, Bye, LinkHello, MayDial
from monarch._wire.transport.tcp import Accepted, TcpListener
from tests.support.loops import RunningLoop
from tests.support.patience import TIMEOUT

SECRET = "a long and random text"


def read_frame(sock: Any) -> Any:
    sock.settimeout(TIMEOUT)
    head, body, buffers = frames.PREFIX.unpack(sock.recv(frames.PREFIX.size, socket.MSG_WAITALL))
    assert (body, buffers) == (0, 0)
    return message.decode(sock.recv(head, socket.MSG_WAITALL))


class Process:
    """A Proc, as much of one as Streams uses; its agent says `told`, or nothing."""

    def __init__(self, loop: Loop, address: str, told: MayDial | None) -> None:
        self.loop = loop
        self.address = address
        self.host = address.rpartition("/")[0]
        self.incarnation = 0
        self.closed: BaseException | None = None
        self.transport = None
        self.told = told
        self.asked: list[str] = []
        self.connect: Callable[[LinkHello], None] | None = None  # of its agent, for a stream with TLS
        self.peers: dict[str, Any] = {}
        self.streams = Streams(self)  # type: ignore[arg-type]

    def known_peer(self, address: str) -> Any:
        return self.peers.get(address)

    def post(self, agent: str, ask: AskDirect) -> None:
        assert agent == f"{self.host}/agent"
        assert ask.stream
        self.asked.append(ask.address)
        told = self.told
        if told is not None:
            answer = MayDial(ask.address, told.secret, told.why, True, encrypted=told.encrypted)
            if ask.hello is not None:
                answer.link, answer.why = ask.hello.link, "no certificate there"
                if (connect := self.connect) is not None:
                    hello = ask.hello
                    self.loop.call_soon(lambda: connect(hello))
                    return
            self.loop.call_soon(lambda: self.streams.may_dial(answer))


class Pair(RunningLoop):
    """`a` can dial `b`, whose host listens; `agent` is what that host does with what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.agent: Callable[[Any], None] = self.hand_over
        self.threads: list[threading.Thread] = []
        self.sockets: list[Any] = []
        self.listener = self.call(
            lambda: TcpListener(parse("tcp://127.0.0.1:0"), self.loop, self._accepted, secret=Secret(SECRET))
        )
        self.b = Process(self.loop, f"{self.listener.prefix}/b.0", None)
        self.a = Process(self.loop, "tcp://127.0.0.9:1/a.0", MayDial("", SECRET.encode()))

    def _accepted(self, accepted: Accepted) -> None:
        self.sockets.append(accepted.sock)
        thread = threading.Thread(target=self.agent, args=(accepted.sock,))
        self.threads.append(thread)
        thread.start()

    def hand_over(self, sock: Any) -> None:
        hello = read_frame(sock)
        self.loop.call_soon(lambda: self.b.streams.handed(sock, hello))

    def open(self, purpose: str = "echo", timeout: float = TIMEOUT) -> socket.socket:
        return self.a.streams.open(self.b.address, purpose, timeout)

    def close(self) -> None:
        self.a.streams.close()
        self.b.streams.close()
        self.call(self.listener.close)
        for sock in self.sockets:
            sock.close()
        for thread in self.threads:
            thread.join(TIMEOUT)
        self.end()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def test_bytes_go_both_ways_and_the_end_is_seen(pair: Pair) -> None:
    ended = threading.Event()
    pair.b.streams.serve("echo", lambda sock: (echo(sock), ended.set()))  # type: ignore[func-returns-value]
    with pair.open() as sock:
        assert sock.gettimeout() is None
        sock.sendall(b"hello")
        assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
    assert ended.wait(TIMEOUT)
    assert pair.a.asked == [pair.b.address]


def test_the_first_byte_may_be_the_handlers(pair: Pair) -> None:
    pair.b.streams.serve("greet", lambda sock: sock.sendall(b"first"))
    with pair.open("greet") as sock:
        assert sock.recv(100, socket.MSG_WAITALL) == b"first"  # and its end: the handler has returned


def test_a_handler_that_raises_ends_its_stream_only(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fails(sock: socket.socket) -> None:
        raise ValueError("as meant")

    pair.b.streams.serve("fails", fails)
    pair.b.streams.serve("echo", echo)
    with pair.open() as good, pair.open("fails") as bad:
        assert bad.recv(1) == b""
        good.sendall(b"x")
        assert good.recv(1) == b"x"
    assert "as meant" in caplog.text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: setattr(b, "closed", RuntimeError("over")), "is ending"),
        (lambda b: b.streams._handlers.clear(), "takes no streams for 'echo'"),
        (lambda b: setattr(b, "address", "tcp://127.0.0.1:1/c.0"), "b.0 is not here"),
        (lambda b: setattr(b.streams, "_served", streams.MOST), "256 streams already"),
    ],
    ids=["closing", "purpose", "another process", "too many"],
)
def test_who_is_refused_hears_why(pair: Pair, change: Callable[[Process], None], why: str) -> None:
    target, b = pair.b.address, pair.b
    b.streams.serve("echo", echo)
    change(b)
    with pytest.raises(NoStreamError, match=why):
        pair.a.streams.open(target, "echo", TIMEOUT)


@pytest.mark.parametrize(("incarnation_known", "taken"), [(True, False), (False, True)])
def test_a_successor_is_not_taken_for_the_process_that_was_meant(
    pair: Pair, incarnation_known: bool, taken: bool
) -> None:
    pair.b.streams.serve("echo", echo)
    pair.b.incarnation = 1
    pair.a.peers[pair.b.address] = SimpleNamespace(incarnation=0, incarnation_known=incarnation_known)
    if taken:
        pair.open().close()
    else:
        with pytest.raises(NoStreamError, match="has taken its place"):
            pair.open()


def test_the_bound_counts_streams_that_are_open(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST", 1)
    ended = threading.Semaphore(0)
    pair.b.streams.serve("echo", echo)
    monkeypatch.setattr(pair.b.streams, "_serve", _then(pair.b.streams._serve, ended.release))
    with pair.open(), pytest.raises(NoStreamError, match="1 streams already"):
        pair.open()
    assert ended.acquire(timeout=TIMEOUT)
    pair.open().close()


def _then(fn: Callable[..., None], after: Callable[[], None]) -> Callable[..., None]:
    def both(*args: Any) -> None:
        fn(*args)
        after()

    return both


def test_whoever_has_another_secret_reaches_no_process(pair: Pair) -> None:
    taken: list[Any] = []
    pair.b.streams.serve("echo", taken.append)
    pair.a.told = MayDial("", b"another text of that length..")
    with pytest.raises(NoStreamError, match=r"secret|refused|prove|closed"):
        pair.open()
    assert taken == []
    assert pair.sockets == []  # it was not even given to the agent


def test_what_the_agent_says_against_it_is_remembered(pair: Pair) -> None:
    pair.a.told = MayDial("", why="a connection with TLS cannot be handed from the agent to a process")
    assert "TLS" in pair.a.streams.obstacle(pair.b.address, TIMEOUT)
    assert "TLS" in pair.a.streams.obstacle(pair.b.address, TIMEOUT)
    assert len(pair.a.asked) == 1
    with pytest.raises(NoStreamError, match="TLS"):
        pair.open()


def test_what_goes_by_tls_is_known(pair: Pair) -> None:
    assert not pair.a.streams.encrypted(pair.b.address, TIMEOUT)
    told = MayDial(pair.b.address, why="a connection with TLS cannot be handed over", encrypted=True)
    pair.call(lambda: pair.a.streams.may_dial(told))
    assert pair.a.streams.encrypted(pair.b.address, TIMEOUT)
    assert "TLS" in pair.a.streams.obstacle(pair.b.address, TIMEOUT)


class TlsPair:
    """The same, where messages go by TLS; the agents give each process an end of a socket pair."""

    def __init__(self, pair: Pair) -> None:
        pytest.importorskip("cryptography")
        self.pair = pair
        pair.a.told = MayDial("", why="a connection with TLS cannot be handed over", encrypted=True)
        pair.a.connect = self._connect
        self.shown = ""
        self.pem = lambda pem: pem  # what the agents make of it

    def _connect(self, hello: LinkHello) -> None:
        ours, theirs = socket.socketpair()
        there: Any = message.decode(message.encode(hello))
        self.shown = repr(there)
        there.pem = self.pem(hello.pem)
        self.wire = ours.dup()
        self.pair.sockets.append(self.wire)
        self.pair.b.streams.handed(theirs, there)
        self.pair.a.streams.handed(ours, hello)

    def open(self, purpose: str = "echo") -> Any:
        return self.pair.a.streams.open_either(self.pair.b.address, purpose, TIMEOUT)


@pytest.fixture
def tls(pair: Pair) -> TlsPair:
    return TlsPair(pair)


def test_where_messages_go_by_tls_a_stream_does_too(tls: TlsPair) -> None:
    tls.pair.b.streams.serve_either("echo", echo)  # type: ignore[arg-type]
    with tls.open() as stream:
        assert not isinstance(stream, socket.socket) and stream.gettimeout() is None
        stream.sendall(b"hello")
        assert stream.recv(5) == b"hello"
        assert not tls.pair.a.streams._coming
        assert "PRIVATE KEY" not in tls.shown


def test_who_takes_plain_streams_only_has_none(tls: TlsPair) -> None:
    tls.pair.b.streams.serve("echo", echo)
    with pytest.raises(NoStreamError, match="takes no streams with TLS for 'echo'"):
        tls.open()
    with pytest.raises(NoStreamError, match="cannot be handed over"):
        tls.pair.open()


def test_no_process_with_another_key_is_taken_for_it(tls: TlsPair) -> None:
    from monarch._wire.transport.tls_stream import make_pem

    tls.pair.b.streams.serve_either("echo", echo)  # type: ignore[arg-type]
    tls.pem = lambda pem: make_pem()
    with pytest.raises(NoStreamError, match="certificate"):
        tls.open()


def test_why_the_agent_could_not_connect_is_said(tls: TlsPair) -> None:
    tls.pair.a.connect = None
    with pytest.raises(NoStreamError, match="no certificate there"):
        tls.open()


def test_a_socket_that_the_agent_brings_too_late_is_closed(tls: TlsPair) -> None:
    hellos: list[LinkHello] = []
    tls.pair.a.connect = hellos.append
    with pytest.raises(TimeoutError, match="the connection to"):
        tls.pair.a.streams.open_either(tls.pair.b.address, "echo", 0.2)
    ours, theirs = socket.socketpair()
    tls.pair.call(lambda: tls.pair.a.streams.handed(ours, hellos[0]))
    with theirs:
        assert theirs.recv(1) == b""


def test_without_the_package_that_makes_keys_there_is_none(tls: TlsPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(NoStreamError, match=r"pip install 'pymonarch\[tls\]'"):
        tls.open()


def test_nothing_against_it_is_remembered_as_well(pair: Pair) -> None:
    assert pair.a.streams.obstacle(pair.b.address, TIMEOUT) == ""
    assert pair.a.streams.obstacle(pair.b.address, TIMEOUT) == ""
    assert len(pair.a.asked) == 1


@pytest.mark.parametrize("address", ["unix:/tmp/somewhere/client", "inproc:net.h1/x.0"])
def test_hosts_without_an_address_are_not_asked_about(pair: Pair, address: str) -> None:
    assert "no address" in pair.a.streams.obstacle(address, TIMEOUT)
    with pytest.raises(NoStreamError, match="no address"):
        pair.a.streams.open(address, "echo", TIMEOUT)
    assert pair.a.asked == []


def test_nobody_listens_there(pair: Pair) -> None:
    pair.call(pair.listener.close)
    with pytest.raises(NoStreamError, match="nobody listens"):
        pair.open()


def test_an_agent_that_says_nothing_is_not_waited_for(pair: Pair) -> None:
    pair.a.told = None
    with pytest.raises(TimeoutError, match="agent"):
        pair.open(timeout=0.01)
    assert pair.a.streams._waiting == {}
    assert "did not answer" in pair.a.streams.obstacle(pair.b.address, 0.01)


def test_nor_is_a_process(pair: Pair) -> None:
    pair.agent = lambda sock: None
    with pytest.raises(TimeoutError):
        pair.open(timeout=0.5)


def test_a_connection_that_comes_too_late_is_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    dials: list[Any] = []
    cancelled = threading.Event()
    attempt = SimpleNamespace(cancel=cancelled.set)
    monkeypatch.setattr(streams.tcp, "dial", lambda to, loop, done, **how: (dials.append(done), attempt)[1])
    with pytest.raises(TimeoutError):
        pair.open(timeout=0.1)
    assert cancelled.wait(TIMEOUT)
    ours, theirs = socket.socketpair()
    dials[0](ours)
    with theirs:
        assert theirs.recv(1) == b""
    assert ours.fileno() == -1


@pytest.mark.parametrize(
    "answer",
    [
        frames.PREFIX.pack(1 << 30, 0, 0),
        frames.encode_small(b"\xc1\xc1\xc1", b""),
        frames.encode_small(message.encode(LinkHello(1, "", "", "", "", 0, False)), b""),
        b"",
    ],
    ids=["too long", "no message", "of a link", "closed"],
)
def test_an_answer_that_is_none_opens_nothing(pair: Pair, answer: bytes) -> None:
    def agent(sock: Any) -> None:
        read_frame(sock)
        sock.sendall(answer)
        with contextlib.suppress(OSError):  # whom the answer was enough may have left
            sock.shutdown(socket.SHUT_WR)

    pair.agent = agent
    with pytest.raises(NoStreamError, match="answer"):
        pair.open()


def test_a_refusal_of_the_agent_counts_as_the_process_s(pair: Pair) -> None:
    pair.agent = lambda sock: (read_frame(sock), sock.sendall(frames.encode_small(message.encode(Bye("gone")), b"")))
    with pytest.raises(NoStreamError, match="gone"):
        pair.open()


def test_open_streams_end_with_the_process(pair: Pair) -> None:
    pair.b.streams.serve("echo", echo)
    with pair.open() as sock:
        pair.b.streams.close()
        assert sock.recv(1) == b""


def test_on_one_host_a_pair_of_sockets_is_enough(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Transport:
        def hand_over(self, address: str, sock: socket.socket, data: bytes) -> None:
            given, hello = sock.dup(), message.decode(data)
            pair.loop.call_soon(lambda: pair.b.streams.handed(given, hello))

    monkeypatch.setattr(streams, "UnixTransport", Transport)
    pair.a.transport = Transport()  # type: ignore[assignment]
    pair.a.host = pair.b.host
    pair.b.streams.serve("echo", echo)
    assert pair.a.streams.obstacle(pair.b.address, TIMEOUT) == ""
    with pair.open() as sock:
        sock.sendall(b"near")
        assert sock.recv(4, socket.MSG_WAITALL) == b"near"
    assert pair.a.asked == []
