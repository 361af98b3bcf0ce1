"""Devices beside the CPU: how many there are, whose they are, and bytes in their memory.

    vendors  the one file in which vendors differ
    memory   what is asked of torch, behind an interface that tests replace
    pinned   copies between a device and the host's memory
    own_device  which device of its host a process uses

Nothing here imports torch before it is used.
"""

from __future__ import annotations

from monarch._devices.vendors import (
    DmaBuf,
    DmaBufError,
    Vendor,
    built_for,
    collective_backend,
    count,
    dma_buf,
    vendor,
    visible_environment,
    visible_variables,
)

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
