"""Values of a graph on their way from one host to another, as the frames of one stream. Pure.

A stream carries the values of all rings that are written on one host and read on the other. It needs no credits: a value has
a slot where it is read before it is written (see `plan`). So whoever reads the stream never waits, and neither a slow actor
nor a large value keeps the others back. What waits at most is what `depth` and `buffer` allow.

A frame is a head and bytes. A value of more than CHUNK bytes takes several frames, between which those of other rings go, in
turn. Its bytes are received where they belong.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from monarch.graph.plan import Written

CHUNK = 1 << 20  # bytes
MOST_TEXT = 2000  # characters of the reason for an end
_MOST_FRAMES = 32  # that are begun at once
_MOST_BUFFERS = 512  # the kernel takes 1024 in one call
_ROOM = 64 << 10  # bytes that are received beside what has its place

# kind, slot, ring, number of the execution, bytes of the value, bytes of it in this frame
_HEAD = struct.Struct("<BxHIQQI")
_PART, _HEARD, _END = 1, 2, 3


class CrossingError(ValueError):
    """Bytes came over a stream that no host of a graph sends."""


class Crossed(NamedTuple):
    """A value is there, whole."""

    ring: int
    number: int
    slot: int


class Heard(NamedTuple):
    """A value was written on the other host, and is not for this one."""

    ring: int
    number: int


class StreamEnd(NamedTuple):
    """The other host has left the graph; "" if in order."""

    reason: str


class _Sending:
    __slots__ = ("at", "number", "ring", "slot", "view")

    def __init__(self, ring: int, number: int, slot: int, view: memoryview) -> None:
        self.ring = ring
        self.number = number
        self.slot = slot
        self.view = view
        self.at = 0


class EdgeSender:
    """One way of a stream: `rings` are those whose values go over it, `written` says which there are, and `value` gives the
    bytes of one: its ring and slot are used by nobody else until its reader has had it."""

    def __init__(
        self, rings: Sequence[int], written: Written, value: Callable[[int, int], memoryview], chunk: int = CHUNK
    ) -> None:
        self._written = written
        self._value = value
        self._chunk = chunk
        self._next = dict.fromkeys(rings, 0)
        self._marked: dict[int, int] = {}
        self._turn: deque[_Sending] = deque()  # at most one of each ring
        self._under_way: set[int] = set()
        self._out: deque[memoryview] = deque()
        self._ended = False

    @property
    def idle(self) -> bool:
        """Nothing was begun that is not written."""
        return not self._out and not self._turn

    def _look(self) -> None:
        for ring, number in self._next.items():
            if ring not in self._under_way and self._written(ring, number):
                slot = self._written.slot(ring, number)
                self._turn.append(_Sending(ring, number, slot, self._value(ring, slot)))
                self._under_way.add(ring)

    def buffers(self) -> list[memoryview]:
        """Returns what is to be written next, in this order; nothing when there is none. Tell how much was: `sent`."""
        if not self._out and not self._ended:
            self._look()
            size = 0
            while self._turn and size < self._chunk and len(self._out) < 2 * _MOST_FRAMES:
                size += self._frame(self._turn.popleft())
        return list(islice(self._out, _MOST_BUFFERS))

    def _frame(self, sending: _Sending) -> int:
        ring, whole = sending.ring, len(sending.view)
        part = sending.view[sending.at : sending.at + self._chunk]
        self._out.append(memoryview(_HEAD.pack(_PART, sending.slot, ring, sending.number, whole, len(part))))
        self._out.append(part)
        sending.at += len(part)
        if sending.at < whole:
            self._turn.append(sending)
        else:
            self._next[ring] = sending.number + 1
            self._under_way.discard(ring)
        return len(part)

    def sent(self, count: int) -> None:
        """So many bytes of them were written."""
        out = self._out
        while count:
            first = out[0]
            if len(first) > count:
                out[0] = first[count:]
                return
            count -= len(first)
            out.popleft()

    def mark(self, rings: Sequence[int], newest: int) -> bool:
        """Tells of the values of these rings, which are not sent. False while one of execution `newest` is missing."""
        whole = True
        for ring in rings:
            found = self._written.newest(ring)
            whole &= found >= newest
            if found > self._marked.get(ring, -1) and not self._ended:
                self._marked[ring] = found
                self._out.append(memoryview(_HEAD.pack(_HEARD, 0, ring, found, 0, 0)))
        return whole

    def end(self, reason: str) -> None:
        """The last thing that is said, behind the frame that was begun."""
        if not self._ended:
            self._ended = True
            self._turn.clear()
            text = reason[:MOST_TEXT].encode(errors="replace")
            self._out.append(memoryview(_HEAD.pack(_END, 0, 0, 0, len(text), len(text)) + text))

    def close(self) -> None:
        """Lets go of all memory."""
        self._ended = True
        self._turn.clear()
        self._out.clear()


class EdgeReceiver:
    """The other way: `rings` are those whose values come, `heard` those of which it is told only. `space` gives the memory of
    a slot."""

    def __init__(
        self,
        rings: Sequence[int],
        heard: Sequence[int],
        depth: int,
        slot_size: int,
        space: Callable[[int, int], memoryview],
    ) -> None:
        self._next = dict.fromkeys(rings, 0)
        self._heard = frozenset(heard)
        self._depth = depth
        self._slot_size = slot_size
        self._space = space
        self._begun: dict[int, tuple[int, int, int]] = {}  # of a ring: slot, bytes of the value, bytes that are there
        self._room = memoryview(bytearray(_ROOM))
        self._kept = 0  # bytes at its beginning that are not read yet
        self._ring = -1  # of the frame that is being received
        self._place: memoryview | None = None  # what is missing of it
        self.ended = False

    def into(self) -> list[memoryview]:
        """Returns where the next bytes belong, in this order."""
        rest = self._room[self._kept :]
        return [rest] if self._place is None else [self._place, rest]

    def received(self, count: int) -> list[Crossed | Heard | StreamEnd]:
        """So many bytes came. CrossingError when they are no frames."""
        found: list[Crossed | Heard | StreamEnd] = []
        if self._place is not None:
            here = min(count, len(self._place))
            count -= here
            self._filled(here, found)
        at, end = 0, self._kept + count
        while not self.ended:
            if self._place is not None:
                here = min(len(self._place), end - at)
                if not here:
                    break
                self._place[:here] = self._room[at : at + here]
                at += here
                self._filled(here, found)
                continue
            if end - at < _HEAD.size:
                break
            kind, slot, ring, number, whole, length = _HEAD.unpack_from(self._room, at)
            if kind == _PART:
                self._begin(slot, ring, number, whole, length)
            elif kind == _HEARD:
                if ring not in self._heard:
                    raise CrossingError(f"word of ring {ring}, which is none of the other host's")
                found.append(Heard(ring, number))
            elif kind == _END:
                if length > 4 * MOST_TEXT:
                    raise CrossingError(f"a reason of {length} bytes")
                if end - at < _HEAD.size + length:
                    break
                text = bytes(self._room[at + _HEAD.size : at + _HEAD.size + length])
                self.ended = True
                found.append(StreamEnd(text.decode(errors="replace")))
            else:
                raise CrossingError(f"a frame of kind {kind}")
            at += _HEAD.size
        self._kept = end - at
        if at and self._kept:
            self._room[: self._kept] = bytes(self._room[at:end])
        return found

    def _begin(self, slot: int, ring: int, number: int, whole: int, length: int) -> None:
        if self._next.get(ring) != number:
            raise CrossingError(f"execution {number} of ring {ring}, which is not its turn")
        begun = self._begun.get(ring, (slot, whole, 0))
        if (
            begun[:2] != (slot, whole)
            or slot >= self._depth
            or whole > self._slot_size
            or not 0 < length <= whole - begun[2]
        ):
            raise CrossingError(f"{length} of {whole} bytes for slot {slot} of ring {ring}, which do not belong there")
        self._begun[ring] = begun
        self._ring = ring
        self._place = self._space(ring, slot)[begun[2] : begun[2] + length]

    def _filled(self, count: int, found: list[Crossed | Heard | StreamEnd]) -> None:
        assert self._place is not None
        ring = self._ring
        slot, whole, there = self._begun[ring]
        there += count
        self._begun[ring] = slot, whole, there
        self._place = self._place[count:] if count < len(self._place) else None
        if there == whole:
            del self._begun[ring]
            number = self._next[ring]
            self._next[ring] = number + 1
            found.append(Crossed(ring, number, slot))

    def close(self) -> None:
        """Lets go of all memory."""
        self._place = None
        self.ended = True
