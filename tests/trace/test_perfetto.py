"""Perfetto files: what the classes that the `perfetto` package ships read in them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.trace import perfetto
from monarch.trace import timeline as timelines
from monarch.trace.spans import CALLER, ActorName, SpanRow, draw
from monarch.trace.timeline import Instant, Slice, Timeline, chrome, lanes, natural

pb2: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def _decoded(timeline: Timeline) -> Any:
    file = io.BytesIO()
    size = perfetto.write(timeline, file)
    assert size == len(file.getvalue())
    trace = pb2.Trace()
    trace.ParseFromString(file.getvalue())
    assert trace.SerializeToString()  # and nothing in it is unknown:
    assert trace.ByteSize() == size
    return trace


class _Read:
    """A reading of the packets: interned names resolved, begins and ends matched."""

    def __init__(self, trace: Any) -> None:
        self.tracks: dict[int, Any] = {}
        self.slices: list[tuple[str, str, int, int, dict[str, Any]]] = []  # track, name, start, end, notes
        self.instants: list[tuple[str, str, int]] = []
        self.begins: dict[int, int] = {}  # flow -> how many
        self.ends: dict[int, int] = {}
        names: dict[int, str] = {}
        keys: dict[int, str] = {}
        stacks: dict[int, list[Any]] = {}
        assert trace.packet[0].sequence_flags == 1
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
            keys |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            track = self.tracks[event.track_uuid].name
            for flow in event.flow_ids:
                self.begins[flow] = self.begins.get(flow, 0) + 1
            for flow in event.terminating_flow_ids:
                self.ends[flow] = self.ends.get(flow, 0) + 1
            if event.type == pb2.TrackEvent.TYPE_SLICE_BEGIN:
                notes = {keys[note.name_iid]: _value(note) for note in event.debug_annotations}
                stacks.setdefault(event.track_uuid, []).append((names[event.name_iid], packet.timestamp, notes))
            elif event.type == pb2.TrackEvent.TYPE_SLICE_END:
                name, start, notes = stacks[event.track_uuid].pop()
                self.slices.append((track, name, start, packet.timestamp, notes))
            else:
                self.instants.append((track, names[event.name_iid], packet.timestamp))
        assert not any(stacks.values())


def _value(note: Any) -> Any:
    return getattr(note, note.WhichOneof("value"))


def _rows() -> Iterator[SpanRow]:
    call = {"correlation_id": 77, "actor_id": 1, "mesh": "ctr", "method": "add", "call_name": "call"}
    yield SpanRow("client", 5, "call", CALLER, json.dumps(call), 1_000, 1_900)
    ran = {"correlation_id": 77, "actor_id": 2, "name": "add"}
    yield SpanRow("workers-0", 9, "python_user_span", "monarch_hyperactor::telemetry", json.dumps(ran), 1_200, 1_700)


def test_a_call_and_its_endpoint_with_arrows_between_them() -> None:
    actors = {"1": ActorName("<root>"), "2": ActorName("ctr<uid>.workers-0")}
    timeline, drawn = draw(_rows(), 0, 10_000, actors)
    assert drawn.lines() == ["Wrote 2 spans from 2 actors on 2 procs."]
    read = _Read(_decoded(timeline))
    assert [entry[:4] for entry in sorted(read.slices)] == [
        ("<root>", "ctr.add.call()", 1_000_000, 1_900_000),
        ("ctr<uid>.workers-0", "add", 1_200_000, 1_700_000),
    ]
    assert read.instants == [("<root>", "send", 1_000_000), ("<root>", "complete", 1_900_000)]
    assert read.begins == read.ends == {2: 1, 3: 1}
    assert sorted(read.slices)[0][4] == {
        "process_id": "client", "span_id": 5, "target": CALLER, "actor_id": 1, "correlation_id": 77, "mesh": "ctr",
        "method": "add",
    }  # fmt: skip
    processes = [track for track in read.tracks.values() if track.HasField("process")]
    assert [track.process.process_name for track in processes] == ["client", "workers-0"]
    (below,) = [track for track in read.tracks.values() if track.name == "<root>"]
    assert below.parent_uuid == processes[0].uuid


def test_a_call_to_many_ranks_has_an_arrow_to_each() -> None:
    call = {"correlation_id": 7, "actor_id": 1, "mesh": "ctr", "method": "add", "call_name": "call"}
    rows = [SpanRow("client", 5, "call", CALLER, json.dumps(call), 1_000, 1_900)]
    for rank in range(3):
        fields = json.dumps({"correlation_id": 7, "actor_id": 2 + rank, "name": "add"})
        rows.append(SpanRow(f"workers-{rank}", 9, "python_user_span", "", fields, 1_200, 1_700))
    read = _Read(_decoded(draw(rows, 0, 10_000)[0]))
    assert len(read.begins) == 6
    assert read.begins == read.ends == dict.fromkeys(read.begins, 1)


def test_what_reaches_over_the_window_is_clipped_and_says_so() -> None:
    def row(number: int, enter: int | None, leave: int | None, fields: str = '{"actor_id": 1}') -> SpanRow:
        return SpanRow("p", number, "step", "user", fields, enter, leave)

    rows = [
        row(1, 50, 250),
        row(2, 150, None),
        row(3, None, 160),
        row(4, 10, 90),
        row(5, 250, 300),
        row(6, 150, 150),
        row(7, 150, 160, "{"),
        row(8, 150, 160, "{}"),
        row(9, 200, 300),
    ]
    timeline, drawn = draw(rows, 100, 200)
    first, second = timeline.processes["p"].tracks["1"].slices
    assert (first.start, first.end) == (100_000, 200_000)
    assert first.notes["profile.start_clipped"] and first.notes["profile.original_start_us"] == 50
    assert first.notes["profile.end_clipped"] and first.notes["profile.original_end_us"] == 250
    assert second.notes["profile.end_event_missing"]
    assert drawn.lines() == [
        "Wrote 2 spans from 1 actors on 1 procs.",
        "Skipped 7 rows:",
        "  3 outside the window",
        "  1 no enter event",
        "  1 not positive duration",
        "  1 unreadable fields_json",
        "  1 no actor id",
    ]


def test_fields_of_any_form_are_notes_or_unreadable() -> None:
    odd = ['{"actor_id": [1], "name": {"a": 1}}', '{"actor_id": 1, "name": ["x"]}', "[" * 100_000]
    timeline, drawn = draw([SpanRow("p", n, "step", "user", text, 150, 160) for n, text in enumerate(odd)], 100, 200)
    assert (drawn.spans, drawn.skipped["unreadable fields_json"]) == (2, 1)
    assert perfetto.write(timeline, io.BytesIO())


def test_slices_that_all_overlap_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "_MOST_TRIES", 100)
    assert len(lanes([Slice(n, 1_000 + n, "x") for n in range(1_000)])) == 14  # 1 + 2 + ... + 13 tries


def test_calls_that_overlap_get_lanes_of_their_own() -> None:
    timeline = Timeline()
    track = timeline.process("p").track("actor")
    track.slices += [Slice(0, 10, "a"), Slice(5, 15, "b"), Slice(6, 9, "c"), Slice(20, 30, "d")]
    track.instants.append(Instant(3, "now"))
    read = _Read(_decoded(timeline))
    assert sorted(entry[:2] for entry in read.slices) == [
        ("actor", "a"),
        ("actor", "c"),
        ("actor", "d"),
        ("actor (2)", "b"),
    ]
    assert read.instants == [("actor", "now", 3)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_in_a_lane_slices_lie_beside_or_within_each_other(spans: list[tuple[int, int]]) -> None:
    slices = [Slice(start, start + length, "s") for start, length in spans]
    made = lanes(slices)
    assert sum(len(lane.slices) for lane in made) == len(slices)
    for lane in made:
        for one in lane.slices:
            for other in lane.slices:
                apart = one.end <= other.start or other.end <= one.start
                within = (one.start >= other.start and one.end <= other.end) or (
                    other.start >= one.start and other.end <= one.end
                )
                assert apart or within


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_of_any_size(value: int) -> None:
    descriptor = pb2.TrackDescriptor()
    descriptor.ParseFromString(perfetto.uint(1, value))
    assert descriptor.uuid == value


@given(st.dictionaries(st.text(min_size=1), st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()))
def test_notes_of_any_kind(notes: dict[str, Any]) -> None:
    timeline = Timeline()
    timeline.process("p").track("t").slices.append(Slice(1, 2, "s", "c", notes))
    ((_, _, _, _, read),) = _Read(_decoded(timeline)).slices
    wide = {key for key, value in notes.items() if type(value) is int and not 0 <= value < 1 << 64}
    assert read == {key: str(value) if key in wide else value for key, value in notes.items()}


def test_the_same_as_chrome_json() -> None:
    timeline, _ = draw(_rows(), 0, 10_000)
    events = json.loads(chrome(timeline))["traceEvents"]
    complete = {event["name"]: event for event in events if event["ph"] == "X"}
    assert (complete["add"]["ts"], complete["add"]["dur"]) == (1200, 500)
    assert {event["ph"] for event in events} == {"M", "X", "i", "s", "f"}
    starts = {event["id"] for event in events if event["ph"] == "s"}
    assert starts == {event["id"] for event in events if event["ph"] == "f"}


def test_processes_are_ordered_by_the_numbers_in_their_names() -> None:
    assert sorted(["t[10]", "t[2]", "a"], key=natural) == ["a", "t[2]", "t[10]"]
