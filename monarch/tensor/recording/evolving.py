"""Scalars that a recorded function changes by themselves and constants, and what is computed of them: the step counts of
optimizers, and their bias corrections.

A recording has these as programs of a few lines. Before a replay they are run, with what the scalars are now: their numbers
go along with the command, and the scalars are then what the replay makes of them. A thousand counts that are the same and
change alike are one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import no_modes
from monarch.tensor.controller.derivations import Derivation, KnownPart, KnownState, same_bits
from monarch.tensor.controller.known_numbers import ItemNode, KnownNumber, NumberNode, RateNode
from monarch.tensor.controller.records import TensorRecord, TensorStorage
from monarch.tensor.frames import TORCH

if TYPE_CHECKING:
    from types import FrameType

    from torch._ops import OpOverload

    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Args, Kwargs

OPTIMIZERS = TORCH + "optim/"


class EvolvingValues:
    """Gathers them while a function runs."""

    def __init__(self, run: object) -> None:
        self._run = run
        self._states: dict[Hashable, KnownState] = {}
        self._state_of: dict[int, KnownState] = {}  # by the storage's id; the state holds that
        self._made: dict[Hashable, Derivation | NumberNode] = {}
        self._taken: dict[int, NumberNode] = {}
        self._changed: dict[int, TensorStorage] = {}
        self._lost: dict[int, TensorStorage] = {}
        self._asked: tuple[NumberNode, bool, object] | None = None
        self._rates: list[RateNode] = []  # whose groups have them in place of numbers now

    # --- what the run does

    def change(
        self, op: OpOverload, args: Args, kwargs: Kwargs, inputs: Sequence[Tensor], mutates: Iterable[int],
        parts: dict[int, Any],
    ) -> bool:  # fmt: skip
        """Notes an operation that changes known tensors in place, before it does. `parts`: what its inputs are, by id. False
        where that cannot be followed."""
        changed = list(mutates)
        each = op._schema.name.startswith("aten::_foreach_")
        if not each and len(changed) > 1:
            return False
        parts = dict(parts)
        states = [inputs[at] for at in changed if isinstance(parts[id(inputs[at])].source, TensorStorage)]
        there = set(map(id, states))
        if not all(self._followed(inputs[at]._record) for at in changed):
            return False
        if not all(key in there or _evolves(part) for key, part in parts.items()):
            return False
        for tensor in states:
            parts[id(tensor)] = KnownPart(self._state(tensor._record.storage), tensor._record.meta)
        for at in changed:
            own, named = (_element(args, at), _element_named(kwargs, at)) if each else (args, kwargs)
            used = {key: part for key, part in parts.items() if key in _ids((own, named))} if each else parts
            record = inputs[at]._record
            target = parts[id(inputs[at])]
            record.storage.origin = self._derivation(op, used, own, named, 0, record.meta, target)
            self._changed[id(record.storage)] = record.storage
        return True

    def derive(
        self, op: OpOverload, parts: dict[int, Any], args: Args, kwargs: Kwargs, leaf: int, meta: Any
    ) -> Derivation:
        """Returns the Derivation of a new tensor."""
        if not all(map(_evolves, parts.values())):
            return Derivation(self._run, op, parts, args, kwargs, leaf, meta)
        return self._derivation(op, parts, args, kwargs, leaf, meta, None)

    def read(self, record: TensorRecord, value: torch.Tensor) -> KnownNumber | None:
        """Returns what an optimizer of torch's that reads a number has of it; None for others, and what does not evolve."""
        if not value.dtype.is_floating_point or not misuse.asked_by(OPTIMIZERS) or not self._followed(record):
            return None
        origin = record.storage.origin
        if isinstance(origin, Derivation) and origin.run is self._run:
            if not origin.evolves:
                return None
            part = KnownPart(origin, record.meta)
        else:
            part = KnownPart(self._state(record.storage), record.meta)
        key = (ItemNode, id(part.source), part.meta)
        node = self._made.get(key)
        if node is None:
            node = self._made[key] = ItemNode(self, part, value.item())
        return KnownNumber(node)

    def node(self, operation: Callable[..., Any], *operands: Any) -> NumberNode:
        """Returns the node of an operation on nodes and constants. Raises what the operation does."""
        key = (operation, *(id(one) if isinstance(one, NumberNode) else (type(one), repr(one)) for one in operands))
        node = self._made.get(key)
        if node is None:
            value = operation(*(one.value if isinstance(one, NumberNode) else one for one in operands))
            node = self._made[key] = NumberNode(self, operation, operands, value)
        assert isinstance(node, NumberNode)
        return node

    def taken(self, node: NumberNode) -> Any:
        """Returns the value of a node, by which the program goes from here on."""
        self._taken[id(node)] = node
        return node.value

    def asked(self, node: NumberNode, frame: FrameType) -> Any:
        """Returns the value of a node, which torch asks for in a line of that frame."""
        self._asked = node, id(node) in self._taken, (id(frame), frame.f_lasti)
        return self.taken(node)

    def made_of(self, local: torch.Tensor) -> KnownNumber | None:
        """Returns what torch has just made a tensor of, in the line that asked for it (`torch.as_tensor`); None when that was
        something else."""
        if self._asked is None or local.dim():
            return None
        (node, before, where), self._asked = self._asked, None
        frame = misuse.asking_frame()
        if frame is None or (id(frame), frame.f_lasti) != where:
            return None
        with no_modes():
            if not same_bits(local, torch.tensor(node.value, dtype=local.dtype)):
                return None
        if not before:
            del self._taken[id(node)]
        return KnownNumber(node)

    # --- learning rates

    def lend_rates(self, optimizer: torch.optim.Optimizer, args: Args, kwargs: Kwargs) -> None:
        """Gives an optimizer of torch's, which is about to make a step, its learning rates as KnownNumbers. Where it calls
        back into the program, or hands them to a fused operation, they stay what they are."""
        step = getattr(type(optimizer), "step", None)
        if args or kwargs or not (getattr(step, "__module__", None) or "").startswith("torch.optim."):
            return
        for group in optimizer.param_groups:
            if type(group.get("lr")) is float and not group.get("fused"):
                key = (RateNode, id(group))
                node = self._made.setdefault(key, RateNode(self, group))
                assert isinstance(node, RateNode)
                if repr(node.value) == repr(group["lr"]):  # or else the function changes it itself
                    group["lr"] = KnownNumber(node)
                    self._rates.append(node)

    def return_rates(self) -> None:
        """Gives all groups their numbers again."""
        for node in self._rates:
            if isinstance(node.group["lr"], KnownNumber):
                node.group["lr"] = node.value
        self._rates.clear()

    def lose(self, storage: TensorStorage) -> None:
        """Notes that a known tensor changes in a way that cannot be followed."""
        self._lost[id(storage)] = storage

    def _followed(self, record: TensorRecord) -> bool:
        """True if a known tensor is all that is in its memory, and that is the program's own."""
        known, meta, storage = record.storage.known, record.meta, record.storage
        return (
            known is not None
            and storage.borrows is None
            and id(storage) not in self._lost
            and known.shape == meta.shape
            and not meta.offset
            and known.stride() == meta.stride
        )

    def _state(self, storage: TensorStorage) -> KnownState:
        state = self._state_of.get(id(storage))
        if state is None:
            value = storage.known
            assert value is not None
            key = (value.dtype, value.shape, repr(value.tolist()), str(value.tolist()))
            state = self._states.setdefault(key, KnownState(value))
            state.storages.append(storage)
            self._state_of[id(storage)] = state
        return state

    def _derivation(
        self, op: OpOverload, parts: dict[int, Any], args: Args, kwargs: Kwargs, leaf: int, meta: Any, target: Any
    ) -> Derivation:
        key = (op, leaf, meta, target and _key(target), _key(args, parts), _key(kwargs, parts))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Derivation(self._run, op, parts, args, kwargs, leaf, meta, target)
            made.evolves = True
        assert isinstance(made, Derivation)
        return made

    # --- what comes of it

    def finish(self, arguments: Iterable[int]) -> tuple[Evolution | None, str]:
        """Returns what replays need, None where that is nothing; and why they would not be true, "" if they are.
        `arguments`: ids of the memory of the function's arguments."""
        if not self._made:
            return None, ""
        steps = sorted(self._made.values(), key=lambda step: step.order)
        updates: dict[int, tuple[Derivation, list[TensorStorage]]] = {}
        for storage in self._changed.values():
            origin = storage.origin
            if storage.known is not None and isinstance(origin, Derivation) and origin.run is self._run:
                updates.setdefault(id(origin), (origin, []))[1].append(storage)
                storage.origin = None
        evolution = Evolution(list(self._states.values()), steps, list(self._taken.values()), list(updates.values()))
        changing = evolution.changing()
        problem = ""
        if not self._state_of.keys().isdisjoint(self._lost):
            problem = "a number that it reads is changed in place, in a way that cannot be followed"
        elif not self._state_of.keys().isdisjoint(arguments):
            problem = "an optimizer's step count is an argument of it: let the optimizer have its own"
        elif any(id(node) in changing and type(node.value) is float for node in self._taken.values()):
            problem = "its optimizer computes with a step count in a way that cannot be followed: use fused=True"
        return evolution, problem


