"""Tensors of this process with what was fetched from a mesh: operations on these alone run here, whatever mesh is active."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from monarch.tensor.signature import flatten

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs

_fetched = WeakTensorKeyDictionary()


def note(values: Iterable[object]) -> None:
    """Notes tensors that were fetched."""
    for value in values:
        if isinstance(value, torch.Tensor):
            _fetched[value] = None


def was_fetched(value: Any) -> bool:
    """True if a local tensor was fetched, or computed of such ones alone."""
    return value in _fetched


def run_here(func: OpOverload, args: Args, kwargs: Kwargs) -> PyTree:
    """Runs an operation of which all tensors were fetched."""
    with _disable_current_modes():
        result = func(*args, **kwargs)
    note(flatten(result))
    return result
