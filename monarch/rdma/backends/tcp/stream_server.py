"""The owner's side of a stream: a thread that reads and writes registered memory as another process asks it to.

A buffer is in use only during the system calls that copy, which do not wait. So a drop waits for no process that takes or
sends its bytes slowly; a transfer under way learns of it, and the stream goes on.
"""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack

from monarch._errors import BufferDroppedError, RDMAReadOnlyError, RDMASizeError
from monarch.actor.lowlevel import serve_streams
from monarch.rdma.backends.nixl import nixl_agent as nixl
from monarch.rdma.backends.tcp.device_server import DeviceRequest
from monarch.rdma.backends.tcp.protocol import (
    CHUNK,
    DROPPED,
    ENDING,
    GATHER,
    LEND,
    LEND_WRITABLE,
    LENGTH,
    OK,
    OUTSIDE,
    PART,
    PARTS,
    PURPOSE,
    READ,
    READ_ONLY,
    REQUEST,
    UNMAPPED,
    UNSUPPORTED,
    WRITE,
    PolledStream,
    StreamClosedError,
    rest,
    view_of,
)
from monarch.rdma.registry import registry

STALLED = 120.0  # seconds in the middle of a request without a byte after which the stream is closed

_NOTHING = bytes(64 * 1024)
_TOGETHER = 64  # parts of a GATHER in one system call
_STATUS = [bytes([status]) for status in (OK, DROPPED, OUTSIDE, READ_ONLY, UNMAPPED, UNSUPPORTED)]


def listen() -> None:
    """Lets others open streams to this process, for its buffers."""
    serve_streams(PURPOSE, serve)


def serve(sock: socket.socket) -> None:
    """Until the other side closes the stream, breaks the protocol or stalls."""
    _StreamServer(sock).run()


