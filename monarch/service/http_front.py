"""The HTTP front of a service: a process beside the program's that answers over HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch._errors import SupervisionError
from monarch._http.answering import LARGEST_BODY
from monarch._http.connection_limits import CONNECTIONS
from monarch._http.server import HttpServer, Site
from monarch._linux.loopback_peer import is_loopback
from monarch.actor import Actor, Future, endpoint, returns_future, this_host
from monarch.service.http_routes import TIMEOUT, ServiceRoutes
from monarch.service.numbers import check_number
from monarch.service.service import Service
from monarch.service.shutdown_block import ShutdownBlock

_logger = logging.getLogger("monarch")
_SHORTEST_TOKEN = 16  # characters

MakeRoutes = Callable[[ServiceRoutes], Sequence[Any]]


class _FrontWanted(NamedTuple):
    """The arguments of `serve_http` that its process needs."""

    service: Service
    endpoints: tuple[str, ...]
    routes: MakeRoutes | None
    host: str
    port: int
    token: str
    certificate: str
    private_key: str
    timeout: float
    largest: int
    connections: int


class HttpFrontActor(Actor):
    """The server, in its process. Called by `HttpFront`."""

    def __init__(self, wanted: _FrontWanted) -> None:
        self._wanted = wanted
        self._server: HttpServer | None = None
        self._front: ServiceRoutes | None = None
        self._url = ""

    @endpoint
    def open(self) -> str:
        """Serves from now on; returns the URL."""
        wanted = self._wanted
        if self._server is not None:
            return self._url
        front = ServiceRoutes(wanted.service, wanted.largest, wanted.timeout)
        own = wanted.routes(front) if wanted.routes else []
        if not isinstance(own, (list, tuple)):
            raise TypeError(f"routes returns a list of what front.post and front.get return, not {own!r}")
        routes = [*front.routes(wanted.endpoints), *own]
        server = HttpServer()
        site = Site(
            routes, wanted.host, wanted.port, wanted.token, wanted.certificate, wanted.private_key, wanted.connections
        )
        try:
            opened = server.serve(site)
            if opened.note:  # clients know the port that was asked for
                raise OSError(f"port {wanted.port} is taken: choose another one, or 0 for any that is free")
        except BaseException:
            server.close()
            raise
        self._server, self._front, self._url = server, front, opened.url
        return self._url

    @endpoint
    def close(self, grace: float) -> None:
        """Takes no more requests, and returns when those that are there have their answers, or `grace` is over."""
        if self._server is None or self._front is None:
            return
        self._server.stop_accepting()
        self._server.wait_for(self._front.drain(grace))
        self._server.close()

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.close)


class HttpFront(ShutdownBlock):
    """A service over HTTP, made by `serve_http`. It ends with who made it, with `shutdown()`, or with the block of
    `with serve_http(...) as front` (or `async with`). Since 0.2.0.
    """

    def __init__(self, actor: Any, procs: Any, name: str) -> None:
        self._actor = actor
        self._procs = procs
        self._name = name

    def __repr__(self) -> str:
        return f"<HttpFront of service {self._name!r}>"

    def url(self) -> Future[str]:
        """Returns where it is, once it serves. For other machines the token is in it. OSError, in an ActorError, when it
        cannot listen there.
        """
        opened: Future[str] = self._actor.open.call_one()
        return opened

    def shutdown(self, grace: float = 30.0) -> Future[None]:
        """Lets nobody connect any more, answers what it has for `grace` seconds at most, and ends its process. Requests that
        come by connections that are open get 503. The service itself goes on.
        """
        check_number("grace, in seconds,", grace)
        closed = self._actor.close.call_one(grace)

        @returns_future
        async def end() -> None:
            try:
                await closed
            except SupervisionError:  # it has ended, and who made it may say so twice
                pass
            await self._procs.stop()

        return end()


def serve_http(
    service: Service,
    endpoints: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    certificate: str = "",
    private_key: str = "",
    routes: MakeRoutes | None = None,
    timeout: float = TIMEOUT,
    largest: int = LARGEST_BODY,
    connections: int = CONNECTIONS,
) -> HttpFront:
    """Serves endpoints of a service over HTTP, from a process beside the caller's, which ends with it.

        front = serve_http(service, ["generate", "tokens"], port=8000)
        print(front.url().get())  # http://localhost:8000

    Each endpoint is `POST /its-name`, with a JSON object of its arguments; the answer is an object with `result`, `version`
    and `replica`. A generator answers with server-sent events. Only the endpoints that are named here can be called. `routes`
    makes routes of one's own: it is called with a ServiceRoutes in the process of the front. `GET /health` tells whether a
    replica is up.

    On loopback this user alone is let in, by the kernel's word. On any other `host` one needs `token`, as
    `Authorization: Bearer`; one is made if none is given, and `url()` has it. `certificate` and `private_key`: files of TLS.

    Bounds: `connections` at a time; a body of `largest` bytes; `timeout` seconds a request unless the service has one (the
    header `request-timeout` shortens it); requests by the service's own bounds. A full service answers 429, one without
    replicas 503, both with Retry-After. A client that goes away cancels its request. Needs the extra `admin`. Since 0.2.0.
    """
    if not isinstance(service, Service):
        raise TypeError(f"serve_http takes a service, as serve returns it, and got {service!r}")
    if isinstance(endpoints, str):
        raise TypeError(f"endpoints is a list of names, such as [{endpoints!r}]; got the text {endpoints!r}")
    if not endpoints and routes is None:
        raise ValueError('serve_http needs what it is to serve: endpoints, such as ["generate"], or routes of your own')
    for name in endpoints:
        found = getattr(service, name)
        if found._kind == "port":
            raise TypeError(f"{name}() answers through a port, and a service has no use for it: return the answer")
        if service._group and found._kind in ("makes", "makes_async"):
            raise TypeError(f"{name}(): streams are of replicas with one process, and those of this service have more")
    if "health" in endpoints:
        raise ValueError("/health is the front's own: rename the endpoint, or serve it by routes")
    check_number("timeout, in seconds,", timeout, above=True)
    check_number("largest, in bytes,", largest, 1, whole=True)
    check_number("connections", connections, 1, whole=True)
    check_number("port", port, whole=True)
    if port > 65535:
        raise ValueError(f"port is a number from 0 (any that is free) to 65535, got {port!r}")
    if bool(certificate) != bool(private_key):
        raise ValueError("certificate and private_key are two files that belong together: give both, or neither")
    if is_loopback(host):
        if token is not None:
            raise ValueError(
                f"a token is for hosts that other machines reach: {host} lets in this user alone, and asks for none"
            )
    else:
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise ValueError(f"a token has {_SHORTEST_TOKEN} characters or more, such as secrets.token_urlsafe(24)")
        if not certificate:
            _logger.warning(
                "the HTTP front of service %r: other machines reach %s without TLS, so whoever can read the network can read "
                "the token; give certificate and private_key (`monarch certs DIRECTORY` makes them)",
                service._name,
                host,
            )
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as exc:
        raise ImportError(f"serve_http needs {exc.name}: pip install 'pymonarch[admin]'", name=exc.name) from None
    del starlette, uvicorn
    wanted = _FrontWanted(
        service, tuple(endpoints), routes, host, port, token or secrets.token_urlsafe(24), certificate, private_key,
        timeout, largest, connections,
    )  # fmt: skip
    procs = this_host().spawn_procs(name=f"{service._name}_http")
    actor = procs.spawn(f"{service._name}_http", HttpFrontActor, wanted)
    front = HttpFront(actor, procs, service._name)
    return front
