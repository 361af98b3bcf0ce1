"""The delaying proxy, on loopback: order, delay, stalls, cuts. Its tests need no namespaces."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.netns.delay import joined, split
from tests.netns.lab import ROOT, LabError, Proxy

Start = Callable[..., Proxy]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        yield listener


@pytest.fixture
def start(server: socket.socket) -> Iterator[Start]:
    """`start(delay=...)`: a proxy in front of `server`."""
    processes = []

    def started(delay: float = 0.0) -> Proxy:
        target = joined(server.getsockname())
        command = [sys.executable, "-m", "tests.netns.delay", "127.0.0.1:0", target, "--delay", str(delay)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
        return Proxy(processes[-1])

    yield started
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == 0


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(split(proxy.address), timeout=30)


def accept(server: socket.socket) -> socket.socket:
    connection, _ = server.accept()
    connection.settimeout(30)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, f"the stream ended after {len(data)} of {count} bytes"
        data += more
    return data


def test_every_byte_arrives_in_order_both_ways(server: socket.socket, start: Start) -> None:
    data = random.Random(7).randbytes(20 * 2**20)  # more than a direction holds
    with connect(start(delay=0.01)) as client, accept(server) as served:
        for sender, receiver in ((client, served), (served, client)):
            writing = threading.Thread(target=sender.sendall, args=(data,))
            writing.start()
            assert hashlib.sha256(receive(receiver, len(data))).digest() == hashlib.sha256(data).digest()
            writing.join()


def test_bytes_are_late_each_way(server: socket.socket, start: Start) -> None:
    with connect(start(delay=0.05)) as client, accept(server) as served:
        before = time.monotonic()
        client.sendall(b"there")
        assert receive(served, 5) == b"there"
        between = time.monotonic()
        served.sendall(b"back")
        assert receive(client, 4) == b"back"
        assert between - before >= 0.05
        assert time.monotonic() - between >= 0.05


def test_a_shorter_delay_overtakes_nothing(server: socket.socket, start: Start) -> None:
    proxy = start(delay=0.2)
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"first")
        proxy.delay(0)
        client.sendall(b"second")
        assert receive(served, 11) == b"firstsecond"


def test_the_end_of_one_way_leaves_the_other(server: socket.socket, start: Start) -> None:
    with connect(start()) as client, accept(server) as served:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert receive(served, 10) == b"last words"
        assert served.recv(1) == b""
        served.sendall(b"answer")
        assert receive(client, 6) == b"answer"


def test_nothing_passes_a_stalled_proxy(server: socket.socket, start: Start) -> None:
    proxy = start()
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"before")
        assert receive(served, 6) == b"before"
        proxy.stall()
        # A bounded amount is taken in; then the sender is not let on, whoever reads.
        client.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while sent < 256 * 2**20:
                sent += client.send(bytes(2**20))
        served.setblocking(False)
        with pytest.raises(BlockingIOError):
            served.recv(1)
        served.settimeout(30)
        proxy.resume()
        assert receive(served, sent) == bytes(sent)


def test_a_cut_resets_both_ends_and_new_connections_are_taken(server: socket.socket, start: Start) -> None:
    proxy = start()
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"x")
        assert receive(served, 1) == b"x"
        proxy.cut()
        for end in (client, served):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"again")
        assert receive(served, 5) == b"again"


def test_refusing_and_accepting_again_at_the_same_address(server: socket.socket, start: Start) -> None:
    proxy = start()
    with connect(proxy) as client, accept(server) as served:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        client.sendall(b"still")
        assert receive(served, 5) == b"still"
        proxy.accept()
        connect(proxy).close()


def test_an_unknown_command_is_told(start: Start) -> None:
    proxy = start()
    for line in ("jump", "delay soon", "delay"):
        with pytest.raises(LabError, match=f"'unknown {line}'"):
            proxy._order(line)


def test_a_dead_target_is_a_closed_connection(server: socket.socket, start: Start) -> None:
    proxy = start()
    server.close()
    with connect(proxy) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(("text", "parts"), [("h:1", ("h", 1)), ("[fd00::1]:22", ("fd00::1", 22))])
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split(text) == parts
    assert joined(parts) == text
