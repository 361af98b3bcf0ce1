"""Learning rates as inputs of a recording: a scheduler may change them before each call, and nothing is recorded again.

Torch's optimizers hand a learning rate that is a Python number to an operation as it is, or its negative. Whether a number of
an operation is one is known after two recordings that differ in nothing but the rates: numbers that were the one rate then
and are the other now. From there on they come with each call. An optimizer that computes with the rate in Python has other
numbers, and is recorded anew for each rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.tensor.controller.known_numbers import RecordedFloat
from monarch.tensor.worker.recorded import RecordedRate

if TYPE_CHECKING:
    from monarch.tensor.controller.known_numbers import NumberNode
    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.signature import Scalar


def marked(
    numbers: Sequence[tuple[Scalar, ...]], passed_on: Sequence[bool], rates: Sequence[object]
) -> tuple[list[tuple[Scalar, ...]], dict[int, NumberNode]]:
    """`numbers` of operations, with a Rate for each that may be one of `rates`: those equal to one, or to its negative,
    where `passed_on` says that an optimizer issued the operation. And for each that is computed; the nodes of these, by
    slot."""
    values = [rate if type(rate) is float and rate != 0.0 else None for rate in rates]
    slots: dict[object, int] = {}
    nodes: dict[int, NumberNode] = {}

    def mark(number: Scalar, passed: bool) -> Scalar:
        if type(number) is RecordedFloat:
            slot = slots.setdefault(id(number.node), len(slots))
            nodes[slot] = number.node
            return RecordedRate.of(number, slot, False, frozenset())
        if type(number) is not float or not passed:
            return number
        for negative, value in ((False, number), (True, -number)):
            sources = frozenset(at for at, rate in enumerate(values) if rate == value)
            if sources:
                return RecordedRate.of(number, slots.setdefault(value, len(slots)), negative, sources)
        return number

    found = [tuple(mark(number, passed) for number in given) for given, passed in zip(numbers, passed_on, strict=True)]
    return found, nodes


def confirmed(old: Sequence[StepForm], new: Sequence[StepForm]) -> dict[int, frozenset[int]] | None:
    """The slots of `new` (steps of a Recording) that are learning rates, and which: all sources that they may be. None
    when the two recordings differ in anything else."""
    if len(old) != len(new):
        return None
    found: dict[int, frozenset[int]] = {}
    constant: set[int] = set()  # slots of `new` with a number in them that did not change with the rate
    for one, other in zip(old, new, strict=True):
        if one._replace(numbers=()) != other._replace(numbers=()) or len(one.numbers) != len(other.numbers):
            return None
        for before, now in zip(one.numbers, other.numbers, strict=True):
            if type(now) is RecordedRate and not now.sources:  # it is computed
                if type(before) is not RecordedRate or before.sources or before.slot != now.slot:
                    return None
                continue
            if before == now and repr(before) == repr(now):
                if type(now) is RecordedRate:
                    constant.add(now.slot)
                continue
            if type(before) is not RecordedRate or type(now) is not RecordedRate or before.negative is not now.negative:
                return None
            sources = found.get(now.slot, now.sources) & before.sources & now.sources
            if not sources:
                return None
            found[now.slot] = sources
    return None if constant & found.keys() else found


class StepForm(NamedTuple):
    """A step of a recording as two recordings of the same function are compared by it."""

    place: StreamPlacement
    call: int | str
    numbers: tuple[Scalar, ...]
    inputs: tuple[object, ...]
    results: int


class Rates:
    """The numbers of a recording that come with each call. `mappings`: where the program has its learning rates, under
    "lr"; `values`: what each slot was at the recording."""

    __slots__ = ("computed", "mappings", "sources", "values")

    def __init__(
        self, mappings: Sequence[dict[str, Any]], steps: Sequence[StepForm], computed: Mapping[int, NumberNode]
    ) -> None:
        self.computed = {slot: id(node) for slot, node in computed.items()}
        self.mappings = list(mappings)
        marks = {mark.slot: mark for step in steps for mark in step.numbers if type(mark) is RecordedRate}
        self.values = [-marks[slot] if marks[slot].negative else float(marks[slot]) for slot in range(len(marks))]
        self.sources: dict[int, frozenset[int]] = {}  # of the slots that are confirmed

    def confirm(self, sources: Mapping[int, frozenset[int]]) -> None:
        """These slots take their numbers from there."""
        self.sources = dict(sources)

    def known(self) -> bool:
        """True if the rates that it takes can be had: numbers, and equal where they have not been told apart."""
        for sources in self.sources.values():
            now = {self.mappings[source].get("lr") for source in sources}
            if len(now) != 1 or type(next(iter(now))) is not float:
                return False
        return True

    def numbers(self, known: Mapping[int, Any]) -> tuple[float, ...]:
        """Returns the numbers of a call now; `known` has those that are computed."""
        values = list(self.values)
        for slot, sources in self.sources.items():
            values[slot] = self.mappings[next(iter(sources))]["lr"]
        for slot, node in self.computed.items():
            values[slot] = known[node]
        return tuple(values)
