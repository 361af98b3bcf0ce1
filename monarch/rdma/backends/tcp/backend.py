"""The buffer is on another host: streams to the owner's process, whose bytes go from memory to socket to memory.

Each owner has up to `rdma_tcp_fallback_parallelism` streams (at most PER_OWNER, all owners together MOST), opened by
the first transfers and closed after IDLE seconds without one. A stream has a thread here, its lane, and one there
(`stream_server`). A transfer is cut into chunks that the lanes take one after the other, DEPTH requests ahead of the
answers. One up to AT_ONCE bytes is done on the thread that asks for it, on the stream of a lane that has nothing to do, when
the answer comes within PATIENCE; later, and the lane waits for it: a thread to wake and another to be woken by cost
more than such a transfer.

Where no stream is to be had, now or in the middle, the transfer goes through actors instead. One that breaks while a read
uses it has the read done over, through actors; a write says that nobody knows what was written.
"""

from __future__ import annotations

import contextvars
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from monarch._errors import RDMAError, RDMAReadOnlyError, RDMASizeError
from monarch._linux.locks import Condition, Lock
from monarch.actor.lowlevel import open_stream, start_thread, stream_obstacle
from monarch.config import settings
from monarch.rdma import manager
from monarch.rdma.backends import through_actors
from monarch.rdma.backends.tcp.protocol import (
    CHUNK,
    DROPPED,
    OK,
    OUTSIDE,
    PURPOSE,
    READ,
    READ_ONLY,
    REQUEST,
    WRITE,
    Exchange,
    PolledStream,
    view_of,
)
from monarch.rdma.buffer_handle import BufferHandle, Owner, buffer_dropped
from monarch.rdma.chunks import ChunkedTransfer
from monarch.rdma.rerouting import hand_over
from monarch.rdma.transfer import Transfer

PER_OWNER = 16
MOST = 128
DEPTH = 2
TURN = 8  # chunks after which a lane looks whether other transfers wait
IDLE = 10.0  # seconds
OPEN = 5.0  # seconds that a stream may take to open; longer, and actors do it
AVOID = 30.0  # seconds in which no stream is tried after one could not be had
WIDE, WIDE_FROM = 4, 8 << 20  # streams that a transfer of so many bytes takes where the setting leaves it to us
AT_ONCE = 1 << 16  # bytes
PATIENCE = 1e-3  # seconds; poll(2) counts in these
SLOW, SHARE = 0.3e-3, 20  # seconds for an answer; after a longer wait nobody waits for so many times as long
_LOOK = 0.2  # seconds of a wait after which transfers in the queue are looked at

_OWNERS = 1024  # known before those without lanes are forgotten
_MIB = 1 << 20

T = TypeVar("T")


class TcpStreams:
    """Copies over sockets of their own. The owner's interpreter takes part, none of its actors does."""

    name = "tcp"
    uses_network = True
    takes_devices = False

    def why_unavailable(self, handle: BufferHandle) -> str:
        if not settings.rdma_allow_tcp_fallback():
            return "rdma_allow_tcp_fallback is off: monarch.configure(rdma_allow_tcp_fallback=True) allows it"
        known = _lanes.get(handle.owner)
        return (known.avoided() if known is not None else "") or stream_obstacle(handle.service)

    def start(self, transfer: Transfer) -> None:
        if transfer.late():
            transfer.finish(transfer.timed_out())
        else:
            lanes_to(transfer.handle.owner).begin(StreamJob(transfer))


class ConnectionBrokenError(Exception):
    """A stream broke in the middle."""


class DeadlineExceededError(Exception):
    """The error of a lane when the time of its transfer is over."""


