"""A trace of each process in a file of its own, without telemetry: `PERFETTO_TRACE_MODE=user` (or `dev`).

    $MONARCH_TRACE_DIR/executions/<program>/<process>.pftrace     default: /tmp/<user>/monarch_traces
    $MONARCH_TRACE_DIR/latest                                     a link to the newest program's folder

`user`: endpoints, calls and spans of the program; `dev`: also those of the runtime's own actors. Written about each second,
by a thread, as pieces that are traces in themselves: what was written before a process was killed can be read. Bounds: LIMIT
events that wait (the recorder's), MOST_BYTES a file. While telemetry records, this does not: `monarch profile` writes the
same from there.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time
import zlib
from collections import deque
from typing import Any

from monarch._linux import private_files, terminal
from monarch._linux.locks import Lock
from monarch._mesh.inspection.recording import process_name
from monarch._runtime import recorder as recorders
from monarch._runtime.proc import Proc
from monarch._runtime.recorder import CALLED, HANDLED, SPAN, Recorder
from monarch._wire.address import host_of
from monarch.trace import perfetto
from monarch.trace.timeline import Instant, Slice, Timeline

MODES = ("off", "user", "dev")
MOST_BYTES = 256 << 20
_PERIOD = 1.0
_BATCH = 20_000  # events written at a time
_RECENT = 500  # slices of a lane that are looked at, to see whether another fits into it
_ADVERBS = ("call", "call_one", "choose", "stream", "broadcast", "send", "rref")
_log = logging.getLogger("monarch")


class TrackLanes:
    """Tracks of actors; each slice goes to one where it lies beside or within the others."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[deque[tuple[int, int]]]] = {}

    def place(self, track: str, start: int, end: int) -> str:
        lanes = self._lanes.setdefault(track, [])
        fitting = (number for number, lane in enumerate(lanes) if all(_fits(start, end, *other) for other in lane))
        index = next(fitting, len(lanes))
        if index == len(lanes):
            lanes.append(deque(maxlen=_RECENT))
        lanes[index].append((start, end))
        return track if not index else f"{track} ({index + 1})"


def _fits(start: int, end: int, other_start: int, other_end: int) -> bool:
    apart = end <= other_start or other_end <= start
    within = (start >= other_start and end <= other_end) or (other_start >= start and other_end <= end)
    return apart or within


class LocalSink:
    """A writer of one process's trace."""

    def __init__(self, proc: Proc, path: str, include_system: bool) -> None:
        self.path = path
        self.recorder = Recorder(include_system=include_system)
        self.recorder.client = proc.root_name
        self._proc = proc
        self._name = process_name(proc)
        self._sequence = zlib.crc32(f"{self._name} {os.getpid()}".encode()) | 1
        self._lanes = TrackLanes()
        self._size = 0
        self._over = threading.Event()
        self._writing = Lock()
        self._file = private_files.open_log(path, empty=True)

    def start(self) -> None:
        if recorders.active is not None:  # telemetry was first
            return
        recorders.active = self.recorder
        threading.Thread(target=self._run, name="monarch-local-trace", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD):
            self.flush()

    def stop(self) -> None:
        self._over.set()
        if recorders.active is self.recorder:
            recorders.active = None
        self.flush()

    def flush(self) -> None:
        """Writes what was recorded. Whatever goes wrong, as a full disk, ends it and nothing else."""
        with self._writing:
            while events := self.recorder.take(_BATCH):
                if self._size >= MOST_BYTES:
                    continue  # dropped: the bound is reached
                try:
                    file = io.BytesIO()
                    perfetto.write(self.timeline(events), file, self._sequence)
                    self._size += os.write(self._file, file.getvalue())
                except Exception as exc:
                    self._size = MOST_BYTES
                    _log.warning("the trace in %s ends here: %s: %s", self.path, type(exc).__name__, exc)

    def timeline(self, events: list[tuple[Any, ...]]) -> Timeline:
        timeline = Timeline()
        process = timeline.process(self._name, self._proc.pid)
        ahead = time.time() - time.monotonic()

        def ns(at: float) -> int:
            return round((at + ahead) * 1e9)

        for event in events:
            if event[0] == HANDLED:
                _, actor, call, back, _, began, ended, failed, spans, _ = event
                if not began or not spans:
                    continue
                notes = {"actor": actor, "failed": True} if failed else {"actor": actor}
                one = Slice(ns(began), ns(ended), call.method, "endpoint", notes, flows=_flow(back, call.port))
            elif event[0] == CALLED:
                _, (actor, _, mesh, method, adverb, *_), port, began, ended, *_ = event
                name = f"{mesh}.{method}.{_ADVERBS[adverb]}()"
                one = Slice(ns(began), ns(ended), name, "call", {"actor": actor})
            elif event[0] == SPAN:
                _, _, name, actor, _, _, began, ended, _, error = event
                one = Slice(ns(began), ns(ended), name, "span", {"error": error} if error else {})
            else:
                continue
            one.end = max(one.end, one.start + 1)
            track = process.track(self._lanes.place(actor, one.start, one.end))
            track.slices.append(one)
            if event[0] == CALLED:
                flow = _flow(self._proc.address, port)
                track.instants += [
                    Instant(one.start, "send", "call", flow),
                    Instant(one.end, "complete", "call", [], flow),
                ]
        return timeline


