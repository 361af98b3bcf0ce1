"""Copies with a device at one end or both, chunk by chunk, on the threads of `copying`.

Streams: a copy runs on a stream of its thread's own. It begins after what the thread that asked for the transfer had given
the local tensor's device to do by then, and is done, for every stream, when the transfer is. What the owner's device is
doing to the buffer meanwhile nobody waits for: the owner registers memory whose contents are there (registering waits for
that) and says by messages when it may be read again, having synchronised first.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from monarch._devices import pinned
from monarch._devices.memory import interface
from monarch.rdma import copying
from monarch.rdma.chunks import ChunkedTransfer
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.transfer import Transfer

CHUNK = 64 << 20  # bytes between two looks at the clock and the buffer; milliseconds at most

# The buffer's bytes for a `with` block in which its owner does not release them. Raises why there are none.
Lend = Callable[[], AbstractContextManager[LocalMemory]]


def run(transfer: Transfer, lend: Lend, device: str = "") -> None:
    """Copies all of `transfer` and finishes it, on other threads: a device may have much to do first.

    `device` is where what `lend` keeps is: it is released there, before the transfer is finished.
    """
    if transfer.late():
        transfer.finish(transfer.timed_out())
    else:
        copying.later(_DeviceCopyJob(transfer, lend, device).step)


class _DeviceCopyJob(ChunkedTransfer):
    """One chunk after the other: a device copies them no faster side by side."""

    def __init__(self, transfer: Transfer, lend: Lend, device: str) -> None:
        super().__init__(transfer, CHUNK)
        self.shares = 1
        self._lend: Lend | None = lend
        self._device = device
        self._after = transfer.after

    def step(self) -> None:
        """Moves one chunk and goes to the end of the queue."""
        with interface().on(self._device) if self._device else nullcontext():
            try:
                self._move()
            except Exception as exc:
                traceback.clear_frames(exc.__traceback__)  # an error that is kept keeps no memory of the device
                self.fail(exc)
            if not self.has_more:
                self._lend = None
        if self.has_more:
            copying.later(self.step)
        else:
            self.leave()

    def _move(self) -> None:
        transfer, chunk = self.transfer, self.take()
        if transfer.late():
            raise transfer.timed_out()
        assert self._lend is not None and chunk is not None
        at, count = chunk
        with self._lend() as theirs:
            if transfer.write:
                copy(theirs, transfer.offset + at, transfer.memory, at, count, self._after)
            else:
                copy(transfer.memory, at, theirs, transfer.offset + at, count, self._after)
        self._after = None


def copy(target: LocalMemory, to: int, source: LocalMemory, at: int, count: int, after: Any = None) -> None:
    """`count` bytes between two memories of which at least one is a device's. Done when it returns.

    `after`, as from `mark`, is what the copy comes after.
    """
    if not count:
        return
    if source.device is None:
        pinned.to_device(target.keep[to : to + count], source.address + at, after)
    elif target.device is None:
        pinned.to_host(source.keep[at : at + count], target.address + to, after)
    else:
        interface().begin(target.keep[to : to + count], source.keep[at : at + count], after)()
