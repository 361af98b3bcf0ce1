"""torch's profiler in the workers: one trace a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from monarch._linux import private_files
from monarch.tensor.remote.opaque_ref import OpaqueRef
from monarch.tensor.remote.remote_function import Remote
from monarch.tensor.worker import current


class Schedule(NamedTuple):
    """The steps that are recorded, as `torch.profiler.schedule`: skip `skip_first`, then `repeat` times (0: for
    ever) wait, warm up, record."""

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0


def begin(folder: str, schedule: tuple[int, ...] | None, options: dict[str, Any]) -> OpaqueRef:
    """Returns, in a worker, a profiler that has begun."""
    rank = current.worker().executor.rank

    def write(profiler: Any) -> None:
        os.makedirs(folder, exist_ok=True)
        # torch writes to whatever is at a name, and somebody else may have put a link there.
        with tempfile.TemporaryDirectory() as private:
            made = os.path.join(private, "trace.json")
            profiler.export_chrome_trace(made)
            output = private_files.open_output(os.path.join(folder, f"trace_{rank}.json"))
            with open(made, "rb") as trace, open(output, "wb") as file:
                shutil.copyfileobj(trace, file)

    steps = torch.profiler.schedule(**Schedule(*schedule)._asdict()) if schedule is not None else None
    profiler = torch.profiler.profile(on_trace_ready=write, schedule=steps, **options)
    profiler.start()
    return OpaqueRef(profiler)


def step(profiler: OpaqueRef) -> None:
    profiler.value.step()


def end(profiler: OpaqueRef) -> None:
    profiler.value.stop()


def enter(name: str) -> OpaqueRef:
    region = torch.profiler.record_function(name)
    region.__enter__()
    return OpaqueRef(region)


def leave(region: OpaqueRef) -> None:
    region.value.__exit__(None, None, None)


_begin = Remote(begin, lambda folder, schedule, options: OpaqueRef(None))
_step, _end = Remote(step, "inspect"), Remote(end, "inspect")
_enter, _leave = Remote(enter, lambda name: OpaqueRef(None)), Remote(leave, "inspect")


class profile:
    """A context manager: the processes of the active mesh are profiled in it, each at this place of its stream.

    Each writes `<on_trace_ready>/trace_<rank>.json` on its host when a recording is complete: at the end, or by
    `schedule`, whose steps `step()` counts. Other keywords are those of `torch.profiler.profile` that can be pickled.
    """

    def __init__(self, on_trace_ready: str, schedule: Schedule | None = None, **options: object) -> None:
        self._arguments = (os.fspath(on_trace_ready), tuple(schedule) if schedule is not None else None, options)
        self._profiler: OpaqueRef | None = None

    def start(self) -> None:
        """Begins on every process of the active mesh, as entering the block does."""
        self._profiler = _begin(*self._arguments)

    def step(self) -> None:
        """The next step of the schedule. RuntimeError outside of the profile."""
        _step(self._running())

    def stop(self) -> None:
        """Ends, and writes what was recorded, as leaving the block does."""
        _end(self._running())
        self._profiler = None

    def _running(self) -> OpaqueRef:
        if self._profiler is None:
            raise RuntimeError("this profile is not running: enter it with `with`, or call start()")
        return self._profiler

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@contextlib.contextmanager
def record_function(name: str) -> Iterator[None]:
    """A context manager: what is issued in it appears under `name` in the workers' traces."""
    region = _enter(name)
    try:
        yield
    finally:
        _leave(region)
