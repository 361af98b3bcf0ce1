"""The lines of all ranks, as the page of logs shows them: what was logged, from the tables, and what was printed, from the
agents of the hosts. Bounded: LINES of an answer; of what is printed, fewer lines of each process where there are many."""

from __future__ import annotations

import functools
import heapq
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch._http.answering import BadRequest
from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch.dashboard.pages import queries
from monarch.dashboard.pages.live_data import LiveData
from monarch.dashboard.shared_answers import SharedAnswers

LINES = 300
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_PRINTED = 4_000  # lines that agents are asked for, of all processes together
_MOST_RANKS = 100_000
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

Rows = Callable[[str], list[dict[str, Any]]]


class LogFilter(NamedTuple):
    """The lines that are wanted. `ranks`: from and to of each part; `level`: at least. `at_us`: around that time, or
    `before_us`: the last ones before; else the newest."""

    mesh: str | None = None
    ranks: tuple[tuple[int, int], ...] = ()
    level: str = ""
    text: str = ""
    at_us: int | None = None
    before_us: int | None = None


def ranks_of(text: str) -> tuple[tuple[int, int], ...]:
    """Returns the parts of `3` or `0,2-4`. BadRequest for others."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANKS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise BadRequest(f"ranks are such as 3 or 0,2-4, and this is {text!r}")
        found.append((first, last))
    return tuple(found)


class LogsData:
    """The lines of a program. `rows` runs a query of the page."""

    def __init__(self, rows: Rows, live: LiveData | None, answers: SharedAnswers) -> None:
        self._rows = rows
        self._live = live
        self._answers = answers
        self._processes = _PRINTED  # that have told what they print: none is asked for many lines at first

    def logged(self, wanted: LogFilter) -> dict[str, Any]:
        """GET /api/logs. BadRequest for a level that there is not."""
        if wanted.level and wanted.level not in LEVELS:
            raise BadRequest(f"a level is one of {', '.join(LEVELS)}, and this is {wanted.level!r}")
        return self._answers.get(("logs", wanted), lambda: self._logged(wanted))

    def _logged(self, wanted: LogFilter) -> dict[str, Any]:
        levels = LEVELS[LEVELS.index(wanted.level) :] if wanted.level else ()
        sql = functools.partial(
            queries.log_lines, mesh=wanted.mesh, ranks=wanted.ranks, levels=levels, text=wanted.text
        )
        newer: list[dict[str, Any]] = []
        if wanted.at_us is not None:
            half = LINES // 2
            newer = self._rows(sql(after_us=wanted.at_us, limit=half + 1))
            older = self._rows(sql(before_us=wanted.at_us + 1, limit=LINES - half + 1))
            more_older, more_newer = len(older) > LINES - half, len(newer) > half
            lines = [*older[: LINES - half][::-1], *newer[:half]]
        else:
            older = self._rows(sql(before_us=wanted.before_us, limit=LINES + 1))
            more_older, more_newer = len(older) > LINES, wanted.before_us is not None
            lines = older[:LINES][::-1]
        return {"lines": [_line(row) for row in lines], "older": more_older, "newer": more_newer, **self._beside()}

    def _beside(self) -> dict[str, Any]:
        failed = self._rows(queries.failures())
        return {
            "failures": [{"us": row["timestamp_us"], "actor_id": str(row["actor_id"])} for row in failed],
            "meshes": [row["mesh"] for row in self._rows(queries.mesh_names())],
            "printed": self._live is not None,
        }

    def printed(self, wanted: LogFilter) -> dict[str, Any]:
        """GET /api/output: the last lines that processes have written. RuntimeError when the program is gone."""
        return self._answers.get(("output", wanted), lambda: self._printed(wanted))

    def _printed(self, wanted: LogFilter) -> dict[str, Any]:
        if self._live is None:
            raise RuntimeError("this is what a program recorded; what it prints is told by programs that run")
        parts = (range(first, last + 1) for first, last in wanted.ranks)
        ranks = list(itertools.islice(itertools.chain.from_iterable(parts), _MOST_RANKS))
        count = min(self._processes, len(ranks) or self._processes)
        some = OutputRequest(wanted.mesh, ranks or None, lines=max(1, min(LINES, _PRINTED // max(1, count))))
        pages = self._live.output(some)
        self._processes = len(pages) if not ranks and wanted.mesh is None else self._processes
        found = [
            (line.at, line.number, page, line)
            for page in pages
            for line in page.lines
            if wanted.text.lower() in line.text.lower()
        ]
        newest = heapq.nlargest(LINES, found, key=lambda each: each[:2])[::-1]
        return {
            "lines": [_printed(page, line.at, line.stream, line.text) for _, _, page, line in newest],
            "older": len(found) > LINES,
            "newer": False,
            **self._beside(),
            "meshes": sorted({page.mesh for page in pages}),
            "whole": all(page.whole for page in pages),
        }

    def last_lines(self, mesh: str, rank: int, count: int = 60) -> dict[str, Any]:
        """Returns the last lines that one process has written, and in which file all of them are."""
        if self._live is None:
            return {"lines": [], "file": "", "whole": False}
        pages: Sequence[OutputPage] = self._live.output(OutputRequest(mesh, [rank], lines=count))
        lines = [_printed(page, line.at, line.stream, line.text) for page in pages for line in page.lines]
        return {
            "lines": sorted(lines, key=lambda line: line["us"])[-count:],
            "file": next((page.file for page in pages if page.file), ""),
            "whole": bool(pages) and all(page.whole for page in pages),
        }


def _line(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "us": row["timestamp_us"],
        "level": row["level"],
        "logger": row["logger"],
        "text": row["text"] or "",
        "mesh": row["mesh"],
        "rank": row["rank"],
        "actor_id": None if row["actor_id"] is None else str(row["actor_id"]),
        "where": f"{row['file']}:{row['line']}" if row["file"] else "",
    }


def _printed(page: OutputPage, at: float, stream: int, text: str) -> dict[str, Any]:
    level = "stderr" if stream == 2 else "stdout"
    return {
        "us": round(at * 1e6), "level": level, "logger": "", "text": text, "mesh": page.mesh, "rank": page.rank,
        "actor_id": None, "where": "",
    }  # fmt: skip
