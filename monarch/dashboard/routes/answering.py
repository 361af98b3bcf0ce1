"""Helpers of all routes: a JSON body with a limit, work on a thread that ends when its asker goes away, errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from monarch.telemetry.result import QueryError, QueryRefused

if TYPE_CHECKING:
    from monarch.telemetry.store import Store

T = TypeVar("T")

LARGEST_BODY = 1 << 20  # bytes
AGAIN_LATER = {"Cache-Control": "no-store", "Retry-After": "2"}  # seconds; told to who has found no place
_CANCELS = 0.1  # seconds between two attempts to cancel

# Is given what cancels the work from another thread, which may be called at any time and again.
Running = Callable[[Callable[[], None]], object]


class BadRequest(ValueError):
    """Answered with 400 and this text."""


async def on_thread(work: Callable[..., T], *arguments: Any) -> T:
    from starlette.concurrency import run_in_threadpool

    given: T = await run_in_threadpool(work, *arguments)
    return given


async def body_of(request: Any, largest: int = LARGEST_BODY) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > largest:
            raise BadRequest(f"a request has at most {largest:,} bytes")
    return bytes(data)


async def object_of(request: Any, largest: int = LARGEST_BODY) -> dict[str, Any]:
    """Returns the JSON object that came. BadRequest for anything else."""
    found: dict[str, Any] = decoded(await body_of(request, largest), dict[str, Any])
    return found


def decoded(data: bytes, type: Any) -> Any:
    """Returns the JSON that came. BadRequest for what is none, or something else."""
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise BadRequest("the JSON of the body is nested too deep") from None
    except msgspec.ValidationError as exc:
        raise BadRequest(f"the body is not what is expected: {exc}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as exc:
        raise BadRequest(f"the body is no JSON: {exc}") from None


async def while_awaited(request: Any, work: Callable[[Running], T]) -> T:
    """Returns what `work` gives, on a thread. Cancels it when nobody waits for the answer any more."""
    cancels: list[Callable[[], None]] = []
    running = asyncio.ensure_future(on_thread(work, cancels.append))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        while not running.done():  # again, for work that has not quite begun
            for cancel in cancels:
                try:
                    cancel()
                except Exception:  # it has just ended
                    pass
            await asyncio.wait((running,), timeout=_CANCELS)
        return await running
    finally:
        gone.cancel()


async def _gone(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def streamed(request: Any, store: Store, sql: str, timeout: float | None = None, limit: int | None = None) -> Any:
    """Returns what answers with the result of a query, passed on in parts: a large one takes no memory here. QueryError
    before the first part. Cancels the query when nobody waits for it any more."""
    from starlette.responses import StreamingResponse

    opened = contextlib.ExitStack()
    result = await while_awaited(
        request,
        lambda running: opened.enter_context(store.stream(sql, timeout=timeout, limit=limit, running=running)),
    )

    async def body() -> AsyncIterator[bytes]:
        yield b'{"columns":' + msgspec.json.encode(result.columns) + b',"rows":['
        parts, between, failed = result.parts(), b"", {}
        try:
            while part := await on_thread(next, parts, b""):
                if rows := part[1:-1]:
                    yield between + rows
                    between = b","
        except QueryError as exc:
            failed = {"error": str(exc)}
        note = {"note": result.end.note} if result.end.note else {}
        end = {
            "missing_hosts": store.missing_hosts(),
            "truncated": result.end.truncated or bool(failed),
            **note,
            **failed,
        }
        yield b"]," + msgspec.json.encode(end)[1:]

    async def send_all(scope: Any, receive: Any, send: Any) -> None:
        with opened:  # also when nobody has begun to read
            await StreamingResponse(body(), media_type="application/json")(scope, receive, send)

    return send_all


def sql_of(body: Mapping[str, Any]) -> str:
    text = body.get("sql")
    if not isinstance(text, str) or not text.strip():
        raise BadRequest("missing 'sql' in request body")
    return text


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Returns `content` as JSON; bytes are JSON already."""
    from starlette.responses import Response

    body = content if isinstance(content, bytes) else msgspec.json.encode(content, enc_hook=str)
    return Response(body, status, headers=headers, media_type="application/json")


def error(status: int, text: str) -> Any:
    return answer({"error": text}, status)


def refused(exc: QueryRefused) -> Any:
    """Returns the answer to a query that has found no place."""
    return answer({"error": str(exc)}, 503, AGAIN_LATER)
