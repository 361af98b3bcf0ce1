"""One transfer: what goes where, until when, and who hears of its end."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from monarch._devices.memory import interface
from monarch._errors import RDMAError, RDMATimeoutError
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import LocalMemory

if TYPE_CHECKING:
    from monarch.rdma.chunks import ChunkedTransfer

_LIMIT = 2**64 - 1


def check_timeout(timeout: Any) -> float:
    """Seconds from 0 to 2**64 - 1, an int or a float. TypeError, OverflowError or, for NaN, ValueError."""
    if not isinstance(timeout, float):
        timeout = operator.index(timeout)
    if math.isnan(timeout):
        raise ValueError(f"invalid timeout {timeout!r}: expected seconds, 0 or more")
    if not 0 <= timeout <= _LIMIT:
        raise OverflowError(
            f"invalid timeout {timeout!r}: expected seconds from 0 to the unsigned 64-bit limit, {_LIMIT}"
        )
    return float(timeout)


def _nobody(error: BaseException | None) -> None:
    """Does nothing: the caller who begins a transfer says who hears of it."""


class Transfer:
    """`size` bytes between local memory and a buffer from `offset` on; `write` says that they go to the buffer.

    A backend's `start` takes it and calls `finish` exactly once, on any thread, when nothing moves any more.
    """

    __slots__ = (
        "after",
        "chunked",
        "deadline",
        "ended",
        "handle",
        "kept",
        "memory",
        "offset",
        "path",
        "size",
        "timeout",
        "write",
    )

    def __init__(
        self, handle: BufferHandle, memory: LocalMemory, offset: int, size: int, write: bool, timeout: float
    ) -> None:
        self.handle = handle
        self.memory = memory
        self.offset = offset
        self.size = size
        self.write = write
        self.timeout = timeout
        self.deadline = monotonic() + timeout
        # Copies to or from a device come after what the thread that asks has given the device to do.
        self.after = None if memory.device is None else interface().mark(memory.keep)
        self.path = "none"
        # What a backend keeps for the next transfer of the same RDMABuffer object, by its name.
        self.kept: dict[str, Any] = {}
        self.ended: Callable[[BaseException | None], None] = _nobody
        self.chunked: ChunkedTransfer | None = None  # once it is one

    def late(self) -> bool:
        return monotonic() >= self.deadline

    def left(self) -> float:
        """Returns the seconds that are left."""
        return self.deadline - monotonic()

    def timed_out(self) -> RDMATimeoutError:
        return RDMATimeoutError(f"submit timed out: {self} was not done within {self.timeout:g} s")

    def finish(self, error: BaseException | None = None) -> None:
        self.ended(None if error is None else self._told(error))

    def _told(self, error: BaseException) -> BaseException:
        """The same error, saying which transfer it was. Programs look for the first words and for `not found`."""
        kind = type(error) if isinstance(error, RDMAError) else RDMAError
        name = "Tcp" if self.path in ("actor", "tcp") else self.path
        text = f"{name.lower()} {error}" if isinstance(error, RDMATimeoutError) else str(error)
        told = kind(
            f"RdmaAction.submit failed: RDMA submit failed on 1 backend(s):\n({name}) {text} [{self.handle.owner}]"
        )
        if kind is not type(error):
            told.__cause__ = error
        return told

    def __str__(self) -> str:
        what = "write to" if self.write else "read from"
        return f"{what} buffer {self.handle.number} ({self.size} bytes from byte {self.offset})"
