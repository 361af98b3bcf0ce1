"""Tensors handed from one stream of a device to another, or to a thread that is on none.

A device runs its streams beside each other, and gives the memory of a released tensor to the stream which
allocated it. So the thread that takes a tensor has to wait for the point at which it was handed over, and to tell the
allocator that its own stream uses the memory too. On the CPU there is nothing to do.
"""

from __future__ import annotations

from typing import Any

import torch


class _HandedTensor:
    """A tensor of an accelerator, and the point of the stream that gives it away."""

    __slots__ = ("event", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.event = torch.Event(tensor.device)
        self.event.record(torch.accelerator.current_stream(tensor.device))


def ready_here(value: object) -> object:
    """`value`, to be given to another stream by way of `taken_here`: ready when this thread's stream gets here. Values
    that are no tensors pass through."""
    if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
        return _HandedTensor(value)
    return value


def taken_here(value: object) -> Any:
    """Returns what `ready_here` was given, for use on this thread's stream from here on."""
    if type(value) is not _HandedTensor:
        return value
    value.event.wait(torch.accelerator.current_stream(value.tensor.device))
    used_here(value.tensor)
    return value.tensor


def used_here(value: object) -> None:
    """The memory of `value`, if it is a tensor, is not used again before this thread's stream is done with it. For
    one that another stream allocated, and that this one has waited for."""
    if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
        value.record_stream(torch.accelerator.current_stream(value.device))
