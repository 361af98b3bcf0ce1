"""The times that parts of a program take in the workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from monarch.tensor.remote.remote_function import remote

_DEFAULT = "default_timer"
KEPT = 1 << 16  # measurements of a name; the oldest go


class _Timer:
    """The measurements of one name. Those by the device's events are read when somebody asks."""

    def __init__(self) -> None:
        self.started: Any = None
        self.done: list[float] = []  # milliseconds
        self.open: list[tuple[Any, Any]] = []

    def start(self, use_cpu: bool) -> None:
        if use_cpu or not torch.accelerator.is_available():
            self.started = time.perf_counter()
            return
        self.started = torch.Event(enable_timing=True)
        self.started.record()

    def stop(self) -> None:
        started, self.started = self.started, None
        if isinstance(started, float):
            self._add((time.perf_counter() - started) * 1e3)
            return
        ended = torch.Event(enable_timing=True)
        ended.record()
        self.open.append((started, ended))
        if len(self.open) >= 256:
            self.read()

    def read(self) -> list[float]:
        """All measurements; waits for the device."""
        for started, ended in self.open:
            ended.synchronize()
            self._add(started.elapsed_time(ended))
        self.open.clear()
        return self.done

    def _add(self, milliseconds: float) -> None:
        self.done.append(milliseconds)
        if len(self.done) > KEPT:
            del self.done[: KEPT // 2]


class ExecutionTimer:
    """Times named parts of what this process runs: by events of its accelerator where it has one, by the clock otherwise.

    All methods are of the class: one table a process.
    """

    _timers: dict[str, _Timer] = {}  # noqa: RUF012  the process's, on purpose

    @classmethod
    @contextlib.contextmanager
    def time(cls, name: str | None = None, use_cpu: bool = False) -> Iterator[None]:
        """A context manager around what is to be timed: `start` and `stop`. `name`: "default_timer" without one."""
        cls.start(name, use_cpu)
        try:
            yield
        finally:
            cls.stop(name)

    @classmethod
    def start(cls, name: str | None = None, use_cpu: bool = False) -> None:
        """Begins a measurement of `name`. `use_cpu`: by the clock, also where there is an accelerator. ValueError when one
        has begun and not ended."""
        timer = cls._timers.setdefault(name or _DEFAULT, _Timer())
        if timer.started is not None:
            raise ValueError(f"timer {name or _DEFAULT!r} is already running: stop it before starting it again")
        timer.start(use_cpu)

    @classmethod
    def stop(cls, name: str | None = None) -> None:
        """Ends it. ValueError when none has begun."""
        timer = cls._timers.get(name or _DEFAULT)
        if timer is None or timer.started is None:
            raise ValueError(f"timer {name or _DEFAULT!r} is not running: start it first")
        timer.stop()

    @classmethod
    def reset(cls) -> None:
        """Forgets all measurements."""
        cls._timers.clear()

    @classmethod
    def summary(cls) -> dict[str, dict[str, float]]:
        """Returns for each name count, mean_ms, total_ms, min_ms and max_ms. Waits for the device."""
        found = {}
        for name, timer in cls._timers.items():
            times = timer.read()
            if times:
                found[name] = {
                    "count": len(times),
                    "mean_ms": sum(times) / len(times),
                    "total_ms": sum(times),
                    "min_ms": min(times),
                    "max_ms": max(times),
                }
        return found

    @classmethod
    def get_latest_measurement(cls, name: str | None = None) -> float:
        """The last measurement of `name` in milliseconds; 0.0 when there is none."""
        timer = cls._timers.get(name or _DEFAULT)
        times = timer.read() if timer is not None else []
        return times[-1] if times else 0.0


def _scalar(name: str | None = None) -> torch.Tensor:
    return torch.empty((), dtype=torch.float64)


@remote(propagate="inspect")
def execution_timer_start(name: str = _DEFAULT, use_cpu: bool = False) -> None:
    """`ExecutionTimer.start` in every process of the mesh, at this place in the stream."""
    ExecutionTimer.start(name, use_cpu)


@remote(propagate="inspect")
def execution_timer_stop(name: str = _DEFAULT) -> None:
    """`ExecutionTimer.stop` in every process of the mesh, at this place in the stream."""
    ExecutionTimer.stop(name)


@remote(propagate=_scalar)
def get_execution_timer_average_ms(name: str = _DEFAULT) -> torch.Tensor:
    """The mean of the measurements of `name` in each process, a float64 scalar; 0.0 without any."""
    mean = ExecutionTimer.summary().get(name, {}).get("mean_ms", 0.0)
    return torch.tensor(mean, dtype=torch.float64)


@remote(propagate=_scalar)
def get_latest_timer_measurement(name: str = _DEFAULT) -> torch.Tensor:
    """The last measurement of `name` in each process, a float64 scalar in milliseconds; 0.0 without any."""
    return torch.tensor(ExecutionTimer.get_latest_measurement(name), dtype=torch.float64)
