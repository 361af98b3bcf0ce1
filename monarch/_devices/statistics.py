"""The memory of its device that this process uses, as torch counts it."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, NamedTuple

from monarch._devices import own_device


class DeviceMemory(NamedTuple):
    """The memory of one process's device, in bytes.

    `device`: as the process calls it ("cuda:3"), "" for a process without one, or that has not used it yet: then all numbers
    are 0. `allocated`: in tensors. `reserved`: what torch has of the driver, tensors and what it keeps for the next ones.
    `peak_allocated`, `peak_reserved`: the most of each since the process began, or since `reset_peak_memory`. `free`,
    `total`: of the whole device, with what others use on it.
    """

    host: str
    pid: int
    device: str = ""
    name: str = ""
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    free: int = 0
    total: int = 0

    def __str__(self) -> str:
        where = f"host {self.host}, pid {self.pid}"
        if not self.device:
            return f"{where}: no device, or none used yet"
        return (
            f"{where}, {self.device} ({self.name}): {_gib(self.allocated)} in tensors (peak {_gib(self.peak_allocated)}), "
            f"{_gib(self.reserved)} reserved by torch (peak {_gib(self.peak_reserved)}), {_gib(self.free)} of "
            f"{_gib(self.total)} free"
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def of_this_process() -> DeviceMemory:
    """Returns those of the device that this thread uses. Does not begin to use one: that would take memory itself."""
    found = DeviceMemory(socket.gethostname(), os.getpid())
    cuda = _in_use()
    if cuda is None:
        return found
    index = cuda.current_device()
    free, total = cuda.mem_get_info(index)
    return found._replace(
        device=f"cuda:{index}",
        name=str(cuda.get_device_name(index)),
        allocated=int(cuda.memory_allocated(index)),
        reserved=int(cuda.memory_reserved(index)),
        peak_allocated=int(cuda.max_memory_allocated(index)),
        peak_reserved=int(cuda.max_memory_reserved(index)),
        free=int(free),
        total=int(total),
    )


def reset_peaks() -> None:
    """Counts peaks anew from here on, on the device that this thread uses."""
    cuda = _in_use()
    if cuda is not None:
        cuda.reset_peak_memory_stats(cuda.current_device())


def at_out_of_memory(error: BaseException) -> str:
    """Returns where an out-of-memory error of a device was, and what is in use there; "" for any other error."""
    if type(error).__name__ != "OutOfMemoryError":  # torch.OutOfMemoryError, and torch.cuda.OutOfMemoryError before 2.5
        return ""
    try:
        return str(of_this_process())
    except Exception:  # the device tells nothing any more
        return f"host {socket.gethostname()}, pid {os.getpid()}"


def _in_use() -> Any:
    """torch.cuda, where this process has begun to use devices."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return None
    own_device.enter()
    return cuda
