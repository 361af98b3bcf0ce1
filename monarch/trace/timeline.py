"""The contents of a trace file in any format: processes, their tracks, what happened on each, and arrows between. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Slice:
    """Something that took time. Nanoseconds since the epoch. `flows` begin here and end at the slice or instant that has the
    same number in `ends`."""

    start: int
    end: int
    name: str
    category: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Instant:
    at: int
    name: str
    category: str = ""
    flows: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


@dataclass
class Track:
    name: str
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)


@dataclass
class Process:
    """`pid` is of the operating system, 0 when it is not known. `order`: where it stands among the others."""

    name: str
    pid: int = 0
    tracks: dict[str, Track] = field(default_factory=dict)

    def track(self, name: str) -> Track:
        found = self.tracks.get(name)
        if found is None:
            found = self.tracks[name] = Track(name)
        return found


class Timeline:
    """A program's processes by name."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}

    def process(self, name: str, pid: int = 0) -> Process:
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Process(name, pid)
        found.pid = found.pid or pid
        return found

    @property
    def slices(self) -> int:
        return sum(len(track.slices) for process in self.processes.values() for track in process.tracks.values())

    def ordered(self) -> list[Process]:
        """Returns processes by name, numbers in it as numbers: trainers[2] before trainers[10]."""
        return sorted(self.processes.values(), key=lambda process: natural(process.name))


def natural(text: str) -> list[tuple[int, int | str]]:
    import re

    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]


@dataclass(slots=True)
class Lane:
    """Slices of one track that lie beside or within each other: what a viewer can draw as one."""

    slices: list[Slice] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)  # ends of those that enclose what comes next

    def takes(self, start: int, end: int) -> bool:
        while self._open and self._open[-1] <= start:
            self._open.pop()
        return not self._open or end <= self._open[-1]

    def add(self, one: Slice) -> None:
        self.slices.append(one)
        self._open.append(one.end)


_MOST_TRIES = 50_000_000  # some seconds


def lanes(slices: list[Slice]) -> list[Lane]:
    """Calls of one actor may overlap without one enclosing the other: as few lanes as that needs, longest first in each.

    Each slice is tried in each lane, _MOST_TRIES times in all: of an actor with more the last slices are left out."""
    made: list[Lane] = []
    tries = 0
    for one in sorted(slices, key=lambda one: (one.start, -one.end)):
        tries += len(made)
        if tries > _MOST_TRIES:
            break
        lane = next((lane for lane in made if lane.takes(one.start, one.end)), None)
        if lane is None:
            lane = Lane()
            made.append(lane)
        lane.add(one)
    return made


def chrome(timeline: Timeline) -> str:
    """The same as JSON that Chrome, Perfetto and others read: {"traceEvents": [...]}, times in microseconds."""
    events: list[dict[str, Any]] = []
    for number, process in enumerate(timeline.ordered(), 1):
        pid = number
        named = process.name if not process.pid else f"{process.name} (pid {process.pid})"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": named}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": number}})
        tid = 0
        for track in process.tracks.values():
            instants = track.instants
            for index, lane in enumerate(lanes(track.slices) or [Lane()]):
                tid += 1
                name = track.name if not index else f"{track.name} ({index + 1})"
                events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
                place = {"pid": pid, "tid": tid}
                for one in lane.slices:
                    common = {"name": one.name, "cat": one.category or "monarch", **place}
                    events.append(
                        {"ph": "X", "ts": one.start / 1000, "dur": (one.end - one.start) / 1000, **common}
                        | ({"args": one.notes} if one.notes else {})
                    )
                    events += _arrows(one.flows, one.ends, one.start, one.start, place)
                for instant in instants:
                    events.append({"ph": "i", "s": "t", "ts": instant.at / 1000, "name": instant.name, **place})
                    events += _arrows(instant.flows, instant.ends, instant.at, instant.at, place)
                instants = []
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


def _arrows(flows: list[int], ends: list[int], begin: int, end: int, place: dict[str, int]) -> list[dict[str, Any]]:
    common = {"name": "call", "cat": "monarch", **place}
    return [{"ph": "s", "id": flow, "ts": begin / 1000, **common} for flow in flows] + [
        {"ph": "f", "bp": "e", "id": flow, "ts": end / 1000, **common} for flow in ends
    ]
