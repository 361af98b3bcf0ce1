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
from zlib import crc32

from monarch.trace.timeline import Instant, Slice, Timeline

CALLER = "monarch_hyperactor::telemetry::endpoint"  # target of spans of callers
NO_ENTER = "no enter event"
OUTSIDE = "outside the window"
NOT_POSITIVE = "not positive duration"
UNREADABLE = "unreadable fields_json"
NO_ACTOR = "no actor id"
_US = 1000


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
    """How many spans were drawn, of how many actors and processes; and how many rows were not, by reason."""

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
        if row.target == CALLER:
            track.instants += _ends_of_call(one, fields)
        drawn.spans += 1
        drawn.actors.add(actor_id)
        drawn.processes.add(process)
    return timeline, drawn


def _fields(text: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(text or "{}")
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _reason(row: SpanRow, fields: dict[str, Any] | None, start_us: int, end_us: int) -> str:
    """Why it is not drawn; "" if it is."""
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
        flow = _flow(fields)
        if flow:
            one.ends = [flow]
            one.flows = [flow + 1]
    return one


def _ends_of_call(one: Slice, fields: dict[str, Any]) -> list[Instant]:
    flow = _flow(fields)
    send = Instant(one.start, "send", "call", [flow] if flow else [])
    complete = Instant(one.end, "complete", "call", [], [flow + 1] if flow else [])
    return [send] if one.notes.get("profile.end_event_missing") else [send, complete]


def _flow(fields: dict[str, Any]) -> int:
    """An even number for the way there; the one above it is for the way back. 0: it belongs to no call."""
    correlation = fields.get("correlation_id")
    if correlation in (None, "", 0):
        return 0
    try:
        return (int(correlation) << 1) & 0x7FFFFFFFFFFFFFFE
    except (TypeError, ValueError):
        raw = str(correlation).encode()
        return (crc32(raw) << 31 ^ crc32(raw[::-1])) << 1 & 0x7FFFFFFFFFFFFFFE
