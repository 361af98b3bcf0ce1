"""Who is at the other end of a connection on loopback."""

from __future__ import annotations

import os
import socket

import pytest

from monarch.debugger import peers

LINES = """\
   0: 0100007F:6978 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:D204 0100007F:6978 01 00000000:00000000 00:00000000 00000000  1234        0 2 1 0 20 4 30 10 -1
   2: 0000000000000000FFFF00000100007F:D205 0000000000000000FFFF00000100007F:6978 01 0:0 0:0 0 55 0
   3: 00000000000000000000000001000000:D206 00000000000000000000000001000000:6978 01 0:0 0:0 0 66 0
""".splitlines()


@pytest.mark.skipif("sys.byteorder != 'little'", reason="the lines are those of a little-endian machine")
def test_lines() -> None:
    here = ("127.0.0.1", 27000)
    assert peers.find_user(LINES, ("127.0.0.1", 0xD204), here) == 1234
    assert peers.find_user(LINES, ("127.0.0.1", 0xD205), here) == 55, "as IPv6"
    assert peers.find_user(LINES, ("::1", 0xD206), ("::1", 27000)) == 66
    assert peers.find_user(LINES, ("127.0.0.1", 0xD204), ("127.0.0.1", 27001)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert peers.user_of(accepted) == os.geteuid()
            assert peers.is_ours(accepted)


def test_loopback() -> None:
    assert peers.is_loopback("127.0.0.9")
    assert peers.is_loopback("::1")
    assert not peers.is_loopback("0.0.0.0")
    assert not peers.is_loopback("localhost"), "a name says nothing"
