"""The routes over HTTP: paths, statuses, headers."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from monarch._http.answering import LARGEST_BODY
from monarch._http.server import HttpServer, Site
from monarch.dashboard.routes import page_routes
from monarch.dashboard.routes.page_routes import PAGES, STATIC, routes_of
from monarch.dashboard.routes.telemetry_routes import query_routes
from monarch.telemetry import query_places
from monarch.telemetry.query_places import Places


@pytest.fixture(scope="module")
def client(recorded: Any) -> Iterator[httpx.Client]:
    server = HttpServer()
    try:
        url = server.serve(Site([*routes_of(recorded.api()), *query_routes(recorded.store)])).url
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.close()


@pytest.mark.parametrize(
    "path",
    [
        "summary",
        "endpoints",
        "message-stats",
        "message-activity?seconds=60",
        "topology?show_system=true",
        "dag?hide_system=false",
        "meshes?class=Proc",
        "actors",
        "messages",
        "sent_messages",
        "tables",
        "hardware?seconds=30",
        "metrics?match=loss&mesh=trainers",
        "stacks",
        "profiles",
    ],
)
def test_what_can_be_asked(client: httpx.Client, path: str) -> None:
    response = client.get(f"/api/{path}")
    assert response.status_code == 200, response.text
    assert response.json() is not None
    assert response.headers["cache-control"] == "no-store"


def test_health(client: httpx.Client) -> None:
    assert client.get("/api/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("actors/12", 404, "actor not found"),
        ("actors/x", 404, "actor not found"),
        ("actors/1%20OR%201=1", 404, "actor not found"),
        ("actors/99999999999999999999999", 404, "actor not found"),
        ("meshes/12", 404, "mesh not found"),
        ("meshes/12/ranks/0", 404, "mesh not found"),
        ("profiles/..%2F..%2Fetc%2Fpasswd", 404, ""),
        ("profiles/none", 404, "no such trace"),
        ("actors?mesh_id=x", 400, "mesh_id is an id, a whole number, not 'x'"),
        ("message_status_events", 400, "say which: ?message_id="),
        ("message-activity?seconds=never", 400, "seconds is a number"),
        ("hardware?seconds=0", 400, "seconds is a number"),
    ],
)
def test_what_cannot(client: httpx.Client, path: str, status: int, text: str) -> None:
    response = client.get(f"/api/{path}")
    assert response.status_code == status
    if text:
        assert text in response.json()["error"]


def test_sql(client: httpx.Client) -> None:
    made = client.post("/api/sql", json={"sql": "SELECT 1 AS one, NULL AS none"})
    assert made.json()["rows"] == [[1, None]]
    refused = client.post("/api/sql", json={"sql": "DROP TABLE actors"})
    assert (refused.status_code, "refused" in refused.json()["error"]) == (400, True)
    late = client.post(
        "/api/sql", json={"sql": "SELECT count(*) FROM range(1000000000) a, range(99999) b", "timeout": 0.1}
    )
    assert late.status_code == 408


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "missing 'sql' in request body"),
        ({"sql": "  "}, "missing 'sql' in request body"),
        ({"sql": "SELECT 1", "timeout": -1}, "timeout is a positive number"),
        ({"sql": "SELECT 1", "limit": "x"}, "limit is a positive number"),
    ],
)
def test_a_query_that_is_none(client: httpx.Client, body: dict[str, Any], text: str) -> None:
    response = client.post("/api/sql", json=body)
    assert response.status_code == 400
    assert text in response.json()["error"]


@pytest.mark.parametrize(
    "body", ['{"sql": "SELECT \'\\ud800\'"}', "[" * 100_000, '{"sql":' * 100_000, '{"sql": "SELECT 1", "limit": NaN}']
)
def test_a_body_that_no_decoder_and_no_engine_takes_is_a_bad_request(client: httpx.Client, body: str) -> None:
    response = client.post("/api/sql", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]


@pytest.mark.parametrize("name", ["%00", "main.js%00", "%ff", "..%2f..%2fapi.py", "a" * 5000])
def test_a_file_name_that_can_be_none_is_not_there(client: httpx.Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_a_form_of_another_site_is_no_query(client: httpx.Client) -> None:
    response = client.post("/api/sql", content='{"sql": "SELECT 1"}', headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert "content-type: application/json" in response.json()["error"]
    assert client.post("/api/sql", content="{", headers={"content-type": "application/json"}).status_code == 400
    large = client.post("/api/sql", json={"sql": "x" * (LARGEST_BODY + 1)})
    assert (large.status_code, "at most" in large.json()["error"]) == (400, True)


def test_a_query_ends_when_nobody_waits_for_it(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places for queries are taken by some that never end, whose browsers go: then there is room again."""
    monkeypatch.setattr(query_places, "TURN", math.inf)  # none ends because others wait
    port = client.base_url.port
    body = b'{"sql": "SELECT count(*) FROM range(1000000000) a, range(1000000) b", "timeout": 300}'
    head = (
        b"POST /api/sql HTTP/1.1\r\nhost: localhost:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    gone: list[socket.socket] = []
    refused: list[str] = []

    def all_are_taken() -> bool:
        answer = client.post("/api/sql", json={"sql": "SELECT 1", "timeout": 0.1})  # else it waits for a place
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
            refused.append(answer.json()["error"])
            return True
        gone.append(socket.create_connection(("127.0.0.1", port)))  # more than there are places are refused
        gone[-1].sendall(head % (port, len(body)) + body)
        return False

    until(all_are_taken)
    assert refused == ["too many queries run and wait already: ask again later"]
    assert client.get("/api/messages").status_code == 200  # the pages have room
    for each in gone:
        each.close()
    until(lambda: client.post("/api/sql", json={"sql": "SELECT 1"}).status_code == 200)


@pytest.mark.parametrize("path", ["messages", "query", "sql"])
def test_a_query_without_a_place_is_told_to_come_again(
    client: httpx.Client, recorded: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    places = recorded.store._places
    monkeypatch.setattr(places, "_typed", Places(0, 0))
    monkeypatch.setattr(places, "_own", Places(0, 0))
    body = {"sql": "SELECT 1"}
    refused = client.get("/api/messages") if path == "messages" else client.post(f"/api/{path}", json=body)
    assert refused.status_code == 503
    assert refused.json() == {"error": "too many queries run and wait already: ask again later"}
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["cache-control"] == "no-store"


def until(found: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not found():
        assert time.monotonic() < deadline, "it does not come about"
        pause.wait(0.05)


def test_only_questions_are_posted(client: httpx.Client) -> None:
    assert client.post("/api/summary").status_code == 405
    assert client.get("/api/sql").status_code == 405


def test_pages(client: httpx.Client) -> None:
    for page in ("", *PAGES):
        response = client.get(f"/{page}")
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in response.text  # nothing within the page
    assert "http://" not in response.text and "https://" not in response.text


@pytest.mark.parametrize("path", sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()))
def test_files(client: httpx.Client, path: str) -> None:
    response = client.get(f"/static/{path}")
    assert response.status_code == 200
    text = response.text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text and "https://" not in text  # nothing from other sites
    assert "innerHTML" not in text and "eval(" not in text


@pytest.mark.parametrize(
    "path", ["../__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py", "none.js", "pages", "/etc/passwd"]
)
def test_other_files_are_not_served(client: httpx.Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code == 404


def test_capture(client: httpx.Client) -> None:
    assert "Ok" in client.post("/api/pyspy/capture", json={"proc_ref": "p@a"}).json()
    missing = client.post("/api/pyspy/capture", json={})
    assert (missing.status_code, missing.json()) == (400, {"error": "missing 'proc_ref' in request body"})
    gone = client.post("/api/pyspy/capture", json={"proc_ref": "gone"})
    assert (gone.status_code, gone.json()) == (502, {"error": "its process has ended", "admin_url": None})


def test_large_answers_are_packed_for_those_who_can_unpack(client: httpx.Client) -> None:
    packed = client.get("/api/hardware")
    plain = client.get("/api/hardware", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json()["gpus"] == plain.json()["gpus"]


def test_traces(client: httpx.Client) -> None:
    assert client.post("/api/profile", json={"seconds": 500}).status_code == 400
    for seconds, state in ((2, "ready"), (13, "failed")):
        name = client.post("/api/profile", json={"seconds": seconds}).json()["id"]
        found = next(each for each in _until_done(client) if each["id"] == name)
        assert found["state"] == state
        assert found["problem"] == ("" if state == "ready" else "no luck")
    downloaded = client.get("/api/profiles/trace-1")
    assert downloaded.content == b"trace"
    assert "trace-1.pftrace" in downloaded.headers["content-disposition"]


def _until_done(client: httpx.Client) -> list[dict[str, Any]]:
    until(lambda: all(each["state"] != "recording" for each in client.get("/api/profiles").json()))
    found: list[dict[str, Any]] = client.get("/api/profiles").json()
    return found


def test_static_files_are_beside_the_code() -> None:
    assert (Path(page_routes.__file__).parents[1] / "static" / "index.html").is_file()
