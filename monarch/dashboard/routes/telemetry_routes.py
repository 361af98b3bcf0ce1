"""SQL over HTTP: what `QueryEngineClient` and `monarch query` speak."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch.telemetry.json_rows import encode
from monarch.telemetry.result import QueryError, QueryTimeout, Result

if TYPE_CHECKING:
    from monarch.telemetry.store import Store

_LONGEST = 300.0  # seconds that a request may ask for
_LARGEST = 1 << 20  # bytes of a request
_LARGEST_DUMP = 64 << 20
_CANCELS = 0.1  # seconds between two attempts to cancel


def routes(store: Store) -> list[Any]:
    """`POST /api/query {"sql", "timeout"?, "limit"?}`, for whoever may read."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response
    from starlette.routing import Route

    async def query(request: Any) -> Any:
        given = await _body(request)
        sql = given.get("sql") if given is not None else None
        if not isinstance(sql, str) or not sql.strip():
            return _error(400, "missing 'sql' in request body")
        timeout, limit = given.get("timeout"), given.get("limit")
        if not _number(timeout, _LONGEST) or not _number(limit, float("inf")):
            return _error(400, f"'timeout' is a number of seconds up to {_LONGEST:g}, 'limit' a number of rows")
        try:
            result = await _run(request, store, sql, timeout, None if limit is None else int(limit))
        except QueryTimeout as exc:
            return _error(408, str(exc))
        except QueryError as exc:
            return _error(400, str(exc))
        return Response(await run_in_threadpool(encode, result), media_type="application/json")

    return [Route("/api/query", query, methods=["POST"])]


async def _run(request: Any, store: Store, sql: str, timeout: float | None, limit: int | None) -> Result:
    """The query's result. When who has asked goes away, it is cancelled."""
    cancels: list[Callable[[], object]] = []
    query = functools.partial(store.query, sql, timeout=timeout, limit=limit, running=cancels.append)
    running = asyncio.ensure_future(asyncio.to_thread(query))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        while not running.done():  # again, for one that has not quite begun
            for cancel in cancels:
                cancel()
            await asyncio.wait((running,), timeout=_CANCELS)
        return await running
    finally:
        gone.cancel()


async def _gone(request: Any) -> None:
    """Returns when nobody waits for the answer any more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def bringing(store: Store) -> list[Any]:
    """`POST /api/pyspy_dump {"dump_id", "proc_ref", "pyspy_result_json"}`: for programs of this machine only."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def dump(request: Any) -> Any:
        given = await _body(request, _LARGEST_DUMP)
        names = ("dump_id", "proc_ref", "pyspy_result_json")
        if given is None or not all(isinstance(given.get(name), str) for name in names):
            return _error(400, f"missing {', '.join(names)} in request body")
        try:
            await run_in_threadpool(store.store_pyspy_dump, *(given[name] for name in names))
        except ValueError as exc:
            return _error(400, str(exc))
        return JSONResponse({"dump_id": given["dump_id"]})

    return [Route("/api/pyspy_dump", dump, methods=["POST"])]


async def _body(request: Any, largest: int = _LARGEST) -> Any:
    """The JSON object that came; None for what is none, or too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > largest:
            return None
        parts.append(part)
    try:
        given = json.loads(b"".join(parts))
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _number(value: Any, most: float) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most)


def _error(status: int, text: str) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": text}, status)
