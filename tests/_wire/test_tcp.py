"""Listening and dialling between hosts, over loopback and Unix sockets."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import stat
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch import _wire
from monarch._linux.descriptors import for_unknown
from monarch._runtime import log_thread
from monarch._runtime.loop import start_thread
from monarch._wire import auth, frame
from monarch._wire.auth import Acceptor, Dialler, Secret
from monarch._wire.frame import Frame
from monarch._wire.host_address import HostAddress, Tcp, parse, parse_dial
from monarch._wire.transport import dialling, tcp
from monarch._wire.transport.base import DialFailed
from monarch._wire.transport.stream import StreamConnection
from monarch._wire.transport.tcp import Accepted, TcpListener, dial
from monarch.config import settings
from monarch.testing.clock import VirtualClock
from tests.support.loops import RunningLoop
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start
from tests.support.users import STRANGER, needs_root, relay

SECRET = Secret("a long and random text")
HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text())
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


class Full:
    """A listening socket of a process that has no descriptors left."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked = threading.Event()

    def fileno(self) -> int:
        return self.sock.fileno()

    def getsockname(self) -> Any:
        return self.sock.getsockname()

    def accept(self) -> Any:
        self.asked.set()
        raise OSError(errno.EMFILE, "Too many open files")


class Host(RunningLoop):
    """An I/O thread, and what has come to its listeners."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__(clock)
        self.accepted: list[Accepted] = []
        self.come = threading.Semaphore(0)
        self.listeners: list[TcpListener] = []
        self.sockets: list[Any] = []

    def listen(self, text: str = "tcp://127.0.0.1:0", secret: Secret | None = SECRET, **options: Any) -> TcpListener:
        listener = self.call(lambda: TcpListener(parse(text), self.loop, self.accept, secret=secret, **options))
        self.listeners.append(listener)
        return listener

    def accept(self, accepted: Accepted) -> None:
        assert self.loop.in_loop()
        self.accepted.append(accepted)
        self.sockets.append(accepted.sock)
        self.come.release()

    def wait_accepted(self) -> Accepted:
        assert self.come.acquire(timeout=TIMEOUT)
        return self.accepted[-1]

    def dial(self, to: str | HostAddress, secret: Secret | None = SECRET, **options: Any) -> Any:
        """The socket, or the DialFailed."""
        come = threading.Event()
        outcomes: list[Any] = []

        def done(outcome: Any) -> None:
            outcomes.append(outcome)
            come.set()

        address = parse_dial(to) if isinstance(to, str) else to
        options.setdefault("start_thread", start_thread)
        self.call(lambda: dial(address, self.loop, done, secret=secret, **options))
        assert come.wait(TIMEOUT)
        self.call(lambda: None)
        assert len(outcomes) == 1
        if not isinstance(outcomes[0], DialFailed):
            self.sockets.append(outcomes[0])
        return outcomes[0]

    def close(self) -> None:
        for listener in self.listeners:
            self.call(listener.close)
        for sock in self.sockets:
            sock.close()
        assert self.loop.statistics()["descriptors"] == 0
        self.end()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def slow_host(clock: VirtualClock) -> Iterator[Host]:
    """In the test's own time."""
    host = Host(clock)
    yield host
    host.close()


def port_of(listener: TcpListener) -> int:
    return int(listener.prefix.rpartition(":")[2])


def exchange(one: Any, other: Any) -> None:
    for sender, receiver in ((one, other), (other, one)):
        receiver.settimeout(TIMEOUT)
        sender.sendall(b"ping")
        assert receiver.recv(4) == b"ping"


# Good connections.


@pytest.mark.parametrize("secret", [SECRET, None])
def test_two_hosts_meet(host: Host, secret: Secret | None) -> None:
    listener = host.listen(secret=secret)
    sock = host.dial(listener.prefix, secret)
    accepted = host.wait_accepted()
    assert accepted.reached == listener.prefix
    assert accepted.peer == f"127.0.0.1:{sock.getsockname()[1]}"
    exchange(sock, accepted.sock)
    assert listener.statistics() == {"handshake": 0, "failed": 0}


@needs_ipv6
def test_two_hosts_meet_over_ipv6(host: Host) -> None:
    listener = host.listen("tcp://[::1]:0")
    assert listener.prefix == f"tcp://[::1]:{port_of(listener)}"
    sock = host.dial(listener.prefix)
    accepted = host.wait_accepted()
    assert accepted.reached == listener.prefix
    assert accepted.peer == f"[::1]:{sock.getsockname()[1]}"
    exchange(sock, accepted.sock)


