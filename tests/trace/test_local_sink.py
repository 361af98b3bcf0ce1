"""Traces that processes write by themselves (PERFETTO_TRACE_MODE)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.trace.local_sink import TrackLanes, execution_folder
from monarch.trace.local_sink import main as merge
from tests.support.users import STRANGER, as_stranger, needs_root

pb2: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

PROGRAM = """
from monarch.actor import Actor, endpoint, span, this_host

class Adder(Actor):
    @endpoint
    def add(self, value: int) -> int:
        with span("inside"):
            return value + 1

if __name__ == "__main__":
    adders = this_host().spawn_procs(per_host={"gpus": 2}).spawn("adders", Adder)
    for number in range(5):
        adders.add.call(number).get()
"""


def test_each_process_writes_a_file_and_all_are_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    traces = tmp_path / "traces"
    environment = os.environ | {"PERFETTO_TRACE_MODE": "user", "MONARCH_TRACE_DIR": str(traces)}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert "traces of all processes are written into" in done.stderr
    files = list((traces / "latest").glob("*.pftrace"))
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    out = tmp_path / "all.pftrace"
    assert merge(["-t", str(traces), "-o", str(out)]) == 0
    trace = pb2.Trace()
    trace.ParseFromString(out.read_bytes())
    names: dict[tuple[int, int], str] = {}
    began: dict[str, int] = {}
    flows: dict[int, int] = {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            names = {key: name for key, name in names.items() if key[0] != sequence}
        names |= {(sequence, entry.iid): entry.name for entry in packet.interned_data.event_names}
        event = packet.track_event
        if packet.HasField("track_event") and event.type == pb2.TrackEvent.TYPE_SLICE_BEGIN:
            name = names[sequence, event.name_iid]
            began[name] = began.get(name, 0) + 1
        for flow in [*event.flow_ids, *event.terminating_flow_ids]:
            flows[flow] = flows.get(flow, 0) + 1
    assert began == {"adders.add.call()": 5, "add": 10, "inside": 10}
    assert sorted(flows.values()) == [4] * 5  # from send, over two ranks, to complete
    assert merge(["-t", str(tmp_path / "nowhere"), "-o", str(out)]) == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30))
def test_what_comes_late_finds_a_lane_that_it_fits_into(spans: list[tuple[int, int]]) -> None:
    lanes, placed = TrackLanes(), dict[str, list[tuple[int, int]]]()
    for start, length in spans:
        placed.setdefault(lanes.place("actor", start, start + length), []).append((start, start + length))
    for intervals in placed.values():
        for a, b in intervals:
            for c, d in intervals:
                assert b <= c or d <= a or (a >= c and b <= d) or (c >= a and d <= b)


def test_a_mode_that_is_none_is_said(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import monarch.actor\nmonarch.actor.this_proc()\n")
    environment = os.environ | {"PERFETTO_TRACE_MODE": "all", "MONARCH_TRACE_DIR": str(tmp_path / "traces")}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert "PERFETTO_TRACE_MODE is 'all', and one of off, user, dev is meant: no trace is written" in done.stderr
    assert not (tmp_path / "traces").exists()


@needs_root
@pytest.mark.parametrize("link", ["traces", "traces/executions"])
def test_traces_go_nowhere_that_a_stranger_has_chosen(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    shared, ours = open_folder / "shared", open_folder / "ours"
    shared.mkdir()
    shared.chmod(0o777)
    ours.mkdir()
    if link != "traces":
        (shared / "traces").mkdir()
        (shared / "traces").chmod(0o1777)
    as_stranger(lambda: (shared / link).symlink_to(ours))
    monkeypatch.setenv("MONARCH_TRACE_DIR", str(shared / "traces"))
    with pytest.raises(PermissionError, match=f"is a link of user {STRANGER}"):
        execution_folder("program")
    assert list(ours.iterdir()) == []
