"""Answers of the routes: a query, and the shape of its rows. Aggregates are kept for two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from monarch.admin.rank_states import STATES
from monarch.dashboard.pages import failure, grids, icicle, node_graph, queries, shapes
from monarch.dashboard.pages.latest_findings import LatestFindings, without_program
from monarch.dashboard.pages.live_data import LiveData
from monarch.dashboard.pages.logs_data import LogFilter, LogsData
from monarch.dashboard.pages.metrics_data import MetricsData
from monarch.dashboard.pages.profiles import LONGEST, TraceFiles, TraceUnderWay
from monarch.dashboard.shared_answers import SharedAnswers
from monarch.telemetry.result import Result
from monarch.telemetry.store import Store

T = TypeVar("T")

RATE_WINDOW = 10.0  # seconds over which calls and messages a second are counted
RATE_DELAY = 2.0  # seconds that rows may take to arrive
LONG = 30.0  # seconds after which a running endpoint is a concern
SLOW_WINDOW = 120.0  # seconds over which actors of a mesh are compared
POINTS = 120  # of a line over time
FRESH = 2.0  # seconds for which an answer serves those who ask the same; pages ask every two to three
QUERY_SECONDS = 10.0  # for the dashboard's own queries
SQL_SECONDS = 30.0  # for those that people type, unless they say less
SQL_LONGEST = 300.0
SQL_ROWS = 10_000


class NotFound(LookupError):
    """The failure to find anything with that id."""


class Unavailable(RuntimeError):
    """It needs the running program, and there is none, or it cannot be asked."""


class PageData:
    """`live`: None for a saved program. `now`: seconds since the epoch; None: the newest time that was recorded. `findings`:
    the doctor's, of a program that runs."""

    def __init__(
        self,
        store: Store,
        live: LiveData | None = None,
        now: Callable[[], float] | None = time.time,
        findings: LatestFindings | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._now = now
        self._findings = LatestFindings(live.diagnosis) if findings is None and live is not None else findings
        self._answers = SharedAnswers(FRESH)
        self._profiles = TraceFiles(self._profile)
        self.metrics = MetricsData(store, self._answers)
        self.logs = LogsData(self._rows, live, self._answers)

    # --- overview

    def summary(self) -> dict[str, Any]:
        return self._kept("summary", self._summary)

    def _summary(self) -> dict[str, Any]:
        findings = self._findings.read() if self._findings is not None else ()
        failed = self._rows(queries.ended_actors("failed"))
        statuses = self._query(queries.statuses())
        made = shapes.summary(
            meshes=self._rows(queries.mesh_counts())[0],
            statuses=statuses.dicts(),
            failed=failed,
            stopped=self._rows(queries.ended_actors("stopped")),
            message_states=self._message_states(),
            timeline=self._rows(queries.timeline())[0],
            findings=findings,
            looked=self._findings is not None and self._findings.looked,
        )
        now_us = self.now_us()
        until = now_us - int(RATE_DELAY * 1e6) if self._now is not None else now_us
        window_us = int(RATE_WINDOW * 1e6)
        start = made["timeline"]["start_us"]
        if start is not None:
            window_us = max(1_000_000, min(window_us, until - start))
        lost = self._lost()
        missing = [str(host) for host in statuses.missing_hosts or ()]
        return {
            **made,
            "rates": shapes.rates(self._rows(queries.rates(until - window_us, until))[0], window_us),
            "rows_lost": lost,
            "missing_hosts": missing,
            "concerns": shapes.concerns(
                failed=failed,
                findings=findings,
                running=self._running(),
                slow=self._rows(queries.slow_actors(now_us - int(SLOW_WINDOW * 1e6))),
                now_us=now_us,
                long_us=int(LONG * 1e6),
                lost=lost,
                missing=missing,
            ),
            "doctor": {name: value for name, value in self.doctor().items() if name in ("state", "sentence", "at_us")},
            "now_us": now_us,
            "program": self._about(),
        }

    def doctor(self) -> dict[str, Any]:
        """Returns what the doctor has found, now and before. The first who asks is told that it looks."""
        told = without_program() if self._findings is None else self._findings.told()
        return {**told, "now_us": self.now_us()}

    def endpoints(self) -> list[dict[str, Any]]:
        return self._kept("endpoints", lambda: shapes.endpoint_times(self._rows(queries.endpoint_times())))

    def services(self) -> list[dict[str, Any]]:
        """The services that have measured anything: `monarch.service` does, while telemetry runs."""
        return self._kept("services", self._services)

    def _services(self) -> list[dict[str, Any]]:
        asked = queries.service_replicas(), queries.service_latencies(), queries.service_refusals()
        return shapes.services(*map(self._rows, asked))

    def message_stats(self) -> dict[str, Any]:
        return self._kept(
            "message-stats", lambda: shapes.message_stats(self._message_states(), self._rows(queries.pairs()))
        )

    def message_activity(self, seconds: float | None = None, to_now: bool = False) -> dict[str, Any]:
        """Counts from the first to the last message, or to now; or over the last `seconds`."""
        return self._kept(("message-activity", seconds, to_now), lambda: self._message_activity(seconds, to_now))

    def _message_activity(self, seconds: float | None, to_now: bool) -> dict[str, Any]:
        span = self._rows(queries.message_span())[0]
        if span["end_us"] is not None and (to_now or seconds is not None):
            span = {**span, "end_us": max(span["end_us"], self.now_us())}
        if span["end_us"] is not None and seconds is not None:
            span["start_us"] = max(span["start_us"], span["end_us"] - int(seconds * 1e6))
        rows = self._rows(queries.message_buckets(span["start_us"], span["end_us"])) if span["end_us"] else []
        if seconds is not None:
            span = {**span, "total": sum(row["messages"] for row in rows)}
        return shapes.activity(span, rows)

    # --- topology

    def topology(self, show_system: bool = False) -> dict[str, Any]:
        return self._kept(("topology", show_system), lambda: self._topology(show_system))

    def _topology(self, show_system: bool) -> dict[str, Any]:
        meshes = self._rows(queries.meshes())
        now_us = self.now_us()
        made = grids.grids(meshes, self._actors(), self._running(), now_us, show_system)
        return {"meshes": made, "letters": STATES, "now_us": now_us}

    def rank(self, mesh_id: int, rank: int) -> dict[str, Any]:
        """One cell of a grid: who lives there."""
        mesh = self._mesh(mesh_id)
        chosen = [row for row in self._actors() if row["mesh_id"] == mesh_id and row["rank"] == rank]
        if mesh["class"] == "Proc":
            for child in self._rows(queries.meshes(parent=mesh_id)):
                size = grids.ranks_of(grids.extent(child["shape_json"])[1])
                places = grids.parent_ranks(child["parent_view_json"], size)
                here = {number for number, place in enumerate(places) if place == rank}
                chosen += [row for row in self._actors() if row["mesh_id"] == child["id"] and row["rank"] in here]
        running = {row["actor_id"]: row for row in reversed(self._running())}
        now_us = self.now_us()
        actors = []
        for row in chosen:
            job = running.get(row["id"])
            actors.append(
                {
                    **shapes.with_text_ids(row),
                    "running": None if job is None else {"endpoint": job["endpoint"], "us": now_us - job["active_us"]},
                }
            )
        return {"mesh": shapes.with_text_ids(mesh), "rank": rank, "actors": actors}

    def dag(self, hide_system: bool) -> dict[str, Any]:
        return self._kept(("dag", hide_system), lambda: self._dag(hide_system))

    def _dag(self, hide_system: bool) -> dict[str, Any]:
        nodes, pending = self._nodes()
        return node_graph.dag(
            nodes,
            actors=self._actors(),
            pairs=self._rows(queries.pairs()),
            hide_system=hide_system,
            pending=pending,
        )

    def _nodes(self) -> tuple[list[node_graph.Node], bool]:
        """The tree now; of a program that cannot be asked, as the newest snapshot has it. And whether there is none yet."""
        if self._live is not None:
            try:
                return node_graph.from_payloads(self._live.payloads()), False
            except (RuntimeError, OSError, ValueError):  # gone, or stuck: what was seen last
                pass
        newest = self._rows(queries.NEWEST_SNAPSHOT)
        if not newest:
            return [], True
        return node_graph.from_snapshot(self._rows(queries.snapshot_nodes(newest[0]["snapshot_id"]))), False

    # --- meshes, actors, messages

    def meshes(
        self, kind: str | None = None, parent: int | None = None, without: tuple[str, ...] = ()
    ) -> list[dict[str, Any]]:
        key = ("meshes", kind, parent, without)
        return self._kept(
            key,
            lambda: [
                shapes.with_text_ids(row)
                for row in self._rows(queries.meshes(parent=parent, kind=kind, without=without))
            ],
        )

    def mesh(self, mesh_id: int) -> dict[str, Any]:
        return shapes.with_text_ids(self._mesh(mesh_id))

    def _mesh(self, mesh_id: int) -> dict[str, Any]:
        rows = self._rows(queries.meshes(mesh_id=mesh_id))
        if not rows:
            raise NotFound("mesh not found")
        return rows[0]

    def actors(self, mesh_id: int | None = None) -> list[dict[str, Any]]:
        rows = [row for row in self._actors() if mesh_id is None or row["mesh_id"] == mesh_id]
        return shapes.at_work(rows, self._running(), self.now_us())

    def actor(self, actor_id: int) -> dict[str, Any]:
        rows = self._rows(queries.actors(actor_id=actor_id, limit=1))
        if not rows:
            raise NotFound("actor not found")
        return shapes.with_text_ids(rows[0])

    def failure(self, actor_id: int) -> dict[str, Any]:
        """All that is known of why an actor failed."""
        return self._kept(("failure", actor_id), lambda: self._failure(actor_id))

    def _failure(self, actor_id: int) -> dict[str, Any]:
        rows = self._rows(queries.actors(actor_id=actor_id, limit=1))
        failed = self._rows(queries.ended_actors("failed"))
        if not rows:
            rows = self._rows(queries.last_status(actor_id))
            failed = [*failed, *(failure.of_status(row) for row in rows if row["latest_status"] == "failed")]
        if not rows:
            raise NotFound("actor not found")
        actor = rows[0]
        made = failure.failure(actor, failed, self._actors())
        logged = []
        if made["failed"]:
            ranks = () if actor["rank"] is None else ((actor["rank"], actor["rank"]),)
            about = LogFilter(actor["mesh_name"], ranks, before_us=made["failed_us"] + 1_000_000)
            logged = self.logs.logged(about)["lines"][-30:]
        return {**made, "logged": logged, **self._printed_by(actor["full_name"]), "now_us": self.now_us()}

    def _printed_by(self, full_name: str) -> dict[str, Any]:
        process = failure.process_of(full_name)
        try:
            told = self.logs.last_lines(*process) if process is not None else {"lines": [], "file": "", "whole": True}
        except (RuntimeError, OSError, ValueError) as exc:
            return {"printed": [], "printed_note": f"the program cannot be asked: {exc}"}
        note = f"All of it is in {told['file']}." if told["file"] else ""
        if told["lines"] and not told["whole"]:
            note = "What goes to stdout goes straight to the program's terminal; enable_file_capture keeps it."
        return {"printed": told["lines"], "printed_note": note}

    def status_events(self, actor_id: int) -> list[dict[str, Any]]:
        self.actor(actor_id)
        return self._texts(queries.status_events(actor_id))

    def actor_messages(self, actor_id: int) -> list[dict[str, Any]]:
        self.actor(actor_id)
        return self._texts(queries.messages(of_actor=actor_id, limit=queries.MOST_EVENTS))

    def messages(self, sender: int | None = None, receiver: int | None = None) -> list[dict[str, Any]]:
        return self._texts(queries.messages(sender=sender, receiver=receiver))

    def message_events(self, message_id: int) -> list[dict[str, Any]]:
        return self._texts(queries.message_events(message_id))

    def sent_messages(self, sender: int | None = None) -> list[dict[str, Any]]:
        return self._texts(queries.sent_messages(sender))

    # --- SQL, hardware

    def tables(self) -> list[dict[str, Any]]:
        return self._kept("tables", lambda: shapes.tables(self._rows(queries.columns())))

    def sql(
        self,
        text: str,
        seconds: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
    ) -> dict[str, Any]:
        """Runs what people typed. `rows` are lists; integers that JavaScript cannot hold are text. `running` is given what
        cancels it."""
        seconds = min(seconds or SQL_SECONDS, SQL_LONGEST)
        most = min(limit or SQL_ROWS, SQL_ROWS)
        began = time.monotonic()
        result = self._store.query(text, timeout=seconds, limit=most, running=running, exact=True)
        return {
            "columns": list(result.columns),
            "rows": result.rows,
            "truncated": result.truncated,
            "note": result.note,
            "limit": most,
            "missing_hosts": [str(host) for host in result.missing_hosts or ()],
            "elapsed_ms": round((time.monotonic() - began) * 1e3, 1),
        }

    def hardware(self, seconds: float) -> dict[str, Any]:
        return self._kept(("hardware", seconds), lambda: self._hardware(seconds))

    def _hardware(self, seconds: float) -> dict[str, Any]:
        now_us = self.now_us()
        since = now_us - int(seconds * 1e6)
        return {
            "hosts": shapes.hosts(self._rows(queries.host_metrics(since, POINTS))),
            "gpus": shapes.gpus(self._rows(queries.gpu_metrics(since, POINTS))),
            "since_us": since,
            "now_us": now_us,
        }

    # --- the program itself

    def stacks(self) -> dict[str, Any]:
        live = self.live()
        return self._kept("stacks", lambda: self._stacks(live))

    def _stacks(self, live: LiveData) -> dict[str, Any]:
        try:
            found = live.stacks()
        except (RuntimeError, OSError, ValueError) as exc:
            raise Unavailable(str(exc)) from exc
        return {
            "all": icicle.fold(found.stacks),
            "busy": icicle.fold(stack for stack in found.stacks if not stack.idle),
            "threads": len(found.stacks),
            "silent": dict(found.silent),
            "now_us": self.now_us(),
        }

    def actor_stacks(self, actor_id: int) -> dict[str, Any]:
        """Says where the threads of its process stand; only its own, where it has any."""
        actor = self.actor(actor_id)
        live = self.live()
        try:
            found = live.stacks_of(actor["full_name"])
        except (LookupError, RuntimeError, OSError, ValueError) as exc:
            raise Unavailable(str(exc.args[0] if isinstance(exc, LookupError) and exc.args else exc)) from exc
        threads = []
        for stack in found.stacks:
            name = f"{stack.group}: {stack.thread}" if stack.thread else stack.where
            threads.append({"name": name, "idle": stack.idle, "frames": list(stack.frames)})
        return {"threads": threads, "silent": "; ".join(found.silent.values())}

    def capture(self, reference: str) -> dict[str, Any]:
        """The stacks of a process, as the admin API gives them in py-spy's shape."""
        live = self.live()
        try:
            return live.capture(reference)
        except (LookupError, RuntimeError, OSError, ValueError) as exc:
            raise Unavailable(str(exc)) from exc

    # --- traces

    def profiles(self) -> list[dict[str, Any]]:
        return self._profiles.listed()

    def start_profile(self, seconds: float) -> dict[str, Any]:
        self.live()
        if seconds > LONGEST:
            raise ValueError(f"a trace is at most {LONGEST:g} s long")
        try:
            return dict(vars(self._profiles.start(seconds)))
        except TraceUnderWay as exc:
            raise Unavailable(str(exc)) from exc

    def profile_file(self, name: str) -> str:
        path = self._profiles.path(name)
        if path is None:
            raise NotFound("no such trace")
        return path

    def _profile(self, seconds: float, path: str) -> None:
        self.live().profile(seconds, path)

    def live(self) -> LiveData:
        if self._live is None:
            raise Unavailable("this is what a program recorded; the program itself does not run")
        return self._live

    def _about(self) -> dict[str, Any] | None:
        return None if self._live is None else self._live.about()

    def now_us(self) -> int:
        if self._now is not None:
            return int(self._now() * 1e6)
        found: int | None = self._kept("now", lambda: self._rows(queries.newest_time())[0]["us"])
        return found or 0

    # --- shared by several

    def _actors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._kept("actor rows", lambda: self._rows(queries.actors()))
        return found

    def _running(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._kept("running", lambda: self._rows(queries.running()))
        return found

    def _message_states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._kept("message states", lambda: self._rows(queries.message_states()))
        return found

    def _lost(self) -> int:
        return int(self._rows(queries.lost())[0]["lost"] or 0)

    def _query(self, sql: str) -> Result:
        return self._store.query(sql, timeout=QUERY_SECONDS, typed=False)

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return self._query(sql).dicts()

    def _texts(self, sql: str) -> list[dict[str, Any]]:
        return [shapes.with_text_ids(row) for row in self._rows(sql)]

    def _kept(self, key: Any, make: Callable[[], T]) -> T:
        return self._answers.get(key, make)
