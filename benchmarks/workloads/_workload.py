"""What every workload script shares: the command line, the result line, timing, and reading a process's
memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

RESULT_PREFIX = "BENCH-RESULT "  # the harness looks for this line among whatever else is printed
Params = dict[str, Any]
Samples = dict[str, list[float]]
Workload = Callable[[Params], Samples]
Usage = tuple[float, int]  # processor time in seconds, context switches


def main(workloads: Mapping[str, Workload]) -> None:
    """Runs `SCRIPT WORKLOAD PARAMS-AS-JSON` and prints the samples (SI units) on one marked line."""
    name, params = sys.argv[1], json.loads(sys.argv[2])
    if name not in workloads:
        raise SystemExit(f"Error: no workload {name!r} here; there are {sorted(workloads)}")
    samples = workloads[name](params)
    print("\n" + RESULT_PREFIX + json.dumps(samples), flush=True)


def seconds(operation: Callable[[], object]) -> float:
    """How long one call of `operation` takes."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def times(operation: Callable[[], object], params: Params) -> list[float]:
    """Durations of params["count"] calls, after params["warmup"] calls that are not kept."""
    for _ in range(params["warmup"]):
        operation()
    return [seconds(operation) for _ in range(params["count"])]


def rates(operation: Callable[[], object], units: int, params: Params) -> list[float]:
    """Like `times`, as `units` per second."""
    return [units / duration for duration in times(operation, params)]


def usage() -> Usage:
    """What this process has used since it started."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nvcsw + used.ru_nivcsw


class Computing:
    """Computes in pure Python and never waits, until another thread says `stop`, or for ten seconds."""

    def __init__(self) -> None:
        self.stopped = False

    def run(self) -> None:
        self.stopped = False
        until = time.perf_counter() + 10
        while not self.stopped and time.perf_counter() < until:
            pass

    def stop(self) -> None:
        self.stopped = True


def private_bytes(pid: int) -> float:
    """Memory that only this process has: Private_Clean + Private_Dirty. What it shares with a fork server
    or other processes (code, preloaded modules not written to) costs the machine nothing more and is not
    counted.
    """
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        kib = [int(line.split()[1]) for line in file if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(kib) * 1024.0


def payload(kind: str, size: int) -> Any:
    """`size` bytes as "bytes" or as a one-dimensional numpy "array", every page written once."""
    if kind == "bytes":
        return b"\x5a" * size
    import numpy

    return numpy.full(size, 0x5A, dtype=numpy.uint8)
