"""Numbers that this process knows as well: scalars made of known scalars and constants alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor import propagation
from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.records import DROPPED, KNOWN, TensorRecord, recorder, recorders
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.signature import flatten

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Args, Kwargs


def know(
    op: OpOverload,
    outcome: propagation.PropagatedOutcome,
    args: Args,
    kwargs: Kwargs,
    inputs: list[Tensor],
    made: list[Tensor],
) -> None:
    """Computes results here too that are scalars made of known scalars and constants; forgets what is overwritten by others.

    Such a value is the same on every rank by construction: the same deterministic operations on the same numbers.
    """
    wholes = [tensor for tensor in made if not tensor.shape]
    if not wholes and not outcome.mutates:
        return
    known = [value_of(tensor._record) for tensor in inputs]
    sure = not op.random and all(value is not None for value in known)
    sure = sure and all(leaf.meta is None or leaf.meta.device.type == "cpu" for leaf in outcome.leaves)
    sure = sure and len(wholes) == len(made) and not any(inputs[index].shape for index in outcome.mutates)
    if not sure or any(leaf.view != -1 and leaf.same < 0 for leaf in outcome.leaves):
        for index in outcome.mutates:
            storage = inputs[index]._record.storage
            storage.known, storage.flags = None, storage.flags & ~KNOWN
        return
    values = {id(tensor): value for tensor, value in zip(inputs, known, strict=True)}
    with _disable_current_modes(), torch.no_grad():
        result = op.op(*replaced(args, values), **{name: replaced(value, values) for name, value in kwargs.items()})
    for leaf, value in zip(outcome.leaves, flatten(result), strict=True):
        if leaf.meta is not None and leaf.same < 0:
            storage = made.pop(0)._record.storage
            storage.known, storage.flags = value, storage.flags | KNOWN


def value_of(record: TensorRecord, any_shape: bool = False) -> torch.Tensor | None:
    """Returns what is known of a tensor's only element, as a scalar: nothing through a view that shows it as
    something else."""
    known, meta = record.storage.known, record.meta
    if known is None or (meta.shape and not any_shape) or meta.dtype is not known.dtype or meta.deferred:
        return None
    return known


def is_known(tensor: Tensor) -> bool:
    """True if `known_scalar` has its number."""
    return value_of(tensor._record, any_shape=True) is not None and not tensor._record.storage.flags & DROPPED


def known_scalar(tensor: Tensor) -> Any:
    """The number of a scalar that is known here. DataDependentError otherwise; TypeError when it may not be used."""
    record = tensor._record
    problem = trouble(tensor, record.place, False)
    if problem is not None:
        raise misuse.incorrect("item", (tensor,), {}, [problem], None, _streams.stream)
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    value = value_of(record, any_shape=True)
    if value is None:
        raise misuse.no_value("item()")
    if recorders and (here := recorder()) is not None:
        here.known("item()")
    with _disable_current_modes():
        return value.item()


def replaced(value: Any, sent: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return kind(replaced(item, sent) for item in value)
    return sent.get(id(value), value)
