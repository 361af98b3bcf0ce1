from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime.loop import Loop
from monarch._wire import frame
from monarch._wire.frame import Frame
from monarch._wire.transport import unix
from monarch._wire.transport.unix import UnixTransport
from tests.support.loops import loop_of_the_test
from tests.support.patience import TIMEOUT

loop = pytest.fixture(loop_of_the_test, name="loop")


class Echo:
    """Sends every frame back on the connection it came by."""

    def __init__(self) -> None:
        self.connections: list[Any] = []
        self.lost = threading.Semaphore(0)

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        for received in frames:
            connection.send(frame.encode(bytes(received.head), bytes(received.body)))

    def connection_lost(self, connection: Any, reason: str) -> None:
        self.lost.release()


class Known(Echo):
    """Knows who has said something."""

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        connection.remote = "a client"
        super().connection_received(connection, frames)


class Collect:
    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.come = threading.Semaphore(0)

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        for received in frames:
            self.heads.append(bytes(received.head))
            self.come.release()

    def connection_lost(self, connection: Any, reason: str) -> None: ...


def limits() -> tuple[int, int]:
    return 1 << 20, 1 << 30


def test_many_dial_one_listener(loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "agent")
    echo, collect = Echo(), Collect()
    server = UnixTransport(str(tmp_path), loop, echo, limits)
    server.listen(unix.listen(path))
    client = UnixTransport(str(tmp_path), loop, collect, limits)
    connections = [client.dial(f"unix:{path}") for _ in range(50)]
    for number, connection in enumerate(connections):
        assert connection.remote == f"unix:{path}"
        connection.send(frame.encode(b"%d" % number, bytes(2000)))
    for _ in connections:
        assert collect.come.acquire(timeout=TIMEOUT)
    assert sorted(collect.heads) == sorted(b"%d" % number for number in range(50))
    for connection in connections:
        connection.close("enough")
        assert echo.lost.acquire(timeout=TIMEOUT)
    server.close()
    client.close()
    assert len(echo.connections) == 50


def test_those_that_do_not_say_who_they_are_give_way(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that have just come, and not those that are known."""
    monkeypatch.setattr(unix, "UNKNOWN", 4)
    path = str(tmp_path / "agent")
    echo, collect = Known(), Collect()
    server = UnixTransport(str(tmp_path), loop, echo, limits)
    server.listen(unix.listen(path))
    client = UnixTransport(str(tmp_path), loop, collect, limits)
    known = client.dial(f"unix:{path}")
    known.send(frame.encode(b"first", b""))
    assert collect.come.acquire(timeout=TIMEOUT)
    silent = [unix.dial(path) for _ in range(8)]
    known.send(frame.encode(b"second", b""))
    assert collect.come.acquire(timeout=TIMEOUT)
    assert [len(server._accepted), echo.lost.acquire(blocking=False)] == [8, False]
    monkeypatch.setattr(unix, "SAYS_WITHIN", 0.0)
    with unix.dial(path):
        for sock in silent:
            assert echo.lost.acquire(timeout=TIMEOUT)
            sock.close()
        known.send(frame.encode(b"third", b""))
        assert collect.come.acquire(timeout=TIMEOUT)
    known.close("enough")
    for _ in range(2):
        assert echo.lost.acquire(timeout=TIMEOUT)
    server.close()
    client.close()


def test_a_closed_listener_refuses(loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "agent")
    server = UnixTransport(str(tmp_path), loop, Echo(), limits)
    server.listen(unix.listen(path))
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        unix.dial(path)


def test_dialling_a_name_nobody_has_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unix.dial(f"{tmp_path}/nobody")


def test_dialling_before_anybody_accepts_works(tmp_path: Path) -> None:
    path = str(tmp_path / "agent")
    with unix.listen(path) as listening, unix.dial(path) as sock:
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        assert not listening.getblocking() and sock.fileno() >= 0


def test_a_path_too_long_says_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 120))
    with pytest.raises(OSError, match=r"longer than the 107 bytes .* MONARCH_RUNTIME_DIR") as caught:
        unix.listen(path)
    assert path in str(caught.value)


def test_the_limit_counts_bytes_and_is_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unix.listen("x" * unix.PATH_LIMIT).close()
    with pytest.raises(OSError, match="107 bytes"):
        unix.listen("\N{GREEK SMALL LETTER ALPHA}" * 54)


def test_a_missing_folder_and_a_taken_name_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unix.listen(str(tmp_path / "missing" / "agent"))
    with unix.listen(str(tmp_path / "agent")), pytest.raises(OSError, match="in use"):
        unix.listen(str(tmp_path / "agent"))


def test_a_stranger_is_refused_before_a_byte_is_read(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "same_user", lambda sock: False)
    accepted: list[socket.socket] = []
    path = str(tmp_path / "agent")
    listener = unix.Listener(unix.listen(path), loop, accepted.append)
    with unix.dial(path) as sock:
        sock.settimeout(TIMEOUT)
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            pass
    assert (accepted, listener.refused) == ([], 1)
    listener.close()


def test_we_are_of_our_own_user() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert unix.same_user(left)
