"""A simulation as a Chrome trace: what chrome://tracing and Perfetto draw. Events in the format of the Trace Event
document ("Trace Event Format", Google, 2016): M names tracks, X is something with a duration, C a counter; times in
microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from monarch.tensor.simulator.machine import SimulatedDevice, StreamSpan
from monarch.tensor.simulator.task import SimulatedCommand, TaskKind

MEGABYTE = 1_000_000
_NUMBERS = {kind: number for number, kind in enumerate(TaskKind)}  # in place of the numbers of CUDA's callbacks


class TraceMode(StrEnum):
    """The tracks of a trace: those of the devices, the controller's, or all."""

    STREAM_ONLY = "stream_only"
    CONTROLLER_TRACE_ONLY = "controller_trace_only"
    EVERYTHING = "everything"


def events(
    commands: Sequence[SimulatedCommand],
    devices: Sequence[SimulatedDevice],
    streams: dict[int, str],
    mode: TraceMode,
    frames: Callable[[SimulatedCommand], list[str]],
    grouped: bool = False,
) -> list[dict[str, object]]:
    """The events of a trace. `frames`: the lines of the program that a command came from."""
    found: list[dict[str, object]] = []
    known = {command.order: command for command in commands}
    if mode is not TraceMode.STREAM_ONLY:
        found += _track(0, 0, "Controller", "Controller")
        found += [_issued(command, frames) for command in commands]
    if mode is not TraceMode.CONTROLLER_TRACE_ONLY:
        for pid, device in enumerate(devices, start=1):
            found += _device(pid, device, streams, grouped)
            found += [_worked(pid, span, known.get(span.ident), frames) for span in device.spans]
            found += _memory(pid, device)
    return found


def trace(
    commands: Sequence[SimulatedCommand], devices: Sequence[SimulatedDevice], streams: dict[int, str], mode: TraceMode,
    frames: Callable[[SimulatedCommand], list[str]], grouped: bool = False, dropped: int = 0,
) -> dict[str, object]:  # fmt: skip
    """The contents of a trace file. `dropped`: events that were too many to keep."""
    made = events(commands, devices, streams, mode, frames, grouped)
    return {"traceEvents": made, "displayTimeUnit": "ns", "otherData": {"dropped": dropped}}


def device_name(ranks: Sequence[int], grouped: bool) -> str:
    """`Device 3`; of ranks that did the same `Device 0 [0-2,5]`."""
    return f"Device {ranks[0]} [{_ranges(ranks)}]" if grouped else f"Device {ranks[0]}"


def _ranges(ranks: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][1] + 1 == rank:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _track(pid: int, tid: int, process: str, thread: str) -> list[dict[str, object]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": tid, "args": {"name": process}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": pid}},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}},
    ]


def _device(pid: int, device: SimulatedDevice, streams: dict[int, str], grouped: bool) -> list[dict[str, object]]:
    name = device_name(device.ranks, grouped)
    used = sorted({span.stream for span in device.spans} | {0})
    return [event for stream in used for event in _track(pid, stream, name, streams[stream])]


def _issued(command: SimulatedCommand, frames: Callable[[SimulatedCommand], list[str]]) -> dict[str, object]:
    name = command.name if command.kind in (TaskKind.CALL, TaskKind.REDUCE) else command.kind.value
    start, duration = command.issued, command.facts.get("launch", 0)
    return _event(name, "controller", start, duration, 0, 0, command, frames)


def _worked(
    pid: int, span: StreamSpan, command: SimulatedCommand | None, frames: Callable[[SimulatedCommand], list[str]]
) -> dict[str, object]:
    category = "wait" if span.kind == "wait" else "stream"
    return _event(span.name, category, span.start, span.duration, pid, span.stream, command, frames)


def _event(
    name: str, category: str, start: int, duration: int, pid: int, tid: int, command: SimulatedCommand | None,
    frames: Callable[[SimulatedCommand], list[str]],
) -> dict[str, object]:  # fmt: skip
    args: dict[str, object] = {}
    if command is not None:
        args = {"External id": command.ident, "correlation": command.order, "cbid": _NUMBERS[command.kind]}
        args["traceback"] = frames(command)
        if command.meta is not None:
            args["meta"] = str(command.meta)
    return {
        "ph": "X", "name": name, "cat": category, "ts": start / 1000, "dur": duration / 1000, "pid": pid, "tid": tid,
        "args": args,
    }  # fmt: skip


def _memory(pid: int, device: SimulatedDevice) -> list[dict[str, object]]:
    return [
        {"ph": "C", "name": "memory", "pid": pid, "tid": 0, "ts": time / 1000, "args": {"MB": nbytes / MEGABYTE}}
        for time, nbytes in device.ledger.timeline()
    ]


def memory_view(
    devices: Sequence[SimulatedDevice], frames: Callable[[int], list[dict[str, object]]]
) -> dict[str, object]:
    """A snapshot as torch's memory viewer reads them: allocations and frees of each device, in order of time.

    `frames`: the lines of the program that a command, by its order, came from, as {filename, line, name}.
    """
    traces = []
    for device in devices:
        entries, places = [], _Addresses()
        for change in sorted(device.ledger.changes, key=lambda change: change.time):
            common = {"stream": 0, "time_us": change.time // 1000, "frames": frames(change.ident)}
            if change.nbytes > 0:
                at = places.give(change.buffer, change.nbytes)
                entries.append({"action": "alloc", "addr": at, "size": change.nbytes, **common})
                continue
            for at, size in places.take(change.buffer):
                for action in ("free_requested", "free_completed"):
                    entries.append({"action": action, "addr": at, "size": size, **common})
        traces.append(entries)
    return {"segments": [], "device_traces": traces}


class _Addresses:
    """Made-up addresses: no two are the same."""

    def __init__(self) -> None:
        self._next = 1 << 20
        self._of: dict[int, list[tuple[int, int]]] = {}

    def give(self, buffer: int, size: int) -> int:
        at, self._next = self._next, self._next + -(-size // 512) * 512
        self._of.setdefault(buffer, []).append((at, size))
        return at

    def take(self, buffer: int) -> list[tuple[int, int]]:
        return self._of.pop(buffer, [])
