"""Timelines as Perfetto's protobuf, which ui.perfetto.dev opens. Pure: bytes out.

Field numbers are those of perfetto's protos/perfetto/trace (trace_packet.proto, track_event/*.proto, interned_data.proto);
the tests decode what is written here with the classes that the `perfetto` package ships.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from monarch.trace.protobuf import data, double, fixed64, sint, text, uint
from monarch.trace.timeline import Instant, Lane, Process, Slice, Timeline, lanes

_SEQUENCE = 1
_CLEARED, _NEEDS = 1, 2  # TracePacket.SequenceFlags
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_REALTIME = 1  # BUILTIN_CLOCK_REALTIME: nanoseconds since the epoch
_CHUNK = 1 << 16


class _Names:
    """Interned texts: each is written once, with the first event that has it."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._ids: dict[str, int] = {}
        self.news: list[bytes] = []

    def id(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self._ids) + 1
            self.news.append(data(self._field, uint(1, number) + text(2, name)))
        return number


class Writer:
    """Writes packet by packet: what is held is the names, not the events."""

    def __init__(self) -> None:
        self._categories = _Names(1)  # InternedData.event_categories, event_names, debug_annotation_names
        self._names = _Names(2)
        self._keys = _Names(3)

    def packets(self, timeline: Timeline) -> Iterator[bytes]:
        defaults = data(59, uint(58, _REALTIME))  # trace_packet_defaults { timestamp_clock_id }
        yield self._packet(uint(13, _CLEARED) + defaults)
        for process in timeline.ordered():
            yield from self._process(process)

    def _packet(self, body: bytes) -> bytes:
        return data(1, uint(10, _SEQUENCE) + body)

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
        """In the order of time, which begins and ends of nested slices need."""
        moments: list[tuple[int, int, int, bytes]] = []  # time; ends, then instants, then begins; inner ends first
        for index, one in enumerate(lane.slices):
            moments.append((one.start, 2, index, self._begin(track, one)))
            moments.append((one.end, 0, -index, uint(9, _END) + uint(11, track)))
        for index, instant in enumerate(instants):
            moments.append((instant.at, 1, index, self._instant(track, instant)))
        # Names that are new come with the first packet, whichever that is.
        interned = self._interned()
        for at, _, _, event in sorted(moments, key=lambda moment: moment[:3]):
            yield self._packet(uint(8, at) + uint(13, _NEEDS) + interned + data(11, event))
            interned = b""

    def _begin(self, track: int, one: Slice) -> bytes:
        event = uint(9, _BEGIN) + uint(11, track) + uint(10, self._names.id(one.name))
        if one.category:
            event += uint(3, self._categories.id(one.category))
        for key, value in one.notes.items():
            event += data(4, uint(1, self._keys.id(key)) + _value(value))
        return event + _flows(one.flows, one.ends)

    def _instant(self, track: int, instant: Instant) -> bytes:
        event = uint(9, _INSTANT) + uint(11, track) + uint(10, self._names.id(instant.name))
        return event + _flows(instant.flows, instant.ends)

    def _interned(self) -> bytes:
        news = b"".join(piece for names in (self._categories, self._names, self._keys) for piece in names.news)
        for names in (self._categories, self._names, self._keys):
            names.news = []
        return data(12, news) if news else b""


def write(timeline: Timeline, file: BinaryIO) -> int:
    """Writes the whole; returns how many bytes."""
    waiting, size = bytearray(), 0
    for packet in Writer().packets(timeline):
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
