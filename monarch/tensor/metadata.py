"""Metadata of a local tensor that the controller never sees: shape, strides, offset, dtype, device, size of its storage, and
whether it stands for the conjugate or the negative of what lies there.

A Meta is interned: two tensors of the same metadata have the same object, so that a key of several hashes and compares by
identity. The table holds weak references: what no tensor has any more is forgotten.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Meta:
    """Metadata of one strided tensor. `nbytes` is the size of the storage it lies in, which views share; `deferred` is
    CONJUGATE and NEGATIVE, where torch has put off computing these. `wrap` makes a tensor of it, once `handles` has been
    asked for one."""

    __slots__ = ("__weakref__", "deferred", "device", "dtype", "nbytes", "offset", "shape", "stride", "wrap")

    def __init__(
        self,
        shape: torch.Size,
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        device: torch.device,
        nbytes: int,
        deferred: int = 0,
    ) -> None:
        self.shape = shape
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.nbytes = nbytes
        self.deferred = deferred
        self.wrap: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}{list(self.shape)} on {self.device}"

    def __reduce__(self) -> tuple[object, ...]:
        return intern, (
            self.shape, self.stride, self.offset, self.dtype, self.device, self.nbytes, self.deferred,
        )  # fmt: skip

    def is_contiguous(self) -> bool:
        step = 1
        for length, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if length != 1 and stride != step:
                return False
            step *= max(length, 1)
        return True

    def fake(self) -> torch.Tensor:
        """Makes a tensor of this metadata under the FakeTensorMode that is active."""
        itemsize = self.dtype.itemsize
        whole = torch.empty(-(-self.nbytes // itemsize), dtype=self.dtype, device=self.device)
        made = torch.as_strided(whole, self.shape, self.stride, self.offset)
        return mark(made, self.deferred) if self.deferred else made


_table: weakref.WeakValueDictionary[tuple[Any, ...], Meta] = weakref.WeakValueDictionary()


CONJUGATE = 1
NEGATIVE = 2


def mark(tensor: torch.Tensor, deferred: int) -> torch.Tensor:
    """`tensor`, which from here on stands for the conjugate or the negative of its memory, or both."""
    torch._C._set_conj(tensor, bool(deferred & CONJUGATE))
    torch._C._set_neg(tensor, bool(deferred & NEGATIVE))
    return tensor


def intern(
    shape: torch.Size,
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    nbytes: int,
    deferred: int = 0,
) -> Meta:
    key = (shape, stride, offset, dtype, device, nbytes, deferred)
    known = _table.get(key)
    if known is None:
        known = _table[key] = Meta(*key)
    return known


def check_dense(tensor: torch.Tensor) -> None:
    """Raises NotImplementedError for tensors of which there are no distributed ones: sparse, quantized, nested."""
    kind = str(tensor.layout).removeprefix("torch.") if tensor.layout is not torch.strided else ""
    if not kind and (tensor.is_quantized or tensor.is_nested):
        kind = "quantized" if tensor.is_quantized else "nested"
    if kind:
        raise not_dense(kind)


def not_dense(kind: str) -> NotImplementedError:
    """Returns the error for an operation that makes a tensor of a kind of which there are no distributed ones."""
    return NotImplementedError(
        f"distributed tensors are dense, and this operation makes a {kind} one: do it in a monarch.remote function, "
        f"which may "
        f"keep what it likes between its calls and return dense tensors"
    )


def of(tensor: torch.Tensor) -> Meta:
    """Returns the metadata of a local or fake tensor. NotImplementedError for what is not dense."""
    check_dense(tensor)
    return intern(
        tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.untyped_storage().nbytes(), tensor.is_conj() * CONJUGATE | tensor.is_neg() * NEGATIVE,
    )  # fmt: skip


def contiguous(shape: object, dtype: torch.dtype, device: torch.device) -> Meta:
    """Returns the metadata of a fresh contiguous tensor."""
    size = torch.Size(shape)
    return intern(size, steps(size), 0, dtype, torch.device(device), size.numel() * dtype.itemsize)


def steps(shape: torch.Size) -> tuple[int, ...]:
    """Returns the strides of a fresh contiguous tensor."""
    found, step = [], 1
    for length in reversed(shape):
        found.append(step)
        step *= max(length, 1)
    return tuple(reversed(found))
