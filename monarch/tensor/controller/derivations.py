"""Records of how known values were made of others, from which they are computed again when these are others.

A recorded function may read what it makes of a mask that it is given. Its recording is true for every mask of which the same
is read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monarch.tensor.controller.known_numbers import NumberNode, next_order
from monarch.tensor.controller.records import TensorStorage
from monarch.tensor.signature import flatten

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from monarch.tensor.controller.records import TensorRecord
    from monarch.tensor.metadata import Meta
    from monarch.tensor.signature import Args, Kwargs


class KnownState:
    """Values from outside of a recorded run that may change with each replay: the same in all of `storages`, of this shape
    and dtype."""

    __slots__ = ("dtype", "shape", "storages")

    def __init__(self, value: torch.Tensor) -> None:
        self.dtype = value.dtype
        self.shape = value.shape
        self.storages: list[TensorStorage] = []


class KnownPart(NamedTuple):
    """The tensor of metadata `meta` in `source`: memory from outside of a recorded run, what was derived in it, or values
    that the run makes each time."""

    source: TensorStorage | KnownState | Derivation | torch.Tensor
    meta: Meta

    def value(self, known: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Returns its values, where `known` has those of what it is in, by id."""
        if isinstance(self.source, torch.Tensor):
            return self.source
        return seen_as(known[id(self.source)], self.meta)


class Derivation:
    """One result of an operation in a recorded run (`run`) of which an input came from outside: leaf number `leaf`, in the
    layout of `meta`; with `target` what became of that input, which the operation changed in place. `parts`: the inputs,
    which stand in `args` and `kwargs` too, by id. `order`: later ones have higher ones. `evolves`: it comes of
    KnownStates and constants alone."""

    __slots__ = ("_args", "_kwargs", "_leaf", "_meta", "_op", "_target", "evolves", "order", "parts", "run")

    def __init__(
        self,
        run: object,
        op: OpOverload,
        parts: Mapping[int, KnownPart | NumberNode],
        args: Args,
        kwargs: Kwargs,
        leaf: int,
        meta: Meta,
        target: KnownPart | None = None,
    ) -> None:
        self.run = run
        self.order = next_order()
        self.evolves = False
        self._target = target
        self.parts = tuple(parts.values())
        self._op = op
        self._args = replaced(args, parts)
        self._kwargs = {name: replaced(value, parts) for name, value in kwargs.items()}
        self._leaf = leaf
        self._meta = meta

    @property
    def form(self) -> tuple[object, ...]:
        """Returns what it does, with its parts in their places."""
        return self._op, self._leaf, self._meta, self._target, self._args, self._kwargs

    def again(self, known: Mapping[int, Any]) -> torch.Tensor:
        """Computes it of what `known` has."""
        values = {
            id(part): part.value(known) if isinstance(part, KnownPart) else known[id(part)] for part in self.parts
        }
        if self._target is not None:
            values[id(self._target)] = values[id(self._target)].clone()
        kwargs = {name: replaced(value, values) for name, value in self._kwargs.items()}
        result = self._op(*replaced(self._args, values), **kwargs)
        if self._target is not None:
            return values[id(self._target)]
        return laid_out(flatten(result)[self._leaf], self._meta)


def replaced(value: Any, sent: Mapping[int, Any]) -> Any:
    """Returns the same with other objects in the places of those with these ids."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(replaced(item, sent) for item in value)
    return sent.get(id(value), value)


def part_of(record: TensorRecord, value: torch.Tensor, run: object) -> KnownPart:
    """Returns what a tensor of that value is in that run."""
    origin = record.storage.origin
    if origin is run:
        return KnownPart(value.clone(), record.meta)
    if isinstance(origin, Derivation) and origin.run is run:
        return KnownPart(origin, record.meta)
    return KnownPart(record.storage, record.meta)


def laid_out(value: torch.Tensor, meta: Meta) -> torch.Tensor:
    """Returns the same values in memory of their own, laid out as on the workers."""
    return torch.empty_strided(meta.shape, meta.stride, dtype=value.dtype).copy_(value)


def seen_as(known: torch.Tensor, meta: Meta) -> torch.Tensor:
    """Returns the tensor of that metadata in memory of which `known` is the whole."""
    if known.shape == meta.shape and not meta.offset and known.stride() == meta.stride:
        return known
    return known.as_strided(meta.shape, meta.stride, meta.offset)


class KnownReads:
    """The values from outside that a recorded run read. `reads`: each with the value that it had. `places`: which argument
    has which memory, by the id that this had in the recorded run; the rest is the program's own, in the memory of `met`: the
    tensors from outside that the run met, each with the memory that it had."""

    def __init__(
        self,
        reads: Sequence[tuple[KnownPart, torch.Tensor]],
        places: Mapping[int, int],
        met: Iterable[tuple[weakref.ref[TensorRecord], TensorStorage]],
    ) -> None:
        self._reads = reads
        sources: dict[int, Any] = {id(part.source): part.source for part, _ in reads}
        left = list(sources.values())
        while left:
            source = left.pop()
            for part in source.parts if isinstance(source, Derivation) else ():
                if isinstance(part, KnownPart) and id(part.source) not in sources:
                    sources[id(part.source)] = part.source
                    left.append(part.source)
        steps = [source for source in sources.values() if isinstance(source, Derivation)]
        self._steps = sorted(steps, key=lambda step: step.order)
        self.evolves = any(isinstance(source, KnownState) for source in sources.values())
        self._given = [
            (places.get(key), storage, None if storage.known is None else storage.known.clone())
            for key, storage in sources.items()
            if isinstance(storage, TensorStorage)
        ]
        own = {id(storage) for at, storage, _ in self._given if at is None}
        self._met = [(weak, storage) for weak, storage in met if id(storage) in own]

    def depends_on(self, storage: TensorStorage) -> bool:
        return any(storage is given for _, given, _ in self._given)

    def hold(self, arguments: Sequence[TensorStorage]) -> bool:
        """True if the same would be read now, with arguments in this memory. No mode of torch's may be active."""
        for weak, storage in self._met:
            record = weak()
            if record is not None and record.storage is not storage:  # by set_
                return False
        known: dict[int, torch.Tensor] = {}
        same = True
        for at, storage, then in self._given:
            now = (storage if at is None else arguments[at]).known
            if now is None or then is None or now.dtype is not then.dtype:
                return False
            known[id(storage)] = now
            same = same and same_bits(now, then)
        if same:
            return True
        try:
            for step in self._steps:
                known[id(step)] = step.again(known)
            return all(same_bits(part.value(known), read) for part, read in self._reads)
        except RuntimeError:  # an operation refuses these values, or there is less memory
            return False


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if a program cannot tell them apart, as it can 0.0 and -0.0."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    if one.dtype.is_floating_point or one.dtype.is_complex:
        one, other = (value.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
    same: bool = torch.equal(one, other)
    return same