@pytest.mark.parametrize("via", ["127.0.0.1", "localhost", pytest.param("[::1]", marks=needs_ipv6)])
def test_every_address_is_listened_at(host: Host, via: str) -> None:
    """And what the other side reached is known, without IPv4 dressed up as IPv6."""
    listener = host.listen("tcp://*:0")
    assert not listener.prefix.startswith(("tcp://*", "tcp://127.0.1.1", "tcp://[::]"))
    sock = host.dial(f"tcp://{via}:{port_of(listener)}")
    accepted = host.wait_accepted()
    exchange(sock, accepted.sock)
    assert accepted.reached.removesuffix(f":{port_of(listener)}") in ("tcp://127.0.0.1", "tcp://[::1]")


def test_the_other_address_of_a_name_is_tried_too(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = host.listen()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    good = ("127.0.0.1", port_of(listener))
    monkeypatch.setattr(dialling, "_resolve", lambda place: [(socket.AF_INET, nobody), (socket.AF_INET, good)])
    host.dial("tcp://some-name:5")
    host.wait_accepted()


def test_frames_go_over_the_socket_as_it_comes(host: Host) -> None:
    class Owner:
        def __init__(self) -> None:
            self.heads: list[bytes] = []
            self.come = threading.Semaphore(0)

        def connection_received(self, connection: Any, frames: list[Frame]) -> None:
            self.heads += [bytes(one.head) for one in frames]
            for _ in frames:
                self.come.release()

        def connection_lost(self, connection: Any, reason: str) -> None:
            self.come.release()

    here, there = Owner(), Owner()
    dialled = StreamConnection(host.dial(host.listen().prefix), host.loop, here, limit=1 << 20)
    accepted = StreamConnection(host.wait_accepted().sock, host.loop, there, limit=1 << 20)  # type: ignore[arg-type]
    host.call(dialled.start)
    host.call(accepted.start)
    dialled.send(frame.encode(b"over there"))
    accepted.send(frame.encode(b"over here"))
    for owner in (here, there):
        assert owner.come.acquire(timeout=TIMEOUT)
    assert (here.heads, there.heads) == ([b"over here"], [b"over there"])
    dialled.close("enough")
    assert there.come.acquire(timeout=TIMEOUT)
    host.call(lambda: None)


def test_connections_are_tuned(host: Host) -> None:
    before = settings.LAYERS.runtime()
    settings.LAYERS.set_runtime({**before, "channel_tcp_keepalive_idle": 17.0, "channel_tcp_congestion": "reno"})
    sock = host.dial(host.listen().prefix)
    for one in (sock, host.wait_accepted().sock):
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 17
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_a_congestion_control_that_is_not_there_is_said_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "channel_tcp_congestion": "no-such"})
    listener = host.listen()
    host.dial(listener.prefix)
    host.dial(listener.prefix)
    assert messages(caplog) == [
        "channel_tcp_congestion='no-such' cannot be used, the system's is: No such file or directory"
    ]


# Places to listen at.


def test_a_descriptor_is_adopted(host: Host) -> None:
    given = socket.create_server(("127.0.0.1", 0))
    given.set_inheritable(True)
    port = given.getsockname()[1]
    fd = given.detach()
    listener = host.listen(f"tcp://127.0.0.1:fd{fd}")
    assert listener.prefix == f"tcp://127.0.0.1:{port}"
    assert not os.get_inheritable(fd)
    host.dial(listener.prefix)
    host.wait_accepted()


def test_a_descriptor_that_is_only_bound_is_listened_at(host: Host) -> None:
    given = socket.socket()
    given.bind(("127.0.0.1", 0))
    port = given.getsockname()[1]
    listener = host.listen(f"me@tcp://127.0.0.1:fd{given.detach()}")
    assert listener.prefix == f"tcp://127.0.0.1:{port}"
    host.dial(listener.prefix)
    host.wait_accepted()


