"""Numbers that torch's optimizers compute of known scalars in a run that is recorded: bias corrections of a step count.

Each knows what it was computed of, so that a replay can compute it anew. They are no floats: who needs one (`math.sqrt`, a
comparison) has to ask, and nothing is lost without a sound. Torch takes them as it does its own symbolic numbers.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from monarch.tensor.controller.derivations import KnownPart

_orders = itertools.count()


def next_order() -> int:
    """Returns a number that is higher than all before it: what is computed later has a higher one."""
    return next(_orders)


class NumberNode:
    """A number or a flag: `operation` on `operands`, which are nodes, constants, or the tensor that it was read of. `value`:
    in the run that is recorded. `keeper`: makes nodes, and is told of values that are taken."""

    __slots__ = ("keeper", "operands", "operation", "order", "value")

    def __init__(self, keeper: Any, operation: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> None:
        self.keeper = keeper
        self.operation = operation
        self.operands = operands
        self.order = next_order()
        self.value = value

    def again(self, known: Mapping[int, Any]) -> Any:
        """Computes it of what `known` has, by id."""
        return self.operation(*[known[id(one)] if isinstance(one, NumberNode) else one for one in self.operands])

    # Methods that torch calls on the node of a symbolic number.

    def guard_float(self, file: str, line: int) -> float:
        return float(self.keeper.asked(self, sys._getframe(1)))

    def is_float(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True


class ItemNode(NumberNode):
    """The number of a tensor of one element."""

    __slots__ = ()

    def __init__(self, keeper: Any, part: KnownPart, value: float) -> None:
        super().__init__(keeper, float, (part,), value)

    def again(self, known: Mapping[int, Any]) -> Any:
        return self.operands[0].value(known).item()


class RateNode(NumberNode):
    """The learning rate of a group of parameters."""

    __slots__ = ("group",)

    def __init__(self, keeper: Any, group: dict[str, Any]) -> None:
        super().__init__(keeper, float, (), group["lr"])
        self.group = group

    def again(self, known: Mapping[int, Any]) -> Any:
        rate = self.group["lr"]
        if type(rate) is not float:
            raise ValueError("a learning rate that is no number any more")
        return rate


class RecordedFloat(float):
    """The number of a node, on its way to be a number of a command."""

    node: NumberNode

    @classmethod
    def of(cls, node: NumberNode) -> RecordedFloat:
        made = cls(node.value)
        made.node = node
        return made

    def __reduce__(self) -> Any:
        return float, (self.node.guard_float("", 0),)


class KnownNumber(torch.SymFloat):
    """A number that an optimizer has in place of a float. `node`: torch finds it by this name."""

    node: NumberNode

    def _taken(self) -> float:
        return float(self.node.keeper.taken(self.node))

    def __float__(self) -> float:
        return self._taken()

    def __int__(self) -> int:
        return int(self._taken())

    def __trunc__(self) -> int:
        return int(self._taken())

    def __floor__(self) -> int:
        return self._taken().__floor__()

    def __ceil__(self) -> int:
        return self._taken().__ceil__()

    def __round__(self, digits: Any = None) -> Any:
        return round(self._taken(), digits)

    def __bool__(self) -> bool:
        return bool(self != 0.0)

    def __hash__(self) -> int:
        return hash(self._taken())

    def __repr__(self) -> str:
        return repr(self._taken())

    def __str__(self) -> str:
        return str(self._taken())

    def __format__(self, spec: str) -> str:
        return format(self._taken(), spec)

    def is_integer(self) -> bool:
        return self._taken().is_integer()

    def __neg__(self) -> Any:
        return computed(operator.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return computed(operator.abs, self)


def computed(operation: Callable[..., Any], *operands: Any) -> Any:
    """Returns the result of an operation with KnownNumbers, as one; of a comparison the flag itself."""
    nodes: list[Any] = []
    keeper: Any = None
    for one in operands:
        if isinstance(one, torch.SymFloat):
            nodes.append(one.node)
            keeper = one.node.keeper
        elif type(one) is int or type(one) is float:
            nodes.append(one)
        else:
            return NotImplemented
    node = keeper.node(operation, *nodes)
    if type(node.value) is float:
        return KnownNumber(node)
    return keeper.taken(node)


def _forward(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: computed(operation, self, other)


def _reflected(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: computed(operation, other, self)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(KnownNumber, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(KnownNumber, f"__r{_name}__", _reflected(getattr(operator, _name)))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(KnownNumber, f"__{_name}__", _forward(getattr(operator, _name)))


def in_commands(
    free: Callable[[int | str], bool], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of an operation with RecordedFloats for the numbers of this kind where `free` says, by place or
    name, that numbers travel with the command; elsewhere with what is taken of them."""
    given = tuple(_in_command(arg, free(at)) for at, arg in enumerate(args))
    return given, {name: _in_command(value, free(name)) for name, value in kwargs.items()}


def _in_command(value: Any, free: bool) -> Any:
    if isinstance(value, torch.SymFloat):
        return RecordedFloat.of(value.node) if free else value.node.guard_float("", 0)
    if type(value) in (list, tuple):
        return type(value)(_in_command(item, free) for item in value)
    return value


def recorded_floats(value: Any) -> dict[int, NumberNode]:
    """Returns the nodes of the RecordedFloats among the arguments of an operation, by the ids of these."""
    kind = type(value)
    if kind is RecordedFloat:
        return {id(value): value.node}
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return {}
    found: dict[int, NumberNode] = {}
    for item in value:
        found |= recorded_floats(item)
    return found
