"""The port for an editor: who gets through it to the rank, which is a pair of sockets here."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.debugger import editor_port
from monarch.debugger.editor_port import MOST, EditorRequests, greeting
from tests.support.patience import TIMEOUT
from tests.support.users import as_stranger, needs_root


def request(command: str = "initialize", **more: object) -> bytes:
    body = json.dumps({"seq": 1, "type": "request", "command": command, **more}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


GREETING = request(arguments={"adapterID": "debugpy"})


class Port:
    """`ranks`: our ends of the connections that it has made to the rank."""

    def __init__(self) -> None:
        self.ranks: queue.Queue[socket.socket] = queue.Queue()
        self.said: queue.Queue[str] = queue.Queue()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.number = self.listening.getsockname()[1]
        self._thread = threading.Thread(target=editor_port.serve, args=(self.listening, self._rank, self.said.put))
        self._thread.start()

    def _rank(self) -> socket.socket:
        ours, its = socket.socketpair()
        ours.settimeout(TIMEOUT)
        self.ranks.put(ours)
        return its

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), TIMEOUT)

    @contextmanager
    def editor(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        """One that has got in, and the rank's end."""
        with self.connect() as editor:
            editor.sendall(GREETING)
            with self.ranks.get(timeout=TIMEOUT) as rank:
                assert rank.recv(len(GREETING), socket.MSG_WAITALL) == GREETING
                rank.sendall(b"answer")
                assert editor.recv(6, socket.MSG_WAITALL) == b"answer"
                yield editor, rank

    def until(self, text: str) -> None:
        while text not in self.said.get(timeout=TIMEOUT):
            pass

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "whoever came has not ended it"
        self.listening.close()
        limit = time.monotonic() + TIMEOUT
        while any(thread.name == "monarch-editor" for thread in threading.enumerate()):
            assert time.monotonic() < limit, "threads of visitors are left"


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_that_are_reset_end_only_themselves(port: Port) -> None:
    for _ in range(50):
        reset(port.connect())
        port.connect().close()
    with port.editor():
        pass


@pytest.mark.parametrize(
    "said",
    [
        b"POST / HTTP/1.1\r\nContent-Type: text/plain\r\n" + request(),
        b"\x16\x03\x01\x02\x00\x01",
        b"\n",
        b"501\t1\t0.1\n",
        b"Content-Length: 1073741824\r\n\r\n",
        b"Content-Length: " + b"9" * 100_000,
        b"Content-Length: 2\r\n\r\n[]",
        request("evaluate"),
        b"A" * 1_000_000,
    ],
    ids=lambda said: repr(said[:20]),
)
def test_what_is_no_editor_is_closed_and_nothing_reaches_the_rank(port: Port, said: bytes) -> None:
    with port.connect() as visitor:
        try:
            visitor.sendall(said)
        except OSError:  # closed before it was all said
            pass
        assert closed(visitor)
    assert port.ranks.empty()


def test_requests_go_on_whole_wherever_they_are_cut() -> None:
    said = GREETING + request("threads") + request("evaluate", arguments={"expression": "x" * 5_000})
    requests = EditorRequests()
    assert b"".join(requests.feed(said[at : at + 1]) for at in range(len(said))) == said
    assert [EditorRequests().feed(said[:cut]) for cut in (len(GREETING) - 1, len(GREETING), len(GREETING) + 30)] == [
        b"", GREETING, GREETING,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        b"attach workers 0\n",
        b"501\t1\t0.1\n",
        b"Content-Length: 0\r\n\r\n",
        b"Content-Length: 1073741824\r\n\r\n",
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 2\r\n\r\n{]",
        b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    ],
    ids=lambda said: repr(said[:20]),
)
def test_an_editor_that_says_what_is_no_request_has_left(port: Port, said: bytes) -> None:
    with port.editor() as (editor, rank):
        editor.sendall(request("threads"))
        assert rank.recv(1 << 16) == request("threads")
        editor.sendall(said)
        assert rank.recv(1) == b"" and closed(editor)


def test_who_is_silent_keeps_nobody_out(port: Port) -> None:
    silent = [port.connect() for _ in range(3 * MOST)]
    for one in silent[::2]:
        one.sendall(b"Content-Le")
    with port.editor():
        assert all(closed(one) for one in silent[: len(silent) - MOST])
    for one in silent:
        one.close()


def test_who_is_silent_for_long_is_closed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor_port, "_GREETS_WITHIN", 0.0)
    with port.connect() as silent:
        assert closed(silent)


def test_a_new_editor_takes_the_place_of_the_one_that_hangs(port: Port) -> None:
    with port.editor() as (first, rank), port.editor() as (second, _):
        assert closed(first)
        assert closed(rank)
        second.sendall(b"more")
    port.until("the editor has left")


def test_a_rank_that_cannot_be_had_is_said_to_the_owner() -> None:
    said: queue.Queue[str] = queue.Queue()

    def no_rank() -> socket.socket:
        raise ValueError("the program has ended")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=editor_port.serve, args=(listening, no_rank, said.put))
        thread.start()
        with socket.create_connection(listening.getsockname(), TIMEOUT) as editor:
            editor.sendall(GREETING)
            assert closed(editor)
        assert said.get(timeout=TIMEOUT) == "no connection to the rank: the program has ended"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)


@needs_root
def test_other_users_are_refused_and_the_owner_gets_in(port: Port) -> None:
    def visit() -> list[bytes]:
        found = []
        for _ in range(20):
            with socket.socket() as visitor:
                visitor.connect(("127.0.0.1", port.number))
                try:
                    visitor.sendall(GREETING)
                    found.append(visitor.recv(100))
                except ConnectionError:
                    found.append(b"")
        return found

    assert as_stranger(visit) == [b""] * 20
    with port.editor():
        pass
    assert port.said.get(timeout=TIMEOUT) == "refused 1 connection of other users"
    assert port.said.get(timeout=TIMEOUT) == "an editor has attached", (
        "and strangers are not said again within a minute"
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_greeting_or_not_or_too_few(came: bytes) -> None:
    assert greeting(came) in (False, None)


@given(st.integers(0, len(GREETING) - 1), st.booleans())
def test_a_greeting_may_come_in_pieces(end: int, small: bool) -> None:
    said = GREETING.replace(b"Content-Length", b"content-length") if small else GREETING
    assert greeting(said[:end]) is None
    assert greeting(said) is True
    assert greeting(said + b"more") is True
