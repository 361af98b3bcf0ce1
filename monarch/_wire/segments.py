"""Segments of shared memory and the payloads that they carry: a sender's pool of them. No memory and no clock here.

Memory that was never touched is bound by page faults, a tenth of the speed of a copy, so segments are used again and again,
by sizes that are powers of two. One payload is in a segment at a time. The first page of a segment holds a byte a receiver:
the sender sets it, the receiver clears it when the last view of the payload has died. No message says so, which would wake
the sender for nothing: who needs a segment looks. The first byte is the sender's own while it fills the segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

HEADER = 4096  # bytes before the payload: the flags
RECEIVERS = HEADER - 1  # of one payload
SMALLEST = 1 << 16
_LOOKS = 8  # segments in use that are looked at for one that is not any more


class Flags(Protocol):
    """A byte a receiver; 0: it needs the payload no more."""

    def __getitem__(self, index: slice, /) -> Sequence[int]: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Memory(Protocol):
    """The memory behind a segment, with the flags of its slots."""

    @property
    def flags(self) -> Flags: ...


M = TypeVar("M", bound=Memory)


class Segment(Generic[M]):
    """`number` is unique among all processes, `size` what it can carry, `users[i]` the receiver whose flag is `i + 1`.

    `known`: who has been given its descriptor, by the connection there was to it then: a process that takes the place of
    another has another connection.
    """

    __slots__ = ("known", "memory", "number", "size", "unused_since", "users")

    def __init__(self, number: int, size: int, memory: M) -> None:
        self.number = number
        self.size = size
        self.memory = memory
        self.users: list[str] = []
        self.known: dict[Any, str] = {}
        self.unused_since = 0.0

    def __repr__(self) -> str:
        return f"<Segment {self.number:x} ({self.size} bytes, {'in use' if self.busy else 'free'})>"

    @property
    def busy(self) -> bool:
        return any(self.memory.flags[: len(self.users) + 1])

    def begin(self, receivers: Sequence[str]) -> None:
        """A payload for them is put here; `filled` when all have been sent word."""
        self.users = list(receivers)
        for slot in range(len(self.users) + 1):
            self.memory.flags[slot] = 1

    def forget(self, receiver: str) -> None:
        self.known = {way: known for way, known in list(self.known.items()) if known != receiver}

    def filled(self) -> None:
        self.memory.flags[0] = 0

    def release(self, slot: int) -> None:
        self.memory.flags[slot] = 0


def capacity_for(size: int) -> int:
    """Returns what a segment for `size` bytes carries."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


class Pool(Generic[M]):
    """The segments of a process: at most `limit` bytes and `count` of them, those in use included.

    The caller holds a lock. To get one: `reuse`, and where that gives none `make_room` and, when that says so, `add` it.
    Segments that leave the pool are given to `drop`; who still fills one may go on.
    """

    def __init__(self, limit: int, count: int, drop: Callable[[Segment[M]], None]) -> None:
        self.limit = limit
        self.count = count
        self.bytes = 0
        self.number = 0
        self._drop = drop
        self._free: dict[int, list[Segment[M]]] = {}
        self._busy: dict[int, deque[Segment[M]]] = {}

    def __repr__(self) -> str:
        return f"<Pool of {self.number} segments, {self.bytes} of {self.limit} bytes>"

    def reuse(self, size: int, receivers: Sequence[str], now: float) -> Segment[M] | None:
        """A segment of `capacity_for(size)` that nobody uses, begun for `receivers`: the one that was used last."""
        capacity = capacity_for(size)
        busy = self._busy.setdefault(capacity, deque())
        free = self._free.setdefault(capacity, [])
        if not free:
            self._look(capacity, min(_LOOKS, len(busy)), now)
        if not free:
            return None
        segment = free[-1]
        segment.begin(receivers)
        try:
            del free[-1]
            busy.append(segment)
        except BaseException:  # of a handler of signals, behind the call
            self._remove(segment)
            raise
        return segment

    def _look(self, capacity: int, count: int, now: float) -> None:
        """Moves those of the `count` that were begun first to the free ones whose receivers are done."""
        busy, free = self._busy[capacity], self._free.setdefault(capacity, [])
        for _ in range(count):
            segment = busy.popleft()
            if segment.busy:
                busy.append(segment)
            else:
                segment.unused_since = now
                free.append(segment)

    def make_room(self, size: int, now: float) -> bool:
        """Returns whether one more for `size` bytes may be made, which counts from now on; drops free ones of other
        sizes for it."""
        capacity = capacity_for(size)
        if capacity > self.limit or not self.count:
            return False
        if not self._fits(capacity):
            for other, busy in self._busy.items():
                self._look(other, len(busy), now)
            free = sorted((s for kept in self._free.values() for s in kept), key=lambda s: s.unused_since)
            if not self._fits(capacity - sum(s.size for s in free), 1 - len(free)):
                return False
            for segment in free:
                if self._fits(capacity):
                    break
                self._remove(segment)
        self.bytes += capacity
        self.number += 1
        return True

    def _fits(self, size: int, count: int = 1) -> bool:
        return self.bytes + size <= self.limit and self.number + count <= self.count

    def no_room(self, size: int) -> None:
        """Takes `make_room` back: there was no memory."""
        self.bytes -= capacity_for(size)
        self.number -= 1

    def add(self, segment: Segment[M], receivers: Sequence[str]) -> None:
        """The one that room was made for, begun for `receivers`."""
        segment.begin(receivers)
        self._busy.setdefault(segment.size, deque()).append(segment)

    def ended(self, receiver: str) -> None:
        """Takes note that the process has ended: it uses nothing any more, and has been given nothing."""
        for segment in self.segments():
            segment.forget(receiver)
            for index, user in enumerate(segment.users):
                if user == receiver:
                    segment.release(index + 1)

    def broke(self, receiver: str) -> None:
        """Messages to that process may have been lost, and only it knows which: what it had not released is never used again,
        for it may have it."""
        for segment in self.segments():
            segment.forget(receiver)
            flags = segment.memory.flags[: len(segment.users) + 1]
            if any(flag and user == receiver for flag, user in zip(flags[1:], segment.users, strict=False)):
                self._remove(segment)

    def discard(self, segment: Segment[M]) -> bool:
        """Never uses the segment again: its filler or sender was interrupted, so nobody knows who has it. False
        when it is not in the pool."""
        if segment not in self.segments():
            return False
        self._remove(segment)
        return True

    def trim(self, before: float, now: float) -> float | None:
        """Drops free segments not used since `before`. When the next of them was last used, or seems to be; None: there are
        no segments."""
        for capacity, busy in self._busy.items():
            self._look(capacity, len(busy), now)
        for free in list(self._free.values()):
            for segment in list(free):
                if segment.unused_since <= before:
                    self._remove(segment)
        return min((s.unused_since for free in self._free.values() for s in free), default=now if self.number else None)

    def segments(self) -> list[Segment[M]]:
        return [s for kept in (*self._free.values(), *self._busy.values()) for s in kept]

    def _remove(self, segment: Segment[M]) -> None:
        free, busy = self._free.get(segment.size, []), self._busy.get(segment.size, deque())
        (free if segment in free else busy).remove(segment)
        self.bytes -= segment.size
        self.number -= 1
        self._drop(segment)
