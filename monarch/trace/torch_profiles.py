"""torch.profiler in all processes of a program, and its events on the time line of the program.

torch tells times as microseconds since the epoch, by each host's clock. How far that of another host is from the one here is
measured, as telemetry does for its rows: a question that is answered with the time, of several the one that took least. Half
of what that took is the error.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._mesh.inspection.torch_profile import LARGEST, Trace
from monarch._wire.address import CLIENT, host_of, name_of
from monarch.trace.timeline import Slice, Timeline

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey_answers import SurveyAnswers

# Question, argument, time, addresses (None: all processes).
Ask = Callable[[str, bytes, float, "Sequence[str] | None"], "SurveyAnswers"]

_START = 30.0  # seconds for torch to begin: the first profile of a process loads its libraries
_STOP = 120.0  # and to write what it has
_CLOCKS = 5  # times that a clock is asked for
_TOGETHER = 4  # processes whose traces travel at a time
_MOST_VALUES = 8_000_000  # numbers, texts, lists and so on in the trace of one process
_END_OF_TIME = 1 << 63  # nanoseconds
_KEPT = {"Input Dims", "Input type", "stream", "device", "bytes", "correlation", "grid", "block"}


class TorchProfiles:
    """`ask(question, argument, timeout, only)` asks all processes, or those."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._started: list[str] = []
        self._client = ""  # the host of the client, and of the caller
        self._offsets: dict[str, int] = {}  # by host: how far its clock is ahead, in nanoseconds
        self._traces: dict[str, Trace] = {}
        self._missing: dict[str, str] = {}  # why a process is not in it, by address

    def start(self) -> None:
        answers = self._ask("torch.start", b"", _START, None)
        everybody = [*answers.replies, *answers.silent]
        self._client = next((host_of(address) for address in everybody if name_of(address) == CLIENT), "")
        told = answers.decoded(msgspec.msgpack.Decoder(str).decode)
        self._missing = dict(answers.silent)
        for address, why in told.items():
            if why:
                self._missing[address] = why
            else:
                self._started.append(address)

    def stop(self) -> None:
        """All end at once; then a few at a time give what they have."""
        self._ask("torch.stop", b"", _STOP, self._started)
        for first in range(0, len(self._started), _TOGETHER):
            answers = self._ask("torch.take", b"", _STOP, self._started[first : first + _TOGETHER])
            traces = answers.decoded(msgspec.msgpack.Decoder(Trace).decode)
            self._missing |= answers.silent
            for address, trace in traces.items():
                if trace.packed:
                    self._traces[address] = trace
                else:
                    self._missing[address] = trace.why
        self._measure_clocks()

    def _measure_clocks(self) -> None:
        """Asks one process of each host but the client's."""
        for address in self._traces:
            host = host_of(address)
            if host != self._client and host not in self._offsets:
                estimates = [self._clock(address) for _ in range(_CLOCKS)]
                self._offsets[host] = min(estimates)[1]

    def _clock(self, address: str) -> tuple[float, int]:
        """(error, nanoseconds by which the clock there is ahead)."""
        sent = time.time_ns()
        answers = self._ask("clock", b"", 2.0, [address])
        back = time.time_ns()
        there = answers.decoded(msgspec.msgpack.Decoder(int).decode).get(address)
        if there is None:
            return float("inf"), 0
        return (back - sent) / 2, there - (sent + back) // 2

    def lines(self) -> list[str]:
        """Returns lines for people: how many processes are in it, and why others are not."""
        said = [f"torch.profiler: {len(self._traces)} process(es)."]
        reasons: dict[str, int] = {}
        for why in self._missing.values():
            reasons[why] = reasons.get(why, 0) + 1
        return said + [f"  not in it: {count} process(es), {why}" for why, count in reasons.items()]

    def add_to(self, timeline: Timeline) -> None:
        """Into the processes that telemetry shows, on tracks of their own."""
        for address, trace in list(self._traces.items()):
            ahead = self._offsets.get(host_of(address), 0)
            try:
                add(timeline, trace.process, unpacked(trace.packed), trace.pid, trace.threads, ahead)
            except ValueError as exc:
                del self._traces[address]
                self._missing[address] = str(exc)


def unpacked(packed: bytes) -> dict[str, Any]:
    """Returns the trace that a process has packed. ValueError when it is none, or larger than one that a process packs: then
    no more than that much of it was unpacked."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, LARGEST)
        if unpacker.unconsumed_tail or data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_VALUES:
            raise ValueError(
                f"its trace is larger than {LARGEST >> 20} MiB and {_MOST_VALUES:,} values: profile a shorter time"
            )
        trace = json.loads(data)
    except (zlib.error, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"its trace cannot be read: {type(exc).__name__}: {exc}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents", []), list):
        raise ValueError("its trace cannot be read: it holds no traceEvents")
    return trace


def add(
    timeline: Timeline,
    name: str,
    trace: dict[str, Any],
    pid: int = 0,
    threads: Mapping[int, str] | None = None,
    ahead: int = 0,
) -> int:
    """The complete events of one Chrome trace as tracks of one process, one for each of its threads and streams; how many.
    `threads`: what threads are called, by their numbers. `ahead`: nanoseconds by which its clock is. What is no event, or has
    no time, is left out."""
    base = int(trace.get("baseTimeNanoseconds", 0)) - ahead
    names: dict[tuple[Any, Any], str] = {}
    events = [event for event in trace.get("traceEvents", ()) if isinstance(event, dict)]
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            args = event.get("args")
            names[_place(event)] = str(args.get("name", "")) if isinstance(args, dict) else ""
    process = timeline.process(name, pid)
    count = 0
    for event in events:
        if event.get("ph") != "X" or event.get("cat") == "Trace":
            continue
        place = _place(event)
        try:
            at = float(event["ts"])
            start = base + round(at * 1000)
            # So that what is nested stays so.
            end = max(start + 1, base + round((at + float(event.get("dur", 0))) * 1000))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if not 0 <= start < end < _END_OF_TIME:
            continue
        args = event.get("args")
        notes = {
            key: value if isinstance(value, (int, float, str)) else str(value)
            for key, value in (args.items() if isinstance(args, dict) else ())
            if key in _KEPT
        }
        label = names.get(place) or f"thread {place[1]}"
        if pid and place[0] != pid:
            label = f"device {place[0]}: {label}"
        elif threads and place[1] in threads:
            label = threads[place[1]]
        label = f"torch: {label}"
        process.track(label).slices.append(Slice(start, end, str(event.get("name")), str(event.get("cat", "")), notes))
        count += 1
    return count


def _place(event: dict[str, Any]) -> tuple[Any, Any]:
    """Returns where an event lies: process and thread, which are numbers or names."""
    pid, tid = event.get("pid"), event.get("tid")
    return (pid if isinstance(pid, (int, str)) else None), (tid if isinstance(tid, (int, str)) else None)
