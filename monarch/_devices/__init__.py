"""Devices beside the CPU: how many there are, whose they are, and bytes in their memory.

    vendors  what vendors call things, and their drivers' libraries
    cards    which cards the machine has
    visible  which of them the variables leave a process
    own_device  which one it uses
    memory   what is asked of torch, behind an interface that tests replace
    pinned   copies between a device and the host's memory

Nothing here imports torch before it is used.
"""

from __future__ import annotations

from monarch._devices.vendors import (
    DmaBuf,
    DmaBufError,
    built_for,
    collective_backend,
    count,
    dma_buf,
    vendor,
    visible_environment,
    visible_variables,
)
from monarch._devices.visible import Vendor

__all__ = [
    "DmaBuf",
    "DmaBufError",
    "Vendor",
    "built_for",
    "collective_backend",
    "count",
    "dma_buf",
    "vendor",
    "visible_environment",
    "visible_variables",
]
