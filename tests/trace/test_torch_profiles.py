"""torch's traces on the time line of a program."""

from __future__ import annotations

import json
import time
import zlib
from typing import Any

import msgspec

from monarch._mesh.inspection.survey import SurveyAnswers
from monarch._mesh.inspection.torch_profile import Trace
from monarch.trace.timeline import Timeline, lanes
from monarch.trace.torch_profiles import TorchProfiles, add

_BASE = 1790857026000000000


def _event(name: str, ts: float, dur: float, tid: Any = 7, pid: Any = 42, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_events_lie_at_their_times_on_the_threads_of_their_actors() -> None:
    trace = {
        "baseTimeNanoseconds": _BASE,
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 42, "tid": 9, "args": {"name": "loader"}},
            _event("aten::mm", 4516772317674.007, 95.262, **{"External id": 5, "Input Dims": [[2, 3]]}),
            _event("aten::add", 10.0, 2.0, tid=9),
            _event("gemm", 11.0, 3.0, tid=3, pid=0, stream=3),
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 0, "dur": 9, "pid": "Traces", "tid": "x"},
            {"ph": "i", "name": "Record Window End", "ts": 9, "pid": "", "tid": ""},
        ],
    }
    timeline = Timeline()
    assert add(timeline, "trainers-0", trace, 42, {7: "trainers[0]"}) == 3
    tracks = timeline.processes["trainers-0"].tracks
    assert list(tracks) == ["torch: trainers[0]", "torch: loader", "torch: device 0: thread 3"]
    (one,) = tracks["torch: trainers[0]"].slices
    assert (one.start, one.end - one.start) == (_BASE + 4516772317674007, 95262)
    assert one.notes == {"Input Dims": "[[2, 3]]"}


def test_what_is_nested_in_torch_is_nested_here() -> None:
    events = [_event(f"op{n}", 4516772317674.0 + n * 0.001, 100.0 - n * 0.002) for n in range(40)]
    timeline = Timeline()
    add(timeline, "p", {"baseTimeNanoseconds": _BASE, "traceEvents": events}, 42)
    (track,) = timeline.processes["p"].tracks.values()
    assert len(lanes(track.slices)) == 1


def test_clocks_of_other_hosts_are_measured_and_taken_off() -> None:
    packed = zlib.compress(json.dumps({"baseTimeNanoseconds": _BASE, "traceEvents": [_event("mm", 5.0, 1.0)]}).encode())
    hour = 3_600_000_000_000

    def ask(question: str, argument: bytes, timeout: float, only: Any) -> SurveyAnswers:
        everybody = ["here/client", "here/a.0", "there/a.1"]
        if question == "torch.start":
            return SurveyAnswers({address: msgspec.msgpack.encode("") for address in everybody}, {})
        if question == "clock":
            assert only == ["there/a.1"]
            return SurveyAnswers({only[0]: msgspec.msgpack.encode(time.time_ns() + hour)}, {})
        if question == "torch.take":
            return SurveyAnswers({at: msgspec.msgpack.encode(Trace(packed, "", 42, at, {})) for at in only}, {})
        return SurveyAnswers({}, {})

    profiles = TorchProfiles(ask)
    profiles.start()
    profiles.stop()
    timeline = Timeline()
    profiles.add_to(timeline)
    starts = {name: next(iter(process.tracks.values())).slices[0].start for name, process in timeline.processes.items()}
    assert starts["here/client"] == starts["here/a.0"] == _BASE + 5000
    assert abs(starts["there/a.1"] + hour - _BASE) < 60_000_000_000  # the test itself may take its time


def test_who_takes_no_part_is_said() -> None:
    def ask(question: str, argument: bytes, timeout: float, only: Any) -> SurveyAnswers:
        assert question == "torch.start" or only == []
        replies = {"h/a.0": msgspec.msgpack.encode("torch is not loaded there")} if question == "torch.start" else {}
        return SurveyAnswers(replies, {"h/a.1": "it did not answer within 30 s"} if replies else {})

    profiles = TorchProfiles(ask)
    profiles.start()
    profiles.stop()
    assert profiles.lines() == [
        "torch.profiler: 0 process(es).",
        "  not in it: 1 process(es), it did not answer within 30 s",
        "  not in it: 1 process(es), torch is not loaded there",
    ]