class _StreamServer:
    def __init__(self, sock: socket.socket) -> None:
        self._way = PolledStream(sock, _wait)
        self._sock = sock
        self._scratch = memoryview(bytearray(64 * 1024))
        self._idle = select.poll()
        self._idle.register(sock, select.POLLIN)

    def run(self) -> None:
        request = memoryview(bytearray(REQUEST.size))
        while True:
            try:
                begun = self._sock.recv_into(request)  # waits as long as it takes; what follows has to come soon
                if not begun:
                    return
                self._way.receive(request[begun:])
                operation, number, token, offset, size = REQUEST.unpack(request)
                if operation in (LEND, LEND_WRITABLE):
                    self._lend(number, token, offset, size, operation == LEND_WRITABLE)
                elif operation in (READ, WRITE) and size <= CHUNK and registry().on_device(number):
                    self._serve_device(DeviceRequest(self._way, number, token, offset, size), operation == WRITE)
                elif operation == READ and size <= CHUNK:
                    self._read(number, token, offset, size)
                elif operation == WRITE and size <= CHUNK:
                    self._write(number, token, offset, size)
                elif operation == GATHER and 0 < number <= PARTS and size <= CHUNK:
                    self._gather(number, size)
                else:
                    return
            except (StreamClosedError, TimeoutError, ConnectionError):
                return

    def _read(self, number: int, token: int, offset: int, size: int) -> None:
        left: list[bytes | memoryview] = []
        begun = False
        while left or not begun:
            try:
                with registry().using(number, token) as region:
                    if not begun:
                        _check(region.memory.size, offset, size)
                        left = [_STATUS[OK], view_of(region.memory.address + offset, size), _STATUS[OK]]
                    sent = self._sock.sendmsg(left, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                begun = begun or bool(left)
                self._way.writable()
                continue
            except (BufferDroppedError, RDMASizeError, OSError) as exc:
                self._give_up(left if begun else [], begun, _status(exc))
                return
            begun = True
            left = rest(left, sent)

    def _gather(self, count: int, size: int) -> None:
        """A few parts in each system call, whose buffers are in use only during it."""
        listed = memoryview(bytearray(count * PART.size))
        self._way.receive(listed)
        parts = list(PART.iter_unpack(listed))
        if sum(part[3] for part in parts) != size:
            raise StreamClosedError
        index, skip, status = 0, 0, OK
        while index < count:
            failed = index
            try:
                with ExitStack() as used:
                    views: list[memoryview] = []
                    for number, token, offset, length in parts[index : index + _TOGETHER]:
                        region = used.enter_context(registry().using(number, token))
                        _check(region.memory.size, offset, length)
                        views.append(view_of(region.memory.address + offset, length))
                        failed += 1
                    failed = index
                    views[0] = views[0][skip:]
                    sent = self._sock.sendmsg(views, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._way.writable()
                continue
            except (BufferDroppedError, RDMASizeError, OSError) as exc:
                status = _status(exc)
                break
            sent += skip
            while index < count and sent >= parts[index][3]:
                sent -= parts[index][3]
                index += 1
            skip = sent
        self._zeros(sum(part[3] for part in parts[index:]) - skip)
        self._way.send([ENDING.pack(status, failed)])

    def _give_up(self, left: list[bytes | memoryview], begun: bool, status: int) -> None:
        """Sends zeros for what was promised, so that the stream goes on; the status at the end says what they are."""
        if begun:
            self._zeros(sum(map(len, left)) - 1)
        self._way.send([_STATUS[status]])

    def _zeros(self, missing: int) -> None:
        while missing > 0:
            part = memoryview(_NOTHING)[:missing]
            self._way.send([part])
            missing -= len(part)

    def _write(self, number: int, token: int, offset: int, size: int) -> None:
        taken, status = 0, OK
        while taken < size:
            try:
                with registry().using(number, token) as region:
                    _check(region.memory.size, offset, size)
                    if not region.memory.writable:
                        raise RDMAReadOnlyError
                    into = view_of(region.memory.address + offset + taken, size - taken)
                    count = self._sock.recv_into(into, 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self._way.readable()
                continue
            except (BufferDroppedError, RDMASizeError, RDMAReadOnlyError, OSError) as exc:
                status = _status(exc)
                break
            if not count:
                raise StreamClosedError
            taken += count
        self._discard(size - taken)
        self._way.send([_STATUS[status]])

    def _serve_device(self, served: DeviceRequest, write: bool) -> None:
        status = OK
        try:
            (served.write if write else served.read)()
        except (BufferDroppedError, RDMASizeError, RDMAReadOnlyError, OSError) as exc:
            status = _status(exc)
            (self._discard if write else self._zeros)(served.left)
        self._way.send([_STATUS[status]])

    def _lend(self, number: int, token: int, offset: int, size: int, writable: bool) -> None:
        """Here the buffer is in use for as long as the other side wants, for nobody knows what its device does."""
        try:
            with registry().using(number, token) as region:
                _check(region.memory.size, offset, size)
                if writable and not region.memory.writable:
                    raise RDMAReadOnlyError
                shown = nixl.lend(region)
                self._way.send([_STATUS[OK], LENGTH.pack(len(shown)), shown])
                self._idle.poll()
        except (BufferDroppedError, RDMASizeError, RDMAReadOnlyError) as exc:
            self._way.send([_STATUS[_status(exc)]])
        except nixl.NoAgentError:
            self._way.send([_STATUS[UNSUPPORTED]])
        else:
            self._way.receive(self._scratch[:1])

    def _discard(self, count: int) -> None:
        while count:
            part = self._scratch[:count]
            self._way.receive(part)
            count -= len(part)


def _wait(poll: select.poll) -> None:
    if not poll.poll(STALLED * 1000):
        raise TimeoutError("the other side has stalled")


def _check(size: int, offset: int, count: int) -> None:
    """Another process asks, so nothing is taken on trust."""
    if offset + count > size:
        raise RDMASizeError


def _status(error: Exception) -> int:
    """Returns what the other side is told. Raises what ends the stream."""
    if isinstance(error, BufferDroppedError):
        return DROPPED
    if isinstance(error, RDMASizeError):
        return OUTSIDE
    if isinstance(error, RDMAReadOnlyError):
        return READ_ONLY
    if isinstance(error, OSError) and error.errno == errno.EFAULT:
        return UNMAPPED
    raise error
