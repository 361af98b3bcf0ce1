"""Values that a program reads of distributed tensors: fetched, where the program has said so, if they are the same in every
process.

There is one program, which goes one way for all processes; so a value that it goes by has to be one. Each process answers
with a digest of what it has, and with the value itself where that is small; the first always sends the value.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import SupervisionError, span
from monarch.tensor.controller import misuse
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.failures import Failed
from monarch.tensor.worker.function_call import AgreedCall

if TYPE_CHECKING:
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import WorkerCall

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = 8  # processes, and values, that an error names


class ReadCost:
    """The number of values that one line waited for, and the time that it took, in seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class AgreedReads:
    """The cost of reading values in the blocks of one `agreed_values()`. `lines`: by what read it, and where."""

    def __init__(self) -> None:
        self.lines: dict[str, ReadCost] = {}

    @property
    def count(self) -> int:
        """The number of values that were waited for."""
        return sum(cost.count for cost in self.lines.values())

    @property
    def seconds(self) -> float:
        """The time spent waiting."""
        return sum(cost.seconds for cost in self.lines.values())

    def __str__(self) -> str:
        told = [f"{self.count} values were waited for, {self.seconds:.3f} s"]
        costs = sorted(self.lines.items(), key=lambda line: -line[1].seconds)
        told += [f"{cost.count:6} times {cost.seconds:8.3f} s  {line}" for line, cost in costs]
        return "\n".join(told)


class _Active(threading.local):
    """The blocks of this thread that may read values, the innermost last."""

    def __init__(self) -> None:
        self.blocks: list[AgreedReads] = []


_active = _Active()


class agreed_values:
    """A block in which, and in what it calls, reading a value of a distributed tensor waits for it: `t.item()`, `bool(t)`,
    `float(t)`, `t.tolist()`, `t.numpy()`, `f"{t:.3f}"`, `torch.equal(t, u)`, and operations whose shape depends on values
    (`t[mask]`, `nonzero`, `unique`). Also a decorator.

        with monarch.agreed_values() as reads:
            text = model.generate(prompt)
        print(reads)  # how many values were waited for, how long, and in which lines

    Every process has to have the same, for the program goes one way for all of them: DisagreementError names those that
    differ. Numbers are the same when their bits are (all NaNs are alike). Each read is a round trip, and waits for all that
    was issued before it. RemoteException when the value failed in a process, SupervisionError when one has ended.

    It holds for this thread. A `monarch.function` in which a value is waited for runs operation by operation, and a warning
    says so; one that is compiled refuses. Values that this process knows cost nothing here either. Since 0.2.0.
    """

    def __init__(self) -> None:
        self.reads = AgreedReads()

    def __enter__(self) -> AgreedReads:
        _active.blocks.append(self.reads)
        return self.reads

    def __exit__(self, *exc: object) -> None:
        _active.blocks.pop()

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def agreed(*args: object, **kwargs: object) -> Any:
            with self:
                return fn(*args, **kwargs)

        return agreed  # type: ignore[return-value]


class DisagreementError(RuntimeError):
    """The error for a value that the program read under `agreed_values()`, and that is not the same in all processes.
    Since 0.2.0."""


def may_wait() -> bool:
    """True if this thread may wait for values that it reads."""
    return bool(_active.blocks)


def agreed(tensor: Tensor, what: str) -> torch.Tensor:
    """Returns the values, on the CPU, that all processes have for a tensor which may be used. Waits for them. `what` reads
    them. DisagreementError when they differ, RemoteException when they failed."""
    if recorders and (here := recorder()) is not None:
        here.fetching(f"{what} under monarch.agreed_values()")
    place = tensor._record.place
    first = next(iter(place.mesh.processes))
    began = time.perf_counter()
    with span(f"agreed_values: {what}"):
        answers = answers_of(tensor, AgreedCall(what, first))
    cost = _active.blocks[-1].lines.setdefault(f"{what} at {misuse.line_of_program()}", ReadCost())
    cost.count += 1
    cost.seconds += time.perf_counter() - began
    values: dict[int, torch.Tensor] = {rank: value for rank, _, value in answers}
    groups: dict[bytes, list[int]] = {}
    for rank, digest, _ in answers:
        groups.setdefault(digest, []).append(rank)
    if len(groups) > 1:
        raise DisagreementError(_difference(tensor, what, list(groups.values()), values))
    return values[first]


def answers_of(tensor: Tensor, call: WorkerCall) -> list[Any]:
    """Returns what each process answers to `call` with this tensor. Waits. RemoteException when it failed in any,
    SupervisionError when one has ended."""
    record = tensor._record
    place = record.place
    engine = place.engine
    asked = engine.ask(place.mesh, place.mesh, call, [record.ref], [record.storage.taint], "call", place.stream)
    try:
        answers = [answer for answer in asked.get().values() if answer is not None]
    except SupervisionError as exc:
        raise engine.rescue(exc) from exc
    failed = [answer for answer in answers if isinstance(answer[0], Failed)]
    if failed:
        engine.value_of(min(failed, key=lambda answer: answer[0].order))
    return [answer[0] for answer in answers]


def _difference(
    tensor: Tensor, what: str, groups: Sequence[list[int]], values: Mapping[int, torch.Tensor | None]
) -> str:
    mesh = tensor._record.place.mesh
    names: dict[int, str] = {}
    for rank, at in zip(mesh.processes, itertools.product(*map(range, mesh.sizes.values())), strict=True):
        names[rank] = ", ".join(f"{name}={place}" for name, place in zip(mesh.names, at, strict=True)) or f"rank {rank}"
    lines = []
    for those in sorted(groups, key=len, reverse=True)[:_SHOWN]:
        value = values[those[0]]
        with _disable_current_modes():
            shown = "another value" if value is None else str(value.tolist())
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        more = f" and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
        lines.append(f"  {shown} in {'; '.join(names[rank] for rank in those[:_SHOWN])}{more}")
    if len(groups) > _SHOWN:
        lines.append(f"  and {len(groups) - _SHOWN} other values")
    return (
        f"{what} reads a value that the program goes by, and the processes have different ones:\n"
        + "\n".join(lines)
        + "\n"
        'Make it one first: t.reduce(dim, "avg") (or "max", "sum"), torch.manual_seed before what is random, '
        "mesh.slice(...) for a part of the processes; or read that of one process with monarch.inspect(t, dim=0)"
    )
