"""Tests of who gets to a port over HTTP, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._http import connection_limits
from monarch._http import entrance as http_entrance
from monarch._http.connection_limits import Phase
from monarch._http.server import HttpServer, Site
from tests.support.patience import TIMEOUT
from tests.support.tiers import full
from tests.support.users import needs_root, stranger_says

LARGE = 64 << 20


class Served:
    """A port with some routes."""

    def __init__(self, **site: Any) -> None:
        from starlette.responses import Response
        from starlette.routing import Route

        self.goes_on = asyncio.Event()
        self.began = threading.Event()

        async def here(request: Any) -> Any:
            return Response("here")

        async def large(request: Any) -> Any:
            return Response(b"x" * LARGE)

        async def read(request: Any) -> Any:
            self.began.set()
            return Response(str(len(await request.body())))

        async def wait(request: Any) -> Any:
            self.began.set()
            await self.goes_on.wait()
            return Response("waited")

        self.server = HttpServer()
        routes = [
            Route("/", here),
            Route("/large", large),
            Route("/wait", wait),
            Route("/read", read, methods=["POST"]),
        ]
        url = self.server.serve(Site(routes, **site)).url
        self.port = int(url.partition("/?")[0].rpartition(":")[2])

    @property
    def entrance(self) -> http_entrance.HttpEntrance:
        return self.server._entrances[0]

    def there(self) -> list[tuple[Phase, bytes]]:
        """Returns what each connection is at, and what it has said of its next request."""
        connections = [visitor.connection for visitor in list(self.entrance._visitors)]
        return [(each.phase, each.conn.trailing_data[0]) for each in connections if each is not None]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT)

    def say(self, data: bytes) -> bytes:
        """All that is answered until the connection is closed."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):  # it may be refused before it has said all
                connection.sendall(data)
            return rest(connection)

    def until(self, true: Any) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not true():
            assert time.monotonic() < deadline, "it does not come about"
            threading.Event().wait(0.01)


def rest(connection: socket.socket) -> bytes:
    parts = []
    try:
        while data := connection.recv(1 << 16):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_until(connection: socket.socket, end: bytes) -> None:
    found = b""
    while not found.endswith(end):
        found += connection.recv(4096)
        assert found