def test_a_descriptor_that_cannot_listen_is_left_alone(host: Host) -> None:
    with socket.socket() as given:
        with pytest.raises(OSError, match=f"descriptor {given.fileno()} is a socket without a port; call bind"):
            host.listen(f"tcp://127.0.0.1:fd{given.fileno()}")
        assert given.getsockname()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as given:
        with pytest.raises(OSError, match=f"descriptor {given.fileno()} is a socket that cannot listen"):
            host.listen(f"tcp://127.0.0.1:fd{given.fileno()}")
        assert given.getpeername()
    with socket.socket(type=socket.SOCK_DGRAM) as given, pytest.raises(OSError, match="is not a stream socket"):
        host.listen(f"tcp://127.0.0.1:fd{given.fileno()}")
    with open("/dev/null") as file, pytest.raises(OSError, match="is not an inherited socket"):
        host.listen(f"tcp://127.0.0.1:fd{file.fileno()}")
    with pytest.raises(OSError, match="descriptor 99999 is not an inherited socket"):
        host.listen("tcp://127.0.0.1:fd99999")


def test_a_unix_socket_has_a_private_file(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "w1"
    listener = host.listen(f"ipc://{path}")
    assert listener.prefix == f"ipc://{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sock = host.dial(listener.prefix)
    accepted = host.wait_accepted()
    assert (accepted.peer, accepted.reached) == ("a process of this machine", listener.prefix)
    exchange(sock, accepted.sock)
    host.call(listener.close)
    assert not path.exists()


def test_an_abstract_socket_has_none(host: Host) -> None:
    name = f"ipc://@monarch-test-{os.getpid()}"
    listener = host.listen(name)
    assert listener.prefix == name
    exchange(host.dial(name), host.wait_accepted().sock)
    assert host.accepted[0].reached == name


def test_a_stale_socket_file_is_replaced_and_one_in_use_is_not(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "w1"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    host.listen(f"ipc://{path}")
    with pytest.raises(OSError, match="another process listens there") as caught:
        host.listen(f"ipc://{path}")
    assert caught.value.errno == errno.EADDRINUSE
    host.dial(f"ipc://{path}")


def test_a_file_that_is_no_socket_is_kept(host: Host, tmp_path: Path) -> None:
    (tmp_path / "w1").write_text("precious")
    with pytest.raises(OSError, match="there is a file that is not a socket"):
        host.listen(f"ipc://{tmp_path}/w1")
    assert (tmp_path / "w1").read_text() == "precious"


def test_the_file_of_a_successor_is_kept(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "w1"
    first = host.listen(f"ipc://{path}")
    keep = os.open(path, os.O_PATH)  # so that the inode is not used again
    path.unlink()
    host.listen(f"ipc://{path}")
    host.call(first.close)
    os.close(keep)
    assert path.exists()


def test_processes_of_another_user_are_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"ipc://@monarch-test-{os.getpid()}"
    listener = host.listen(name)
    host.dial(name)
    host.wait_accepted()
    for module in (tcp, dialling):
        monkeypatch.setattr(module, "same_user", lambda sock: False)
    failure = host.dial(name)
    assert failure.final
    assert str(failure) == f"no connection to {name}: it belongs to another user"
    host.call(listener._accepting.look)
    assert f"{name}: refused a process of this machine: it belongs to another user" in messages(caplog)


@needs_root
def test_another_user_who_passes_on_what_two_hosts_say_is_refused(host: Host) -> None:
    """He knows no secret, but has the port that is dialled; once both had trusted each other, he would speak for them."""
    listener = host.listen()
    with relay(port_of(listener)) as port:
        failure = host.dial(f"tcp://127.0.0.1:{port}")
    assert isinstance(failure, DialFailed) and failure.final
    whose = f"it belongs to user {STRANGER}, who may be passing on what others say"
    assert f"no connection to tcp://127.0.0.1:{port}: {whose}" in str(failure)
    host.call(lambda: None)
    assert host.accepted == []


@needs_root
def test_another_user_of_this_machine_is_refused_also_if_he_dials(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """The other half of a relay, whose first is on another machine."""
    listener = host.listen()
    challenge = Dialler(SECRET)
    with relay(port_of(listener)) as port, socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
        sock.sendall(challenge.start())
        while not challenge.done:
            data = sock.recv(challenge.wanted, socket.MSG_WAITALL)
            assert data
            sock.sendall(challenge.received(data))
        assert sock.recv(1) == b""
    host.call(lambda: None)
    assert host.accepted == []
    assert any(f"it belongs to user {STRANGER}, who may be passing on" in said for said in messages(caplog))


def test_an_address_in_use_is_named(host: Host) -> None:
    listener = host.listen()
    with pytest.raises(OSError, match=f"cannot listen at {listener.prefix}: Address already in use"):
        host.listen(listener.prefix)


def test_certificates_that_are_wanted_have_to_be_there(host: Host) -> None:
    with pytest.raises(ValueError, match=r"it wants certificates \(tls://\); give ca, certificate and private_key"):
        host.listen("tls://127.0.0.1:0")
    failure = host.dial("tls://127.0.0.1:1")
    assert failure.final
    assert "it wants certificates" in str(failure)


# Refusals.


def test_nobody_listens(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    failure = host.dial(f"tcp://127.0.0.1:{port}")
    assert (failure.refused, failure.final) == (True, False)
    assert str(failure) == (
        f"no connection to tcp://127.0.0.1:{port}: Connection refused "
        f"(nobody listens there: is the worker running, and is the port right?)"
    )


def test_no_socket_file(host: Host, tmp_path: Path) -> None:
    failure = host.dial(f"ipc://{tmp_path}/w1")
    assert (failure.refused, failure.final) == (True, False)
    assert "No such file" in str(failure)


def test_a_name_that_is_not_known(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(place: Tcp) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(dialling, "_resolve", unknown)
    failure = host.dial("tcp://no-such:5")
    assert (failure.refused, failure.final) == (False, False)
    assert "the name 'no-such' is not known: Name or service not known (is it spelt right" in str(failure)
    assert failure.unexpected and not failure.final


def test_a_name_service_that_fails_for_the_moment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: Tcp) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(dialling, "_resolve", fail)
    failure = host.dial("tcp://node1:1")
    assert "the name 'node1' could not be looked up: Temporary failure" in str(failure)
    assert failure.unexpected and not failure.final


def test_no_thread_for_the_name_service(host: Host) -> None:
    def no_thread(run: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    assert "cannot be looked up: can't start new thread" in str(host.dial("tcp://localhost:5", start_thread=no_thread))


def test_a_name_service_that_does_not_answer(slow_host: Host, clock: VirtualClock) -> None:
    """Ignores it: what it says later is nobody's."""
    looks: list[Callable[[], None]] = []
    outcomes: list[Any] = []
    slow_host.call(
        lambda: dial(
            parse_dial("tcp://localhost:1"),
            slow_host.loop,
            outcomes.append,
            secret=None,
            start_thread=lambda run, name: looks.append(run),
        )
    )
    slow_host.call(lambda: None)
    clock.advance(dialling.RESOLVE_DEADLINE)
    assert [str(one) for one in outcomes] == [
        "no connection to tcp://localhost:1: the name service did not answer within 10 s"
    ]
    looks[0]()
    clock.advance(0)
    assert len(outcomes) == 1


def test_a_host_that_does_not_answer(slow_host: Host, clock: VirtualClock) -> None:
    """A full backlog: the kernel drops what comes."""
    with socket.socket() as full, socket.socket() as waits:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waits.connect(full.getsockname())
        outcomes: list[Any] = []
        address = parse_dial(f"tcp://127.0.0.1:{full.getsockname()[1]}")
        dials = [
            slow_host.call(
                lambda: dial(address, slow_host.loop, outcomes.append, secret=None, start_thread=start_thread)
            )
            for _ in range(2)
        ]
        slow_host.call(lambda: None)
        slow_host.call(dials[1].cancel)
        clock.advance(dialling.CONNECT_DEADLINE)
    assert [(one.refused, one.final) for one in outcomes] == [(False, False)]
    assert "no answer within 5 s: is the host up, and does a firewall let the port through?" in str(outcomes[0])


def test_another_secret_is_refused_on_both_sides(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    listener = host.listen()
    failure = host.dial(listener.prefix, Secret("some other words"))
    assert (failure.refused, failure.final) == (True, True)
    assert "another secret" in str(failure)
    failure = host.dial(listener.prefix, None)
    assert failure.final
    assert "the other side wants the secret of the job" in str(failure)
    host.call(lambda: None)
    first, second = messages(caplog)
    assert first.startswith(f"{listener.prefix}: refused 127.0.0.1:")
    assert "another secret" in first
    assert "has no secret" in second
    assert "some other words" not in caplog.text + str(failure)
    assert "long and random" not in caplog.text
    assert host.accepted == []
    host.dial(listener.prefix)
    host.wait_accepted()


def test_something_else_listens(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            with server.accept()[0] as sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        failure = host.dial(f"tcp://127.0.0.1:{port}")
        thread.join(TIMEOUT)
    assert (failure.refused, failure.final) == (True, True)
    assert "not a monarch host: it speaks HTTP" in str(failure)


def test_a_recorded_conversation_opens_nothing(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    listener = host.listen()
    said: list[bytes] = []
    machine = Dialler(SECRET)
    with socket.create_connection(("127.0.0.1", port_of(listener))) as sock:
        said.append(machine.start())
        while not machine.done:
            sock.sendall(said[-1])
            data = b""
            while len(data) < machine.wanted:
                data += sock.recv(machine.wanted - len(data))
            said.append(machine.received(data))
    host.wait_accepted()
    with socket.create_connection(("127.0.0.1", port_of(listener))) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(b"".join(said))
        answer = b""
        while more := sock.recv(1000):
            answer += more
    assert len(answer) == auth.HELLO_BYTES + 1
    assert answer[-1] == auth.Status.WRONG_SECRET
    host.call(lambda: None)
    assert len(host.accepted) == 1
    assert "another secret" in messages(caplog)[0]


@pytest.mark.parametrize("speaks", [True, False])
def test_another_service_at_the_port_is_told_from_a_worker_that_is_yet_to_start(host: Host, speaks: bool) -> None:
    """One that takes connections and closes them, or answers what no host says."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" if speaks else b"")
                taken.shutdown(socket.SHUT_WR)
                taken.recv(1000)

        serving = start(serve)
        failure = host.dial(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        join(serving)
    assert failure.unexpected and failure.final == speaks
    assert ("it speaks SSH" if speaks else "closed the connection") in str(failure)


def test_a_cancelled_dial_says_nothing(host: Host) -> None:
    outcomes: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_dial(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        one = host.call(lambda: dial(address, host.loop, outcomes.append, secret=None, start_thread=start_thread))
        far, _ = silent.accept()
        far.settimeout(TIMEOUT)
        assert far.recv(1) == auth.MAGIC[:1]  # it is in its handshake
        host.call(one.cancel)
        while far.recv(100):
            pass
        far.close()
    host.call(lambda: None)
    assert outcomes == []


def test_what_can_only_be_listened_at_is_not_dialled(host: Host) -> None:
    with pytest.raises(ValueError, match="it is a place to listen at"):
        host.dial(parse("tcp://*:5"))


# Strangers.


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the prefix that a client in this process puts before what is logged."""
    assert log_thread.flush(5)
    return [one.getMessage().removeprefix("[actor=<root>] ") for one in caplog.records if one.name == "monarch"]


def fail_once(listener: TcpListener) -> None:
    with socket.create_connection(("127.0.0.1", port_of(listener))) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(b"GET / HTTP/1.1\r\n")
        try:
            while sock.recv(100):
                pass
        except ConnectionResetError:
            pass


def test_few_lines_are_logged_of_many_failures(
    slow_host: Host, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = slow_host.listen()
    for _ in range(12):
        fail_once(listener)
    slow_host.call(lambda: None)
    lines = messages(caplog)
    assert len(lines) == 5
    for line in lines:
        assert line.startswith(f"{listener.prefix}: refused 127.0.0.1:")
        assert line.endswith("the other side is not a monarch host: it speaks HTTP")
    clock.advance(10.0)
    assert messages(caplog)[5:] == ["refused 7 more connections in 10 seconds"]
    fail_once(listener)
    slow_host.call(lambda: None)
    clock.advance(10.0)
    assert len(messages(caplog)) == 7
    assert listener.statistics()["failed"] == 13


def test_beyond_the_places_one_in_handshake_gives_way(
    slow_host: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "IN_HANDSHAKE", 16)
    listener = slow_host.listen()
    silent = []
    for count in range(16 + 3):
        silent.append(socket.create_connection(("127.0.0.1", port_of(listener))))
        slow_host.until(lambda count=count: sum(listener.statistics().values()) == count + 1)  # type: ignore[misc]
    assert slow_host.call(listener.statistics) == {"handshake": 16, "failed": 3}
    assert "too many connections were in their handshake" in messages(caplog)[0]
    slow_host.dial(listener.prefix)  # a good one is served meanwhile
    slow_host.wait_accepted()
    for sock in silent:
        sock.close()


def test_an_honest_host_far_away_gets_in_among_many_strangers(slow_host: Host) -> None:
    """A thousand strangers a second, and 100 ms from host to host and back: a hundred of them come between one message of
    the handshake and the next. All come from one address, so only what the honest host has said tells it from them."""
    listener = slow_host.listen()
    strangers: list[socket.socket] = []

    def strangers_come(count: int) -> None:
        for _ in range(count):
            before = sum(slow_host.call(listener.statistics).values())
            strangers.append(socket.create_connection(("127.0.0.1", port_of(listener))))
            slow_host.until(lambda before=before: sum(listener.statistics().values()) == before + 1)  # type: ignore[misc]

    strangers_come(for_unknown(tcp.IN_HANDSHAKE))
    for served in range(1, 4):
        challenge = Dialler(SECRET)
        with socket.create_connection(("127.0.0.1", port_of(listener))) as sock:
            sock.settimeout(TIMEOUT)
            sock.sendall(challenge.start())
            while not challenge.done:
                strangers_come(100)
                data = sock.recv(challenge.wanted, socket.MSG_WAITALL)
                assert len(data) == challenge.wanted, "the honest host had to give way"
                sock.sendall(challenge.received(data))
            slow_host.until(lambda served=served: len(slow_host.accepted) == served)  # type: ignore[misc]
    for stranger in strangers:
        stranger.close()


def test_silent_strangers_are_given_up(slow_host: Host, clock: VirtualClock) -> None:
    listener = slow_host.listen()
    silent = [socket.create_connection(("127.0.0.1", port_of(listener))) for _ in range(10)]
    slow_host.until(lambda: listener.statistics()["handshake"] == 10)
    clock.advance(5.0)
    assert slow_host.call(listener.statistics)["handshake"] == 0
    for sock in silent:
        sock.settimeout(TIMEOUT)
        assert sock.recv(1) == b""
        sock.close()


def test_without_descriptors_it_accepts_later(
    slow_host: Host, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = slow_host.listen()
    silent = socket.create_connection(("127.0.0.1", port_of(listener)))
    slow_host.until(lambda: listener.statistics()["handshake"] == 1)
    full = Full(listener._accepting._sock)
    slow_host.call(lambda: setattr(listener._accepting, "_sock", full))
    with socket.create_connection(("127.0.0.1", port_of(listener))):
        assert full.asked.wait(TIMEOUT)
        slow_host.until(lambda: listener.statistics()["handshake"] == 0)  # one of them gives its descriptor back
        assert slow_host.loop.statistics()["descriptors"] == 0, "the kernel would tell of it again and again"
        slow_host.call(lambda: setattr(listener._accepting, "_sock", full.sock))
        clock.advance(1.0)
        slow_host.until(lambda: listener.statistics()["handshake"] == 1)
    assert "connections have to wait at 127.0.0.1:" in messages(caplog)[0]
    assert "Too many open files: this process may have" in messages(caplog)[0]
    silent.close()


def test_ten_thousand_random_strangers_reach_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No decoder, no memory, and the host goes on serving."""
    caplog.set_level(logging.ERROR)  # the lines are tested elsewhere; caplog keeps them
    rng = random.Random(11)
    listener = host.listen()
    reached = []
    monkeypatch.setattr(_wire.frame.Decoder, "__init__", lambda *args: reached.append(args))
    where = ("127.0.0.1", port_of(listener))

    def play(count: int) -> None:
        for _ in range(count):
            with socket.create_connection(where) as sock:
                begin = rng.choice((b"", auth.MAGIC, Dialler(SECRET).start(), Acceptor(SECRET)._hello, b"\x94\x32"))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT
                try:
                    sock.sendall(begin + rng.randbytes(rng.choice((0, 1, 40, 100, 4000))))
                    if rng.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(1000):
                            pass
                except OSError:
                    pass

    play(500)
    host.call(lambda: None)
    tracemalloc.start()
    try:
        play(9_500)
        host.until(lambda: not listener.statistics()["handshake"])
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 8_000_000  # mostly timers of 5 s that were cancelled: the loop forgets those when they are many
    assert (reached, host.accepted) == ([], [])
    host.dial(listener.prefix)
    host.wait_accepted()


def test_a_listener_that_is_closed_lets_go_of_everything(host: Host) -> None:
    listener = host.listen()
    with socket.create_connection(("127.0.0.1", port_of(listener))) as silent:
        host.until(lambda: listener.statistics()["handshake"] == 1)
        host.call(listener.close)
        silent.settimeout(TIMEOUT)
        assert silent.recv(1) == b""
    host.call(listener.close)
    assert repr(listener) == f"<TcpListener {listener.prefix} (0 in handshake, closed)>"
    assert host.dial(listener.prefix).refused
