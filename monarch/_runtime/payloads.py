"""Large messages between processes of one host: their payloads travel in shared memory, copied once whatever the number of
receivers. The message itself goes its usual way (as `SharedPayload`), so order is what it always was.

The sender takes a segment from its pool, copies body and buffers into it, and gives receivers that do not have it yet its
descriptor. A receiver's arrays are made in the segment: where it is the only one, they are the segment, else a private view
of it (copy on write). When the last of them has died, the receiver's flag in the segment is cleared. Whenever anything of
this is not to be had, memory above all, the message goes through the socket with all it carries.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from monarch._linux.locks import RLock, is_mine
from monarch._wire import message
from monarch._wire.address import AGENT, name_of
from monarch._wire.frame import Buffer, Frame, encode
from monarch._wire.message import LentSegment, SegmentsGone, SharedPayload
from monarch._wire.peer import Peer
from monarch._wire.segments import RECEIVERS, Pool, Segment, capacity_for
from monarch._wire.shared_memory import LentMemory, OwnMemory
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.loop import Loop

_SEGMENTS = 256  # of one process: each has a descriptor there
_LENT = 16 * _SEGMENTS  # segments of others that are mapped here
_IDLE = 10.0  # seconds after which a free segment is given back
_ALIGNED = 64
_MOST = 2 << 30  # bytes of segments where the setting names none
_TURNS = 64  # looks for a segment's descriptor; each takes up to as many from the kernel

_decode_lent = msgspec.msgpack.Decoder(LentSegment).decode


class Carrier(Protocol):
    """Gives descriptors to other processes, and takes theirs: see `transport.unix`."""

    def lend(self, address: str, fd: int, data: bytes) -> None: ...
    def look(self) -> None: ...


class Placement:
    """A payload in a segment, for the receivers of `slots`. `close` it when all that is to be sent has been: who was sent
    nothing has nothing to release."""

    __slots__ = ("_body", "_lengths", "_unsent", "segment", "slots")

    def __init__(self, segment: Segment[OwnMemory], receivers: Sequence[str], body: int, lengths: list[int]) -> None:
        self.segment = segment
        self.slots = {address: slot for slot, address in enumerate(receivers, 1)}
        self._unsent = set(self.slots)
        self._body = body
        self._lengths = lengths

    def message(self, address: str, head: bytes) -> bytes:
        """The head to send in place of `head`."""
        others = len(self.slots) > 1
        placed = SharedPayload(head, self.segment.number, self.slots[address], others, self._body, self._lengths)
        return message.encode(placed)

    def inline(self, body: bytes) -> bytes:
        """Returns the body to send: nothing where it lies in the segment."""
        return body if self._body < 0 else b""

    def sent(self, address: str) -> None:
        self._unsent.discard(address)

    def close(self) -> None:
        for address in self._unsent:
            self.segment.release(self.slots[address])
        self.segment.filled()


class Payloads:
    """The segments of one process and those lent to it. `tell` sends a small message, quietly."""

    def __init__(
        self, address: str, incarnation: int, loop: Loop, carrier: Carrier, tell: Callable[[str, Any], None]
    ) -> None:
        self.least = settings.segment_from() or 1 << 62
        self._address = address
        self._incarnation = incarnation
        self._loop = loop
        self._carrier = carrier
        self._tell = tell
        self._lock = RLock()
        self._dropped: list[Segment[OwnMemory]] = []
        self._pool: Pool[OwnMemory] = Pool(_limit(), _count(), self._dropped.append)
        self._numbers = int.from_bytes(os.urandom(5), "little") << 22  # no other process has these
        self._trimming = False
        self._closed = False
        self._lent: dict[int, tuple[LentSegment, LentMemory]] = {}

    def statistics(self) -> dict[str, int]:
        """Segments of this process, their bytes, how many are in use; segments of others, payloads in use of them."""
        with self._lock:
            segments = self._pool.segments()
            size = self._pool.bytes
        lent = list(self._lent.values())
        return {
            "segments": len(segments),
            "bytes": size,
            "busy": sum(segment.busy for segment in segments),
            "lent": len(lent),
            "borrowed": sum(memory.lent for _, memory in lent),
        }

    # --- sending, any thread

    def place(self, body: bytes, buffers: Sequence[memoryview], receivers: Sequence[str]) -> Placement | None:
        """The payload, copied into a segment for these processes; None when there is none to be had."""
        inside = len(body) >= self.least or not buffers
        pieces: list[Buffer] = [body, *buffers] if inside else list(buffers)
        lengths = [memoryview(piece).nbytes for piece in pieces]
        offsets, size = _layout(lengths)
        if len(receivers) > RECEIVERS:
            return None
        segment = self._begin(size, receivers)
        if segment is None:
            return None
        try:
            placement = Placement(segment, receivers, lengths[0] if inside else -1, lengths[1:] if inside else lengths)
            try:
                segment.memory.prepare(size)
                for offset, piece in zip(offsets, pieces, strict=True):
                    segment.memory.write(offset, piece)
            except OSError:  # no memory
                placement.close()
                return None
        except BaseException:  # of a handler of signals
            self._discard(segment)
            raise
        return placement

    def _discard(self, segment: Segment[OwnMemory]) -> None:
        with self._lock:
            self._pool.discard(segment)
        self._tell_dropped()

    def reaches(self, peer: Peer) -> bool:
        """Returns whether payloads for it can be in memory that it shares with this process."""
        return not peer.route and name_of(peer.address) != AGENT and peer.connect() is not None

    def post(
        self,
        peer: Peer,
        head: bytes,
        body: bytes,
        buffers: Sequence[memoryview],
        port: int,
        placement: Placement | None,
    ) -> Connection | None:
        """The connection that took a message; None when nothing was sent: it has to go with all it carries."""
        address = peer.address
        if not self.reaches(peer):
            return None
        own = None
        if placement is None or address not in placement.slots:
            placement = own = self.place(body, buffers, [address])
            if placement is None:
                return None
        connection = peer.connection
        try:
            if connection is None or not self.introduce(placement.segment, address, connection):
                return None
            frame = encode(placement.message(address, head), placement.inline(body))
            try:
                connection.send(frame)
                placement.sent(address)
            except ConnectionLost:
                raise
            except BaseException:  # of a handler of signals: that process has it, or not
                self._discard(placement.segment)
                raise
            return connection
        except ConnectionLost:
            assert connection is not None
            peer.lost(connection, port)
            return None
        finally:
            if own is not None:
                own.close()

    def _begin(self, size: int, receivers: Sequence[str]) -> Segment[OwnMemory] | None:
        now = self._loop.now()
        segment = None
        if is_mine(self._lock):  # a finalizer of the program sends in the midst of a step
            return None
        try:
            with self._lock:
                segment = self._pool.reuse(size, receivers, now)
        except BaseException:  # of a handler of signals
            if segment is not None:
                self._discard(segment)
            raise
        if segment is not None:
            return segment
        room = False
        try:
            with self._lock:
                room = not self._closed and self._pool.make_room(size, now)
                self._numbers += 1
                number = self._numbers
            self._tell_dropped()
            if not room:
                return None
            segment = Segment(number, capacity_for(size), OwnMemory(capacity_for(size)))
            with self._lock:
                self._pool.add(segment, receivers)
                trimming, self._trimming = self._trimming, True
            if not trimming:
                self._loop.call_rarely(_IDLE, self._trim)
        except BaseException as exc:
            with self._lock:
                if room and (segment is None or not self._pool.discard(segment)):
                    self._pool.no_room(size)
            self._tell_dropped()
            if isinstance(exc, (OSError, ImportError)):
                return None
            raise
        return segment

    def introduce(self, segment: Segment[OwnMemory], address: str, connection: Any) -> bool:
        """Sees to it that the process has the segment before what is sent on that connection from now on."""
        if connection in segment.known:
            return True
        data = msgspec.msgpack.encode(LentSegment(self._address, self._incarnation, segment.number))
        try:
            self._carrier.lend(address, segment.memory.fd, data)
        except OSError:
            return False
        segment.known[connection] = address
        return True

    def _trim(self) -> None:
        now = self._loop.now()
        with self._lock:
            again = self._trimming = self._pool.trim(now - _IDLE, now) is not None
        self._tell_dropped()
        if again:
            self._loop.call_rarely(_IDLE, self._trim)

    def _tell_dropped(self) -> None:
        while self._dropped:
            segment = self._dropped.pop()
            for address in set(segment.known.values()):
                self._tell(address, SegmentsGone([segment.number]))

    # --- receiving, on the I/O thread

    def take(self, fd: int, data: bytes) -> None:
        """Another process lends us a segment."""
        try:
            lent = _decode_lent(data)
            if self._closed or lent.number in self._lent or len(self._lent) >= _LENT:
                os.close(fd)
                return
        except msgspec.DecodeError:
            os.close(fd)
            return
        try:
            self._lent[lent.number] = lent, LentMemory(fd, self._later)
        except (OSError, ValueError, ImportError):  # its receiver will say so
            pass

    def _later(self, fn: Callable[[], Any]) -> None:
        if self._closed:
            fn()
        else:
            self._loop.call_soon(fn)

    def open(self, placed: SharedPayload, frame: Frame) -> Frame | None:
        """The message as it was before it was placed; None when its segment is not here, or not what it should be."""
        for _ in range(_TURNS):
            if placed.segment in self._lent:
                break
            self._carrier.look()
        else:
            return None
        _, memory = self._lent[placed.segment]
        inside = placed.body >= 0
        lengths = [placed.body, *placed.lengths] if inside else placed.lengths
        if min(lengths, default=0) < 0:
            return None
        offsets, size = _layout(lengths)
        try:
            view = memory.borrow(placed.slot, size, placed.others)
        except ValueError:
            return None
        pieces: list[Buffer] = [view[o : o + length] for o, length in zip(offsets, lengths, strict=True)]
        return Frame(placed.head, pieces.pop(0) if inside else frame.body, pieces)

    def gone(self, source: str, numbers: Sequence[int]) -> None:
        self._carrier.look()  # one that came when there was nothing to send in it any more
        for number in numbers:
            known = self._lent.get(number)
            if known is not None and known[0].source == source:
                self._lent.pop(number)[1].retire()

    # --- the other process, on the I/O thread

    def ended(self, address: str, incarnation: int) -> None:
        """Takes note that the process has ended; another may be there already.

        What is in a segment that nothing came in so far may be on its way still, in a connection that was not accepted.
        """
        with self._lock:
            self._pool.ended(address)
        self._carrier.look()
        left = self._lent_by(address, incarnation)
        self.gone(address, [number for number in left if self._lent[number][1].used])
        if self._lent_by(address, incarnation):
            self._loop.call_rarely(_IDLE, lambda: self.gone(address, self._lent_by(address, incarnation)))

    def _lent_by(self, address: str, incarnation: int) -> list[int]:
        lent = [lent for lent, _ in self._lent.values()]
        return [known.number for known in lent if known.source == address and known.incarnation <= incarnation]

    def broke(self, address: str) -> None:
        """A connection to that process broke, and it lives."""
        with self._lock:
            self._pool.broke(address)
        self._tell_dropped()

    # --- this process

    def before_fork(self) -> None:
        for _, memory in list(self._lent.values()):
            memory.pin()

    def close(self) -> None:
        """Nothing is sent or received any more; what is in use stays so."""
        self._closed = True
        with self._lock:
            self._pool.trim(float("inf"), 0.0)
            self._dropped.clear()
        for number in list(self._lent):
            self._lent.pop(number)[1].retire()


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Returns where pieces of these lengths are in a segment, and where the last of them ends."""
    offsets, end = [], 0
    for length in lengths:
        start = -(-end // _ALIGNED) * _ALIGNED
        offsets.append(start)
        end = start + length
    return offsets, end


def _limit() -> int:
    limit = settings.segment_bytes()
    if limit is None:
        return min(_MOST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)
    return int(limit)


def _count() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _SEGMENTS if soft == resource.RLIM_INFINITY else min(_SEGMENTS, soft // 8)
