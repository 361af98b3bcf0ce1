"""Collectives on local tensors over a torch Backend: what torch lacks for a dtype or device is done another way.

| dtype | how sums, products, ... are computed |
|---|---|
| float32, float64, int8, uint8, int32, int64 | as they are |
| float16, bfloat16 | in float32 on the CPU and rounded once; as they are on a GPU |
| averages | divided before they are summed, so that no sum overflows: by nccl itself, by powers of two for gloo |
| float8 | in float32 |
| int16, uint16; uint32 | in int32; in int64 |
| averages of integers | summed in int64, divided, rounded towards zero |
| bool | sum, max and bor are "any"; product, min and band "all"; bxor is "odd" |
| complex | sum and avg by parts; products are gathered and multiplied by each rank |
| bitwise on a GPU | gathered, and computed by each rank |

Sums of integers wrap around as torch's own. Everything that only moves data (stack, all to all) moves bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from monarch._devices import torch_versions

REDUCTIONS = ("stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
# A Backend of torch.distributed, whose stubs lack most of its methods, or a process_groups.TrackedBackend.
Backend = Any

SMALL = 256 << 10  # bytes: smaller tensors are reduced together, larger ones where they are
BUCKET = 25 << 20  # bytes that are reduced together

_BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
_OPS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR,
}  # fmt: skip
_AS_THEY_ARE = {torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64}
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_BOOL = {"sum": "max", "bor": "max", "product": "min", "band": "min"}


def obstacle(dtype: torch.dtype, reduction: str) -> str:
    """Returns why tensors of `dtype` cannot be reduced so; "" when they can."""
    if reduction == "stack":
        return ""
    if dtype is torch.uint64:
        return "torch has no arithmetic for it"
    if reduction in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        return f"{reduction} is for integers and bool"
    if dtype.is_complex and reduction in ("min", "max"):
        return "complex numbers have no order"
    if dtype is torch.bool and reduction == "avg":
        return "an average of bool is not bool: convert the tensor first"
    return ""


class ReductionPlan:
    """A way to reduce tensors of one dtype: computed in `dtype` (None: as they are) with `op`; `gather`: by each
    rank itself."""

    def __init__(self, dtype: torch.dtype, reduction: str, device: str) -> None:
        self.reduction = reduction
        self.gather = (reduction in _BITWISE and device != "cpu") or (dtype.is_complex and reduction == "product")
        self.parts = dtype.is_complex and not self.gather
        self.average = reduction == "avg"
        self.dtype: torch.dtype | None = None
        if dtype is torch.bool:
            self.dtype, self.reduction = torch.uint8, _BOOL.get(reduction, reduction)
        elif dtype.is_floating_point:
            half = dtype in (torch.float16, torch.bfloat16) and device != "cpu"
            self.dtype = None if half or dtype in _AS_THEY_ARE else torch.float32
        elif not dtype.is_complex:
            self.dtype = torch.int64 if self.average and dtype is not torch.int64 else _WIDER.get(dtype)
        self.op = _OPS[self.reduction]
        self.whole = not (dtype.is_floating_point or dtype.is_complex)
        # nccl averages: it divides each rank's numbers on their way into the sum. gloo has no such operation.
        self.averaged = self.average and not self.whole and device != "cpu"
        if self.averaged:
            self.op = dist.ReduceOp.AVG

    def prepare(self, numbers: torch.Tensor, size: int) -> None:
        """Makes numbers that will be averaged so small, in place, that their sum cannot overflow."""
        if self.average and not self.averaged and not self.whole:
            numbers.mul_(1 / _power_of_two(size))

    def finish(self, total: torch.Tensor, size: int) -> torch.Tensor:
        """Makes an average of what was summed, in place."""
        if not self.average or self.averaged:
            return total
        if self.whole:
            return total.div_(size, rounding_mode="trunc")
        # Both steps together round once, as the division by `size` alone does: a power of two only moves the exponent.
        return total.div_(size / _power_of_two(size))


def all_reduce_(backend: Backend, tensors: Sequence[torch.Tensor], reduction: str, size: int) -> None:
    """Reduces each tensor over the group, in its own memory. Small ones of one dtype travel together."""
    waiting = []
    for bucket in buckets(tensors):
        first = bucket[0]
        plan = ReductionPlan(first.dtype, reduction, first.device.type)
        whole = len(bucket) == 1 and plan.dtype is None and first.is_contiguous()
        flat = first.view(-1) if whole else _flat(bucket, plan.dtype)
        waiting.append((bucket, plan, whole, flat, _start(backend, flat, plan, size)))
    for bucket, plan, whole, flat, wait in waiting:
        total = plan.finish(wait(), size)
        if total is not flat or not whole:
            _spread(total, bucket)


def buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors in groups that are reduced together, each of one dtype and device. Empty tensors are left out."""
    found: list[list[torch.Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if not nbytes:
            continue
        if nbytes >= SMALL:
            found.append([tensor])
            continue
        key = (tensor.dtype, tensor.device)
        bucket, used = filling.get(key, ([], 0))
        if not bucket or used + nbytes > BUCKET:
            bucket, used = [], 0
            found.append(bucket)
        bucket.append(tensor)
        filling[key] = bucket, used + nbytes
    return found


def reduce_scatter(backend: Backend, tensor: torch.Tensor, reduction: str, size: int) -> torch.Tensor:
    """Row r of the reduced tensor, on rank r of the group. `tensor` has as many rows as the group has ranks."""
    rows = tensor.contiguous()
    made = torch.empty(rows.shape[1:], dtype=rows.dtype, device=rows.device)
    if not made.numel():
        return made
    plan = ReductionPlan(rows.dtype, reduction, rows.device.type)
    if plan.gather:
        total = _start(backend, rows.view(-1), plan, size)()
        return made.copy_(total.view(rows.shape)[backend.rank()])
    flat = rows.view(-1) if plan.dtype is None else rows.to(plan.dtype).view(-1)
    flat = torch.view_as_real(flat).view(-1) if plan.parts else flat
    if flat.untyped_storage()._cdata == tensor.untyped_storage()._cdata and plan.average:
        flat = flat.clone()  # the program's own memory
    plan.prepare(flat, size)
    part = flat.new_empty(flat.numel() // size)
    if torch_versions.scatters(flat, plan.op):
        options = dist.ReduceScatterOptions()
        options.reduceOp = plan.op
        backend._reduce_scatter_base(part, flat, options).wait()
    else:
        every = dist.AllreduceOptions()
        every.reduceOp = plan.op
        total = flat.clone()
        backend.allreduce([total], every).wait()
        part.copy_(total.view(size, -1)[backend.rank()])
    part = torch.view_as_complex(part.view(-1, 2)) if plan.parts else part
    return made.copy_(plan.finish(part, size).view(made.shape))


def all_gather(backend: Backend, tensor: torch.Tensor, size: int) -> torch.Tensor:
    """All ranks' tensors, stacked in the order of the group."""
    made = torch.empty((size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    if made.numel():
        backend._allgather_base(_bytes(made), _bytes(tensor.contiguous())).wait()
    return made


def all_to_all(backend: Backend, tensor: torch.Tensor) -> torch.Tensor:
    """Row r of the result on rank s is row s of the tensor of rank r."""
    rows = tensor.contiguous()
    made = torch.empty_like(rows)
    if made.numel():
        backend.alltoall_base(_bytes(made), _bytes(rows), [], []).wait()
    return made


def local(tensor: torch.Tensor, reduction: str, scatter: bool) -> torch.Tensor:
    """The result for a group of one rank."""
    if reduction == "stack":
        return tensor.clone() if scatter else tensor.unsqueeze(0).clone(memory_format=torch.contiguous_format)
    return (tensor[0] if scatter else tensor).clone(memory_format=torch.contiguous_format)


def _power_of_two(size: int) -> int:
    """The smallest one that is not less than `size`."""
    return 1 << (size - 1).bit_length()


def _start(backend: Backend, flat: torch.Tensor, plan: ReductionPlan, size: int) -> Callable[[], torch.Tensor]:
    """Begins to reduce a flat tensor; the function waits and gives the total, in place where it can be."""
    if plan.gather:
        every = torch.empty((size, flat.numel()), dtype=flat.dtype, device=flat.device)
        work = backend._allgather_base(_bytes(every), _bytes(flat))

        def combine() -> torch.Tensor:
            work.wait()
            function = _BITWISE.get(plan.reduction, torch.mul)
            return functools.reduce(function, every.unbind(0))

        return combine
    numbers = torch.view_as_real(flat) if plan.parts else flat
    plan.prepare(numbers, size)
    options = dist.AllreduceOptions()
    options.reduceOp = plan.op
    work = backend.allreduce([numbers], options)

    def wait() -> torch.Tensor:
        work.wait()
        return flat

    return wait


def _flat(bucket: Sequence[torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    if len(bucket) == 1:
        return bucket[0].reshape(-1).clone() if dtype is None else bucket[0].reshape(-1).to(dtype)
    flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
    return flat if dtype is None else flat.to(dtype)


def _spread(total: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    parts = torch.split(total, [tensor.numel() for tensor in bucket])
    if len(bucket) == 1:
        bucket[0].copy_(parts[0].view(bucket[0].shape))
    else:
        torch._foreach_copy_(list(bucket), [part.view(t.shape) for part, t in zip(parts, bucket, strict=True)])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
