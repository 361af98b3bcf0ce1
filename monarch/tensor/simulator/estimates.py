"""Estimates of how long each kind of work takes in a simulation: numbers, or functions of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from monarch.tensor.simulator import communication

if TYPE_CHECKING:
    from monarch.tensor.simulator.task import Task

Timing = int | Callable[["Task"], float]


class TimingType(StrEnum):
    """The kinds of work that take time."""

    CALL_FUNCTION = "call_function"  # an operation, or a remote function
    REDUCE = "reduce"  # a collective, on each of its ranks
    SEND_TENSOR = "send_tensor"  # a tensor on its way to another rank, or a copy on the same
    KERNEL_LAUNCH = "kernel_launch"  # the controller, with any command
    WAIT_EVENT = "wait_event"  # a stream that takes note of another's event


_DEFAULTS: dict[TimingType, Timing] = {
    TimingType.CALL_FUNCTION: 10_000,
    TimingType.REDUCE: 100_000,
    TimingType.SEND_TENSOR: lambda task: 1_000 if task.local else 100_000,
    TimingType.KERNEL_LAUNCH: 500,
    TimingType.WAIT_EVENT: 500,
}


class RuntimeEstimator:
    """Estimates of how long things take, in nanoseconds: 10,000 a call, 100,000 a reduction and a tensor sent (1,000
    on the same rank), 500 a launch and a wait, unless told otherwise."""

    def __init__(self) -> None:
        self._timings = dict(_DEFAULTS)

    def set_custom_timing(self, timings: Mapping[TimingType, Timing]) -> None:
        """Makes the kinds of work named take so many nanoseconds, or what the function gives for a Task.

        TypeError for what is neither a number nor callable, ValueError for a negative number and an unknown kind.
        """
        checked = {TimingType(kind): timing for kind, timing in timings.items()}
        for kind, timing in checked.items():
            if not callable(timing):
                _checked(kind, timing)
        self._timings.update(checked)

    def get_runtime(self, kind: TimingType, task: Task) -> int:
        """Returns the nanoseconds that `task` takes."""
        timing = self._timings[kind]
        return _checked(kind, timing(task) if callable(timing) else timing)

    def __repr__(self) -> str:
        return f"RuntimeEstimator({', '.join(f'{kind}={timing!r}' for kind, timing in self._timings.items())})"


def _checked(kind: TimingType, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"the timing of {kind.name} is a number of nanoseconds or a function that gives one, not {value!r}"
        )
    if not 0 <= value < float("inf"):
        raise ValueError(f"the timing of {kind.name} is {value}: give 0 ns or more, and a finite number")
    return round(value)


def by_communication() -> dict[TimingType, Timing]:
    """Timings for `set_custom_timing` that follow the sizes of tensors and groups (see
    `monarch.tensor.simulator.communication`)."""
    return {TimingType.REDUCE: _reduction, TimingType.SEND_TENSOR: _message}


def _reduction(task: Task) -> float:
    name = task.collective or task.name
    metas = task.outputs if name == "all_gather" and task.outputs else task.inputs
    sizes = [communication.collective_time(name, meta.shape, meta.dtype, task.peers) for meta in metas if meta]
    return sum(sizes)


def _message(task: Task) -> float:
    if task.local:
        return 1_000
    return sum(
        communication.send_time(communication.nbytes(meta.shape, meta.dtype), task.same_node)
        for meta in task.inputs
        if meta
    )
