"""On which device autograd in this process sees a distributed tensor.

Torch's graph of derivatives asks the device of each tensor in it: its nodes remember the device's current stream, and the
engine has threads and events for it (torch/csrc/autograd/input_metadata.h and engine.cpp). For a device that this process
does not have, that ends the process. For one that it has and has not used, backward() raises "Event device type CUDA does
not match blocking stream's device type": nothing is known of the current streams of a device without a context.

So a device is used once before a tensor here claims to be on it. Where that is not possible, tensors are on "meta" as far as
torch's C++ can see, which has neither streams nor threads, and `Tensor.device` says what is true in the workers. Operations
that torch puts together of others by the device are then those of a device without kernels of its own: attention in
parts, batch norm without cudnn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from monarch.tensor.signature import Args, Kwargs

_META = torch.device("meta")
_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of a GPU's driver
_homes: dict[torch.device, torch.device] = {}
_strangers: list[torch.device] = []  # devices that this process cannot use, in the order in which they were met


def home(device: torch.device) -> torch.device:
    """Returns the device that wrappers of tensors on `device` have in this process: that one, or "meta"."""
    found = _homes.get(device)
    if found is None:
        found = _homes[device] = device if device.type in ("cpu", "meta") or _usable(device) else _META
        if found is not device and found.type == "meta":
            _strangers.append(device)
    return found


def meant(device: torch.device | None) -> torch.device | None:
    """The device that a composite operation of torch means when it says `device`: what it makes for a tensor on a device of
    `home` "meta" it makes there, and the program means that tensor's device."""
    if device is not None and device.type == "meta" and _strangers:
        return _strangers[-1]
    return device


class _Nothing(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return func(*args, **(kwargs or {}) | {"device": torch.device("cpu")})


_named = False
_without = False  # this process has no GPU


def numbered(value: object) -> object:
    """`value` with an index, where it is a device without one that this process does not have: torch would ask it which is
    the current one. Each process of a mesh has its own, the first that it sees."""
    if _without and isinstance(value, str | torch.device):
        device = torch.device(value)
        return torch.device(device.type, 0) if device.index is None and device.type == "cuda" else value
    return value


def allow_names() -> None:
    """Lets a process without a GPU say `device="cuda"` under a mesh, once and for all.

    Torch's factories initialise CUDA before they come to a mode (torch/csrc/utils/device_lazy_init.h), which fails where
    there is none. They do that once in a process, and not while it is under way in their thread.
    """
    global _named, _without
    if _named:
        return
    _named = True
    built = torch.version.cuda is not None or torch.version.hip is not None
    state = getattr(torch.cuda, "_tls", None)
    if state is None or (built and any(map(os.path.exists, _NODES))):
        return
    _without = True
    state.is_initializing = True
    try:
        with _disable_current_modes(), _Nothing():
            torch.empty(0, device="cuda")
    finally:
        del state.is_initializing


def _usable(device: torch.device) -> bool:
    """Uses it, which makes its context: zeros, because memory that is only taken is not enough under ROCm."""
    try:
        with _disable_current_modes():
            torch.zeros(1, device=device)
    except Exception:  # torch was built without it, there is no such card, or no memory is left there
        return False
    return True
