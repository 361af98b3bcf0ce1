"""The one place where HTTP is served: of a port, who may ask, and TLS.

Before any page or query, each request goes through a gate. A port of this machine takes connections of this user alone (see
`entrance`), and the gate lets in what comes under a name of this machine (so that no page of another site gets in by a
name that it lets point here). From other machines: those who have the token, in the URL once, then in a cookie, or as
`Authorization: Bearer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from monarch._http.connection_limits import CONNECTIONS
from monarch._linux.loopback_peer import is_loopback
from monarch._text import bracketed

if TYPE_CHECKING:
    from monarch._http.entrance import HttpEntrance

_STARTS = 30.0  # seconds for a server to listen
_ENDS = 2.0  # and for what is under way to end
_BACKLOG = 128

T = TypeVar("T")


class Site(NamedTuple):
    """A port: `host` and `port` are wanted, any free port serves when that is taken."""

    routes: Sequence[Any]
    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    certificate: str = ""
    private_key: str = ""
    connections: int = CONNECTIONS


class OpenSite(NamedTuple):
    url: str
    note: str  # what was not to be had, "" for nothing
    routing: Routing


class Routing:
    """The routes of a port, which may be replaced while it serves."""

    def __init__(self, routes: Sequence[Any]) -> None:
        self.use(routes)

    def use(self, routes: Sequence[Any]) -> None:
        from starlette.applications import Starlette

        self._application: Any = Starlette(
            routes=list(routes), exception_handlers={404: _told, 405: _told, Exception: _told}
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import ClientDisconnect

        try:
            await self._application(scope, receive, send)
        except ClientDisconnect:  # nobody is there to be told anything
            pass


class HttpServer:
    """Serves sites from a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._servers: list[tuple[Any, asyncio.Task[None]]] = []
        self._entrances: list[HttpEntrance] = []
        self._thread.start()

    def serve(self, site: Site) -> OpenSite:
        """Serves it from now on. OSError when it cannot listen there."""
        listening, note = listen(site.host, site.port)
        try:
            routing = Routing(site.routes)
            asyncio.run_coroutine_threadsafe(self._start(site, routing, listening), self._loop).result(_STARTS)
        except BaseException:
            listening.close()
            raise
        return OpenSite(url_of(site, listening.getsockname()), note, routing)

    def stop_accepting(self) -> None:
        """Lets nobody in any more; those who are there go on."""

        async def stop() -> None:
            while self._entrances:
                self._entrances.pop().close()

        self.wait_for(stop())

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the loop of the servers; returns what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Ends all servers. May be called again."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_ENDS + 1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _start(self, site: Site, routing: Routing, listening: socket.socket) -> None:
        import uvicorn

        from monarch._http.entrance import HttpEntrance

        config = uvicorn.Config(
            guarded(routing, site),
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            timeout_graceful_shutdown=int(_ENDS),
            server_header=False,
            ssl_certfile=site.certificate or None,
            ssl_keyfile=site.private_key or None,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[]))
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the HTTP server has ended before it had begun")
            await asyncio.sleep(0.01)
        self._servers.append((server, task))
        self._entrances.append(
            HttpEntrance(listening, config, server, local=is_loopback(site.host), most=site.connections)
        )

    async def _stop(self) -> None:
        for entrance in self._entrances:
            entrance.close()
        for server, _ in self._servers:
            server.should_exit = True
        await asyncio.wait(
            [task for _, task in self._servers] or [asyncio.create_task(asyncio.sleep(0))], timeout=_ENDS
        )


def guarded(routing: Routing, site: Site) -> Any:
    """The routes behind the gate that the place needs."""
    if is_loopback(site.host):
        return LocalGate(routing)
    return TokenGate(routing, site.token, secure=bool(site.certificate))


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens there, or at any free port if that one is taken: then the note says so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in (port, 0):
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, attempt))
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            if attempt == 0:
                raise
            continue
        taken = f"port {port} is taken: {listening.getsockname()[1]} instead" if attempt != port else ""
        return listening, taken
    raise AssertionError("unreachable")


def url_of(site: Site, name: tuple[Any, ...]) -> str:
    """Says how people reach it: this machine's name where it listens everywhere, with the token where one is needed."""
    host = site.host
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    elif host in ("127.0.0.1", "::1"):
        host = "localhost"
    scheme = "https" if site.certificate else "http"
    token = "" if is_loopback(site.host) else f"/?token={site.token}"
    return f"{scheme}://{bracketed(host)}:{name[1]}{token}"


