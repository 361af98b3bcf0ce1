"""Batches of events as processes send them (`inspection.recording`), made into columns by kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from monarch._mesh.inspection.recording import BatchHead
from monarch._runtime import recorder

# Columns of each kind of event, in the order of its fields; "" is the kind itself. A Call takes the place of several.
CALL = ("sender", "seq", "method", "port")
COLUMNS: dict[int, tuple[str, ...]] = {
    recorder.HANDLED: ("receiver", *CALL, "back", "arrived", "started", "ended", "failed", "spans", "told"),
    recorder.UNDER_WAY: ("receiver", *CALL, "back", "arrived", "started", "spans", "told"),
    recorder.CALLED: (
        *("sender", "mesh_key", "mesh", "method", "adverb", "port", "serial", "view", "shape"),
        *("began", "ended", "failed", "told", "parent_sender", "parent_seq", "parent_span"),
    ),
    recorder.ACTOR: ("actor", "mesh_key", "name", "rank", "full_name", "display_name", "class", "happened"),
    recorder.STATUS: ("actor", "status", "reason", "status_before", "happened"),
    recorder.MESH: ("mesh_key", "class", "given_name", "full_name", "shape", "parent_key", "parent_view", "happened"),
    recorder.SPAN: (
        *("serial", "name", "actor", "parent_sender", "parent_seq", "parent_span"),
        *("began", "ended", "thread_name", "error"),
    ),
    recorder.LOG: (
        *(
            "logger",
            "level",
            "text",
            "thread_id",
            "thread_name",
            "module",
            "file",
            "line",
            "actor",
            "parent_span",
            "happened",
        ),
    ),
    recorder.SUM: ("name", "unit", "attributes", "is_monotonic", "amount", "began", "happened"),
    recorder.HISTOGRAM: ("name", "unit", "attributes", "count", "sum", "least", "most", "counts", "began", "happened"),
    recorder.GAUGE: ("name", "unit", "attributes", "value", "happened"),
}
COLUMNS[recorder.CALLING] = COLUMNS[recorder.CALLED]
SOURCE = (
    "address",
    "process",
    "hostname",
    "shift",
)  # added to each: `shift` makes a time of the process one of the epoch

NAMES = {
    recorder.HANDLED: "handled",
    recorder.UNDER_WAY: "under_way",
    recorder.CALLED: "called",
    recorder.CALLING: "calling",
    recorder.ACTOR: "actor",
    recorder.STATUS: "status",
    recorder.MESH: "mesh",
    recorder.SPAN: "span",
    recorder.LOG: "log",
    recorder.SUM: "sum",
    recorder.HISTOGRAM: "histogram",
    recorder.GAUGE: "gauge",
}

Event = list[Any]
_decode = msgspec.msgpack.Decoder(tuple[BatchHead, list[Event]]).decode


def decode(body: bytes) -> tuple[BatchHead, list[Event]]:
    """ValueError for what is no batch."""
    return _decode(body)


class EventColumns:
    """The events of some batches: `rows` by the name of their kind, each with SOURCE at its end; measurements as they are."""

    def __init__(self) -> None:
        self.rows: dict[str, list[list[Any]]] = {}
        self.machine: list[dict[str, Any]] = []
        self.devices: list[dict[str, Any]] = []
        self.heads: list[BatchHead] = []
        self.count = 0

    def add(self, head: BatchHead, events: Iterable[Event]) -> None:
        """An event that another version has sent, of a kind or form that is not known here, is left out."""
        source = [head.address, head.process, head.hostname, head.wall + head.offset - head.now]
        rows = {kind: self.rows.setdefault(name, []) for kind, name in NAMES.items()}
        self.heads.append(head)
        for event in events:
            self.count += 1
            kind = event[0]
            shape = _SHAPES.get(kind)
            if shape is not None:
                row = shape(event)
                row += source
                if len(row) == _WIDTHS[kind]:
                    rows[kind].append(row)
            elif kind in (recorder.MACHINE, recorder.DEVICE):
                measured = {**event[1], "timestamp_us": round((event[1]["timestamp"] + head.offset) * 1e6)}
                (self.machine if kind == recorder.MACHINE else self.devices).append(measured)


_ARRIVED = COLUMNS[recorder.HANDLED].index("arrived")
_WIDTHS = {kind: len(columns) + len(SOURCE) for kind, columns in COLUMNS.items()}


def _received(event: Event) -> Event:
    call = event[2]  # its first field is its tag
    row = [event[1], call[2], call[3], call[4], call[5], *event[3:]]
    if not row[_ARRIVED]:  # it was there when recording began
        row[_ARRIVED] = row[_ARRIVED + 1] or row[_ARRIVED + 2]
    return row


def _sent(event: Event) -> Event:
    sender, key, mesh, method, adverb, serial, view, parent, span = event[1]
    port, *times = event[2:]
    return [sender, key, mesh, method, adverb, port, serial, view[0], view[1], *times, *_parent(parent), span]


def _span(event: Event) -> Event:
    return [*event[1:4], *_parent(event[4]), *event[5:]]


def _parent(call: Event | None) -> tuple[str | None, int | None]:
    """Returns who sent the message that runs, and its number there."""
    return (None, None) if call is None else (call[2], call[3])


def _plain(event: Event) -> Event:
    return event[1:]


_SHAPES = {
    kind: _plain
    for kind in (
        recorder.ACTOR,
        recorder.STATUS,
        recorder.MESH,
        recorder.LOG,
        recorder.SUM,
        recorder.HISTOGRAM,
        recorder.GAUGE,
    )
} | {
    recorder.HANDLED: _received,
    recorder.UNDER_WAY: _received,
    recorder.CALLED: _sent,
    recorder.CALLING: _sent,
    recorder.SPAN: _span,
}
