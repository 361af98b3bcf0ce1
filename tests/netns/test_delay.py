"""The delaying proxy, on loopback. Its tests need no namespaces."""

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
from tests.netns.lab import ROOT

Start = Callable[[float], tuple[str, int]]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        yield listener


@pytest.fixture
def start(server: socket.socket) -> Iterator[Start]:
    """`start(delay)`: the address of a proxy in front of `server`."""
    processes = []

    def started(delay: float) -> tuple[str, int]:
        target = joined(server.getsockname())
        command = [sys.executable, "-m", "tests.netns.delay", "127.0.0.1:0", target, "--delay", str(delay)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        processes.append(process)
        assert process.stdout is not None
        return split(process.stdout.readline().removeprefix("listening ").rstrip("\n"))

    yield started
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == 0


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=30)


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


def test_every_byte_arrives_in_order_and_late_both_ways(server: socket.socket, start: Start) -> None:
    data = random.Random(7).randbytes(20 * 2**20)  # more than a direction holds
    with connect(start(0.05)) as client, accept(server) as served:
        for sender, receiver in ((client, served), (served, client)):
            before = time.monotonic()
            writing = threading.Thread(target=sender.sendall, args=(data,))
            writing.start()
            assert receive(receiver, 1) == data[:1]
            assert time.monotonic() - before >= 0.05
            assert hashlib.sha256(receive(receiver, len(data) - 1)).digest() == hashlib.sha256(data[1:]).digest()
            writing.join()


def test_the_end_of_one_way_leaves_the_other_and_a_dead_target_ends_both(server: socket.socket, start: Start) -> None:
    proxy = start(0.0)
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert receive(served, 10) == b"last words"
        assert served.recv(1) == b""
        served.sendall(b"answer")
        assert receive(client, 6) == b"answer"
    server.close()
    with connect(proxy) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(("text", "parts"), [("h:1", ("h", 1)), ("[fd00::1]:22", ("fd00::1", 22))])
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split(text) == parts
    assert joined(parts) == text
