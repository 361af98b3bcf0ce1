"""PortForwarder: real servers reached through real ports."""

from __future__ import annotations

import os
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, Point, this_host, this_proc
from monarch.job.commands.port_forwarder import PortForwarder
from tests.support.hosts import Hosts
from tests.support.patience import TIMEOUT
from tests.support.tiers import full
from tests.support.users import as_stranger, needs_root
from tests.support.web import served

pytestmark = pytest.mark.procs
ANY = "127.0.0.1:0"


def web(folder: Path) -> AbstractContextManager[str]:
    """Serves the files of a folder; gives the address."""

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

    return served(Files)


@contextmanager
def echo() -> Iterator[int]:
    """Answers each connection with all it got, once that has said it sends no more; gives the port."""

    def serve(one: socket.socket) -> None:
        with one, suppress(OSError):
            parts = []
            while data := one.recv(65536):
                parts.append(data)
            one.sendall(b"".join(parts))

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    one, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(one,), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def forwarder() -> Iterator[Any]:
    actor: Any = this_proc().spawn("forwarder", PortForwarder)
    yield actor
    actor.stop().get(TIMEOUT)


@pytest.fixture
def pair(forwarder: Any) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the client's end and the service's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        [address] = forwarder.forward.call_one(this_proc(), port, this_proc(), ANY).get(TIMEOUT)
        listening.settimeout(TIMEOUT)
        with connect(address) as client:
            service, _ = listening.accept()
            with service:
                service.settimeout(TIMEOUT)
                yield client, service


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def fetch(address: str, name: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}/{name}", timeout=TIMEOUT) as answer:
        found: bytes = answer.read()
        return found


def all_of(one: socket.socket) -> bytes:
    """Returns what comes until its end."""
    parts = []
    while piece := one.recv(65536):
        parts.append(piece)
    return b"".join(parts)


def exchange(address: str, data: bytes) -> bytes:
    with connect(address) as one:
        sending = threading.Thread(target=lambda: (one.sendall(data), one.shutdown(socket.SHUT_WR)))
        sending.start()
        found = all_of(one)
        sending.join()
        return found


