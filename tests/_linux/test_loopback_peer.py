"""Tests of whose process has connected to a port of this machine."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

import pytest

from monarch._linux import loopback_peer
from monarch._linux.loopback_peer import Doorkeeper, find_user, is_loopback, is_ours, is_socket_ours, user_of

# Lines as Linux writes them on a machine of little endian; user 1000 has connected from port 40000 to 8265.
TCP = (
    "   0: 0100007F:9C40 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0 20 4 30 10 -1"
)
TCP6 = (
    "   1: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:2049 01 00000000:00000000 "
    "00:00000000 00000000  1001        0 12346 1 0 20 4 30 10 -1"
)
HALF = TCP.replace(" 01 ", " 05 ")
ORPHAN = HALF.replace("1000", "   0").replace("12345", "0")
WAITS = TCP.replace(" 01 ", " 06 ")


@pytest.mark.parametrize(
    ("line", "port", "user"),
    [
        (TCP, 40000, 1000),
        (TCP6, 40001, 1001),
        (HALF, 40000, 1000),
        (ORPHAN, 40000, None),
        (WAITS, 40000, None),
        (TCP, 40002, None),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_the_user_of_a_socket_is_read_from_the_kernels_table(
    line: str, port: int, user: int | None, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.byteorder", "little")
    assert find_user([line], (host, port), ("127.0.0.1", 8265)) == user


def test_lines_that_are_none_are_passed_over() -> None:
    assert find_user(["", "0: x", "a b c d e f g h i"], ("127.0.0.1", 1), ("127.0.0.1", 2)) is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1")),
        *((host, False) for host in ("10.0.0.1", "::", "0.0.0.0", "localhost", "")),
    ],
)
def test_addresses_of_this_machine_only(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
def test_a_real_connection_is_ours(family: socket.AddressFamily, host: str) -> None:
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        server, peer = listening.accept()
        with server:
            assert user_of(peer[:2], server.getsockname()[:2]) == os.geteuid()
            assert is_ours(peer[:2], server.getsockname()[:2])
            assert is_socket_ours(server)
            assert not is_ours(("10.0.0.1", peer[1]), server.getsockname()[:2])
            client.shutdown(socket.SHUT_WR)
            assert is_socket_ours(server), "it sends no more, and reads"


def test_a_connection_that_was_reset_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        server, _ = listening.accept()
        with server:
            assert not is_socket_ours(server)


def test_of_strangers_it_is_said_at_once_and_then_once_a_minute() -> None:
    now, said = [100.0], []
    keeper = Doorkeeper(said.append, lambda: now[0])
    with socket.socket() as nobody:  # not connected
        for seconds in (0.0, 1.0, 58.9, 0.2, 30.0):
            now[0] += seconds
            assert not keeper.lets_in(nobody)
    assert said == [1, 3]


def client_at_a_port_that_nobody_is_given(to: tuple[str, int]) -> socket.socket:
    """Connects from a port below those that the kernel gives out, so that it stays free when the client has gone. Tests of
    other processes begin to look elsewhere."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(first - 1 - os.getpid() % (first // 2), 1024, -1):
        try:
            return socket.create_connection(to, source_address=("127.0.0.1", port))
        except OSError as exc:
            if exc.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise AssertionError("no port is free below those that the kernel gives out")


@pytest.mark.parametrize("answers", [None, False], ids=["one socket is asked for", "the table is read"])
def test_one_that_has_gone_is_nobodys(answers: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other end lives; and a socket that listens at the port that it had is not taken for it."""
    monkeypatch.setattr(loopback_peer, "_answers", answers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = client_at_a_port_that_nobody_is_given(listening.getsockname())
        server, peer = listening.accept()
        with server:
            here = server.getsockname()
            assert user_of(peer, here) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert user_of(peer, here) == os.geteuid()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with socket.create_server(peer):
                assert user_of(peer, here) is None


def test_where_the_kernel_is_not_to_be_asked_for_one_the_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refused(*_: object) -> None:
        asked.append(_)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(loopback_peer, "_answers", None)
    monkeypatch.setattr(loopback_peer, "_user_by_diag", refused)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as one:
        for _ in range(2):
            assert user_of(one.getsockname(), listening.getsockname()) == os.geteuid()
    assert len(asked) == 1  # not again
