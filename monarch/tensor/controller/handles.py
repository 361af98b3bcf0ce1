"""Distributed tensors as the code sees them on which the class Tensor is built: how one is told from others, and made.

`tensor` has the class, whose methods need operations, collectives and moves, and these need the class. So it is named here
when it is there.
"""

from __future__ import annotations

from typing import Any

import torch

from monarch.tensor import metadata
from monarch.tensor.controller.records import Record

Tensor: Any = None  # the class, set by `bind`
_wrap = torch.Tensor._make_wrapper_subclass


def bind(cls: Any) -> None:
    """`cls` is the class of distributed tensors."""
    global Tensor
    Tensor = cls


def is_distributed(value: Any) -> bool:
    """Whether `value` is a distributed tensor."""
    return type(value) is Tensor


def make(record: Record) -> Any:
    """The tensor of a record."""
    meta = record.meta
    made = _wrap(Tensor, meta.shape, meta.stride, meta.offset, None, meta.dtype, torch.strided, meta.device)
    made._record = record
    if meta.deferred:
        metadata.mark(made, meta.deferred)
    return made
