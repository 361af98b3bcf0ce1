"""One owner's weights, as others know them: what there is, and in which buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.actor import Promise
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.buffer_handle import Owner
from monarch.rdma.entries import ValueEntry
from monarch.rdma.layout import Box
from monarch.rdma.local_memory import memory_of
from monarch.rdma.versions import Header


class PublishedTensor(NamedTuple):
    """A tensor of the owner's: what it is, and where its `size` bytes are in buffer number `buffer` (-1: it is empty).

    `whole` and `start` are None where the owner has all of it, else the shape of the whole tensor, and where in it the
    owner's part of `shape` begins.
    """

    path: tuple[Any, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    item: int
    buffer: int
    offset: int
    size: int
    whole: tuple[int, ...] | None = None
    start: tuple[int, ...] | None = None

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self.shape if self.whole is None else self.whole

    @property
    def box(self) -> Box:
        """The box that the owner has of it."""
        if self.start is None:
            return tuple([(0, size) for size in self.shape])
        return tuple([(low, low + size) for low, size in zip(self.start, self.shape, strict=True)])


class Published(NamedTuple):
    """The weights that a StateDict has registered: the counters, the buffers of each copy, and what lies where in them."""

    header: RDMABuffer
    buffers: tuple[tuple[RDMABuffer, ...], ...]
    places: dict[str, PublishedTensor]
    values: dict[str, ValueEntry]

    @property
    def owner(self) -> Owner:
        return self.header._handle.owner

    @property
    def copies(self) -> int:
        return len(self.buffers)

    def registered(self) -> list[RDMABuffer]:
        """Returns all buffers, the counters' first."""
        return [self.header, *(buffer for copy in self.buffers for buffer in copy)]

    def look(self, timeout: float, done: Callable[[Header | None, BaseException | None], None]) -> None:
        """Reads the counters; `done` hears of them, or of what went wrong."""
        words = (ctypes.c_uint64 * 2)()
        transfer = self.header._reading(memory_of(memoryview(words)), 0, None, timeout)

        def ended(error: BaseException | None) -> None:
            done(None if error else Header(words[0], words[1]), error)

        transfer.ended = ended
        self.header._begin(transfer)

    async def counters(self, timeout: float) -> Header:
        """On a thread with an event loop."""
        promise: Promise[Header] = Promise()

        def done(header: Header | None, error: BaseException | None) -> None:
            if header is None:
                promise.fail(error or RuntimeError("no counters"))
            else:
                promise.set(header)

        self.look(timeout, done)
        return await promise.future
