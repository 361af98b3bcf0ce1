"""The dashboard's routes. They only read; the server decides who may ask."""

from __future__ import annotations

import functools
import gzip
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._http import answering
from monarch._http.answering import BadRequest
from monarch.dashboard.pages.api import NotFound, PageData, Unavailable
from monarch.dashboard.pages.logs_data import LogFilter, ranks_of
from monarch.dashboard.routes import query_answers
from monarch.dashboard.routes.request import PageRequest
from monarch.telemetry.result import QueryRefused

if TYPE_CHECKING:
    from monarch.admin.programs import Program

logger = logging.getLogger("monarch.dashboard")

STATIC = Path(__file__).parents[1] / "static"
PAGES = (
    "overview",
    "metrics",
    "logs",
    "doctor",
    "topology",
    "actors",
    "stacks",
    "hardware",
    "sql",
    "traces",
    "failure",
)
SMALL = 1 << 16  # bytes of an answer that travels as it is; larger ones are packed

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def routes(store: Any, program: Program | None) -> list[Any]:
    """Pages and their JSON, for a store of telemetry and the program that fills it (None: it has ended)."""
    from monarch.dashboard.pages.live_program import LiveProgram

    return routes_of(PageData(store, None if program is None else LiveProgram(program, store)))


def routes_of(api: PageData) -> list[Any]:
    from starlette.routing import Route

    def get(path: str, answer: Callable[..., Any]) -> Any:
        return Route(path, _answering(answer), methods=["GET"])

    return [
        get("/api/health", lambda ask: {"status": "ok"}),
        get("/api/summary", lambda ask: api.summary()),
        get("/api/doctor", lambda ask: api.doctor()),
        get("/api/endpoints", lambda ask: api.endpoints()),
        get("/api/services", lambda ask: api.services()),
        get("/api/message-stats", lambda ask: api.message_stats()),
        get("/api/message-activity", lambda ask: api.message_activity(ask.seconds(), ask.flag("to_now", False))),
        get("/api/topology", lambda ask: api.topology(ask.flag("show_system", False))),
        get("/api/dag", _dag(api)),
        get(
            "/api/meshes",
            lambda ask: api.meshes(ask.text("class"), ask.id("parent_mesh_id"), ask.names("exclude_classes")),
        ),
        get("/api/meshes/{id}", lambda ask: api.mesh(ask.path_id("mesh not found"))),
        get(
            "/api/meshes/{id}/children",
            lambda ask: api.meshes(ask.text("mesh_class"), ask.path_id("mesh not found"), ask.names("exclude_classes")),
        ),
        get(
            "/api/meshes/{id}/ranks/{rank}",
            lambda ask: api.rank(ask.path_id("mesh not found"), ask.path_id("no such rank", "rank")),
        ),
        get("/api/actors", lambda ask: api.actors(ask.id("mesh_id"))),
        get("/api/actors/{id}", lambda ask: api.actor(ask.path_id("actor not found"))),
        get("/api/failures/{id}", lambda ask: api.failure(ask.path_id("actor not found"))),
        get("/api/actors/{id}/status_events", lambda ask: api.status_events(ask.path_id("actor not found"))),
        get("/api/actors/{id}/messages", lambda ask: api.actor_messages(ask.path_id("actor not found"))),
        get("/api/actors/{id}/stacks", lambda ask: api.actor_stacks(ask.path_id("actor not found"))),
        get("/api/messages", lambda ask: api.messages(ask.id("from_actor_id"), ask.id("to_actor_id"))),
        get("/api/message_status_events", lambda ask: api.message_events(ask.needed_id("message_id"))),
        get("/api/sent_messages", lambda ask: api.sent_messages(ask.id("sender_actor_id"))),
        get("/api/tables", lambda ask: api.tables()),
        get("/api/hardware", lambda ask: api.hardware(ask.seconds() or 600.0)),
        get("/api/logs", lambda ask: api.logs.logged(_log_filter(ask))),
        get("/api/output", lambda ask: _of_program(lambda: api.logs.printed(_log_filter(ask)))),
        get(
            "/api/metrics",
            lambda ask: api.metrics.told(ask.text("match") or "", ask.text("mesh"), ask.names("runs")),
        ),
        get("/api/stacks", lambda ask: api.stacks()),
        get("/api/profiles", lambda ask: api.profiles()),
        get("/api/profiles/{name}", lambda ask: _download(api.profile_file(ask.name()), ask.name())),
        Route(
            "/api/profile",
            _answering(lambda ask: api.start_profile(ask.number("seconds") or 10.0), body=True),
            methods=["POST"],
        ),
        Route("/api/pyspy/capture", _answering(lambda ask: _capture(api, ask), body=True), methods=["POST"]),
        Route("/api/sql", _sql(api), methods=["POST"]),
        Route("/static/{name:path}", _static, methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        *(Route(f"/{page}", _page, methods=["GET"]) for page in PAGES),
    ]


def _capture(api: PageData, ask: PageRequest) -> Any:
    reference = ask.body.get("proc_ref")
    if not isinstance(reference, str) or not reference:
        raise BadRequest("missing 'proc_ref' in request body")
    try:
        return api.capture(reference)
    except Unavailable as exc:
        return _json({"error": str(exc), "admin_url": None}, 502)


def _log_filter(ask: PageRequest) -> LogFilter:
    return LogFilter(
        mesh=ask.text("mesh"),
        ranks=ranks_of(ask.text("rank") or ""),
        level=(ask.text("level") or "").upper(),
        text=ask.text("text") or "",
        at_us=ask.id("at"),
        before_us=ask.id("before"),
    )


def _of_program(answer: Callable[[], Any]) -> Any:
    """Asks the program itself, which may be gone or stuck."""
    try:
        return answer()
    except (RuntimeError, OSError, ValueError) as exc:
        raise Unavailable(str(exc)) from exc


def _dag(api: PageData) -> Callable[[PageRequest], Any]:
    def answer(ask: PageRequest) -> Any:
        try:
            return api.dag(ask.flag("hide_system", True))
        except Exception as exc:  # the page that draws it reads these keys
            logger.exception("the graph could not be made")
            return _json({"error": str(exc), "nodes": [], "edges": []}, 500)

    return answer


# --- a request answered


def _answering(answer: Callable[[PageRequest], Any], body: bool = False) -> Callable[..., Any]:
    """Returns an endpoint: `answer` on a thread, what it gives as JSON, what it raises as a status and a text."""

    async def endpoint(request: Any) -> Any:
        try:
            ask = PageRequest(request, await _body(request) if body else {})
        except BadRequest as exc:
            return _error(400, str(exc))
        return await answering.on_thread(_answered, answer, ask)

    return endpoint


def _sql(api: PageData) -> Callable[..., Any]:
    """Returns the endpoint for what people typed; when they go away, their query is cancelled."""

    async def endpoint(request: Any) -> Any:
        def run(running: query_answers.Running) -> Any:
            return _answered(lambda ask: api.sql(sql, ask.number("timeout"), _rows(ask), running), ask)

        try:
            ask = PageRequest(request, await _body(request))
            sql = query_answers.sql_of(ask.body)
        except BadRequest as exc:
            return _error(400, str(exc))
        return await query_answers.while_awaited(request, run)

    return endpoint


def _rows(ask: PageRequest) -> int | None:
    return int(ask.number("limit") or 0) or None


def _answered(answer: Callable[[PageRequest], Any], ask: PageRequest) -> Any:
    try:
        given = answer(ask)
    except NotFound as exc:
        return _error(404, str(exc))
    except BadRequest as exc:
        return _error(400, str(exc))
    except Unavailable as exc:
        return _error(503, str(exc))
    except TimeoutError as exc:
        return _error(408, str(exc) or "it took longer than it may")
    except QueryRefused as exc:
        return query_answers.refused(exc)
    except ValueError as exc:  # bad SQL, or SQL that writes
        return _error(400, str(exc))
    except Exception as exc:
        logger.exception("%s failed", ask.path)
        return _error(500, f"{type(exc).__name__}: {exc}")
    return given if hasattr(given, "status_code") else _json(given, packed=ask.takes_gzip)


async def _body(request: Any) -> dict[str, Any]:
    """Returns the JSON object that came. Only under its own content type, which pages of other sites may not send unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadRequest("send JSON, with content-type application/json")
    return await answering.object_of(request)


def _json(content: Any, status: int = 200, packed: bool = False) -> Any:
    """`packed`: the asker can unpack it."""
    body = msgspec.json.encode(content)
    headers = {"Cache-Control": "no-store"}
    if packed and len(body) > SMALL:
        body = gzip.compress(body, 1, mtime=0)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return answering.answer(body, status, headers)


def _error(status: int, text: str) -> Any:
    return _json({"error": text}, status)


# --- files


def _download(path: str, name: str) -> Any:
    from starlette.responses import FileResponse

    return FileResponse(path, media_type="application/octet-stream", filename=f"{name}.pftrace")


@functools.cache
def _files() -> dict[str, Path]:
    """Returns the files that there are, by what is asked for: nothing of that becomes a path."""
    return {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.suffix in _TYPES}


async def _page(request: Any) -> Any:
    return _file("index.html")


async def _static(request: Any) -> Any:
    return _file(request.path_params["name"])


def _file(name: str) -> Any:
    from starlette.responses import Response

    path = _files().get(name)
    if path is None:
        return _error(404, "no such file")
    return Response(path.read_bytes(), headers={"Cache-Control": "no-cache", "Content-Type": _TYPES[path.suffix]})