class StreamJob(ChunkedTransfer):
    """A transfer whose chunks lanes take."""

    depth = DEPTH

    def __init__(self, transfer: Transfer, chunk: int = 0, chunks: int | None = None) -> None:
        super().__init__(transfer, chunk or min(CHUNK, max(1, settings.rdma_max_chunk_size_mb()) * _MIB), chunks)
        self._context = contextvars.copy_context()
        self._done = 0

    @property
    def at_once(self) -> bool:
        """True if it may be done on the thread that asks for it."""
        return self.transfer.size <= AT_ONCE

    def exchange(self) -> Exchange:
        """The whole transfer, as one request: `take`, `ask` and `answer` of it."""
        chunk = self.take()
        assert chunk is not None
        view = view_of(self.transfer.memory.address, chunk[1])
        request = self._request(*chunk)
        return Exchange([request, view], None) if self.transfer.write else Exchange([request], view)

    def open(self, left: float) -> socket.socket:
        """Opens a stream, within `left` seconds."""
        return self._bound(lambda: open_stream(self.transfer.handle.service, PURPOSE, left))

    def _bound(self, fn: Callable[[], T]) -> T:
        """Calls it in the context in which the transfer was begun."""
        return self._context.copy().run(fn)

    def moved(self) -> None:
        with self._lock:
            self._done += 1

    def answered(self, status: int) -> None:
        if status == OK:
            self.moved()
        else:
            self.refused(status)

    def refused(self, status: int) -> None:
        """A chunk was answered with something else than OK."""
        self.fail(error_of(self.transfer, status))

    def _end(self, error: Exception | None) -> None:
        transfer = self.transfer
        if isinstance(error, DeadlineExceededError):
            transfer.finish(transfer.timed_out())
        elif isinstance(error, ConnectionBrokenError) and transfer.write:
            self._bound(self._ask_owner)
        elif isinstance(error, ConnectionBrokenError) or (error is None and self._done < self.chunks):
            self._reroute()
        else:
            transfer.finish(error)

    def ask(self, way: PolledStream, at: int, count: int) -> None:
        transfer, request = self.transfer, self._request(at, count)
        way.send([request, view_of(transfer.memory.address + at, count)] if transfer.write else [request])

    def _request(self, at: int, count: int) -> bytes:
        transfer, handle = self.transfer, self.transfer.handle
        operation = WRITE if transfer.write else READ
        return REQUEST.pack(operation, handle.number, handle.token, transfer.offset + at, count)

    def answer(self, way: PolledStream, at: int, count: int) -> int:
        """The status of the first chunk that was asked for and not answered yet."""
        status = memoryview(bytearray(1))
        way.receive(status)
        if not self.transfer.write and status[0] == OK:
            way.receive(view_of(self.transfer.memory.address + at, count))
            way.receive(status)
        return status[0]

    def _reroute(self) -> None:
        """Has another path do the transfer, from its beginning."""
        self._bound(partial(hand_over, self.transfer, through_actors.ThroughActors()))

    def _ask_owner(self) -> None:
        """Asks the owner, who says best why a stream broke."""
        try:
            manager.start(self._ask)
        except Exception:
            self.transfer.finish(self._error)

    async def _ask(self) -> None:
        import asyncio

        transfer = self.transfer
        handle = transfer.handle
        error: BaseException = RDMAError(f"{self._error}; part of the write may have arrived")
        try:
            async with asyncio.timeout(max(0.0, transfer.left())):
                await handle.service.read.call_one(handle.number, handle.token, 0, 0)
        except TimeoutError:
            error = transfer.timed_out()
        except BaseException as exc:
            error = through_actors.reason(exc, handle)
        transfer.finish(error)


