"""RDMA devices over memory of a faked card, beside the imitation of the devices.

The card's memory is at addresses where a process has none: it is registered as a dma-buf or not at all. What is written to it
is on its way until a read of it, by the same process, has come behind: until then nobody sees it.
"""

from __future__ import annotations

import ctypes
import os

from monarch._devices import DmaBuf, DmaBufError
from monarch.rdma.backends.ibverbs.send_queue import WorkRequest
from tests._devices.nowhere import NOWHERE
from tests.rdma import ibverbs_fake

_plain = ibverbs_fake.move
_on_their_way: list[tuple[int, WorkRequest, bytes]] = []


class Exports:
    """In the place of `_devices.dma_buf`."""

    def __init__(self) -> None:
        self.fail = False
        self.count = 0

    def __call__(self, address: int, size: int, ordinal: int) -> DmaBuf:
        assert address >= NOWHERE
        if self.fail:
            raise DmaBufError("no dma-buf: the driver is too old")
        self.count += 1
        return DmaBuf(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), address % 4096, size + address % 4096)


def install() -> None:
    """In this process from here on."""
    ibverbs_fake.move = move


def move(pid: int, request: WorkRequest, write: bool) -> bool:
    if request.remote < NOWHERE:
        return _plain(pid, request, write)
    there = request._replace(remote=request.remote - NOWHERE)
    if write:
        _on_their_way.append((pid, there, ctypes.string_at(request.local, request.size)))
        return True
    while _on_their_way:
        whose, written, data = _on_their_way.pop(0)
        kept = ctypes.create_string_buffer(data, len(data))
        if not _plain(whose, written._replace(local=ctypes.addressof(kept)), True):
            return False
    return _plain(pid, there, False)
