"""PortForwarder: real servers reached through real ports."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, Point, this_host, this_proc
from monarch.job.commands.port_forwarder import PortForwarder
from tests.support.hosts import Hosts
from tests.support.tiers import full
from tests.support.users import as_stranger, needs_root
from tests.support.web import served

pytestmark = pytest.mark.procs
TIMEOUT = 60


def web(folder: Path) -> AbstractContextManager[str]:
    """Serves the files of a folder; gives the address."""

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

    return served(Files)


@contextmanager
def echo() -> Iterator[str]:
    """Answers each connection with all it got, once that has said it sends no more."""

    def serve(one: socket.socket) -> None:
        with one:
            parts = []
            try:
                while data := one.recv(65536):
                    parts.append(data)
                one.sendall(b"".join(parts))
            except OSError:
                pass

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
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def forwarder() -> Iterator[Any]:
    actor: Any = this_proc().spawn("forwarder", PortForwarder)
    yield actor
    actor.stop().get(TIMEOUT)


def fetch(port: int, name: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=TIMEOUT) as answer:
        found: bytes = answer.read()
        return found


def exchange(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as one:
        sending = threading.Thread(target=lambda: (one.sendall(data), one.shutdown(socket.SHUT_WR)))
        sending.start()
        parts = []
        while piece := one.recv(65536):
            parts.append(piece)
        sending.join()
        return b"".join(parts)


def test_http_from_another_host(hosts: Hosts, forwarder: Any, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"x" * 3_000_000)
    procs = hosts.attach(hosts.start()).spawn_procs().slice(hosts=0)
    with web(tmp_path) as address, echo() as second:
        [port] = forwarder.forward.call_one(this_proc(), 0, procs, address).get(TIMEOUT)
        assert fetch(port, "page") == b"x" * 3_000_000
        # The same once more, side by side, and another service through the same actor.
        [other] = forwarder.forward.call_one(this_proc(), 0, procs, second).get(TIMEOUT)
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(fetch(port, "page")[:1])) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert exchange(other, b"half closed") == b"half closed"
        for thread in threads:
            thread.join()
        assert found == [b"x"] * 4


@needs_root
def test_other_users_are_refused_unless_asked_otherwise(forwarder: Any, caplog: pytest.LogCaptureFixture) -> None:
    with echo() as address:
        [port] = forwarder.forward.call_one(this_proc(), 0, this_proc(), address).get(TIMEOUT)
        [open_to_all] = forwarder.forward.call_one(this_proc(), 0, this_proc(), address, any_user=True).get(TIMEOUT)

        def visit(number: int) -> bytes:
            with socket.socket() as sock:
                sock.connect(("127.0.0.1", number))
                try:
                    sock.sendall(b"stranger")
                    sock.shutdown(socket.SHUT_WR)
                    return sock.recv(100)
                except OSError:
                    return b"refused"

        with caplog.at_level("WARNING", "monarch"):
            assert {as_stranger(lambda: visit(port)) for _ in range(3)} <= {b"", b"refused"}
            assert exchange(port, b"owner") == b"owner"
        assert as_stranger(lambda: visit(open_to_all)) == b"stranger"
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(said) == 1, "once a minute"
    assert f"port {port} to {address}: refused 1 connection of other users' programs (any_user=True lets" in said[0]


def test_each_rank_has_its_port_and_may_share_an_address(forwarder: Any) -> None:
    sources = this_host().spawn_procs({"gpus": 2})
    targets = this_host().spawn_procs({"gpus": 2})
    with echo() as address:

        def address_of(point: Point) -> str:
            assert list(point) == ["gpus"]
            return address

        ports = forwarder.forward.call_one(targets, lambda point: 0, sources, address_of).get(TIMEOUT)
        assert len(set(ports)) == 2
        assert [exchange(port, b"data %d" % port) for port in ports] == [b"data %d" % port for port in ports]
    forwarder.stop().get(TIMEOUT)  # first: it would hear that they have ended
    sources.stop().get(TIMEOUT)
    targets.stop().get(TIMEOUT)


@full
def test_a_slow_reader_holds_up_the_sender_and_loses_nothing(forwarder: Any) -> None:
    source = this_host().spawn_procs()
    big = bytes(range(256)) * 250_000  # 64 MB, more than sockets hold
    with socket.create_server(("127.0.0.1", 0)) as service:
        [port] = forwarder.forward.call_one(this_proc(), 0, source, f"127.0.0.1:{service.getsockname()[1]}").get(
            TIMEOUT
        )
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
            sending = threading.Thread(target=client.sendall, args=(big,))
            sending.start()
            one, _ = service.accept()
            with one:
                assert sending.is_alive()  # nobody reads
                got = bytearray()
                while len(got) < len(big):
                    got += one.recv(1 << 20)
                assert got == big
                sending.join()
                # One end breaks off: so does the other.
                client.close()
                assert one.recv(1) == b""
    forwarder.stop().get(TIMEOUT)
    source.stop().get(TIMEOUT)


@full
def test_nobody_listens_there(forwarder: Any, capfd: pytest.CaptureFixture[str]) -> None:
    source = this_host().spawn_procs()
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    [port] = forwarder.forward.call_one(this_proc(), 0, source, f"127.0.0.1:{closed}").get(TIMEOUT)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass
    forwarder.stop().get(TIMEOUT)
    source.stop().get(TIMEOUT)


def test_what_is_wrong_is_told(forwarder: Any) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with pytest.raises(ActorError, match="must have the same shape"):
        forwarder.forward.call_one(this_proc(), 0, procs, "localhost:1").get(TIMEOUT)
    with pytest.raises(ActorError, match='src_address is "host:port"'):
        forwarder.forward.call_one(procs, 0, procs, "localhost").get(TIMEOUT)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ActorError, match="ddress already in use"):
        forwarder.forward.call_one(this_proc(), taken.getsockname()[1], this_host().spawn_procs(), "localhost:1").get(
            TIMEOUT
        )
    procs.stop().get(TIMEOUT)


def test_stopping_closes_the_ports() -> None:
    actor: Any = this_proc().spawn("forwarder", PortForwarder)
    source = this_host().spawn_procs()
    with echo() as address:
        [port] = actor.forward.call_one(this_proc(), 0, source, address).get(TIMEOUT)
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
            client.sendall(b"still open")
            actor.stop().get(TIMEOUT)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), TIMEOUT)
    source.stop().get(TIMEOUT)
