"""A handle that travels: everything another process needs to know of a buffer, and nothing it needs the owner's help for."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from monarch._devices.memory import Card
from monarch._errors import BufferDroppedError, OwnerEndedError
from monarch._linux import procfs


class BufferHandle(NamedTuple):
    """A registered piece of memory, as any process may hold it.

    `owner` is the process on its host. A buffer is registered as long as the 8 bytes at `word` in that process hold
    `token`, which are its own and random; `number` is what people see. `service` answers for it where its memory cannot
    be reached. `device` is None for the host's memory; of a device's it says where.
    """

    owner: Owner
    number: int
    token: int
    slot: int
    word: int
    address: int
    size: int
    writable: bool
    service: Any
    place: SegmentLocation | None
    device: DevicePlace | None = None

    def __repr__(self) -> str:
        return f"buffer {self.number} ({self.size} bytes) of {self.owner}"


class DevicePlace(NamedTuple):
    """The place of a buffer on a device: the card, which of its owner's storages (see `lending`), bytes from that one's
    start.
    """

    card: Card
    storage: int
    offset: int


class SegmentLocation(NamedTuple):
    """The place of a buffer in a segment: the descriptor in its owner, bytes from the start; and what it is a tensor of."""

    file: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


class Owner(NamedTuple):
    """A process: its host, its pid there, its start in clock ticks since the host's (a pid is used again, a pair is
    not), the descriptor of its table of control words, and the host's name for people."""

    host: str
    pid: int
    started: int
    table: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.name}"


def buffer_dropped(handle: BufferHandle) -> BufferDroppedError:
    return BufferDroppedError(f"buffer {handle.number} not found: it was dropped")


def owner_ended(handle: BufferHandle) -> OwnerEndedError:
    return OwnerEndedError(f"the owner of buffer {handle.number} has ended, its memory is gone")


@functools.cache
def this_host() -> str:
    """Equal in processes that see each other by pid: of one kernel since its boot, in one pid namespace.

    "" where the kernel does not tell; such a process shares its host with nobody.
    """
    try:
        return procfs.namespace("pid")
    except OSError:
        return ""
