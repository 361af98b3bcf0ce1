"""Rows of telemetry as a timeline: what actors called, and what they ran meanwhile. Pure.

A span of a caller is a slice on its track with the instants `send` and `complete`; that of the endpoint is a slice on the
track of the actor that ran it; arrows lead from `send` to the endpoint and from there to `complete`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from monarch.trace.timeline import Instant, Slice, Timeline

CALLER = "monarch_hyperactor::telemetry::endpoint"  # target of spans of callers
NO_ENTER = "no enter event"
OUTSIDE = "outside the window"
NOT_POSITIVE = "not positive duration"
UNREADABLE = "unreadable fields_json"
NO_ACTOR = "no actor id"
_US = 1000
_SIMPLE = (str, int, float, bool, type(None))
_LONGEST = 1_000  # characters of a field that is a list or an object, which none of ours is


class SpanRow(NamedTuple):
    """A span joined with its events; times in microseconds, None where there is no such event."""

    process_id: str
    id: int
    name: str
    target: str
    fields_json: str
    enter: int | None
    exit: int | None


class ActorName(NamedTuple):
    name: str
    process: str = ""


@dataclass
class Drawn:
    """Counts of spans that were drawn, of their actors and processes, and of rows that were not, by reason."""

    spans: int = 0
    actors: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        said = [f"Wrote {self.spans} spans from {len(self.actors)} actors on {len(self.processes)} procs."]
        if self.skipped:
            said.append(f"Skipped {sum(self.skipped.values())} rows:")
            said += [f"  {count} {reason}" for reason, count in self.skipped.most_common()]
        return said


def draw(
    rows: Iterable[SpanRow],
    start_us: int,
    end_us: int,
    actors: Mapping[str, ActorName] | None = None,
    timeline: Timeline | None = None,
) -> tuple[Timeline, Drawn]:
    """Spans of [start, end): what goes beyond is clipped, and says so in its notes. `actors`: by id, how to name them."""
    timeline = timeline or Timeline()
    drawn = Drawn()
    names = actors or {}
    calls: dict[str, tuple[Instant, Instant | None]] = {}
    answers: list[tuple[str, Slice]] = []
    for row in rows:
        fields = _fields(row.fields_json)
        reason = _reason(row, fields, start_us, end_us)
        if reason or fields is None:
            drawn.skipped[reason] += 1
            continue
        actor_id = str(fields["actor_id"])
        actor = names.get(actor_id) or ActorName(actor_id)
        process = row.process_id or actor.process
        one = _slice(row, fields, start_us, end_us)
        track = timeline.process(process).track(actor.name)
        track.slices.append(one)
        correlation = str(fields.get("correlation_id") or "")
        if row.target == CALLER:
            send, complete = Instant(one.start, "send", "call"), Instant(one.end, "complete", "call")
            over = "profile.end_event_missing" not in one.notes
            track.instants += [send, complete] if over else [send]
            if correlation:
                calls[correlation] = (send, complete if over else None)
        elif correlation:
            answers.append((correlation, one))
        drawn.spans += 1
        drawn.actors.add(actor_id)
        drawn.processes.add(process)
    _join(calls, answers)
    return timeline, drawn


def _join(calls: Mapping[str, tuple[Instant, Instant | None]], answers: Iterable[tuple[str, Slice]]) -> None:
    """Arrows of their own to each rank that a call went to, and back."""
    number = 0
    for correlation, one in answers:
        call = calls.get(correlation)
        if call is None:
            continue
        send, complete = call
        number += 2
        send.flows.append(number)
        one.ends.append(number)
        if complete is not None:
            one.flows.append(number + 1)
            complete.ends.append(number + 1)


def _fields(text: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return {key: value if isinstance(value, _SIMPLE) else str(value)[:_LONGEST] for key, value in fields.items()}


def _reason(row: SpanRow, fields: dict[str, Any] | None, start_us: int, end_us: int) -> str:
    """Returns why it is not drawn; "" if it is."""
    if row.enter is None:
        return NO_ENTER
    end = row.exit if row.exit is not None else end_us
    if row.enter >= end_us or end < start_us:
        return OUTSIDE
    if end <= row.enter or min(end, end_us) <= max(row.enter, start_us):
        return NOT_POSITIVE
    if fields is None:
        return UNREADABLE
    return "" if fields.get("actor_id") not in (None, "") else NO_ACTOR


def _slice(row: SpanRow, fields: dict[str, Any], start_us: int, end_us: int) -> Slice:
    assert row.enter is not None
    notes: dict[str, Any] = {"process_id": row.process_id, "span_id": row.id, "target": row.target}
    notes |= {key: fields[key] for key in ("actor_id", "correlation_id", "mesh", "method", "name") if key in fields}
    start, end = row.enter, row.exit if row.exit is not None else end_us
    if row.exit is None:
        notes["profile.end_event_missing"] = True
    if start < start_us:
        notes |= {"profile.start_clipped": True, "profile.original_start_us": start}
    if end > end_us:
        notes |= {"profile.end_clipped": True, "profile.original_end_us": end}
    one = Slice(max(start, start_us) * _US, min(end, end_us) * _US, "", "", notes)
    if row.target == CALLER:
        call = fields.get("call_name") or row.name
        one.name = f"{fields.get('mesh', '')}.{fields.get('method', '')}.{call}()"
        one.category = "call"
    else:
        one.name = str(fields.get("name") or fields.get("method") or row.name)
        one.category = "endpoint"
    return one
