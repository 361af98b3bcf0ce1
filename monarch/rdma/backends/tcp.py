"""The buffer is on another host: streams to the owner's process, whose bytes go from memory to socket to memory.

Each owner has up to `rdma_tcp_fallback_parallelism` streams (at most PER_OWNER, all owners together MOST), opened by the
first transfers and closed after IDLE seconds without one. A stream has a thread here, its lane, and one there (`tcp_owner`).
A transfer is cut into chunks that the lanes take one after the other, DEPTH requests ahead of the answers.

Where no stream is to be had, now or in the middle, the transfer goes through actors instead. One that breaks while a read
uses it has the read done over, through actors; a write says that nobody knows what was written.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from monarch._errors import RDMAError, RDMAReadOnlyError, RDMASizeError
from monarch.actor import bind_context, open_stream, start_thread, stream_obstacle
from monarch.config import settings
from monarch.rdma import manager
from monarch.rdma.backends import actor
from monarch.rdma.backends.process_vm import dropped
from monarch.rdma.backends.tcp_wire import (
    CHUNK,
    DROPPED,
    OK,
    OUTSIDE,
    PURPOSE,
    READ,
    READ_ONLY,
    REQUEST,
    WRITE,
    Way,
    view_of,
)
from monarch.rdma.handle import Handle, Owner
from monarch.rdma.transfer import Transfer

PER_OWNER = 16
MOST = 128
DEPTH = 2
TURN = 8  # chunks after which a lane looks whether other transfers wait
IDLE = 10.0  # seconds
OPEN = 5.0  # seconds that a stream may take to open; longer, and actors do it
AVOID = 30.0  # seconds in which no stream is tried after one could not be had
_LOOK = 0.2  # seconds of a wait after which transfers in the queue are looked at

_OWNERS = 1024  # known before those without lanes are forgotten
_MIB = 1 << 20


class Streams:
    """Copies over sockets of their own. The owner's interpreter takes part, none of its actors does."""

    name = "tcp"
    far = True

    def obstacle(self, handle: Handle) -> str:
        if not settings.get("rdma_allow_tcp_fallback"):
            return "rdma_allow_tcp_fallback is off: monarch.configure(rdma_allow_tcp_fallback=True) allows it"
        known = _lanes.get(handle.owner)
        return (known.avoided() if known is not None else "") or stream_obstacle(handle.service)

    def start(self, transfer: Transfer) -> None:
        if transfer.late():
            transfer.finish(transfer.timed_out())
        else:
            lanes_to(transfer.handle.owner).begin(Job(transfer))


class Broken(Exception):
    """A stream broke in the middle."""


class Late(Exception):
    """The transfer's time is over."""


