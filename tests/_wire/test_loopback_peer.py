"""Whose process has connected to a port of this machine."""

from __future__ import annotations

import os
import socket

import pytest

from monarch._wire.loopback_peer import find_user, is_loopback, is_ours, is_socket_ours, user_of

# Lines as Linux writes them on a machine of little endian; user 1000 has connected from port 40000 to 8265.
TCP = (
    "   0: 0100007F:9C40 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0 20 4 30 10 -1"
)
TCP6 = (
    "   1: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:2049 01 00000000:00000000 "
    "00:00000000 00000000  1001        0 12346 1 0 20 4 30 10 -1"
)
ORPHAN = TCP.replace(" 01 ", " 06 ").replace("1000", "   0")


@pytest.mark.parametrize(
    ("line", "port", "user"), [(TCP, 40000, 1000), (TCP6, 40001, 1001), (ORPHAN, 40000, None), (TCP, 40002, None)]
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
        client.close()
