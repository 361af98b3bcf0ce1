"""SQL over HTTP: what `QueryEngineClient` and `monarch query` speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._http.answering import BadRequest, answer, error, object_of, on_thread
from monarch.dashboard.routes.query_answers import refused, sql_of, streamed
from monarch.telemetry.result import QueryError, QueryRefused, QueryTimeout

if TYPE_CHECKING:
    from monarch.telemetry.store import Store

_LONGEST = 300.0  # seconds that a request may ask for
_MOST = float(2**63)  # rows
_LARGEST_DUMP = 64 << 20


def query_routes(store: Store) -> list[Any]:
    """`POST /api/query {"sql", "timeout"?, "limit"?}`, for those who may read. What fails when a part has gone already is
    the last field of the answer, `error`."""
    from starlette.routing import Route

    async def query(request: Any) -> Any:
        try:
            given = await object_of(request)
            sql = sql_of(given)
        except BadRequest as exc:
            return error(400, str(exc))
        timeout, limit = given.get("timeout"), given.get("limit")
        if not _number(timeout, _LONGEST) or not _number(limit, _MOST):
            return error(400, f"'timeout' is a number of seconds up to {_LONGEST:g}, 'limit' a number of rows")
        most = None if limit is None else int(limit)
        try:
            return await streamed(request, store, sql, timeout, most)
        except QueryTimeout as exc:
            return error(408, str(exc))
        except QueryRefused as exc:
            return refused(exc)
        except QueryError as exc:
            return error(400, str(exc))

    return [Route("/api/query", query, methods=["POST"])]


def upload_routes(store: Store) -> list[Any]:
    """`POST /api/pyspy_dump {"dump_id", "proc_ref", "pyspy_result_json"}`: for programs of this machine only."""
    from starlette.routing import Route

    async def dump(request: Any) -> Any:
        try:
            given = await object_of(request, _LARGEST_DUMP)
        except BadRequest as exc:
            return error(400, str(exc))
        names = ("dump_id", "proc_ref", "pyspy_result_json")
        if not all(isinstance(given.get(name), str) for name in names):
            return error(400, f"missing {', '.join(names)} in request body")
        try:
            await on_thread(store.store_pyspy_dump, *(given[name] for name in names))
        except ValueError as exc:
            return error(400, str(exc))
        return answer({"dump_id": given["dump_id"]})

    return [Route("/api/pyspy_dump", dump, methods=["POST"])]


def _number(value: Any, most: float) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most)
