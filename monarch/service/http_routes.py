"""The routes of a service over HTTP: requests as JSON, streams as server-sent events, errors as statuses."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from monarch._errors import ActorError, SupervisionError
from monarch._http.answering import AGAIN_LATER, LARGEST_BODY, BadRequest, answer, gone, object_of
from monarch._text import sendable
from monarch.actor import ValueMesh
from monarch.service.errors import (
    ReplicaLostError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
)
from monarch.service.service import Service, ServiceAnswer, ServiceEndpoint
from monarch.service.status import ServiceStatus
from monarch.service.stream import ServiceStream

TIMEOUT = 300.0  # seconds for a request, unless said otherwise
_FRESH = 0.2  # seconds for which a status serves all who ask how the service is
_LONGEST_SESSION = 128  # characters of its name
_END = object()
ErrorBody = Callable[[int, str], Any]  # what is sent as JSON for a status and a text


def _error_body(status: int, text: str) -> Any:
    return {"error": text}


class ClientGone(Exception):
    """The client went away before its answer was there. Raised by `ServiceRoutes.ask`, and needs no answer. Since 0.2.0."""


class ServiceRoutes:
    """The requests of a service that come over HTTP, and helpers for routes of one's own: `serve_http(routes=)` gets it.

        def routes(front: ServiceRoutes) -> list:
            async def generate(request):
                body = await front.body(request)
                answer = await front.ask(request, front.service.generate, body["prompt"])
                return front.json({"text": answer.value})

            return [front.post("/v1/generate", generate)]

    Since 0.2.0.
    """

    def __init__(self, service: Service, largest: int = LARGEST_BODY, timeout: float = TIMEOUT) -> None:
        self.service = service.options(timeout=timeout) if service._options.timeout is None else service
        self._longest = self.service._options.timeout or timeout
        self._largest = largest
        self._draining = False
        self._running = 0
        self._empty = asyncio.Event()
        self._asked: asyncio.Task[ServiceStatus] | None = None
        self._asked_at = -math.inf

    # --- for routes

    def post(self, path: str, handler: Callable[[Any], Awaitable[Any]], error_body: ErrorBody = _error_body) -> Any:
        """Returns a starlette Route for POST. What `handler` raises becomes a status with `error_body(status, text)`."""
        return self._route(path, handler, ["POST"], error_body)

    def get(self, path: str, handler: Callable[[Any], Awaitable[Any]], error_body: ErrorBody = _error_body) -> Any:
        """Returns a starlette Route for GET."""
        return self._route(path, handler, ["GET"], error_body)

    async def body(self, request: Any) -> dict[str, Any]:
        """Returns the JSON object that came; anything else, or more than the front takes, is answered with 400."""
        return await object_of(request, self._largest)

    def json(self, content: Any, status: int = 200) -> Any:
        """Returns a response with this content."""
        return answer(encoded(content), status)

    async def ask(self, request: Any, endpoint: ServiceEndpoint, /, *args: Any, **kwargs: Any) -> ServiceAnswer[Any]:
        """Makes a request of the service, and cancels it when the client goes away."""
        found: ServiceAnswer[Any] = await self._while_there(request, _called(endpoint.cancellable, args, kwargs))
        return found

    async def events(
        self,
        request: Any,
        endpoint: ServiceEndpoint,
        arguments: Mapping[str, Any],
        *,
        shown: Callable[[Any], Any] = lambda value: {"value": value},
        last: Callable[[ServiceStream], str] | None = None,
        error_body: ErrorBody = _error_body,
    ) -> Any:
        """Returns a response with the values of a stream as server-sent events: `shown(value)` as JSON for each, and
        `last(stream)` as it is for the end. `arguments`: those of the endpoint, by name.

        What goes wrong before the first value is a status, later an event `error`. The replica stops when the client goes
        away, and makes no more than the client takes.
        """
        from starlette.responses import StreamingResponse

        stream: ServiceStream = _called(endpoint.stream, (), arguments)
        try:
            first = await self._while_there(request, _next(stream))
        except BaseException:
            stream.close()
            raise

        async def events() -> AsyncIterator[bytes]:
            async with stream:
                value = first
                try:
                    while value is not _END:
                        yield _event(encoded(shown(value)))
                        await asyncio.sleep(0)  # values may be here already: the loop sees that the client has gone
                        value = await _next(stream)
                except Exception as exc:
                    status, text, _ = told(exc)
                    yield b"event: error\n" + _event(encoded(error_body(status, text)))
                    return
                yield _event(last(stream).encode()) if last else b"event: end\n" + _event(_ended(stream))

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    def with_headers(self, request: Any) -> Service:
        """Returns the service with what a request's headers ask for: `request-timeout`, in seconds, `session-id`."""
        service = self.service
        if given := request.headers.get("request-timeout"):
            try:
                seconds = float(given)
            except ValueError:
                seconds = math.nan
            if not 0 < seconds <= self._longest:
                raise BadRequest(
                    f"the header request-timeout is a number of seconds, {self._longest:g} at most, not {given!r}"
                )
            service = service.options(timeout=seconds)
        if session := request.headers.get("session-id"):
            if len(session) > _LONGEST_SESSION:
                raise BadRequest(f"the header session-id has at most {_LONGEST_SESSION} characters")
            service = service._with(session=f"http:{session}")
        return service

    # --- those of every front

    def routes(self, endpoints: Sequence[str]) -> list[Any]:
        """Returns a route for each of these endpoints, and `/health`."""
        found = [self.get("/health", self._health)]
        for name in endpoints:
            endpoint: ServiceEndpoint = getattr(self.service, name)
            makes = endpoint._kind in ("makes", "makes_async")
            found.append(self.post(f"/{name}", self._stream_of(name) if makes else self._call_of(name)))
        return found

    def _call_of(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            body, service = await self.body(request), self.with_headers(request)
            moves = [0]
            service = service._with()
            service._moved = moves.append
            found = await self.ask(request, getattr(service, name), **body)
            told = {"result": found.value, "version": found.version, "replica": found.replica}
            if service._options.session:
                told["moves"] = max(moves)
            return self.json(told)

        return call

    def _stream_of(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def stream(request: Any) -> Any:
            body = await self.body(request)
            return await self.events(request, getattr(self.with_headers(request), name), body)

        return stream

    async def _health(self, request: Any) -> Any:
        if self._asked is None or (self._asked.done() and time.monotonic() > self._asked_at + _FRESH):
            self._asked_at = time.monotonic()
            self._asked = asyncio.ensure_future(_status_of(self.service))
        status = await asyncio.shield(self._asked)
        able = sum(one.state in ("up", "trial", "draining", "updating") for one in status.replicas)
        content = {
            "replicas": able,
            "outstanding": status.outstanding,
            "limit": status.limit,
            "version": status.version,
        }
        return answer(content, 200 if able else 503, None if able else AGAIN_LATER)

    # --- the end

    async def drain(self, grace: float) -> None:
        """Answers what it has, for `grace` seconds at most, and no more."""
        self._draining = True
        if self._running:
            self._empty.clear()  # it was set whenever there was nothing to do
            try:
                await asyncio.wait_for(self._empty.wait(), grace)
            except TimeoutError:
                pass

    def _route(self, path: str, handler: Callable[[Any], Awaitable[Any]], methods: list[str], body: ErrorBody) -> Any:
        from starlette.routing import Route

        async def respond(request: Any) -> Any:
            if self._draining:
                headers = {**AGAIN_LATER, "Connection": "close"}
                return answer(body(503, "this server is shutting down: ask another one, or again later"), 503, headers)
            self._running += 1
            try:
                response = await self._handled(handler, request, body)
            except BaseException:
                self._ended()
                raise

            async def send_all(scope: Any, receive: Any, send: Any) -> None:
                try:
                    await response(scope, receive, send)
                finally:
                    self._ended()

            return send_all

        return Route(path, respond, methods=methods)

    def _ended(self) -> None:
        self._running -= 1
        if not self._running:
            self._empty.set()

    async def _handled(self, handler: Callable[[Any], Awaitable[Any]], request: Any, body: ErrorBody) -> Any:
        try:
            return await handler(request)
        except Exception as exc:
            status, text, headers = told(exc)
            return answer(body(status, text), status, headers)

    async def _while_there(self, request: Any, asked: Coroutine[Any, Any, Any]) -> Any:
        """Awaits it, and cancels it when the client goes away."""
        running, left = asyncio.ensure_future(asked), asyncio.ensure_future(gone(request))
        try:
            await asyncio.wait((running, left), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ClientGone("the client went away before its answer was there")
            return running.result()
        finally:
            left.cancel()
            running.cancel()


async def _status_of(service: Service) -> ServiceStatus:
    return await service.status()


async def _next(stream: ServiceStream) -> Any:
    return await anext(stream, _END)


def _called(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a request; arguments that do not fit its endpoint are the client's mistake."""
    try:
        return call(*args, **kwargs)
    except TypeError as exc:
        raise BadRequest(str(exc)) from exc
    except RecursionError:  # pickling goes less deep than JSON
        raise BadRequest("the JSON of the body is nested too deep") from None


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _ended(stream: ServiceStream) -> bytes:
    return encoded({"values": stream._taken, "version": stream.version, "replica": stream.replica})


def encoded(content: Any) -> bytes:
    """Returns it as JSON: what msgspec knows, tensors and arrays as lists, the answers of a group as a list."""
    return msgspec.json.encode(content, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, ValueMesh):
        return list(value.values())
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"the answer has a {type(value).__qualname__}, which has no form in JSON: return text, numbers, lists, dicts, arrays"
    )


def told(error: Exception) -> tuple[int, str, dict[str, str] | None]:
    """Returns the status of an error, its text for the client, and headers."""
    match error:
        case BadRequest():
            return 400, str(error), None
        case ServiceOverloaded():
            return 429, str(error), {**AGAIN_LATER, "Retry-After": str(max(1, math.ceil(error.retry_after)))}
        case ServiceUnavailableError() | SupervisionError():
            return 503, str(error).splitlines()[0], AGAIN_LATER
        case ServiceTimeoutError():
            return 504, str(error), None
        case ReplicaLostError():
            return 502, str(error), None
        case ClientGone():
            return 499, str(error), None
        case ActorError() if error.exception is not None:
            return 500, sendable(f"{type(error.exception).__name__}: {error.exception}"), None
        case _:
            return 500, sendable(f"{type(error).__name__}: {error}"), None
