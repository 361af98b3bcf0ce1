"""`profile()`: what actors called and ran during a block, from telemetry, as a trace file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from monarch._linux import private_files
from monarch._mesh.inspection import survey
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch.trace import perfetto
from monarch.trace.spans import ActorName, Drawn, SpanRow, draw
from monarch.trace.timeline import Timeline, chrome
from monarch.trace.torch_profiles import Ask, TorchProfiles

if TYPE_CHECKING:
    from monarch.admin.programs import Program

_PAGE = 50_000  # rows asked for at a time
_SETTLE = 0.2  # seconds between two looks at whether rows still come
_BATCHES = 1.5  # seconds in which processes send what they have by themselves
_DRAIN = 10.0  # seconds after which it goes on with what has come
_QUERY = 60.0  # seconds that one query may take


class QueryClient(Protocol):
    """A client that queries telemetry: a QueryEngineClient, or a Store's stand-in."""

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]: ...


class Profile:
    """A `with` block whose calls and endpoints become a trace. Once only.

    `telemetry()` gives what is to be asked for rows, and raises what explains why there is none. `on_trace_ready(profile)` is
    called at the end of the block, when it did not raise. `torch`: torch.profiler runs in every process meanwhile.
    """

    def __init__(
        self,
        telemetry: Callable[[], QueryClient],
        ask: Ask,
        on_trace_ready: Callable[[Profile], Any] | None = None,
        *,
        torch: bool = False,
        say: Callable[[str], Any] = print,
    ) -> None:
        self._telemetry = telemetry
        self._ask = ask
        self._on_trace_ready = on_trace_ready
        self._torch = TorchProfiles(ask) if torch else None
        self._say = say
        self._state = "new"
        self._client: QueryClient | None = None
        self._start = self._end = 0
        self.path: Path | None = None

    def __repr__(self) -> str:
        return f"<Profile ({self._state})>"

    def __enter__(self) -> Profile:
        if self._state != "new":
            raise RuntimeError("profile context cannot be reused")
        self._client = self._telemetry()
        self._state = "active"
        if self._torch is not None:
            self._torch.start()
        self._start = _now_us()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = _now_us()
        if self._torch is not None:
            self._torch.stop()
        self._drain()
        self._state = "complete"
        if error is None and self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def export_perfetto_trace(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the trace for ui.perfetto.dev, and says how many spans are in it. Without a path it goes to
        /tmp/$USER/monarch_profiles/. `profile.path` is the path as well. RuntimeError unless the block is over."""
        timeline, drawn = self._timeline()
        place = _place(path, ".pftrace")
        with _fresh(place) as file:
            perfetto.write(timeline, file)
        return self._said(place, drawn)

    def export_chrome_trace(self, path: str | os.PathLike[str] | None = None) -> Path:
        """The same as JSON, for chrome://tracing and other tools."""
        timeline, drawn = self._timeline()
        place = _place(path, ".json")
        with _fresh(place) as file:
            file.write(chrome(timeline).encode())
        return self._said(place, drawn)

    def _said(self, place: Path, drawn: Drawn) -> Path:
        for line in drawn.lines():
            self._say(line)
        for line in self._torch.lines() if self._torch is not None else ():
            self._say(line)
        self.path = place
        return place

    def _timeline(self) -> tuple[Timeline, Drawn]:
        if self._state != "complete" or self._client is None:
            what = "is not active" if self._state == "new" else "has not completed"
            raise RuntimeError(f"profile context {what}")
        client = self._client
        timeline, drawn = draw(spans(client, self._start, self._end), self._start, self._end, actor_names(client))
        if self._torch is not None:
            self._torch.add_to(timeline)
        return timeline, drawn

    def _drain(self) -> None:
        """Waits for what was recorded in the block: until all processes have sent it and no more rows come."""
        assert self._client is not None
        deadline = time.monotonic() + _DRAIN
        try:
            flushed = self._ask("telemetry.flush", b"", 5.0, None).replies
        except Exception:  # the program may have ended: then what has come is what there is
            flushed = {}
        if not flushed:
            time.sleep(_BATCHES)
        before = -1
        while time.monotonic() < deadline:
            rows = self._client.query("SELECT count(*) AS n FROM span_events", timeout=_QUERY)["rows"]
            if rows[0]["n"] == before:
                return
            before = rows[0]["n"]
            time.sleep(_SETTLE)


def profile(on_trace_ready: Callable[[Profile], Any] | None = None, *, torch: bool = False) -> Profile:
    """A `with` block whose calls and endpoints become a trace of this program, which needs `monarch.telemetry.start()`.

        with monarch.trace.profile() as profile:
            trainers.step.call().get()
        profile.export_perfetto_trace("step.pftrace")

    `torch`: torch.profiler runs in every process that has loaded torch, and its operators and kernels lie on the same time
    line. RuntimeError when entered without telemetry.
    """
    return Profile(_telemetry_of_this, ask_this, on_trace_ready, torch=torch)


def ask_this(question: str, argument: bytes, timeout: float, only: Sequence[str] | None) -> SurveyAnswers:
    return survey.ask(question, argument, timeout=timeout, only=only).get()


def profile_of(
    program: Program | None, telemetry: Callable[[], QueryClient], *, torch: bool = False, **how: Any
) -> Profile:
    """Profiles as `profile` does, another program on this machine; None: what is recorded, with nobody to ask beside that."""

    def ask(question: str, argument: bytes, timeout: float, only: Sequence[str] | None) -> SurveyAnswers:
        if program is None:
            return SurveyAnswers({}, {})
        return program.ask(question, argument, timeout=timeout, only=only)

    return Profile(telemetry, ask, torch=torch, **how)


def _telemetry_of_this() -> QueryClient:
    from monarch import telemetry

    running = telemetry.running()
    if running is None:
        raise RuntimeError("profile() needs telemetry: call monarch.telemetry.start() before what is to be profiled")
    return running.client


def spans(client: QueryClient, start_us: int, end_us: int) -> Iterator[SpanRow]:
    """Rows of spans that touch the window, page by page."""

    def after(row: Mapping[str, Any] | None) -> str:
        at, process, number = (-1, "", -1) if row is None else (row["timestamp_us"], row["process_id"], row["id"])
        return f"""
            SELECT s.timestamp_us, s.process_id, s.id, any_value(s.name) AS name, any_value(s.target) AS target,
                any_value(s.fields_json) AS fields_json,
                min(CASE WHEN e.event_type = 'enter' THEN e.timestamp_us END) AS enter_us,
                max(CASE WHEN e.event_type = 'exit' THEN e.timestamp_us END) AS exit_us
            FROM spans s LEFT JOIN span_events e ON s.process_id = e.process_id AND s.id = e.id
            WHERE s.timestamp_us < {end_us} AND (s.timestamp_us > {at} OR (s.timestamp_us = {at}
                AND (s.process_id > {_quoted(process)} OR (s.process_id = {_quoted(process)} AND s.id > {number}))))
            GROUP BY s.timestamp_us, s.process_id, s.id
            HAVING exit_us IS NULL OR exit_us >= {start_us}
            ORDER BY s.timestamp_us, s.process_id, s.id LIMIT {_PAGE}"""

    for row in _rows(client, after):
        yield SpanRow(
            row["process_id"],
            row["id"],
            row["name"],
            row["target"],
            row["fields_json"],
            row["enter_us"],
            row["exit_us"],
        )


def actor_names(client: QueryClient) -> dict[str, ActorName]:
    """Returns the names of the actors' tracks, by id."""

    def after(row: Mapping[str, Any] | None) -> str:
        last = -1 if row is None else row["id"]
        return f"SELECT id, full_name, display_name FROM actors WHERE id > {last} ORDER BY id LIMIT {_PAGE}"

    names: dict[str, ActorName] = {}
    for row in _rows(client, after):
        full = str(row["full_name"])
        root = row["display_name"] == "<root>"
        names[str(row["id"])] = ActorName("<root>" if root else full.partition("@")[0])
    return names


def _rows(client: QueryClient, after: Callable[[Mapping[str, Any] | None], str]) -> Iterator[Mapping[str, Any]]:
    """Yields all rows, _PAGE at a time or as many as a result may have. `after`: the SQL for those after that row.
    RuntimeError when a result is cut that has none: then the trace would lack what nobody knows of."""
    last: Mapping[str, Any] | None = None
    while True:
        reply = client.query(after(last), timeout=_QUERY)
        rows, cut = reply["rows"], bool(reply.get("truncated"))
        yield from rows
        if cut and not rows:
            raise RuntimeError(
                f"telemetry gives no more rows, so the trace would lack some: {reply.get('note') or 'no reason'}"
            )
        if not cut and len(rows) < _PAGE:
            return
        last = rows[-1]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _now_us() -> int:
    return time.time_ns() // 1000


def _place(path: str | os.PathLike[str] | None, suffix: str) -> Path:
    if path is not None:
        return Path(path)
    user = os.environ.get("USER")
    if not user:
        raise RuntimeError("USER is not set; pass an explicit output path")
    folder = Path(private_files.make_folder(f"/tmp/{user}/monarch_profiles"))
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{suffix}"


def _fresh(place: Path) -> Any:
    """Written anew, readable by this user only: names and arguments of a program may be in it."""
    return open(private_files.open_output(place, 0o600), "wb")
