"""Values that this process knows as well: of scalars, masks and counts made of known ones and constants alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor import propagation
from monarch.tensor.controller import misuse
from monarch.tensor.controller.agreement import agreed, may_wait
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.derivations import Derivation, laid_out, part_of, replaced, seen_as
from monarch.tensor.controller.known_numbers import recorded_floats
from monarch.tensor.controller.records import DROPPED, KNOWN, TensorRecord, TensorStorage, recorder, recorders
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.signature import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from monarch.tensor.controller.dispatch import _KnownOp
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.metadata import Meta
    from monarch.tensor.signature import Args, Kwargs, Scalar


# What is computed here is not looked at by the active mesh. A fifth of what `_disable_current_modes` costs.
here_alone = torch._C._DisableTorchDispatch
NBYTES = 1 << 15  # of a tensor with dimensions whose values are known here, at most
_SEQUENCES = frozenset({"aten::arange", "aten::linspace", "aten::logspace"})


def kept(meta: Meta, op: OpOverload | None = None) -> bool:
    """True if the values of a tensor of this metadata are worth knowing: of scalars; of few numbers and flags that count
    or mask; of other numbers only what a sequence is made of."""
    if not meta.shape:
        return True
    counts = not (meta.dtype.is_floating_point or meta.dtype.is_complex)
    return meta.nbytes <= NBYTES and (counts or (op is not None and op._schema.name in _SEQUENCES))


def hold(storage: TensorStorage, meta: Meta, value: torch.Tensor, origin: object) -> None:
    """Keeps the values of a tensor, in the layout that it has on the workers, and what they came from."""
    if meta.shape:
        with here_alone(), torch.no_grad():
            value = laid_out(value, meta)
    storage.known, storage.origin, storage.flags = value, origin, storage.flags | KNOWN


def run_recorded() -> object:
    """Returns what stands for the run of a function that this thread records; None when it records none."""
    here = recorder() if recorders else None
    return None if here is None else here.run


def know(
    op: _KnownOp,
    outcome: propagation.PropagatedOutcome,
    args: Args,
    kwargs: Kwargs,
    inputs: list[Tensor],
    made: list[Tensor],
) -> None:
    """Computes results here too that are small and made of known tensors and constants alone; forgets what is overwritten
    by others.

    Such a value is the same on every rank by construction: the same deterministic operations on the same numbers.
    """
    wholes = [tensor for tensor in made if kept(tensor._record.meta, op.op)]
    if not wholes and not outcome.mutates:
        return
    values: dict[int, Any] = {}
    sure = not op.random and len(wholes) == len(made) and not outcome.changed and not outcome.moved
    sure = sure and not any(leaf.view != -1 and leaf.same < 0 for leaf in outcome.leaves)
    sure = sure and all(leaf.meta is None or leaf.meta.device.type == "cpu" for leaf in outcome.leaves)
    sure = sure and all(tensor._record.storage.known is not None for tensor in inputs)
    if sure:
        values = {id(tensor): value_of(tensor._record) for tensor in inputs}
        sure = all(value is not None for value in values.values())
    if not sure:
        for index in outcome.mutates:
            storage = inputs[index]._record.storage
            storage.known, storage.flags = None, storage.flags & ~KNOWN
        return
    here = recorder() if recorders else None
    run = None if here is None else here.run
    numbers = recorded_floats((args, kwargs)) if run is not None else {}
    ours = run is None or (not numbers and all(tensor._record.storage.origin is run for tensor in inputs))
    parts: dict[int, Any] = {}
    with here_alone(), torch.no_grad():
        if not ours:
            parts = {**{id(t): part_of(t._record, values[id(t)], run) for t in inputs}, **numbers}
        if _change(op.op, args, kwargs, inputs, outcome.mutates, run, parts, here):
            values = {id(tensor): value_of(tensor._record) for tensor in inputs}
    with here_alone(), torch._C._DisableAutocast(), torch.no_grad():
        result = op.op(*replaced(args, values), **{name: replaced(value, values) for name, value in kwargs.items()})
    for number, (leaf, value) in enumerate(zip(outcome.leaves, flatten(result), strict=True)):
        if leaf.meta is not None and leaf.same < 0:
            record = made.pop(0)._record
            origin = run
            if not ours:
                evolving = recorder().evolving
                if evolving is None:
                    origin = Derivation(run, op.op, parts, args, kwargs, number, record.meta)
                else:
                    origin = evolving.derive(op.op, parts, args, kwargs, number, record.meta)
            hold(record.storage, record.meta, value, origin)


def _change(
    op: OpOverload, args: Args, kwargs: Kwargs, inputs: list[Tensor], mutates: Sequence[int], run: object,
    parts: dict[int, Any], here: Any,
) -> bool:  # fmt: skip
    """Notes that known tensors are about to change in place. True if that gave them values of their own, as
    others had the same."""
    if not mutates:
        return False
    storages = [inputs[index]._record.storage for index in mutates]
    if parts and here.evolving is not None and here.evolving.change(op, args, kwargs, inputs, mutates, parts):
        pass
    else:
        for storage in storages:
            storage.origin = None if parts else run
            if parts:
                here.overwrites_known(storage)
    shared = [storage for storage in storages if run is not None or hasattr(storage.known, "in_several")]
    for storage in shared:
        if storage.known is not None:
            storage.known = storage.known.clone()
    return bool(shared)


def change_known(op: OpOverload, record: TensorRecord, number: Scalar) -> None:
    """Changes what is known of a tensor by an operation in place with a number, outside of any recording."""
    storage = record.storage
    if hasattr(storage.known, "in_several"):
        storage.known = None if storage.known is None else storage.known.clone()
    value = value_of(record)
    if value is None:
        storage.known, storage.flags = None, storage.flags & ~KNOWN
        return
    storage.origin = None
    with here_alone(), torch.no_grad():
        op(value, number)


def value_of(record: TensorRecord) -> torch.Tensor | None:
    """Returns what is known of a tensor: nothing through a view that shows it as something else."""
    known, meta = record.storage.known, record.meta
    if known is None or meta.dtype is not known.dtype or meta.deferred:
        return None
    if known.shape == meta.shape and not meta.offset and known.stride() == meta.stride:
        return known
    if meta.shape.numel() * known.itemsize > NBYTES:  # it was expanded
        return None
    with here_alone(), torch.no_grad():
        return seen_as(known, meta)


def is_known(tensor: Tensor) -> bool:
    """True if `known_values` has what is in it, or waits for it."""
    return (may_wait() or value_of(tensor._record) is not None) and not tensor._record.storage.flags & DROPPED


def known_values(tensor: Tensor, what: str) -> torch.Tensor:
    """The values of a tensor that are known here, or that the program waits for (`agreement`). DataDependentError
    otherwise; TypeError when it may not be used."""
    record = tensor._record
    problem = trouble(tensor, record.place, False)
    if problem is not None:
        raise misuse.incorrect(what.removesuffix("()"), (tensor,), {}, [problem], None, _streams.stream)
    value = value_of(record)
    if value is None:
        if may_wait():
            return agreed(tensor, what)
        raise misuse.no_value(what)
    if recorders and (here := recorder()) is not None and record.storage.origin is not here.run:
        with here_alone(), torch.no_grad():
            here.known(what, part_of(record, value, here.run), value.clone())
    return value


def known_scalar(tensor: Tensor) -> Any:
    """The number of a tensor of one element that is known here, as `known_values`."""
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    record = tensor._record
    if (
        recorders
        and record.storage.known is not None
        and (here := recorder()) is not None
        and here.evolving is not None
    ):
        value = value_of(record)
        if (
            value is not None
            and record.storage.origin is not here.run
            and (number := here.evolving.read(record, value))
        ):
            return number
    value = known_values(tensor, "item()")
    with here_alone():
        return value.item()
