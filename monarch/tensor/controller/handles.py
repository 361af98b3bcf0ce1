"""Distributed tensors as the code sees them on which the class Tensor is built: how one is told from others, and made.

`tensor` has the class, whose methods need operations, collectives and moves, and these need the class. So it is named here
when it is there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeGuard

import torch

from monarch.tensor import metadata
from monarch.tensor.controller.absent_devices import home
from monarch.tensor.controller.records import TensorRecord, recorder, recorders
from monarch.tensor.metadata import Meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.tensor.controller.tensor import Tensor
else:
    Tensor = None  # set by `bind`


class MadeInInference:
    """A note of what was ever made in this process. Tensors of inference mode must not be changed outside of it;
    whether a tensor is one is dear to ask, and hardly ever true."""

    inference = False


_wrap = torch.Tensor._make_wrapper_subclass
_inference = torch.is_inference_mode_enabled


def bind(cls: type[Tensor]) -> None:
    """Takes `cls` as the class of distributed tensors."""
    globals()["Tensor"] = cls


def is_distributed(value: object) -> TypeGuard[Tensor]:
    """True if `value` is a distributed tensor."""
    return type(value) is Tensor


def layout(meta: Meta) -> tuple[object, ...]:
    """The arguments with which torch makes a wrapper of this metadata: quicker where it works out the strides itself."""
    usual = meta.offset == 0 and meta.stride == metadata.steps(meta.shape)
    stride, offset = (None, None) if usual else (meta.stride, meta.offset)
    return meta.shape, stride, offset, None, meta.dtype, torch.strided, home(meta.device)


def wrapper(meta: Meta) -> Callable[[], Tensor]:
    """Returns what makes a wrapper of this metadata, which has no record yet."""
    if meta.wrap is None:
        meta.wrap = functools.partial(_wrap, Tensor, *layout(meta))
    return meta.wrap


def make(record: TensorRecord) -> Tensor:
    """Returns the tensor that the program sees for `record`, and tells recordings of it."""
    meta = record.meta
    made = wrapper(meta)()
    made._record = record
    if _inference():
        MadeInInference.inference = True
    if recorders and (here := recorder()) is not None:
        here.born(record)
    if meta.deferred:
        metadata.mark(made, meta.deferred)
    return made