class OwnerLanes:
    """All lanes to one owner, and the transfers that wait for them. Any thread."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._condition = Condition()
        self._queue: deque[StreamJob] = deque()
        self._count = 0
        self._resting: list[_Lane] = []  # with nothing to do
        self._lent = 0  # whose streams others use
        self._slow_until = 0.0
        self._avoid = ("", 0.0)

    def unused(self) -> bool:
        return not self._count and not self._queue

    def avoided(self) -> str:
        why, until = self._avoid
        return why if monotonic() < until else ""

    def avoid(self, why: str) -> None:
        self._avoid = (why, monotonic() + AVOID)

    def begin(self, job: StreamJob) -> None:
        if job.at_once and self._at_once(job):
            return
        limit = streams_for(job.transfer.size)
        with self._condition:
            job.shares = max(1, min(limit, job.chunks))
            self._queue.extend([job] * job.shares)
            self._condition.notify(job.shares + self._lent)
            wanted = min(len(self._queue) - len(self._resting), limit - self._count)
        for _ in range(wanted):
            if not self._start_one():
                break
        with self._condition:
            waiting = [] if self._count else list(self._queue)
            if waiting:
                self._queue.clear()
        for job in waiting:
            job.leave()

    def _at_once(self, job: StreamJob) -> bool:
        """True if there was a lane with nothing to do. Then its stream has been used, and it sees to what is left."""
        lane = self._borrow()
        if lane is None:
            return False
        began = monotonic()
        job.shares = 1
        done = True
        try:
            done = lane.at_once(job)
        finally:
            self._take_back(lane, None if done else job, monotonic() - began)
            if done:
                job.leave()
        return True

    def _take_back(self, lane: _Lane, job: StreamJob | None, took: float) -> None:
        """The lane that was lent; with a transfer for it to finish, or None."""
        with self._condition:
            lane.used = monotonic()
            if took > SLOW:
                self._slow_until = lane.used + SHARE * took
            self._lent -= 1
            if job is None:
                lane.lent = False
                self._resting.append(lane)
            else:
                lane.given = job
            if self._queue or job is not None:
                self._condition.notify_all()

    def _borrow(self) -> _Lane | None:
        with self._condition:
            if self._queue or monotonic() < self._slow_until:
                return None
            for lane in self._resting:
                if lane.has_stream:
                    self._resting.remove(lane)
                    self._lent += 1
                    lane.lent = True
                    return lane
        return None

    def _start_one(self) -> bool:
        with self._condition:
            self._count += 1
        if _threads.take():
            try:
                start_thread(_Lane(self).run, "monarch-rdma-tcp")
                return True
            except RuntimeError:  # the process has no room for another
                _threads.give_back()
        with self._condition:
            self._count -= 1
        return False

    def next(self, lane: _Lane) -> StreamJob | None:
        """Returns what a lane is to work at; None when nothing came for IDLE seconds: then the lane has ended."""
        with self._condition:
            self._resting.append(lane)
            lane.used = monotonic()
            while True:
                if lane.lent:  # for a moment
                    self._condition.wait_for(lambda: lane.given or not lane.lent, _LOOK)
                else:
                    self._condition.wait_for(lambda: self._queue or lane.lent, lane.used + IDLE - monotonic())
                if lane.given is not None:
                    job, lane.given, lane.lent = lane.given, None, False
                    return job
                if lane.lent or (not self._queue and monotonic() < lane.used + IDLE):
                    continue
                self._resting.remove(lane)
                if self._queue:
                    return self._queue.popleft()
                self._count -= 1
                return None

    def ended(self) -> None:
        """A lane gave up. Without another nobody would take what waits: it goes another way."""
        with self._condition:
            self._count -= 1
            waiting = [] if self._count else list(self._queue)
            if waiting:
                self._queue.clear()
        for job in waiting:
            job.leave()

    def wait_again(self, job: StreamJob) -> bool:
        """Behind the others, if there are any."""
        with self._condition:
            if not self._queue:
                return False
            self._queue.append(job)
            return True

    def look(self) -> None:
        """Ends the wait of transfers whose time is over."""
        if not self._queue:
            return
        with self._condition:
            late = [job for job in self._queue if job.transfer.late()]
            for job in late:
                self._queue.remove(job)
        for job in late:
            job.fail(DeadlineExceededError())
            job.leave()

    def patience(self, job: StreamJob) -> float:
        """Seconds until the first transfer wants to hear of its end."""
        with self._condition:
            return min(other.transfer.left() for other in [job, *self._queue])


class _Lane:
    """A thread that carries chunks over a stream of its own."""

    def __init__(self, lanes: OwnerLanes) -> None:
        self.lent = False  # the thread that asks for a transfer uses the stream
        self.given: StreamJob | None = None  # the transfer that came of that, to be finished
        self.used = 0.0  # when there was something to do last
        self._lanes = lanes
        self._sock: socket.socket | None = None
        self._way: PolledStream
        self._job: StreamJob
        self._exchange: Exchange | None = None  # under way when the lane got its job

    @property
    def has_stream(self) -> bool:
        return self._sock is not None

    def at_once(self, job: StreamJob) -> bool:
        """Does it on the thread that asks. False when it is not done, which the lane's own thread is to see to."""
        sock = self._sock
        assert sock is not None
        try:
            if self._way.ended():
                self._close()
                return False
            exchange = job.exchange()
            deadline = monotonic() + PATIENCE
            while wants := exchange.step(sock):
                if not self._way.wait(wants, deadline - monotonic()):
                    self._exchange = exchange
                    return False
            job.answered(exchange.status)
        except BaseException as exc:  # Ctrl-C as well: nobody knows how far it got
            job.fail(ConnectionBrokenError(f"the connection to the owner broke: {exc or type(exc).__name__}"))
            self._close()
            if not isinstance(exc, Exception):
                raise
        return True

    def run(self) -> None:
        try:
            while (job := self._lanes.next(self)) is not None:
                self._job = job
                if not self._work(job):
                    self._lanes.ended()
                    return
        finally:
            self._close()
            _threads.give_back()

    def _work(self, job: StreamJob) -> bool:
        """False when there is no stream to be had."""
        if not self._ready(job):
            late = job.transfer.late()
            if late:
                job.fail(DeadlineExceededError())
            job.leave()
            return late
        waits = False
        try:
            waits = self._move(job)
        except DeadlineExceededError as exc:
            job.fail(exc)
            self._close()
        except Exception as exc:
            job.fail(ConnectionBrokenError(f"the connection to the owner broke: {exc}"))
            self._close()
        if not waits:
            job.leave()
        self._lanes.look()
        return True

    def _ready(self, job: StreamJob) -> bool:
        """True if there is a stream, an old one or a new one."""
        if self._exchange is not None:
            return True
        if self._sock is not None and self._way.ended():
            self._close()
        if self._sock is None:
            try:
                sock = job.open(max(0.0, min(OPEN, self._lanes.patience(job))))
            except Exception as exc:
                if not job.transfer.late():
                    self._lanes.avoid(f"no connection to the owner: {exc}")
                return False
            self._sock, self._way = sock, PolledStream(sock, self._wait)
        return True

    def _close(self) -> None:
        """Closes the stream; what is not sent yet is not sent any more."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()

    def _wait(self, poll: select.poll) -> None:
        while True:
            left = self._job.transfer.left()
            if left <= 0:
                raise DeadlineExceededError
            if poll.poll(min(left, _LOOK) * 1000):
                return
            self._lanes.look()

    def _move(self, job: StreamJob) -> bool:
        """Chunk after chunk. True when it was put behind others that wait."""
        way = self._way
        self._finish_exchange(job)
        under_way: deque[tuple[int, int]] = deque()
        taken = 0
        while True:
            while len(under_way) < job.depth and taken < TURN and (chunk := job.take()) is not None:
                taken += 1
                job.ask(way, *chunk)
                under_way.append(chunk)
            if not under_way:
                if taken < TURN or self._lanes.wait_again(job):
                    return taken >= TURN
                taken = 0
                continue
            if job.transfer.late():
                raise DeadlineExceededError
            job.answered(job.answer(way, *under_way.popleft()))
            if taken >= TURN and not self._lanes._queue:
                taken = 0

    def _finish_exchange(self, job: StreamJob) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None or self._sock is None:
            return
        while wants := exchange.step(self._sock):
            if wants == select.POLLIN:
                self._way.readable()
            else:
                self._way.writable()
        job.answered(exchange.status)


_RESET = struct.pack("ii", 1, 0)  # struct linger


def streams_for(size: int) -> int:
    """Returns how many streams a transfer of so many bytes may take."""
    told = settings.rdma_tcp_fallback_parallelism()
    if told == 1 and size >= WIDE_FROM:
        return WIDE
    return min(told, PER_OWNER)


def error_of(transfer: Transfer, status: int, handle: BufferHandle | None = None) -> Exception:
    """Returns what a status other than OK says of the transfer's buffer, or of one of several."""
    handle = handle or transfer.handle
    if status == DROPPED:
        return buffer_dropped(handle)
    if status == OUTSIDE:
        return RDMASizeError(f"{transfer} does not lie in the buffer")
    if status == READ_ONLY:
        return RDMAReadOnlyError(f"buffer {handle.number} is read-only")
    return RDMAError(f"buffer {handle.number}: its memory is gone or read-only although it is registered")


class _Room:
    """The number of lanes that may still be started."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lock = Lock()

    def take(self) -> bool:
        with self._lock:
            if not self._room:
                return False
            self._room -= 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._room += 1


_threads = _Room(MOST)
_lanes: dict[Owner, OwnerLanes] = {}
_finding = Lock()


def lanes_to(owner: Owner) -> OwnerLanes:
    with _finding:
        known = _lanes.get(owner)
        if known is None:
            known = _lanes[owner] = OwnerLanes(owner)
            if len(_lanes) > _OWNERS:
                _forget_some()
        return known


def _forget_some() -> None:
    """Owners without lanes. Others, at most MOST, stay."""
    for owner, lanes in list(_lanes.items())[:-1]:
        if lanes.unused():
            del _lanes[owner]


def _after_fork() -> None:
    """Forgets the lanes, which are the parent's."""
    global _threads, _finding
    _threads, _finding = _Room(MOST), Lock()
    _lanes.clear()


os.register_at_fork(after_in_child=_after_fork)