# --- who may ask

COOKIE = "monarch_token"
_READ = ("GET", "HEAD")
_FOR_PROGRAMS = ("/api/", "/v1/")  # no pages

# No script within a page, nothing from other sites or for them, and no page may frame this one.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]

Application = Callable[[Any, Any, Any], Awaitable[None]]


class LocalGate:
    """A gate for a port of this machine only, whose connections are of this user."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host = _header(scope, b"host")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name != "localhost" and not is_loopback(name.strip("[]")):
            await _refuse(send, 403, "this server is for programs and pages of this machine: ask for it as localhost")
        else:
            await _let_in(self._application, scope, receive, send)


class TokenGate:
    """A gate for a port that other machines reach."""

    def __init__(self, application: Application, token: str, *, secure: bool) -> None:
        self._application = application
        self._token = token
        self._secure = secure

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        if given and scope["method"] == "GET" and _same(given, self._token):
            rest = urlencode([(name, value) for name, value in query if name != "token"], encoding="latin-1")
            path = quote(scope["path"].lstrip("/"))  # a path on this server, no //other
            place = f"/{path}?{rest}" if rest else f"/{path}"
            cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if self._secure else "")
            headers = [(b"set-cookie", cookie.encode())]
            if _header(scope, b"sec-fetch-site") == "cross-site":
                # A link in another site's page (a chat, a mail): after a redirect the browser would not send this cookie.
                page = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(place)}">'
                headers.append((b"content-type", b"text/html; charset=utf-8"))
                await _answer(send, 200, page.encode(), headers)
            else:
                await _answer(send, 303, b"", [(b"location", place.encode()), *headers])
        elif self._knows(scope):
            await _let_in(self._application, scope, receive, send)
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


async def _let_in(application: Application, scope: Any, receive: Any, send: Any) -> None:
    """Passes on what one asks who may ask, unless a page of another site has him ask it. Each answer has HEADERS."""
    if _is_of_other_site(scope):
        await _refuse(send, 403, "a page of another site or port has sent this: only pages of this server may")
        return
    kind = _header(scope, b"content-type").partition(";")[0].strip().lower()
    if scope["method"] not in _READ and (kind or _has_body(scope)) and kind != "application/json":
        await _refuse(send, 415, "send JSON, with the header content-type: application/json")
        return

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            given = message.get("headers", [])
            names = {name.lower() for name, _ in given}
            message = {**message, "headers": [*given, *(each for each in HEADERS if each[0] not in names)]}
        await send(message)

    scope.get("state", {}).get("let_in", _nothing)()
    await application(scope, receive, sent)


def _nothing() -> None:
    return None


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _is_of_other_site(scope: Any) -> bool:
    """True if a page of another site has sent it, or of another port of this machine. A browser says so; its user may follow
    a link to a page of here, in a tab of its own, and no more: what answers programs may be costly."""
    origin = _header(scope, b"origin")
    if origin and origin.partition("://")[2] != _header(scope, b"host"):
        return True
    if _header(scope, b"sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    follows = _header(scope, b"sec-fetch-mode") == "navigate" and _header(scope, b"sec-fetch-dest") == "document"
    return scope["method"] not in _READ or not follows or scope["path"].startswith(_FOR_PROGRAMS)


def _has_body(scope: Any) -> bool:
    return _header(scope, b"content-length") not in ("", "0") or bool(_header(scope, b"transfer-encoding"))


def _header(scope: Any, name: bytes) -> str:
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), "")


async def _told(request: Any, error: Exception) -> Any:
    """Returns the answer to what no route has answered, as JSON."""
    from starlette.responses import JSONResponse

    status, headers = getattr(error, "status_code", 500), getattr(error, "headers", None)
    if status == 405:
        takes = ", ".join(sorted((headers or {}).get("Allow", "other methods").split(", ")))
        text = f"{request.url.path} takes {takes}, not {request.method}"
    else:
        text = "there is nothing at this path" if status == 404 else "this server has failed; its log says how"
    return JSONResponse({"error": text}, status, headers)


async def _refuse(send: Any, status: int, text: str) -> None:
    body = b'{"error": "' + text.encode() + b'"}'
    await _answer(send, status, body, [(b"content-type", b"application/json"), (b"connection", b"close")])


async def _answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, *HEADERS, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