class Job:
    """A transfer whose chunks several lanes take. `shares`: lanes that work at it or have been asked to."""

    depth = DEPTH

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.chunk = self.chunk_bytes()
        self.chunks = max(1, -(-transfer.size // self.chunk))
        self.shares = 0
        service = transfer.handle.service
        self.open: Callable[[float], socket.socket] = bind_context(lambda left: open_stream(service, PURPOSE, left))
        self._by_actors: Callable[[], None] = bind_context(self._through_actors)
        self._explain: Callable[[], None] = bind_context(self._ask_owner)
        self._lock = threading.Lock()
        self._next = 0
        self._done = 0
        self._error: Exception | None = None

    def chunk_bytes(self) -> int:
        return min(CHUNK, max(1, int(settings.get("rdma_max_chunk_size_mb"))) * _MIB)

    def take(self) -> tuple[int, int] | None:
        """The next chunk: where, and how many bytes."""
        with self._lock:
            if self._error is not None or self._next >= self.chunks:
                return None
            at = self._next * self.chunk
            self._next += 1
        return at, min(self.chunk, self.transfer.size - at)

    def moved(self) -> None:
        with self._lock:
            self._done += 1

    def fail(self, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error

    def refused(self, status: int) -> None:
        """A chunk was answered with something else than OK."""
        self.fail(error_of(self.transfer, status))

    def leave(self) -> None:
        """One lane less. The last sees to it that the transfer ends."""
        with self._lock:
            self.shares -= 1
            if self.shares:
                return
        transfer, error = self.transfer, self._error
        if isinstance(error, Late):
            transfer.finish(transfer.timed_out())
        elif isinstance(error, Broken) and transfer.write:
            self._explain()
        elif isinstance(error, Broken) or (error is None and self._done < self.chunks):
            self._elsewhere()
        else:
            transfer.finish(error)

    def ask(self, way: Way, at: int, count: int) -> None:
        transfer, handle = self.transfer, self.transfer.handle
        request = REQUEST.pack(
            WRITE if transfer.write else READ, handle.number, handle.token, transfer.offset + at, count
        )
        way.send([request, view_of(transfer.memory.address + at, count)] if transfer.write else [request])

    def answer(self, way: Way, at: int, count: int) -> int:
        """The status of the first chunk that was asked for and not answered yet."""
        status = memoryview(bytearray(1))
        way.receive(status)
        if not self.transfer.write and status[0] == OK:
            way.receive(view_of(self.transfer.memory.address + at, count))
            way.receive(status)
        return status[0]

    def _elsewhere(self) -> None:
        """The transfer has to go another way, from its beginning."""
        self._by_actors()

    def _through_actors(self) -> None:
        self.transfer.path = "actor"
        try:
            actor.ThroughActors().start(self.transfer)
        except Exception as exc:  # this process is ending
            self.transfer.finish(exc)

    def _ask_owner(self) -> None:
        """Why a stream broke, its owner says best."""
        try:
            manager.start(self._ask)
        except Exception:
            self.transfer.finish(self._error)

    async def _ask(self) -> None:
        import asyncio

        transfer = self.transfer
        handle = transfer.handle
        error: BaseException = RDMAError(f"{self._error}; what it was to write may be there in part")
        try:
            async with asyncio.timeout(max(0.0, transfer.left())):
                await handle.service.read.call_one(handle.number, handle.token, 0, 0)
        except TimeoutError:
            error = transfer.timed_out()
        except BaseException as exc:
            error = actor.reason(exc, handle)
        transfer.finish(error)


class Lanes:
    """All lanes to one owner, and the transfers that wait for them. Any thread."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._condition = threading.Condition()
        self._queue: deque[Job] = deque()
        self._count = 0
        self._idle = 0
        self._avoid = ("", 0.0)

    def unused(self) -> bool:
        return not self._count and not self._queue

    def avoided(self) -> str:
        why, until = self._avoid
        return why if monotonic() < until else ""

    def avoid(self, why: str) -> None:
        self._avoid = (why, monotonic() + AVOID)

    def begin(self, job: Job) -> None:
        limit = min(settings.get("rdma_tcp_fallback_parallelism"), PER_OWNER)
        with self._condition:
            job.shares = max(1, min(limit, job.chunks))
            self._queue.extend([job] * job.shares)
            self._condition.notify(job.shares)
            wanted = min(len(self._queue) - self._idle, limit - self._count)
        for _ in range(wanted):
            if not self._start_one():
                break
        with self._condition:
            waiting = [] if self._count else list(self._queue)
            if waiting:
                self._queue.clear()
        for job in waiting:
            job.leave()

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

    def next(self) -> Job | None:
        """What a lane is to work at; None when nothing came for IDLE seconds: then the lane has ended."""
        with self._condition:
            self._idle += 1
            self._condition.wait_for(lambda: self._queue, IDLE)
            self._idle -= 1
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

    def wait_again(self, job: Job) -> bool:
        """Behind the others, if there are any."""
        with self._condition:
            if not self._queue:
                return False
            self._queue.append(job)
            return True

    def look(self) -> None:
        """Those whose time is over wait no longer."""
        if not self._queue:
            return
        with self._condition:
            late = [job for job in self._queue if job.transfer.late()]
            for job in late:
                self._queue.remove(job)
        for job in late:
            job.fail(Late())
            job.leave()

    def patience(self, job: Job) -> float:
        """Seconds until the first transfer wants to hear of its end."""
        with self._condition:
            return min(other.transfer.left() for other in [job, *self._queue])


class _Lane:
    """A thread and its stream."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._sock: socket.socket | None = None
        self._way: Way
        self._job: Job

    def run(self) -> None:
        try:
            while (job := self._lanes.next()) is not None:
                self._job = job
                if not self._work(job):
                    self._lanes.ended()
                    return
        finally:
            self._close()
            _threads.give_back()

    def _work(self, job: Job) -> bool:
        """False when there is no stream to be had."""
        if not self._ready(job):
            late = job.transfer.late()
            if late:
                job.fail(Late())
            job.leave()
            return late
        waits = False
        try:
            waits = self._move(job)
        except Late as exc:
            job.fail(exc)
            self._close()
        except Exception as exc:
            job.fail(Broken(f"the stream to the owner broke: {exc}"))
            self._close()
        if not waits:
            job.leave()
        self._lanes.look()
        return True

    def _ready(self, job: Job) -> bool:
        """Whether there is a stream, an old one or a new one."""
        if self._sock is not None and self._way.ended():
            self._close()
        if self._sock is None:
            try:
                sock = job.open(max(0.0, min(OPEN, self._lanes.patience(job))))
            except Exception as exc:
                if not job.transfer.late():
                    self._lanes.avoid(f"no stream to the owner: {exc}")
                return False
            self._sock, self._way = sock, Way(sock, self._wait)
        return True

    def _close(self) -> None:
        """What is not sent yet is not sent any more."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            sock.close()

    def _wait(self, poll: select.poll) -> None:
        while True:
            left = self._job.transfer.left()
            if left <= 0:
                raise Late
            if poll.poll(min(left, _LOOK) * 1000):
                return
            self._lanes.look()

    def _move(self, job: Job) -> bool:
        """Chunk after chunk. True when it was put behind others that wait."""
        way = self._way
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
                raise Late
            status = job.answer(way, *under_way.popleft())
            if status == OK:
                job.moved()
            else:
                job.refused(status)
            if taken >= TURN and not self._lanes._queue:
                taken = 0


_AT_ONCE = struct.pack("ii", 1, 0)  # struct linger


def error_of(transfer: Transfer, status: int) -> Exception:
    handle = transfer.handle
    if status == DROPPED:
        return dropped(handle)
    if status == OUTSIDE:
        return RDMASizeError(f"{transfer} does not lie in the buffer")
    if status == READ_ONLY:
        return RDMAReadOnlyError(f"buffer {handle.number} is read-only")
    return RDMAError(f"buffer {handle.number}: its memory is gone or read-only although it is registered")


class _Room:
    """How many lanes there may be."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lock = threading.Lock()

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
_lanes: dict[Owner, Lanes] = {}
_finding = threading.Lock()


def lanes_to(owner: Owner) -> Lanes:
    with _finding:
        known = _lanes.get(owner)
        if known is None:
            known = _lanes[owner] = Lanes(owner)
            if len(_lanes) > _OWNERS:
                _forget_some()
        return known


def _forget_some() -> None:
    """Owners without lanes. Others, at most MOST, stay."""
    for owner, lanes in list(_lanes.items())[:-1]:
        if lanes.unused():
            del _lanes[owner]


def _after_fork() -> None:
    """The lanes are the parent's."""
    global _threads, _finding
    _threads, _finding = _Room(MOST), threading.Lock()
    _lanes.clear()


os.register_at_fork(after_in_child=_after_fork)