def _flow(address: str, port: int) -> list[int]:
    """The same number wherever that call is seen; none when nobody waits for an answer."""
    text = f"{address} {port}".encode()
    return [zlib.crc32(text) << 31 ^ zlib.crc32(text[::-1]) | 1] if port else []


_sink: LocalSink | None = None


def begin(proc: Proc, mode: str) -> None:
    """This process writes a trace from now on. What prevents that is a warning: the program goes on."""
    global _sink
    if mode not in MODES:
        _log.warning("PERFETTO_TRACE_MODE is %r, and one of %s is meant: no trace is written", mode, ", ".join(MODES))
        return
    if mode == "off" or _sink is not None:
        return
    try:
        folder = execution_folder(host_of(proc.client))
        name = re.sub(r"[^-_.A-Za-z0-9]", "_", process_name(proc))
        _sink = LocalSink(proc, os.path.join(folder, f"{name}.{os.getpid()}.pftrace"), mode == "dev")
    except OSError as exc:
        _log.warning("no trace is written: %s", exc)
        return
    _sink.start()
    if proc.root_name:
        _log.warning("traces of all processes are written into %s, on their hosts (PERFETTO_TRACE_MODE)", folder)


def finish() -> None:
    """Ends the trace; the process ends."""
    if _sink is not None:
        _sink.stop()


def trace_folder() -> str:
    """Returns the folder of traces: MONARCH_TRACE_DIR, or the default."""
    user = os.environ.get("USER") or str(os.getuid())
    return os.environ.get("MONARCH_TRACE_DIR") or f"/tmp/{user}/monarch_traces"


def execution_folder(program: str) -> str:
    """Returns the folder of one program, made if need be; `latest` leads to it. OSError when it is not ours."""
    root = private_files.make_folder(trace_folder(), mine=False)
    plain = re.sub(r"[^-_.A-Za-z0-9]", "_", program)
    folder = private_files.make_folder(os.path.join(root, "executions", plain), mine=False)
    link = os.path.join(root, "latest")
    target = os.path.join("executions", plain)
    try:
        if not os.path.islink(link) or os.readlink(link) != target:
            temporary = f"{link}.{os.getpid()}"
            os.symlink(target, temporary)
            os.replace(temporary, link)
    except OSError:  # another process did so, or it is a folder of somebody's
        pass
    return folder


def main(arguments: list[str] | None = None) -> int:
    """`python -m monarch.trace.local_sink -e EXECUTION -t DIR -o OUT`: the files of one program as one."""
    import argparse
    import shutil

    parser = argparse.ArgumentParser(prog="python -m monarch.trace.local_sink", description=main.__doc__)
    parser.add_argument("-e", "--execution", default="latest", help="a folder below DIR/executions (the latest)")
    parser.add_argument("-t", "--traces", default=trace_folder(), metavar="DIR", help="where traces are")
    parser.add_argument("-o", "--output", required=True, metavar="OUT")
    options = parser.parse_args(arguments)
    inner = "latest" if options.execution == "latest" else os.path.join("executions", options.execution)
    folder = os.path.join(options.traces, inner)
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".pftrace"))
    except OSError as exc:
        terminal.note(f"there are no traces in {folder}: {exc.strerror}")
        return 1
    with open(private_files.open_output(options.output), "wb") as out:
        for name in files:
            with open(private_files.open_to_read(os.path.join(folder, name)), "rb") as file:
                shutil.copyfileobj(file, out)
    terminal.show(f"Wrote the traces of {len(files)} processes into {options.output}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
