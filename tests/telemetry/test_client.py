"""QueryEngineClient: what it takes for an answer, and what it says when there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from monarch.distributed_telemetry.engine import QueryEngine
from monarch.telemetry import QueryEngineClient


class Server(HTTPServer):
    """Answers everything with `status` and `body`, and keeps what was asked."""

    status = 200
    body = b""
    asked: Any = None


class Answering(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answering) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def client(server: Server) -> QueryEngineClient:
    return QueryEngineClient(f"http://127.0.0.1:{server.server_port}/", timeout=60)


def test_an_answer_that_does_not_end_is_not_read_to_its_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may listen where an observer was."""
    monkeypatch.setattr("monarch.telemetry.client.LARGEST", 1 << 20)
    server.body = b"[" * (2 << 20)
    with pytest.raises(
        RuntimeError, match=r"invalid .* response from http://127.*: more than 1 MiB, which no telemetry sends"
    ):
        client(server).query("SELECT 1")


def test_rows_come_as_they_are(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing goes to proxies
    server.body = b'{"columns": ["id"], "rows": [{"id": 18446744073709551615}], "missing_hosts": ["b"]}'
    reply = client(server).query("SELECT 1", timeout=7)
    assert (reply["rows"], reply["missing_hosts"]) == ([{"id": 2**64 - 1}], ["b"])
    assert server.asked == {"sql": "SELECT 1", "timeout": 7}
    assert QueryEngine(client(server)).query("SELECT 1").to_pydict() == {"id": [2**64 - 1]}
    assert QueryEngine(client(server)).query_stream("SELECT 1").read_all().num_rows == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"rows": 1}', b'{"rows": [1]}'])
def test_what_is_no_answer_is_said(server: Server, body: bytes) -> None:
    server.body = body
    with pytest.raises(RuntimeError, match="invalid telemetry query response from http://127"):
        client(server).query("SELECT 1")


def test_the_servers_words_are_the_errors_reason(server: Server) -> None:
    server.status, server.body = 400, b'{"error": "Parser Error: no"}'
    with pytest.raises(HTTPError) as error:
        client(server).query("SELEKT")
    assert (error.value.code, error.value.reason) == (400, "Parser Error: no")
    server.body = b"<html>"
    with pytest.raises(HTTPError, match="Bad Request"):
        client(server).query("SELEKT")


def test_nobody_there_is_an_error_of_the_connection() -> None:
    with pytest.raises(URLError):
        QueryEngineClient("http://127.0.0.1:9").query("SELECT 1")