def request(path: str = "/", *more: str, method: str = "GET", last: bool = True) -> bytes:
    closing = ("connection: close",) if last else ()
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: localhost", *closing, *more, "", "")).encode()


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends the time for everything; until it is called there is no limit."""

    def limit(seconds: float) -> None:
        monkeypatch.setattr(connection_limits, "_LONGEST", dict.fromkeys(connection_limits._LONGEST, seconds))
        monkeypatch.setattr(connection_limits, "SLOW", seconds)

    limit(math.inf)
    monkeypatch.setattr(http_entrance, "_LOOK", 0.01)
    return lambda: limit(0.0)


@full
@needs_root
def test_another_user_of_the_machine_is_told_so_before_he_says_anything(served: Served) -> None:
    for data in (b"", request()):
        status, text = error_of(stranger_says(served.port, data))
        assert (status, text) == (403, "this server answers the user who runs the program, and you are another one")
    assert not served.entrance._visitors


def test_many_who_say_nothing_keep_nobody_out(served: Served) -> None:
    idle = [served.connect() for _ in range(400)]
    for _ in range(3):
        assert served.say(request()).endswith(b"here")
    assert len(served.entrance._unknown) <= http_entrance.UNKNOWN
    for each in idle:
        each.close()


def test_of_those_who_were_answered_the_longest_idle_gives_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.entrance, "_most", 4)
    kept = []
    for _ in range(5):
        kept.append(served.connect())
        kept[-1].sendall(request(last=False))
        read_until(kept[-1], b"here")
        served.until(lambda: all(each.connection.phase is Phase.IDLE for each in served.entrance._visitors))
    assert rest(kept[0]) == b""
    kept[1].sendall(request())
    assert rest(kept[1]).endswith(b"here")
    for each in kept:
        each.close()


def test_when_all_wait_for_answers_one_more_is_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.entrance, "_most", 3)
    waiting = []
    for _ in range(3):
        served.began.clear()
        waiting.append(served.connect())
        waiting[-1].sendall(request("/wait"))
        assert served.began.wait(TIMEOUT)
    with served.connect() as more:
        assert error_of(rest(more))[0] == 503
    served.server._loop.call_soon_threadsafe(served.goes_on.set)
    for each in waiting:
        assert rest(each).endswith(b"waited")
        each.close()


def test_a_process_that_is_out_of_descriptors_serves_again_when_it_has_some(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failing = socket.socket.accept, [errno.EMFILE, errno.ENFILE, errno.ENOMEM]

    def fails(listening: socket.socket) -> Any:
        if failing and listening is served.entrance._listening:
            number = failing.pop()
            raise OSError(number, os.strerror(number))
        return accept(listening)

    monkeypatch.setattr(http_entrance, "_PAUSE", 0.01)
    with served.connect() as idle:
        served.until(lambda: served.entrance._visitors)
        monkeypatch.setattr(socket.socket, "accept", fails)
        assert served.say(request()).endswith(b"here")
        assert failing == []
        assert rest(idle) == b""  # it has given way


@pytest.mark.parametrize(
    ("said", "there", "answered"),
    [
        (b"", (Phase.HEAD, b""), b""),
        (b"GET / HTTP/1.1\r\nhost:", (Phase.HEAD, b"GET / HTTP/1.1\r\nhost:"), b"send the head of a request at once"),
        (
            request("/read", "content-type: application/json", "content-length: 10", method="POST"),
            (Phase.BODY, b""),
            b"",
        ),
        (request(last=False) + b"GET /", (Phase.HEAD, b"GET /"), b"send the head of a request at once"),
    ],
    ids=["nothing", "a part of the head", "no body", "a part of the next head"],
)
def test_who_does_not_say_what_he_wants_is_closed(
    hurry: Callable[[], None], served: Served, said: bytes, there: tuple[Phase, bytes], answered: bytes
) -> None:
    with served.connect() as connection:
        connection.sendall(said)
        served.until(lambda: served.there() == [there])
        hurry()
        answer = rest(connection)
    assert answered in answer and (answered or not answer)
    served.until(lambda: not served.entrance._visitors)


def test_who_goes_on_sending_after_the_answer_is_closed(hurry: Callable[[], None], served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(request("/", "transfer-encoding: chunked", last=False))
        read_until(connection, b"here")
        hurry()
        assert rest(connection) == b""
    served.until(lambda: not served.entrance._visitors)


def test_who_does_not_take_his_answer_is_closed(hurry: Callable[[], None], served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(request("/large"))
        served.until(lambda: served.there() == [(Phase.ANSWER, b"")])
        hurry()
        served.until(lambda: not served.entrance._visitors)
        assert len(rest(connection)) < LARGE


def test_a_small_answer_does_not_wait_for_the_one_before(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(request(last=False))
        read_until(connection, b"here")
        (visitor,) = served.entrance._visitors
        assert visitor.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_large_answer_is_taken_whole(served: Served) -> None:
    assert len(served.say(request("/large"))) > LARGE


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET / HTTP/x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 10_000,
        b"GET / HTTP/1.1\r\n\r\n",
        request("/read", "content-type: application/json", "content-length: x", method="POST"),
        request("/read", "content-type: application/json", "transfer-encoding: chunked", method="POST") + b"zz\r\n",
    ],
    ids=["TLS", "version", "bytes", "long", "no host", "length", "chunk"],
)
def test_what_is_no_request_is_told_so(served: Served, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    status, text = error_of(served.say(said))
    assert (status, text) == (400, "this cannot be read: send requests of HTTP/1.1, with a head of at most 16 KiB")
    assert served.say(request()).endswith(b"here")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_who_asks_for_another_protocol_gets_this_one_and_fills_no_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.say(request("/", "upgrade: websocket", "connection: upgrade")).endswith(b"here")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_cannot_be_read_after_an_answer_is_no_error(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with served.connect() as connection:
        connection.sendall(request("/", "transfer-encoding: chunked", last=False))
        read_until(connection, b"here")
        connection.sendall(b"1\r\nx\r\nzz\r\n")
        rest(connection)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/nowhere%00%zz", 404, "there is nothing at this path"),
        ("FOO", "/", 405, "/ takes GET, HEAD, not FOO"),
        ("GET", "/read", 405, "/read takes POST, not GET"),
    ],
)
def test_what_nobody_answers_is_said_in_json(served: Served, method: str, path: str, status: int, said: str) -> None:
    assert error_of(served.say(request(path, method=method))) == (status, said)


def test_beyond_this_machine_those_without_the_token_stay_unknown() -> None:
    served = Served(host="0.0.0.0", token="t")
    try:
        assert error_of(served.say(request()))[0] == 401
        with served.connect() as connection:
            connection.sendall(request("/", "authorization: Bearer t", last=False))
            read_until(connection, b"here")
            served.until(lambda: len(served.entrance._visitors) == 1)
            assert len(served.entrance._unknown) == 0
    finally:
        served.server.close()


def test_who_says_nothing_in_tls_gives_way_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.tools.certs import make_certificates

    monkeypatch.setattr(http_entrance, "UNKNOWN", 4)
    made = make_certificates(str(tmp_path), ["localhost"], 1)
    served = Served(host="0.0.0.0", token="t", certificate=str(made.certificate), private_key=str(made.private_key))
    idle = [served.connect() for _ in range(8)]
    try:
        # The last to give way does so for the last to come: all are here by then.
        served.until(lambda: sum(map(_closed, idle)) == 4)
        served.until(lambda: len(served.entrance._visitors) == 4)
        for each in idle:
            each.close()
        served.until(lambda: not served.entrance._visitors)
    finally:
        for each in idle:
            each.close()
        served.server.close()


def _closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_route_that_fails_says_no_more_than_that(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    from starlette.routing import Route

    async def fails(request: Any) -> Any:
        raise KeyError("secret")

    port = int(served.server.serve(Site([Route("/", fails)])).url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(request())
        assert error_of(rest(connection)) == (500, "this server has failed; its log says how")
    assert "secret" in caplog.text