class Evolution:
    """The program that computes them anew. `states`: what it begins with; `steps` in order; `taken`: numbers and flags by
    which the function went; `updates`: what the scalars are afterwards."""

    def __init__(
        self,
        states: Sequence[KnownState],
        steps: Sequence[Derivation | NumberNode],
        taken: Sequence[NumberNode],
        updates: Sequence[tuple[Derivation, list[TensorStorage]]],
    ) -> None:
        self._states = states
        self._steps = steps
        self._taken = taken
        self._updates = updates

    @property
    def changed(self) -> set[int]:
        """The ids of the storages whose values stay known."""
        return {id(storage) for _, storages in self._updates for storage in storages}

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of parameters whose learning rates it takes."""
        return [step.group for step in self._steps if isinstance(step, RateNode)]

    def alike(self, other: Evolution) -> bool:
        """True if both compute the same, of the same scalars and learning rates."""
        return self._form() == other._form()

    def _form(self) -> list[Hashable]:
        names: dict[int, int] = {}
        form: list[Hashable] = []
        for state in self._states:
            names[id(state)] = len(names)
            form.append(tuple(map(id, state.storages)))
        for step in self._steps:
            if isinstance(step, RateNode):
                form.append(id(step.group))
            elif isinstance(step, NumberNode):
                form.append((step.operation, _key(step.operands, None, names)))
            else:
                form.append(_key(step.form, None, names))
            names[id(step)] = len(names)
        updates = [(names[id(source)], tuple(map(id, storages))) for source, storages in self._updates]
        return [*form, tuple(updates), tuple(names[id(node)] for node in self._taken)]

    def changing(self) -> set[int]:
        """Returns the ids of the states that a call changes, and of all that is computed of them."""
        changed = self.changed
        found = {id(state) for state in self._states if any(id(storage) in changed for storage in state.storages)}
        for step in self._steps:
            used = step.operands if isinstance(step, NumberNode) else step.parts
            if any(id(one.source if isinstance(one, KnownPart) else one) in found for one in used):
                found.add(id(step))
        return found

    def now(self) -> dict[int, Any] | None:
        """Returns all values for a call now, by id; None where the recording is not true for them."""
        with no_modes(), torch._C._DisableAutocast(), torch.no_grad():
            return self._now()

    def _now(self) -> dict[int, Any] | None:
        known: dict[int, Any] = {}
        for state in self._states:
            first = state.storages[0].known
            if first is None or first.dtype is not state.dtype or first.shape != state.shape:
                return None
            for storage in state.storages:
                if storage.known is not first and (storage.known is None or not same_bits(storage.known, first)):
                    return None
            known[id(state)] = first
        try:
            for step in self._steps:
                known[id(step)] = step.again(known)
        except (ArithmeticError, ValueError, RuntimeError):  # the function itself raises it, operation by operation
            return None
        for node in self._taken:
            value = known[id(node)]
            if type(value) is not type(node.value) or repr(value) != repr(node.value):
                return None
        return known

    def advance(self, known: dict[int, Any]) -> None:
        """Gives the scalars the values that a replay gives them."""
        for derivation, storages in self._updates:
            value = known[id(derivation)]
            value.in_several = True  # a change in place makes a copy first
            for storage in storages:
                storage.known = value


def _evolves(part: Any) -> bool:
    source = part.source if isinstance(part, KnownPart) else part
    if isinstance(source, Derivation):
        return source.evolves
    return isinstance(source, (KnownState, NumberNode, torch.Tensor))


def _element(args: Args, at: int) -> Args:
    """Returns the arguments of a `_foreach_` operation for one element alone."""
    return tuple([arg[at]] if type(arg) in (list, tuple) else arg for arg in args)


def _element_named(kwargs: Kwargs, at: int) -> Kwargs:
    return dict(zip(kwargs, _element(tuple(kwargs.values()), at), strict=True))


def _ids(value: Any) -> set[int]:
    return {id(leaf) for leaf in torch.utils._pytree.tree_leaves(value)}


def _key(value: Any, parts: dict[int, Any] | None = None, names: dict[int, int] | None = None) -> Hashable:
    """Returns what tells arguments apart in which `parts` stand, by the ids of what is in their places, or its `names`."""
    kind = type(value)
    if kind is list or kind is tuple:
        return (kind, *(_key(item, parts, names) for item in value))
    if kind is dict:
        return tuple((name, _key(item, parts, names)) for name, item in value.items())
    if parts and id(value) in parts:
        value = parts[id(value)]
        kind = type(value)
    if kind is KnownPart:
        if isinstance(value.source, torch.Tensor):
            return "values", value.source.dtype, value.meta, repr(value.source.tolist())
        return names[id(value.source)] if names is not None else id(value.source), value.meta
    if isinstance(value, NumberNode):
        return names[id(value)] if names is not None else id(value)
    return kind, repr(value)
