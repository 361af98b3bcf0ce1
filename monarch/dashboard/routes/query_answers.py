"""Answers to queries: SQL in, rows out in parts, and a query ends when its asker goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from monarch._http.answering import AGAIN_LATER, BadRequest, answer, gone, on_thread
from monarch.telemetry.result import QueryError, QueryRefused

if TYPE_CHECKING:
    from monarch.telemetry.store import Store

T = TypeVar("T")

_CANCELS = 0.1  # seconds between two attempts to cancel

# Is given what cancels the work from another thread, which may be called at any time and again.
Running = Callable[[Callable[[], None]], object]


async def while_awaited(request: Any, work: Callable[[Running], T]) -> T:
    """Returns what `work` gives, on a thread. Cancels it when nobody waits for the answer any more."""
    cancels: list[Callable[[], None]] = []
    running = asyncio.ensure_future(on_thread(work, cancels.append))
    left = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait((running, left), return_when=asyncio.FIRST_COMPLETED)
        while not running.done():  # again, for work that has not quite begun
            for cancel in cancels:
                try:
                    cancel()
                except Exception:  # it has just ended
                    pass
            await asyncio.wait((running,), timeout=_CANCELS)
        return await running
    finally:
        left.cancel()


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


def refused(exc: QueryRefused) -> Any:
    """Returns the answer to a query that has found no place."""
    return answer({"error": str(exc)}, 503, AGAIN_LATER)
