"""A Recording as workers have it: one call that does many, as straight-line Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.failures import Failed
from monarch.tensor.signature import (
    NumberHole,
    OpCall,
    Runner,
    TensorHole,
    contiguously,
    flatten,
    has_hole,
    here,
    resolve_op,
)

if TYPE_CHECKING:
    from monarch.tensor.signature import Scalar, WorkerCall
    from monarch.tensor.worker.executor import Executor


class RecordedRate(float):
    """A number of a step that comes with each run of the recording: the `slot`-th of its numbers, or with `negative` that
    number's negative. It is the value at the recording. `sources`: where the program has it, as the controller counts
    these."""

    slot: int
    negative: bool
    sources: frozenset[int]

    @classmethod
    def of(cls, value: float, slot: int, negative: bool, sources: frozenset[int]) -> RecordedRate:
        made = cls(value)
        made.slot, made.negative, made.sources = slot, negative, sources
        return made


class RecordedStep:
    """Call `call` with the values in slots `inputs` and `numbers`; its fresh results go to slots `results`. `where`:
    the program's line that issued it."""

    __slots__ = ("call", "inputs", "numbers", "results", "where")

    def __init__(
        self, call: WorkerCall, numbers: Sequence[Scalar], inputs: Sequence[int], results: Sequence[int], where: str
    ) -> None:
        self.call = call
        self.numbers = tuple(numbers)
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self.where = where


