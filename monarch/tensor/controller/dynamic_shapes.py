"""Operations whose shape depends on values that this process knows, or waits for: with these they have one.

A mask that indexes becomes the indices of what it selects. What else there is (`nonzero`, `unique`) is computed here and
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor.controller.constants import constant
from monarch.tensor.controller.derivations import replaced
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.controller.known_values import is_known, known_values

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Args, Kwargs

_index = torch.ops.aten.index.Tensor
_masked_select = torch.ops.aten.masked_select.default


def indexes(func: OpOverload) -> bool:
    """True if `func` takes a mask of the elements that it gives: `by_indices` is for it, and else `computed`."""
    return func in (_index, _masked_select)


def decided(func: OpOverload, args: Args, inputs: list[Tensor]) -> bool:
    """True if the values are known, or may be waited for, of which the shape of what `func` gives depends."""
    if func is _index:
        inputs = [index for index in args[1] if _is_mask(index)]
    elif func is _masked_select:
        inputs = [args[1]]
    return all(map(is_known, inputs))


def by_indices(func: OpOverload, args: Args, place: StreamPlacement) -> tuple[OpOverload, Args]:
    """Returns the operation, and its arguments, that gives the same by numbers in place of masks."""
    source, masks = args[0], args[1]
    if func is _masked_select:
        source, mask = torch.ops.aten.broadcast_tensors.default([source, masks])
        masks = [mask]
    indices: list[Any] = []
    for index in masks:
        if _is_mask(index):
            known = known_values(index, "t[mask]")
            with _disable_current_modes():
                found = known.nonzero(as_tuple=True)
            indices += [constant(place, part, True) for part in found]
        else:
            indices.append(index)
    return _index, (source, indices)


def computed(func: OpOverload, args: Args, kwargs: Kwargs, inputs: list[Tensor], place: StreamPlacement) -> PyTree:
    """Returns what the operation gives, computed here."""
    values = {id(tensor): known_values(tensor, f"torch.{func._schema.name.partition('::')[2]}()") for tensor in inputs}
    with _disable_current_modes():
        result = func(*replaced(args, values), **{name: replaced(value, values) for name, value in kwargs.items()})
    if isinstance(result, torch.Tensor):
        return constant(place, result, True)
    return type(result)(constant(place, part, True) if isinstance(part, torch.Tensor) else part for part in result)


def _is_mask(index: Any) -> bool:
    return is_distributed(index) and index.dtype in (torch.bool, torch.uint8)