def break_off(one: socket.socket) -> None:
    """Closes it as the kernel does for a process that was killed with unread data: with a reset."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def own_address(port: int) -> str:
    """Returns an address of this machine that no other program uses."""
    number = os.getpid()
    return f"127.{80 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}:{port}"


def test_http_from_another_host(hosts: Hosts, forwarder: Any, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"x" * 3_000_000)
    procs = hosts.attach(hosts.start()).spawn_procs().slice(hosts=0)
    with web(tmp_path) as service, echo() as second:
        port = int(service.rpartition(":")[2])
        [address] = forwarder.forward.call_one(procs, port, this_proc(), ANY).get(TIMEOUT)
        assert fetch(address, "page") == b"x" * 3_000_000
        # The same once more, side by side, and another service through the same actor.
        [other] = forwarder.forward.call_one(procs, second, this_proc(), "localhost:0").get(TIMEOUT)
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(fetch(address, "page")[:1])) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert exchange(other, b"half closed") == b"half closed"
        for thread in threads:
            thread.join()
        assert found == [b"x"] * 4


@needs_root
def test_other_users_are_refused_unless_asked_otherwise(forwarder: Any, caplog: pytest.LogCaptureFixture) -> None:
    with echo() as port:
        [address] = forwarder.forward.call_one(this_proc(), port, this_proc(), ANY).get(TIMEOUT)
        [open_to_all] = forwarder.forward.call_one(this_proc(), port, this_proc(), ANY, any_user=True).get(TIMEOUT)

        def visit(where: str) -> bytes:
            with connect(where) as sock:
                try:
                    sock.sendall(b"stranger")
                    sock.shutdown(socket.SHUT_WR)
                    return sock.recv(100)
                except OSError:
                    return b"refused"

        with caplog.at_level("WARNING", "monarch"):
            assert {as_stranger(lambda: visit(address)) for _ in range(3)} <= {b"", b"refused"}
            assert exchange(address, b"owner") == b"owner"
        assert as_stranger(lambda: visit(open_to_all)) == b"stranger"
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(said) == 1, "once a minute"
    assert f"{address} to port {port} of rank 0: refused 1 connection of other users or machines (any_user" in said[0]


def test_each_rank_listens_and_reaches_the_service_of_the_same_rank(forwarder: Any) -> None:
    services = this_host().spawn_procs({"gpus": 2})
    entrances = this_host().spawn_procs({"gpus": 2})
    with echo() as first, echo() as second:
        addresses = forwarder.forward.call_one(
            services,
            lambda point: (first, second)[point["gpus"]],
            entrances,
            lambda point: own_address(0) if point["gpus"] else ANY,
        ).get(TIMEOUT)
        assert [address.rpartition(":")[0] for address in addresses] == ["127.0.0.1", own_address(0)[:-2]]
        assert [exchange(one, one.encode()) for one in addresses] == [one.encode() for one in addresses]
    forwarder.stop().get(TIMEOUT)  # first: it would hear that they have ended
    services.stop().get(TIMEOUT)
    entrances.stop().get(TIMEOUT)


@full
def test_a_slow_reader_holds_up_the_sender_and_loses_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    big = bytes(range(256)) * 250_000  # 64 MB, more than sockets hold
    for sender, reader in (pair, pair[::-1]):
        sending = threading.Thread(target=sender.sendall, args=(big,))
        sending.start()
        assert reader.recv(1) == big[:1]
        assert sending.is_alive()  # nobody reads
        got = bytearray(big[:1])
        while len(got) < len(big):
            got += reader.recv(1 << 20)
        assert got == big
        sending.join()


@full
def test_half_closed_connections_stay_half_closed(pair: tuple[socket.socket, socket.socket], forwarder: Any) -> None:
    client, service = pair
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert all_of(service) == b"question"
    service.sendall(b"answer")
    assert client.recv(6) == b"answer"  # after the end of the other direction
    service.sendall(b", more")
    service.close()
    assert all_of(client) == b", more"
    # And the service first.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        [address] = forwarder.forward.call_one(this_proc(), port, this_proc(), ANY).get(TIMEOUT)
        with connect(address) as visitor:
            there, _ = listening.accept()
            with there:
                there.sendall(b"all")
                there.shutdown(socket.SHUT_WR)
                assert all_of(visitor) == b"all"
                visitor.sendall(b"still")
                assert there.recv(5) == b"still"
                visitor.close()
                assert there.recv(1) == b""


@full
@pytest.mark.parametrize("end", [0, 1], ids=["client", "service"])
@pytest.mark.parametrize("before", ["open", "half closed", "unread"])
def test_an_end_that_breaks_off_breaks_off_the_other(
    pair: tuple[socket.socket, socket.socket], end: int, before: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = pair[end], pair[1 - end]
    broken.sendall(b"begun")
    assert other.recv(5) == b"begun"
    if before == "half closed":
        other.shutdown(socket.SHUT_WR)
        assert broken.recv(1) == b""
    if before == "unread":  # it is the reason for the reset then, not asked for
        other.sendall(b"x" * 100_000)
        assert broken.recv(1) == b"x"
        broken.close()
    else:
        break_off(broken)
    with pytest.raises(ConnectionResetError):
        while other.recv(1 << 20):
            pass
    assert not caplog.records, "nobody's fault"


@full
def test_nobody_listens_there(forwarder: Any, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    with caplog.at_level("WARNING", "monarch"):
        [address] = forwarder.forward.call_one(this_proc(), closed, this_proc(), ANY).get(TIMEOUT)
        with connect(address) as client, pytest.raises(ConnectionResetError):
            client.recv(1)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"forwarding {address} to port {closed} of rank 0: [Errno 111]" in said


def raises(point: Point) -> str:
    raise KeyError("no address for it")


def test_what_is_wrong_is_told_and_no_rank_listens(forwarder: Any) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        good = own_address(taken.getsockname()[1])
        for port, address, error, text in [
            (80, "localhost", ValueError, 'src_address is "address:port"'),
            (80, ":80", ValueError, 'src_address is "address:port"'),
            (80, "127.0.0.1:65536", ValueError, "got '127.0.0.1:65536'"),
            (80, 8080, ValueError, "got 8080"),
            (80, raises, KeyError, "no address for it"),
            (0, good, ValueError, "from 1 to 65535; got 0"),
            ("80", good, ValueError, "got '80'"),
            (lambda point: 80 if point.rank else None, good, ValueError, "got None"),
            (80, lambda point: busy if point.rank else good, OSError, "ddress already in use"),
            (
                80,
                lambda point: "192.0.2.1:1" if point.rank else good,
                OSError,
                "assign requested address|could not bind",
            ),
        ]:
            with pytest.raises(ActorError, match=text) as raised:
                forwarder.forward.call_one(procs, port, procs, address).get(TIMEOUT)
            innermost: Any = raised.value
            while isinstance(innermost, ActorError):
                innermost = innermost.exception
            assert isinstance(innermost, error)
            with pytest.raises(ConnectionRefusedError):
                connect(good)
    with pytest.raises(ActorError, match="must have the same shape") as raised:
        forwarder.forward.call_one(this_proc(), 80, procs, ANY).get(TIMEOUT)
    assert isinstance(raised.value.exception, ValueError)
    procs.stop().get(TIMEOUT)


def test_stopping_closes_the_ports_and_may_be_done_twice() -> None:
    actor: Any = this_proc().spawn("forwarder", PortForwarder)
    with echo() as port:
        addresses = [actor.forward.call_one(this_proc(), port, this_proc(), ANY).get(TIMEOUT)[0] for _ in range(3)]
        with connect(addresses[0]) as client:
            client.sendall(b"still open")
            actor.stop().get(TIMEOUT)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        actor.stop().get(TIMEOUT)
        for address in addresses:
            with pytest.raises(ConnectionRefusedError):
                connect(address)
