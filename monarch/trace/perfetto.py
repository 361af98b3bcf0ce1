"""Timelines as Perfetto's protobuf, which ui.perfetto.dev opens. Pure: bytes out.

Field numbers are those of perfetto's protos/perfetto/trace (trace_packet.proto, track_event/*.proto, interned_data.proto);
the tests decode what is written here with the classes that the `perfetto` package ships.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, BinaryIO

from monarch.trace.timeline import Instant, Lane, Process, Slice, Timeline, lanes

# Just enough of protobuf's wire format (https://protobuf.dev/programming-guides/encoding/): varints, 64-bit fields, bytes.
_FIXED64 = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def uint(field: int, value: int) -> bytes:
    """An unsigned number, or a bool or an enumeration."""
    return _tag(field << 3) + varint(value)


_tag = functools.cache(varint)


def sint(field: int, value: int) -> bytes:
    """int32 and int64: what is negative takes ten bytes."""
    return _tag(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def fixed64(field: int, value: int) -> bytes:
    return _tag(field << 3 | 1) + _FIXED64.pack(value & 0xFFFFFFFFFFFFFFFF)


def double(field: int, value: float) -> bytes:
    return _tag(field << 3 | 1) + _DOUBLE.pack(value)


def data(field: int, value: bytes) -> bytes:
    """Bytes, or a message inside a message."""
    return _tag(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode("utf-8", "replace"))


_SEQUENCE = 1
_CLEARED, _NEEDS = 1, 2  # TracePacket.SequenceFlags
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_REALTIME = 1  # BUILTIN_CLOCK_REALTIME: nanoseconds since the epoch
_CHUNK = 1 << 16
_NOTES = 100_000  # encoded notes that are kept
_NEEDED = uint(13, _NEEDS)


_when = itemgetter(0, 1, 2)


class _Names:
    """Interned texts: each is written once, with the first event that has it."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._ids: dict[str, bytes] = {}
        self.news: list[bytes] = []

    def id(self, name: str) -> bytes:
        """Returns the id of a text as a varint."""
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = varint(len(self._ids) + 1)
            self.news.append(data(self._field, b"\x08" + number + text(2, name)))
        return number


class PacketWriter:
    """Writes packet by packet: what is held is the names, not the events."""

    def __init__(self, sequence: int = _SEQUENCE) -> None:
        self._head = uint(10, sequence)
        self._categories = _Names(1)  # InternedData.event_categories, event_names, debug_annotation_names
        self._names = _Names(2)
        self._keys = _Names(3)
        self._notes: dict[tuple[tuple[str, Any], type], bytes] = {}

    def packets(self, timeline: Timeline) -> Iterator[bytes]:
        defaults = data(59, uint(58, _REALTIME))  # trace_packet_defaults { timestamp_clock_id }
        yield self._packet(uint(13, _CLEARED) + defaults)
        for process in timeline.ordered():
            yield from self._process(process)

    def _packet(self, body: bytes) -> bytes:
        return data(1, self._head + body)

    def _process(self, process: Process) -> Iterator[bytes]:
        uuid = _uuid(process.name)
        # Each process has a number of its own: pids of different hosts may be the same.
        described = sint(1, process.pid or uuid & 0x3FFFFFFF) + text(6, process.name)
        yield self._packet(data(60, uint(1, uuid) + data(3, described)))
        for track in process.tracks.values():
            instants = track.instants
            for index, lane in enumerate(lanes(track.slices) or [Lane()]):
                name = track.name if not index else f"{track.name} ({index + 1})"
                below = _uuid(f"{process.name}\0{name}")
                yield self._packet(data(60, uint(1, below) + text(2, name) + uint(5, uuid)))
                yield from self._events(below, lane, instants)
                instants = []

    def _events(self, track: int, lane: Lane, instants: list[Instant]) -> Iterator[bytes]:
        """Yields packets in the order of time, which begins and ends of nested slices need."""
        moments: list[tuple[int, int, int, bytes]] = []  # time; ends, then instants, then begins; inner ends first
        place = uint(11, track)
        begin, instantly, end = uint(9, _BEGIN) + place, uint(9, _INSTANT) + place, uint(9, _END) + place
        for index, one in enumerate(lane.slices):
            moments.append((one.start, 2, index, self._begin(begin, one)))
            moments.append((one.end, 0, -index, end))
        for index, instant in enumerate(instants):
            named = b"\x50" + self._names.id(instant.name)
            moments.append((instant.at, 1, index, instantly + named + _flows(instant.flows, instant.ends)))
        # Names that are new come with the first packet, whichever that is.
        interned = self._interned()
        moments.sort(key=_when)
        for at, _, _, event in moments:
            yield self._packet(uint(8, at) + _NEEDED + interned + data(11, event))
            interned = b""

    def _begin(self, head: bytes, one: Slice) -> bytes:
        parts = [head, b"\x50", self._names.id(one.name)]
        if one.category:
            parts += (b"\x18", self._categories.id(one.category))
        notes = self._notes
        for note in one.notes.items():
            try:
                parts.append(notes[note, type(note[1])])
            except KeyError:
                made = data(4, b"\x08" + self._keys.id(note[0]) + _value(note[1]))
                if len(notes) < _NOTES and isinstance(note[1], str):  # others are hardly ever the same twice
                    notes[note, str] = made
                parts.append(made)
        if one.flows or one.ends:
            parts.append(_flows(one.flows, one.ends))
        return b"".join(parts)

    def _interned(self) -> bytes:
        news = b"".join(piece for names in (self._categories, self._names, self._keys) for piece in names.news)
        for names in (self._categories, self._names, self._keys):
            names.news = []
        return data(12, news) if news else b""


def write(timeline: Timeline, file: BinaryIO, sequence: int = _SEQUENCE) -> int:
    """Writes the whole; returns how many bytes. Files of several sequences, one behind the other, are one trace."""
    waiting, size = bytearray(), 0
    for packet in PacketWriter(sequence).packets(timeline):
        waiting += packet
        if len(waiting) >= _CHUNK:
            size += file.write(waiting)
            waiting = bytearray()
    return size + file.write(waiting)


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return uint(2, value)
    if isinstance(value, int):
        return uint(3, value) if 0 <= value < 1 << 64 else text(6, str(value))
    if isinstance(value, float):
        return double(5, value)
    return text(6, value if isinstance(value, str) else str(value))


def _flows(flows: list[int], ends: list[int]) -> bytes:
    return b"".join(fixed64(47, flow) for flow in flows) + b"".join(fixed64(48, flow) for flow in ends)


def _uuid(name: str) -> int:
    """The same each time, so that files of one program can be laid side by side."""
    raw = name.encode("utf-8", "replace")
    return zlib.crc32(raw) << 31 ^ zlib.crc32(raw[::-1] + b"x") | 1
