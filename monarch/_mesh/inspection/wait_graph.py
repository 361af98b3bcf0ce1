"""The wait graph: who waits for whom in the whole program, asked of every process at once.

Each process answers from its I/O thread, so it answers while every actor in it is stuck. What travels is text and numbers;
nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux.thread_frames import thread_frames
from monarch._mesh.failures.activity import Jobs, RunningHandler, WaitEdge, edge_of, handler_of
from monarch._mesh.inspection.survey import Survey, open_proc
from monarch._runtime.future import Future, make_future
from monarch._text import one_line

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_MOST = 10_000  # waits, and running endpoints, that one process tells of; it says how many more there are


class Report(msgspec.Struct):
    """The answer of one process: see WaitGraph."""

    edges: list[WaitEdge]
    handlers: list[RunningHandler]
    left_out: int
    suspected: dict[str, str]


class WaitGraph(msgspec.Struct, frozen=True):
    """The graph of who waits for whom, at one moment in each process (not at one moment in all of them).

    - `edges`: every thread and task that waits for the answer of an endpoint, longest first. Each has `who`, `rank`, `host`,
      `pid`, `address`, the endpoint `doing`; `target` (mesh.endpoint) with `ranks`, those that have not answered, of which
      there are `unanswered` (64 are named); `seconds`; `limited`, whether the wait has a time limit; `file`, `line`,
      `function`.
    - `handlers`: every endpoint that runs, longest first, with the same fields, `endpoint`, `is_async`, and `queued`, the
      messages of its actor that wait behind it (`waiting`: the endpoints of the first).
    - `silent`: address -> why, of processes that did not answer; what happens there is not in the graph.
    - `left_out`: how many waits and endpoints are missing because their process has more than 10,000.
    - `findings`: when an endpoint has run, or somebody has waited, for 5 s: what `diagnose()` finds wrong, a line each.

    Picklable. `str()` is a page for people, one line an edge.
    """

    edges: list[WaitEdge]
    handlers: list[RunningHandler]
    silent: dict[str, str]
    left_out: int = 0
    findings: list[str] = []

    def __str__(self) -> str:
        lines = section("what is wrong", self.findings) + section("waits", self.edges)
        lines += section("endpoints that run", self.handlers)
        lines += section("processes that did not answer", (f"{a}: {why}" for a, why in self.silent.items()))
        if self.left_out:
            lines.append(f"({self.left_out} more waits and endpoints are left out)")
        return "\n".join(lines) or "no endpoint runs, and nobody waits for one"


def section(title: str, items: Iterable[object]) -> list[str]:
    """Returns the lines of a part of a page; none of an empty one."""
    lines = [one_line(f"  {item}") for item in items]
    return [f"{title}: {len(lines)}", *lines] if lines else []


def ask_graph(seconds: float) -> Future[WaitGraph]:
    """Asks every process, which has so many seconds to answer."""
    survey = _Survey(open_proc(), seconds, "waits")
    survey.start()
    return make_future(survey)


class _Survey(Survey):
    __slots__ = ()

    def value(self) -> Any:
        answers = self.answers()
        reports = list(answers.decoded(_decode_report).values())
        suspected = {address: why for report in reports for address, why in report.suspected.items()}
        return combined(reports, {**answers.silent, **self.answers(suspected).silent})


def combined(reports: Sequence[Report], silent: dict[str, str]) -> WaitGraph:
    """Combines what all processes told; who waits longest comes first."""
    return WaitGraph(
        sorted((edge for report in reports for edge in report.edges), key=_longest),
        sorted((handler for report in reports for handler in report.handlers), key=_longest),
        silent,
        sum(report.left_out for report in reports),
    )


def _longest(item: WaitEdge | RunningHandler) -> float:
    return -item.seconds


_decode_report = msgspec.msgpack.Decoder(Report).decode


def answer(proc: Proc, argument: bytes) -> bytes:
    """Answers the question "waits": who waits here, and for whom."""
    frames = thread_frames()
    waits, jobs = proc.waits.standing(), Jobs(proc)
    left_out = max(0, len(waits) - _MOST) + max(0, len(jobs.all) - _MOST)
    edges = [edge_of(proc, wait, jobs, frames) for wait in waits[:_MOST]]
    handlers = [handler_of(job, frames) for job in jobs.all[:_MOST]]
    return msgspec.msgpack.encode(Report(edges, handlers, left_out, dict(proc.suspected)))