class RecordedSegment:
    """The signature.WorkerCall of a segment of a recording.

    Slots number its values: its inputs, the tensors of references `reads` (looked up each time), then what its steps
    make. It gives the slots `gives` and stores others under references of their own (`stores`). Numbers of steps that
    are Rates are those of the run. If a step fails, all
    that it gives, stores or changes is that failure, and the steps that follow run only where others wait for this
    rank. `first` of `total`: where its steps lie in the whole recording, for reports.
    """

    repeatable = False

    def __init__(
        self, label: str, first: int, total: int, steps: Sequence[RecordedStep], inputs: int, reads: Sequence[int],
        gives: Sequence[int], stores: Sequence[tuple[int, int]], mutates: Sequence[int], loses: Sequence[int],
    ) -> None:  # fmt: skip
        self.label = label
        self.first = first
        self.total = total
        self.steps = list(steps)
        self.inputs = inputs
        self.reads = tuple(reads)
        self.gives = tuple(gives)
        self.stores = tuple(stores)
        self.keeps = tuple(range(len(self.gives)))
        self.mutates = tuple(mutates)
        self.loses = (*loses, *(ref for _, ref in self.stores))
        self.between_ranks = any(getattr(step.call, "between_ranks", False) for step in self.steps)
        self._failing = -1

    def name(self) -> str:
        if self._failing < 0:
            return f"the recording of {self.label}"
        step = self.steps[self._failing]
        where = f", {step.where}" if step.where else ""
        return f"{step.call.name()} (operation {self.first + self._failing + 1} of {self.total} of {self.label}{where})"

    def prepare(self, executor: Executor) -> Runner:
        values: dict[str, Any] = {"T": executor.tensors, "pick": _pick}
        runners: list[Runner] = []
        lines = [self._line(number, values, runners, executor) for number in range(len(self.steps))]
        source = "\n    ".join(["def recorded(t, n):", *(head := self._head()), *lines, *self._tail()])
        filename = f"<recording of {self.label}>"
        exec(compile(source, filename, "exec"), values)
        run: Runner = values["recorded"]
        before = 1 + len(head)

        def runner(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
            self._failing = -1
            try:
                return run(tensors, numbers)
            except Exception as exc:
                self._failing = max(-1, _line_in(exc, filename) - 1 - before)
                self._take_part(self._failing + 1, runners, executor)
                raise

        return runner

    # --- code: one line a step, so that the line of a failure says which it was

    def _head(self) -> list[str]:
        # What it held is of no use any more: room for what follows.
        lines = [f"T[{ref}] = None" for _, ref in self.stores]
        if self.inputs:
            lines.append(", ".join(f"v{slot}" for slot in range(self.inputs)) + ", = t")
        lines += [f"v{self.inputs + place} = T[{ref}]" for place, ref in enumerate(self.reads)]
        return lines

    def _tail(self) -> list[str]:
        lines = [f"T[{ref}] = v{slot}" for slot, ref in self.stores]
        return [*lines, "return (" + "".join(f"v{slot}, " for slot in self.gives) + ")"]

    def _line(self, number: int, values: dict[str, object], runners: list[Runner], executor: Executor) -> str:
        step = self.steps[number]
        call = step.call
        if type(call) is OpCall and call.plain:
            runners.append(lambda tensors, numbers: None)
            values[f"f{number}"] = resolve_op(call.target)
            constants: list[object] = []
            inner = [_written(arg, step, constants, number) for arg in call.args]
            inner += [f"{name}={_written(value, step, constants, number)}" for name, value in call.kwargs.items()]
            values.update({f"c{number}_{place}": value for place, value in enumerate(constants)})
            made = f"f{number}({', '.join(inner)})"
            if (ending := self._ending_operand(number)) is not None:
                values["add"] = add
                made = f"add({', '.join(inner)}, {ending})"
            if call.contiguous:
                made = contiguously(made)
        else:
            runners.append(call.prepare(executor))
            values[f"f{number}"], values[f"n{number}"] = runners[-1], step.numbers
            given = f"n{number}"
            if any(type(value) is RecordedRate for value in step.numbers):
                parts = [
                    _rate(v) if type(v) is RecordedRate else f"n{number}[{at}]" for at, v in enumerate(step.numbers)
                ]
                given = f"({', '.join(parts)},)"
            made = f"f{number}([{', '.join(f'v{slot}' for slot in step.inputs)}], {given})"
        if call.keeps is None:
            made = f"v{step.results[0]} = {made}"
        elif step.results:
            values[f"k{number}"] = call.keeps
            made = "".join(f"v{slot}, " for slot in step.results) + f"= pick({made}, k{number})"
        dead = self._last_used()[number]
        return made + (f"; del {', '.join(f'v{slot}' for slot in dead)}" if dead else "")

    def _ending_operand(self, number: int) -> int | None:
        """Returns which operand of a sum of two tensors nothing uses after it: 0 or 1."""
        step = self.steps[number]
        call = step.call
        if type(call) is not OpCall or call.target != "aten.add.Tensor" or call.kwargs or len(set(step.inputs)) != 2:
            return None
        dead = self._last_used()[number]
        holes = [arg for arg in call.args if isinstance(arg, TensorHole)]
        if len(holes) < len(call.args):
            return None
        return next((place for place, hole in enumerate(holes) if step.inputs[hole] in dead), None)

    def _last_used(self) -> list[list[int]]:
        """Returns for each step the values that nothing uses after it."""
        if not hasattr(self, "_dead"):
            last = {slot: number for number, step in enumerate(self.steps) for slot in (*step.inputs, *step.results)}
            for slot in (*self.gives, *(slot for slot, _ in self.stores)):
                last.pop(slot, None)
            self._dead: list[list[int]] = [[] for _ in self.steps]
            for slot, number in last.items():
                if slot >= self.inputs + len(self.reads):
                    self._dead[number].append(slot)
        return self._dead

    def _take_part(self, start: int, runners: list[Runner], executor: Executor) -> None:
        """Others wait for this rank or stream, or have sent it something: it does what is left of that, and with failed
        inputs where there are some."""
        failed = Failed(0, executor.rank, self.name(), "an earlier operation of the recording failed")
        for step, run in zip(self.steps[start:], runners[start:], strict=True):
            if getattr(step.call, "between_ranks", False) or not step.inputs:
                try:
                    run([failed] * len(step.inputs), step.numbers)
                except Exception:
                    continue  # as expected: the first failure is the one that is told of


def add(left: torch.Tensor, right: torch.Tensor, ending: int) -> Any:
    """`left + right`, in the memory of the one that ends here where nothing else lies in that.

    Autograd adds up gradients so for plain tensors; memory that was never touched costs more than the sum.
    """
    into, other = (left, right) if ending == 0 else (right, left)
    storage = into.untyped_storage()  # held: from torch 2.12 on it counts by itself, before only while somebody has it
    if (
        into.shape == other.shape
        and into.dtype is other.dtype
        and into.stride() == other.stride()
        and into.device == other.device
        and torch._C._storage_Use_Count(storage._cdata) <= 2  # the tensor's, and `storage`
    ):
        return into.add_(other)
    return torch.add(left, right)


def _written(value: Any, step: RecordedStep, constants: list[object], number: int) -> str:
    """`value`, an argument of an operation, as code."""
    kind = type(value)
    if kind is TensorHole:
        return f"v{step.inputs[value]}"
    if kind is NumberHole:
        value = step.numbers[value]
        kind = type(value)
    if kind is RecordedRate:
        return _rate(value)
    if kind is bool or kind is int or value is None:
        return repr(value)
    if kind in (list, tuple) and has_hole(value):
        inner = "".join(f"{_written(item, step, constants, number)}, " for item in value)
        return f"[{inner}]" if kind is list else f"({inner})"
    constants.append(here(value))
    return f"c{number}_{len(constants) - 1}"


def _rate(value: RecordedRate) -> str:
    return f"-n[{value.slot}]" if value.negative else f"n[{value.slot}]"


def _pick(result: object, keeps: tuple[int, ...]) -> list[torch.Tensor]:
    leaves = flatten(result)
    if keeps[-1] >= len(leaves):
        raise RuntimeError(
            f"unexpected number of returns from op, expected {len(keeps)}, got {len(leaves)}: what `propagate` returns has "
            f"to have the structure of what the function returns"
        )
    return [leaves[index] for index in keeps]


def _line_in(error: BaseException, filename: str) -> int:
    tb = error.__traceback__
    line = 0
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == filename:
            line = tb.tb_lineno
        tb = tb.tb_next
    return line
