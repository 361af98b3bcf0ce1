"""Tests of who gets past the gate of an observer's ports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch._http.server import COOKIE, LocalGate, TokenGate

TOKEN = "t" * 32
HERE = ("localhost", "127.0.0.1", "127.0.0.2", "[::1]")


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def ask(
    gate: Any, *, method: str = "GET", query: str = "", path: str = "/", let_in: Any = None, **headers: str
) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "state": {} if let_in is None else {"let_in": let_in},
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8265),
    }
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def local() -> LocalGate:
    return LocalGate(inside)


@pytest.mark.parametrize("host", [*HERE, *(f"{name}:8265" for name in HERE)])
def test_this_user_gets_in_by_the_names_of_this_machine(host: str) -> None:
    assert ask(local(), host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8265", "evil.example", "localhost.evil.example:8265", "", "[::2]", "127.0.0.1.evil.example"]
)
def test_a_name_that_somebody_points_here_does_not_get_in(host: str) -> None:
    assert ask(local(), host=host)[0] == 403


def beyond(secure: bool = True) -> TokenGate:
    return TokenGate(inside, TOKEN, secure=secure)


@pytest.mark.parametrize("gate", ["local", "beyond"])
@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"origin": "http://localhost:1"}, 200),
        ("POST", {"origin": "http://localhost:1", "sec-fetch-site": "same-origin"}, 200),
        ("POST", {"origin": "http://localhost:2"}, 403),
        ("POST", {"origin": "http://127.0.0.1:1"}, 403),
        ("POST", {"origin": "http://localhost"}, 403),
        ("POST", {"origin": "https://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"sec-fetch-site": "cross-site"}, 403),
        ("POST", {"sec-fetch-site": "same-site"}, 403),
        ("POST", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 403),
        ("GET", {"origin": "http://localhost:2"}, 403),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 403),
        ("GET", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ("GET", {}, 200),
    ],
)
def test_only_pages_of_this_server_ask_it(gate: str, method: str, headers: dict[str, str], status: int) -> None:
    """A page of another port of this machine is of another site too; a link in it may be followed."""
    asked = {"host": "localhost:1", "authorization": f"Bearer {TOKEN}", **headers}
    found, answered = ask(local() if gate == "local" else beyond(), method=method, **asked)
    assert found == status
    assert not any(name.startswith("access-control") for name in answered)


@pytest.mark.parametrize("path", ["/api/output", "/v1/pyspy/x"])
def test_a_link_of_another_site_leads_to_pages_only(path: str) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(local(), path=path, host="localhost:1", **link)[0] == 403
    assert ask(local(), path="/logs", host="localhost:1", **link)[0] == 200
    assert ask(local(), path=path, host="localhost:1", **{**link, "sec-fetch-site": "none"})[0] == 200, "typed in"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=utf-8", "content-length": "2"}, 200),
        ({"content-length": "0"}, 200),
        ({}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded", "content-length": "0"}, 415),
        ({"content-length": "2"}, 415),
        ({"transfer-encoding": "chunked"}, 415),
    ],
)
def test_what_is_sent_is_json_and_says_so(headers: dict[str, str], status: int) -> None:
    assert ask(local(), method="POST", host="localhost:1", **headers)[0] == status
    assert ask(local(), host="localhost:1", **headers)[0] == 200  # of what only reads, nothing is read


def test_each_answer_says_what_a_browser_may_do_with_it() -> None:
    for gate in (local(), beyond()):
        for host in ("localhost:1", "evil.example"):
            headers = ask(gate, host=host)[1]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_a_connection_is_known_when_a_request_of_it_was_let_in() -> None:
    known: list[str] = []
    for gate in (local(), beyond()):
        ask(gate, host="evil.example", let_in=lambda: known.append("stranger"))
        ask(gate, host="localhost", origin="http://localhost:9", let_in=lambda: known.append("page"))
        ask(gate, host="localhost", authorization=f"Bearer {TOKEN}", let_in=lambda: known.append("owner"))
    assert known == ["owner", "owner"]


def test_a_link_in_a_page_of_another_site_lets_in_without_a_redirect() -> None:
    """After a redirect the browser would not send a cookie that is for this site's own pages only."""
    status, headers = ask(beyond(), host="node:8265", query=f"token={TOKEN}", sec_fetch_site="cross-site")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["set-cookie"].startswith(f"{COOKIE}={TOKEN}; ")
    assert ask(beyond(), host="node:8265", query=f"token={TOKEN}", sec_fetch_site="none")[0] == 303


def test_from_other_machines_the_token_is_needed() -> None:
    assert ask(beyond(), host="node:8265")[0] == 401
    assert ask(beyond(), host="node:8265", query="token=wrong")[0] == 401
    assert ask(beyond(), host="node:8265", query="token=%C3%A9")[0] == 401
    assert ask(beyond(), host="node:8265", authorization=f"Bearer {TOKEN}x")[0] == 401
    assert ask(beyond(), host="node:8265", cookie="a=b; =; \x00")[0] == 401


def test_the_token_in_the_url_becomes_a_cookie_and_leaves_the_url() -> None:
    status, headers = ask(beyond(), host="node:8265", path="//evil.example/page", query=f"a=1&token={TOKEN}")
    assert status == 303
    assert headers["location"] == "/evil.example/page?a=1"
    assert headers["set-cookie"] == f"{COOKIE}={TOKEN}; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert ask(beyond(), host="node:8265", cookie=f"x=1; {COOKIE}={TOKEN}")[0] == 200


def test_without_certificates_the_cookie_is_not_marked_secure() -> None:
    assert "Secure" not in ask(beyond(False), host="node:8265", query=f"token={TOKEN}")[1]["set-cookie"]


def test_programs_bring_the_token_in_a_header() -> None:
    assert ask(beyond(), method="POST", host="node:8265", authorization=f"Bearer {TOKEN}")[0] == 200
    assert (
        ask(beyond(), method="POST", host="node:8265", cookie=f"{COOKIE}={TOKEN}", origin="https://evil.example")[0]
        == 403
    )
