"""torch.profiler in all processes of a program, and its events on the time line of the program.

torch tells times as microseconds since the epoch, from each host's clock, as telemetry does; nothing is shifted. Hosts whose
clocks differ are apart by as much on both.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._mesh.inspection.torch_profile import Trace
from monarch.trace.timeline import Slice, Timeline

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey import Answers

# Question, argument, time, addresses (None: all processes).
Ask = Callable[[str, bytes, float, "Sequence[str] | None"], "Answers"]

_START = 30.0  # seconds for torch to begin: the first profile of a process loads its libraries
_STOP = 120.0  # and to write what it has
_TOGETHER = 4  # processes whose traces travel at a time
_KEPT = {"Input Dims", "Input type", "stream", "device", "bytes", "correlation", "grid", "block"}


class TorchProfiles:
    """`ask(question, argument, timeout, only)` asks all processes, or those."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._started: list[str] = []
        self._traces: dict[str, Trace] = {}
        self._missing: dict[str, str] = {}  # why a process is not in it, by address

    def start(self) -> None:
        answers = self._ask("torch.start", b"", _START, None)
        self._missing = dict(answers.silent)
        for address, reply in answers.replies.items():
            why = msgspec.msgpack.decode(reply, type=str)
            if why:
                self._missing[address] = why
            else:
                self._started.append(address)

    def stop(self) -> None:
        """All end at once; then a few at a time give what they have."""
        self._ask("torch.stop", b"", _STOP, self._started)
        for first in range(0, len(self._started), _TOGETHER):
            answers = self._ask("torch.take", b"", _STOP, self._started[first : first + _TOGETHER])
            self._missing |= answers.silent
            for address, reply in answers.replies.items():
                trace = msgspec.msgpack.decode(reply, type=Trace)
                if trace.packed:
                    self._traces[address] = trace
                else:
                    self._missing[address] = trace.why

    def lines(self) -> list[str]:
        """For people: how many processes are in it, and why others are not."""
        said = [f"torch.profiler: {len(self._traces)} process(es)."]
        reasons: dict[str, int] = {}
        for why in self._missing.values():
            reasons[why] = reasons.get(why, 0) + 1
        return said + [f"  not in it: {count} process(es), {why}" for why, count in reasons.items()]

    def add_to(self, timeline: Timeline) -> None:
        """Into the processes that telemetry shows, on tracks of their own."""
        for trace in self._traces.values():
            add(timeline, trace.process, json.loads(zlib.decompress(trace.packed)), trace.pid, trace.threads)


def add(
    timeline: Timeline, name: str, trace: dict[str, Any], pid: int = 0, threads: Mapping[int, str] | None = None
) -> int:
    """The complete events of one Chrome trace as tracks of one process, one for each of its threads and streams; how many.
    `threads`: what threads are called, by their numbers."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    names: dict[tuple[Any, Any], str] = {}
    for event in trace.get("traceEvents", ()):
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            names[event.get("pid"), event.get("tid")] = str(event.get("args", {}).get("name", ""))
    process = timeline.process(name, pid)
    count = 0
    for event in trace.get("traceEvents", ()):
        if event.get("ph") != "X" or event.get("cat") == "Trace":
            continue
        place = event.get("pid"), event.get("tid")
        at = float(event["ts"])
        start = base + round(at * 1000)
        end = max(start + 1, base + round((at + float(event.get("dur", 0))) * 1000))  # so that what is nested stays so
        args = event.get("args") or {}
        notes = {
            key: value if isinstance(value, (int, float, str)) else str(value)
            for key, value in args.items()
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
