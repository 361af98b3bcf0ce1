"""The routes of the admin API, which `monarch._http.server` serves. See docs/admin.md.

Who may ask, ports and TLS are the server's. Questions to the program run on threads; equal ones that come together are asked
once (`shared_answers`), so any number of readers costs the program a few questions a second.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from monarch._http.answering import AGAIN_LATER, BadRequest, answer, body_of, decoded, on_thread
from monarch._mesh.inspection import doctor
from monarch.admin import references
from monarch.admin.payloads import NO_CURVES, AdminInfo, ApiError, ApiErrorEnvelope, Nodes
from monarch.admin.program_tree import ProgramTree
from monarch.admin.pyspy import ProfileWanted
from monarch.admin.query import ProgramQueries, ProgramQueryFailed, Queryable
from monarch.admin.references import BadReference
from monarch.dashboard.pages.metrics_data import MetricsData
from monarch.dashboard.routes import admin_guide, admin_schemas, admin_tree_page
from monarch.dashboard.routes.query_answers import streamed
from monarch.dashboard.shared_answers import SharedAnswers
from monarch.telemetry.result import QueryError, QueryRefused, QueryTimeout

FRESH = 0.2  # seconds for which an answer serves those who ask the same
PROFILES = 2  # flame graphs made at a time; a further one is refused
_NO_TELEMETRY = "dashboard not configured (no telemetry_url provided): start with monarch.telemetry.start()"


def routes(program: Queryable, store: Any = None) -> list[Any]:
    """Starlette routes that answer about `program`. `store`: its telemetry (`monarch.telemetry.store`), for SQL."""
    return _Api(program, store).routes()


class _Api:
    def __init__(self, program: Queryable, store: Any) -> None:
        self._program = program
        self._queries = ProgramQueries(program)
        self._store = store
        self._answers = SharedAnswers(FRESH)
        self._curves = MetricsData(store, SharedAnswers(FRESH))
        self._looks = SharedAnswers(doctor.FRESH)
        self._profiles = 0

    def routes(self) -> list[Any]:
        from starlette.routing import Route

        def get(path: str, endpoint: Callable[[Any], Awaitable[Any]]) -> Any:
            return Route(path, self._told(endpoint), methods=["GET"])

        def post(path: str, endpoint: Callable[[Any], Awaitable[Any]]) -> Any:
            return Route(path, self._told(endpoint), methods=["POST"])

        return [
            get("/SKILL.md", self._guide),
            get("/v1/admin", self._admin),
            get("/v1/tree", self._tree_page),
            get("/v1/nodes", self._nodes),
            get("/v1/doctor", self._doctor),
            get("/v1/tables", self._tables),
            get("/v1/metrics", self._metrics),
            get("/v1/schema", self._schema),
            get("/v1/schema/{name}", self._schema),
            get("/v1/openapi.json", self._openapi),
            post("/v1/query", self._query),
            get("/v1/config/{reference:path}", self._config),
            get("/v1/pyspy/{reference:path}", self._stacks),
            get("/v1/output/{reference:path}", self._output),
            post("/v1/pyspy_dump/{reference:path}", self._dump),
            post("/v1/pyspy_profile_svg/{reference:path}", self._profile),
            get("/v1/{reference:path}", self._node),
        ]

    def _told(self, endpoint: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Makes an error envelope of what goes wrong."""

        async def told(request: Any) -> Any:
            try:
                return await endpoint(request)
            except ProgramQueryFailed as exc:
                return _error(exc.status, exc.code, str(exc))
            except BadReference as exc:
                return _error(400, "bad_request", str(exc))
            except Exception as exc:
                return _error(500, "internal_error", f"{type(exc).__name__}: {exc}")

        return told

    # --- the tree

    async def _tree(self) -> ProgramTree:
        return await self._answers.ask("tree", self._queries.tree)

    async def _node(self, request: Any) -> Any:
        reference = _reference(request, "/v1/")
        tree = await self._tree()
        return answer(await self._answers.ask(("node", reference), lambda: self._queries.node(tree, reference)))

    async def _nodes(self, request: Any) -> Any:
        return answer(await self._answers.ask("nodes", self._encoded))

    def _encoded(self) -> bytes:
        """Returns the whole tree as JSON: a megabyte for a thousand actors, so once for all who ask."""
        nodes = self._answers.get("tree", self._queries.tree).nodes
        return msgspec.json.encode(Nodes(list(nodes.values())))

    async def _tree_page(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(admin_tree_page.page(await self._tree(), _base(request)))

    async def _tables(self, request: Any) -> Any:
        return answer(await self._answers.ask("tables", self._queries.tables))

    async def _metrics(self, request: Any) -> Any:
        if self._store is None:
            raise ProgramQueryFailed(404, "not_found", NO_CURVES)
        return answer(await on_thread(self._curves.told))

    async def _doctor(self, request: Any) -> Any:
        return answer(await self._looks.ask("doctor", self._queries.doctor))

    # --- one process

    async def _config(self, request: Any) -> Any:
        reference = _reference(request, "/v1/config/")
        tree = await self._tree()
        return answer(await self._answers.ask(("config", reference), lambda: self._queries.config(tree, reference)))

    async def _output(self, request: Any) -> Any:
        reference = _reference(request, "/v1/output/")
        tree = await self._tree()
        return answer(await self._answers.ask(("output", reference), lambda: self._queries.output(tree, reference)))

    async def _stacks(self, request: Any) -> Any:
        return answer(await self._captured(request, "/v1/pyspy/"))

    async def _captured(self, request: Any, prefix: str) -> dict[str, Any]:
        reference = _reference(request, prefix)
        native, locals, program = (_flag(request, name) for name in ("native", "locals", "program"))
        tree = await self._tree()
        return await self._answers.ask(
            ("stacks", reference, native, locals, program),
            lambda: self._queries.stacks(tree, reference, native=native, locals=locals, runtime=not program),
        )

    async def _dump(self, request: Any) -> Any:
        if self._store is None:
            raise ProgramQueryFailed(404, "not_found", _NO_TELEMETRY)
        reference = _reference(request, "/v1/pyspy_dump/")
        captured = await self._captured(request, "/v1/pyspy_dump/")
        dump_id = str(uuid.uuid4())
        try:
            await on_thread(self._store.store_pyspy_dump, dump_id, reference, msgspec.json.encode(captured).decode())
        except Exception as exc:
            raise ProgramQueryFailed(500, "proxy_error", f"the stacks could not be stored: {exc}") from None
        return answer({"dump_id": dump_id})

    async def _profile(self, request: Any) -> Any:
        from starlette.responses import Response

        reference = _reference(request, "/v1/pyspy_profile_svg/")
        wanted = await _body(request, ProfileWanted)
        try:
            wanted.check()
        except ValueError as exc:
            raise ProgramQueryFailed(400, "bad_request", str(exc)) from None
        if wanted.native:
            raise ProgramQueryFailed(
                503,
                "service_unavailable",
                "profiles are made in the process itself and have Python frames only: ask without native, or run "
                "`py-spy record --native --pid PID` on its host",
            )
        tree = await self._tree()
        if self._profiles >= PROFILES:
            raise ProgramQueryFailed(
                503, "service_unavailable", f"{PROFILES} profiles are being made already; ask again later"
            )
        self._profiles += 1
        try:
            svg = await on_thread(self._queries.flame, tree, reference, wanted)
        except ProgramQueryFailed as exc:
            raise exc if exc.status != 500 else ProgramQueryFailed(500, "profile_failed", str(exc)) from None
        finally:
            self._profiles -= 1
        return Response(svg, media_type="image/svg+xml")

    # --- the server itself

    async def _admin(self, request: Any) -> Any:
        own = f"observer.{os.getpid()}@{socket.gethostname()}"
        return answer(AdminInfo(f"admin.{own}", own, socket.gethostname(), _base(request)))

    async def _schema(self, request: Any) -> Any:
        name = request.path_params.get("name", "node_payload")
        schema = admin_schemas.schema(name)
        if schema is None:
            raise ProgramQueryFailed(
                404, "not_found", f"no schema {name!r}: /v1/schema, /v1/schema/admin and /v1/schema/error"
            )
        return answer(schema)

    async def _openapi(self, request: Any) -> Any:
        return answer(admin_schemas.openapi())

    async def _guide(self, request: Any) -> Any:
        from starlette.responses import Response

        return Response(admin_guide.text(_base(request)), media_type="text/markdown; charset=utf-8")

    async def _query(self, request: Any) -> Any:
        asked = await _body(request, _Query)
        if self._store is None:
            raise ProgramQueryFailed(404, "not_found", _NO_TELEMETRY)
        try:
            return await streamed(request, self._store, asked.sql)
        except QueryTimeout as exc:
            raise ProgramQueryFailed(504, "gateway_timeout", str(exc)) from None
        except QueryRefused as exc:
            return _error(503, "service_unavailable", str(exc), AGAIN_LATER)
        except QueryError as exc:
            raise ProgramQueryFailed(400, "bad_request", str(exc)) from None
        except Exception as exc:
            raise ProgramQueryFailed(500, "proxy_error", f"the telemetry could not be asked: {exc}") from None


class _Query(msgspec.Struct):
    sql: str


async def _body(request: Any, type: Any) -> Any:
    """Returns what was posted, as JSON. Nothing at all is an empty object."""
    try:
        return decoded(await body_of(request) or b"{}", type)
    except BadRequest as exc:
        raise ProgramQueryFailed(400, "bad_request", str(exc)) from None


def _reference(request: Any, prefix: str) -> str:
    """Returns what stands behind the prefix, percent-encoded whole; `/` may stand there as it is."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    return references.decoded(raw.partition(b"?")[0][len(prefix) :])


def _flag(request: Any, name: str) -> bool:
    return request.query_params.get(name, "").lower() in ("1", "true", "yes")


def _base(request: Any) -> str:
    """The URL of this server as the asker has it; `x-forwarded-proto` counts where a proxy ends TLS."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return f"{scheme if scheme in ('http', 'https') else 'http'}://{request.url.netloc}"


def _error(status: int, code: str, text: str, headers: Mapping[str, str] | None = None) -> Any:
    return answer(ApiErrorEnvelope(ApiError(code, text)), status, headers)
