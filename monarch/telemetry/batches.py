"""Batches of events as processes send them (`inspection.recording`), made into columns by kind. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from monarch._mesh.actors import adverb_codes
from monarch._mesh.inspection.outgoing_batches import BatchHead
from monarch._runtime import recorder
from monarch._text import NAME_LIMIT
from monarch.telemetry.tables import TABLES

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
    recorder.LOGGED: ("name", "value", "step", "mesh", "rank", "happened"),
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
    recorder.LOGGED: "logged",
}

KINDS = {name: kind for kind, name in NAMES.items()}

Event = list[Any]
MeasuredRow = tuple[str, dict[str, Any]]  # the address of its process, and a value for each column
_decode = msgspec.msgpack.Decoder(tuple[BatchHead, list[Event]]).decode


def decode(body: bytes) -> tuple[BatchHead, list[Event]]:
    """ValueError for what is no batch."""
    head, events = _decode(body)
    names = (head.address, head.process, head.hostname)
    times = (head.wall, head.now, head.offset, head.error)
    whole = 0 <= head.number < 2**63 and 0 <= head.dropped < 2**63
    if not (whole and all(map(_is_time, times)) and max(map(len, names)) <= NAME_LIMIT):
        raise ValueError("its head holds what no process sends")
    return head, events


class EventColumns:
    """The events of some batches: `rows` by the name of their kind, each with SOURCE at its end; measurements as they are,
    each behind the address of its process. `refused`: how many events of a process were not what a process sends."""

    def __init__(self) -> None:
        self.rows: dict[str, list[list[Any]]] = {}
        self.machine: list[MeasuredRow] = []
        self.devices: list[MeasuredRow] = []
        self.refused: Counter[str] = Counter()
        self.heads: list[BatchHead] = []
        self.count = 0

    def add(self, head: BatchHead, events: Iterable[Event]) -> None:
        """An event that another version has sent, of a kind or form that is not known here, is left out."""
        source = [head.address, head.process, head.hostname, head.wall + head.offset - head.now]
        rows = {kind: self.rows.setdefault(name, []) for kind, name in NAMES.items()}
        self.heads.append(head)
        for event in events:
            self.count += 1
            try:
                kind = event[0]
                shape = _SHAPES.get(kind)
                if shape is not None:
                    row = shape(event)
                    row += source
                    if len(row) == _WIDTHS[kind]:
                        rows[kind].append(row)
                elif kind == recorder.LOGGED:
                    step, values, *rest = event[1:]
                    made = [[name, float(value), step, *rest, *source] for name, value in values]
                    if not all(type(row[0]) is type(row[3]) is str for row in made):
                        raise TypeError
                    rows[kind] += [row for row in made if len(row) == _WIDTHS[kind]]
                elif kind in (recorder.MACHINE, recorder.DEVICE):
                    measured = {**event[1], "timestamp_us": round((event[1]["timestamp"] + head.offset) * 1e6)}
                    (self.machine if kind == recorder.MACHINE else self.devices).append((head.address, measured))
            except (IndexError, KeyError, TypeError, ValueError, OverflowError):
                self.refused[head.address] += 1

    def keep_fitting(self) -> int:
        """Refuses the rows that hold what their columns do not take. Returns how many those are."""
        before = self.refused.total()
        for name, rows in self.rows.items():
            columns = (*COLUMNS[KINDS[name]], *SOURCE)
            fitting = [row for row in rows if all(map(fits, columns, row))]
            if len(fitting) < len(rows):
                self.refused.update(row[_ADDRESS] for row in rows)
                self.refused.subtract(row[_ADDRESS] for row in fitting)
                self.rows[name] = fitting
        self.machine = self._measured_fitting("host_metrics", self.machine)
        self.devices = self._measured_fitting("gpu_metrics", self.devices)
        return self.refused.total() - before

    def _measured_fitting(self, table: str, measured: list[MeasuredRow]) -> list[MeasuredRow]:
        fitting = []
        for address, row in measured:
            tests = ((column, row.get(column.name)) for column in TABLES[table].columns)
            if all(column.nullable if value is None else _OF_TYPE[column.type](value) for column, value in tests):
                fitting.append((address, row))
            else:
                self.refused[address] += 1
        return fitting

    def refuse_all(self) -> None:
        """Counts all rows that are left as refused."""
        for rows in self.rows.values():
            self.refused.update(row[_ADDRESS] for row in rows)
        self.refused.update(address for address, _ in (*self.machine, *self.devices))


_ADDRESS = -len(SOURCE)

# What a column holds, by its name; others hold text. Made into SQL's types, nothing else passes.
_LATEST = 1e11  # seconds, of a time: so that microseconds have 64 bits
_ADVERBS = (
    adverb_codes.CALL,
    adverb_codes.CALL_ONE,
    adverb_codes.CHOOSE,
    adverb_codes.STREAM,
    adverb_codes.BROADCAST,
    adverb_codes.SEND,
    adverb_codes.KEEP,
    adverb_codes.KEEP_COUNTED,
    adverb_codes.MAP_CHUNK,
)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= 2**53)


def _is_time(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and abs(value) < _LATEST


def _is_whole(bits: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < 2**bits


def _are_counts(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(each) is int for each in value)


def _are_pairs(value: Any) -> bool:
    return type(value) is list and all(
        type(each) is list and len(each) == 2 and all(map(_is_text, each)) for each in value
    )


_TESTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("arrived", "started", "ended", "began", "happened", "shift"), _is_time),
    **dict.fromkeys(("sum", "least", "most", "value"), _is_number),
    **dict.fromkeys(("seq", "port", "serial", "told", "rank", "parent_span", "thread_id", "count"), _is_whole(64)),
    **dict.fromkeys(("failed", "spans", "is_monotonic"), lambda value: type(value) is bool),
    **dict.fromkeys(("parent_sender", "display_name"), _is_text_or_none),
    "attributes": _are_pairs,
    "counts": _are_counts,
    "step": _is_whole(63),
    "parent_seq": lambda value: value is None or _is_whole(64)(value),
    "line": _is_whole(32),
    "adverb": lambda value: type(value) is int and value in _ADVERBS,
    "amount": lambda value: type(value) is int and -(2**63) <= value < 2**63,
}


def fits(column: str, value: Any) -> bool:
    """True if that column of events takes the value."""
    return _TESTS.get(column, _is_text)(value)


_OF_TYPE: dict[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "f64": _is_number,
    "i64": _TESTS["amount"],
    "u64": _is_whole(64),
    "u32": _is_whole(32),
}


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
