"""The one place where an observer serves HTTP: which routes are on which port, who may ask, and TLS.

Before any page or query, each request goes through a gate. On this machine it lets processes of this user in, as the kernel
says, under a name of this machine (so that no page of another site gets in by a name that it lets point here). From other
machines: those who have the token, in the URL once, then in a cookie, or as `Authorization: Bearer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from monarch._wire.loopback_peer import is_loopback, is_ours
from monarch.dashboard.routes.telemetry_routes import query_routes, upload_routes

if TYPE_CHECKING:
    from monarch.dashboard.process.observer_config import ObserverConfig
    from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")

_STARTS = 30.0  # seconds for a server to listen
_ENDS = 2.0  # and for what is under way to end
_CONNECTIONS = 256  # of one port; more are answered 503
_BACKLOG = 128


class Site(NamedTuple):
    """A port: `host` and `port` are wanted, any free port serves when that is taken."""

    routes: Sequence[Any]
    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    certificate: str = ""
    private_key: str = ""


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

        self._application: Any = Starlette(routes=list(routes))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope, receive, send)


class HttpServer:
    """Serves sites from a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._servers: list[tuple[Any, asyncio.Task[None]]] = []
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

        config = uvicorn.Config(
            guarded(routing, site),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=int(_ENDS),
            server_header=False,
            ssl_certfile=site.certificate or None,
            ssl_keyfile=site.private_key or None,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the HTTP server has ended before it had begun")
            await asyncio.sleep(0.01)
        self._servers.append((server, task))

    async def _stop(self) -> None:
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
    elif is_loopback(host):
        host = "localhost"
    scheme = "https" if site.certificate else "http"
    token = "" if is_loopback(site.host) else f"/?token={site.token}"
    return f"{scheme}://[{host}]:{name[1]}{token}" if ":" in host else f"{scheme}://{host}:{name[1]}{token}"


# --- what is on which port


def api_site(store: Store, program: Any) -> Site:
    """Returns the site for programs of this machine: SQL, what the dashboard shows, and uploads."""
    return Site([*query_routes(store), *upload_routes(store), *_dashboard(store, program)])


def dashboard_site(config: ObserverConfig, store: Store, program: Any, token: str) -> Site:
    """Returns the site for people: pages, which read."""
    return Site(
        _dashboard(store, program),
        config.dashboard_host,
        config.dashboard_port,
        token,
        *_tls(config, config.dashboard_host),
    )


def admin_site(config: ObserverConfig, store: Store | None, program: Any, host: str, port: int, token: str) -> Site:
    return Site(_admin(store, program), host, port, token, *_tls(config, host))


def _tls(config: ObserverConfig, host: str) -> tuple[str, str]:
    """Certificates are for what other machines reach."""
    return ("", "") if is_loopback(host) else (config.certificate, config.private_key)


def _dashboard(store: Store, program: Any) -> list[Any]:
    from monarch.dashboard.routes.page_routes import routes

    return routes(store, program)


def _admin(store: Store | None, program: Any) -> list[Any]:
    from monarch.dashboard.routes.admin_routes import routes

    return routes(program, store)


# --- who may ask

COOKIE = "monarch_token"
_HERE = ("localhost", "127.0.0.1", "[::1]")

Application = Callable[[Any, Any, Any], Awaitable[None]]


class LocalGate:
    """A gate for a port of this machine only."""

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
    """A gate for a port that other machines reach."""

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
    """True if a page of another site has sent it."""
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
