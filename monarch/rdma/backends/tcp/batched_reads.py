"""Many parts of one owner's buffers, read over streams: several hundred a request, from memory to socket to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch.rdma.backends.tcp import backend as tcp
from monarch.rdma.backends.tcp.protocol import CHUNK, ENDING, GATHER, OK, PART, PARTS, REQUEST, PolledStream, view_of
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.transfer import Transfer


class ReadPart(NamedTuple):
    """`size` bytes of a buffer from `offset` on, and where they go."""

    handle: BufferHandle
    offset: int
    address: int
    size: int


class GatherRequest:
    """One request and where its answer goes: at most PARTS parts, of CHUNK bytes together."""

    __slots__ = ("parts", "request", "size")

    def __init__(self, parts: list[ReadPart]) -> None:
        self.parts = parts
        self.size = sum(part.size for part in parts)
        listed = (PART.pack(part.handle.number, part.handle.token, part.offset, part.size) for part in parts)
        self.request = REQUEST.pack(GATHER, len(parts), 0, 0, self.size) + b"".join(listed)


def batches(parts: Sequence[ReadPart]) -> list[GatherRequest]:
    """All of them, in order; large ones are cut."""
    result: list[list[ReadPart]] = []
    room = 0
    for handle, offset, address, total in parts:
        done = 0
        while done < total:
            if not room or len(result[-1]) == PARTS:
                result.append([])
                room = CHUNK
            size = min(total - done, room)
            result[-1].append(ReadPart(handle, offset + done, address + done, size))
            done += size
            room -= size
    return [GatherRequest(one) for one in result]


class StreamedGather(Transfer):
    """All batches as one transfer. `keep` keeps the memory they go to; `reroute` is called, in the context in which
    this was made, when there is no stream or it broke."""

    __slots__ = ("batches", "reroute")

    def __init__(self, batches: list[GatherRequest], keep: Any, timeout: float, reroute: Callable[[], None]) -> None:
        size = sum(batch.size for batch in batches)
        handle = batches[0].parts[0].handle
        super().__init__(handle, LocalMemory(0, 0, True, keep, "tensors"), 0, size, False, timeout)
        self.path = tcp.TcpStreams.name
        self.batches = batches
        self.reroute = reroute

    def begin(self) -> None:
        """`ended` hears of its end, unless it takes another path."""
        if self.late():
            self.finish(self.timed_out())
        else:
            tcp.lanes_to(self.handle.owner).begin(_GatherJob(self))

    def __str__(self) -> str:
        return f"read of {self.size} bytes, in pieces, from buffer {self.handle.number} and others"


class _GatherJob(tcp.StreamJob):
    """A job whose chunks are the gather's requests."""

    at_once = False

    def __init__(self, gathering: StreamedGather) -> None:
        super().__init__(gathering, 1, len(gathering.batches))  # a chunk begins at the number of its request
        self._gathering = gathering

    def ask(self, way: PolledStream, at: int, count: int) -> None:
        way.send([self._gathering.batches[at].request])

    def answer(self, way: PolledStream, at: int, count: int) -> int:
        batch = self._gathering.batches[at]
        ending = bytearray(ENDING.size)
        way.scatter([*(view_of(part.address, part.size) for part in batch.parts), memoryview(ending)])
        status, index = ENDING.unpack(ending)
        if status != OK:
            self.fail(tcp.error_of(self.transfer, status, batch.parts[min(index, len(batch.parts) - 1)].handle))
        return int(status)

    def refused(self, status: int) -> None:
        """`answer` has said why."""

    def _reroute(self) -> None:
        self._bound(self._gathering.reroute)
