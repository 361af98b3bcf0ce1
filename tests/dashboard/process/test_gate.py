"""Who gets past the gate of an observer's ports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.dashboard.process.http_server import COOKIE, LocalGate, TokenGate

TOKEN = "t" * 32


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def ask(
    gate: Any, *, method: str = "GET", query: str = "", path: str = "/", **headers: str
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
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8265),
    }
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def local(ours: bool = True) -> LocalGate:
    return LocalGate(inside, lambda peer, here: ours)


@pytest.mark.parametrize("host", ["localhost:8265", "127.0.0.1:8265", "[::1]:8265", "localhost"])
def test_this_user_gets_in_by_the_names_of_this_machine(host: str) -> None:
    assert ask(local(), host=host)[0] == 200


def test_another_user_of_the_machine_does_not() -> None:
    assert ask(local(False), host="localhost:8265")[0] == 403


@pytest.mark.parametrize("host", ["evil.example:8265", "evil.example", "localhost.evil.example:8265", ""])
def test_a_name_that_somebody_points_here_does_not_get_in(host: str) -> None:
    assert ask(local(), host=host)[0] == 403


def test_pages_of_other_sites_do_not_get_in() -> None:
    assert ask(local(), method="POST", host="localhost:1", origin="https://evil.example")[0] == 403
    assert ask(local(), method="POST", host="localhost:1", sec_fetch_site="cross-site")[0] == 403
    assert ask(local(), method="POST", host="localhost:1", origin="http://localhost:1")[0] == 200


def beyond(secure: bool = True) -> TokenGate:
    return TokenGate(inside, TOKEN, secure=secure)


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
        == 401
    )
