"""Who may ask: before any page or query, each request of an observer goes through here.

On this machine: processes of this user, as the kernel says, under a name of this machine (so that no page of another site
gets in by a name that it lets point here). From other machines: whoever has the token, in the URL once, then in a cookie,
or as `Authorization: Bearer`.
"""

from __future__ import annotations

import hmac
import html
from collections.abc import Awaitable, Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from monarch._wire.loopback_peer import is_ours

COOKIE = "monarch_token"
_HERE = ("localhost", "127.0.0.1", "[::1]")

Application = Callable[[Any, Any, Any], Awaitable[None]]


class LocalGate:
    """For a port of this machine only."""

    def __init__(self, application: Application, peers: Callable[..., bool] = is_ours) -> None:
        self._application = application
        self._is_ours = peers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        name = _header(scope, b"host").rpartition(":")[0] or _header(scope, b"host")
        if name not in _HERE or _is_of_other_site(scope, _HERE):
            await _refuse(send, 403, "this server is for programs and pages of this machine")
        elif not self._is_ours(tuple(scope["client"] or ("", 0)), tuple(scope["server"])):
            await _refuse(send, 403, "this server answers the user who runs the program, and you are another one")
        else:
            await self._application(scope, receive, send)


class TokenGate:
    """For a port that other machines reach."""

    def __init__(self, application: Application, token: str, *, secure: bool) -> None:
        self._application = application
        self._token = token
        self._secure = secure

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        if given and scope["method"] == "GET" and _same(given, self._token):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            place = "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else "")  # a path on this server, no //other
            cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if self._secure else "")
            headers = [(b"set-cookie", cookie.encode())]
            if _header(scope, b"sec-fetch-site") == "cross-site":
                # A link in another site's page (a chat, a mail): after a redirect the browser would not send this cookie.
                page = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(place)}">'
                headers += [(b"content-type", b"text/html; charset=utf-8"), (b"referrer-policy", b"no-referrer")]
                await _answer(send, 200, page.encode(), headers)
            else:
                await _answer(send, 303, b"", [(b"location", place.encode()), *headers])
        elif self._knows(scope) and not _is_of_other_site(scope, [_header(scope, b"host").rpartition(":")[0]]):
            await self._application(scope, receive, send)
        else:
            await _refuse(send, 401, "open the URL that was printed: it has the token that lets you in")

    def _knows(self, scope: Any) -> bool:
        scheme, _, bearer = _header(scope, b"authorization").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(_header(scope, b"cookie")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self._token)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _is_of_other_site(scope: Any, names: Iterable[str]) -> bool:
    """Whether a page of another site has sent it."""
    origin = _header(scope, b"origin")
    if not origin:
        return _header(scope, b"sec-fetch-site") == "cross-site" and scope["method"] != "GET"
    host = origin.partition("://")[2]
    return (host.rpartition(":")[0] or host) not in names and host not in names


def _header(scope: Any, name: bytes) -> str:
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), "")


async def _refuse(send: Any, status: int, text: str) -> None:
    body = b'{"error": "' + text.encode() + b'"}'
    await _answer(send, status, body, [(b"content-type", b"application/json")])


async def _answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
