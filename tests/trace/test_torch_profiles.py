"""torch's traces on the time line of a program."""

from __future__ import annotations

import io
import json
import os
import re
import time
import zlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from monarch._mesh.inspection import torch_profile
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.inspection.torch_profile import LARGEST, Trace
from monarch.trace import perfetto
from monarch.trace.timeline import Timeline, chrome, lanes
from monarch.trace.torch_profiles import TorchProfiles, add
from tests.support.devices import every_device

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


@every_device
def test_a_process_of_its_own_is_profiled(device: str) -> None:
    """Operators lie on a thread; kernels, where there are any, on the streams of their device, after what launched them."""
    import torch

    here: Any = SimpleNamespace(address="unix:/run/c/client", pid=os.getpid(), actors={})
    questions = {
        "torch.start": torch_profile.start,
        "torch.stop": torch_profile.stop,
        "torch.take": torch_profile.take,
    }

    def ask(question: str, argument: bytes, timeout: float, only: Any) -> SurveyAnswers:
        return SurveyAnswers({here.address: questions[question](here, argument)}, {})

    a = torch.ones(64, 64)
    assert (a @ a).sum().item() == 64**3  # what a device needs for its first operation is not to be seen
    profiles, timeline = TorchProfiles(ask), Timeline()
    profiles.start()
    (a @ a).sum().item()
    profiles.stop()
    profiles.add_to(timeline)
    assert profiles.lines() == ["torch.profiler: 1 process(es)."]
    (process,) = timeline.processes.values()
    tracks = {name: [part.name for part in track.slices] for name, track in process.tracks.items()}
    operators = [name for name, names in tracks.items() if {"aten::mm", "aten::sum"} <= set(names)]
    kernels = [
        part for name, track in process.tracks.items() if name.startswith("torch: device ") for part in track.slices
    ]
    assert len(operators) == 1, tracks
    assert bool(kernels) == (device != "cpu"), tracks
    begun = min(part.start for part in process.tracks[operators[0]].slices)
    assert all(part.start > begun for part in kernels)


# --- traces of a process that means harm, or is damaged


def profiled(*packed: bytes) -> TorchProfiles:
    """Profiles of as many processes as there are traces."""
    addresses = [f"here/a.{number}" for number in range(len(packed))]

    def ask(question: str, argument: bytes, timeout: float, only: Any) -> SurveyAnswers:
        if question == "torch.take":
            made = {a: msgspec.msgpack.encode(Trace(p, "", 1, a, {})) for a, p in zip(addresses, packed, strict=True)}
            return SurveyAnswers({address: made[address] for address in only}, {})
        return SurveyAnswers({address: msgspec.msgpack.encode("") for address in ["here/client", *addresses]}, {})

    torch = TorchProfiles(ask)
    torch.start()
    torch._started = addresses
    torch.stop()
    return torch


GOOD = zlib.compress(json.dumps({"baseTimeNanoseconds": _BASE, "traceEvents": [_event("mm", 5.0, 1.0)]}).encode())


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (zlib.compress(b" " * (LARGEST + 1)), "larger than 64 MiB"),
        (zlib.compress(b"[" + b"[]," * 5_000_000 + b"[]]"), "larger than 64 MiB and 8,000,000 values"),
        (zlib.compress(b"[" * 100_000), "RecursionError"),
        (b"no zlib", "zlib.error|error: Error -3"),
        (zlib.compress(b"[1]"), "holds no traceEvents"),
        (zlib.compress(b'{"traceEvents": {"a": 1}}'), "holds no traceEvents"),
        (zlib.compress(b'{"traceEvents": [], "baseTimeNanoseconds": "x"}'), "invalid literal"),
    ],
    ids=["a bomb", "a bomb of values", "deep", "no zlib", "a list", "no list", "no base"],
)
def test_a_trace_that_cannot_be_read_costs_no_other(packed: bytes, why: str) -> None:
    assert len(packed) < 100_000
    torch, timeline = profiled(packed, GOOD), Timeline()
    torch.add_to(timeline)
    assert timeline.slices == 1
    assert re.search(f"not in it: 1 process.*({why})", "\n".join(torch.lines())), torch.lines()


def test_events_without_a_time_are_left_out() -> None:
    odd: list[Any] = [
        5, {"ph": "X"}, _event("late", float("inf"), 1.0), _event("none", float("nan"), 1.0), _event("before", -1e30, 1.0),
        _event("backward", -(_BASE / 1000) - 9.0, 1.0), _event("endless", 1.0, 1e300), {**_event("x", 1.0, 1.0), "ts": []},
        {"ph": "M", "name": "thread_name", "pid": [], "tid": {}, "args": 5},
        {**_event("kept", 7.0, 1.0, pid=[1], tid={}), "args": "none"},
    ]  # fmt: skip
    timeline = Timeline()
    assert add(timeline, "p", {"baseTimeNanoseconds": _BASE, "traceEvents": odd}, 42) == 1
    perfetto.write(timeline, io.BytesIO())
    assert json.loads(chrome(timeline))["traceEvents"]
