"""The protocol of a stream between a process that reads and writes a buffer and the buffer's owner.

    request   operation u8, number u64, token u64, offset u64, size u64; behind a WRITE its bytes
    READ      answered by a status; behind OK the bytes, then a status again: not OK when the buffer was dropped meanwhile
    WRITE     answered by a status, once all its bytes have been taken
    GATHER    number, token and offset are 0 but for number, which says how many parts follow, of `size` bytes together;
              each is number u64, token u64, offset u64, size u64. Answered by the bytes of all, then a status and u32
              which part it is of: where it is not OK, that part cannot be read, and some bytes before are zeros, too
    LEND      (LEND_WRITABLE) answered by a status; behind OK a length u32 and so many bytes by which `nixl` reaches the
              buffer, which stays registered until a byte comes, or the end of the stream

Answers come in the order of the requests. All numbers big-endian.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from collections.abc import Callable, Sequence

PURPOSE = "rdma"
REQUEST = struct.Struct("!BQQQQ")
PART = struct.Struct("!QQQQ")
READ, WRITE, LEND, LEND_WRITABLE, GATHER = 1, 2, 3, 4, 5
OK, DROPPED, OUTSIDE, READ_ONLY, UNMAPPED, UNSUPPORTED = range(6)
LENGTH = struct.Struct("!I")
ENDING = struct.Struct("!BI")
CHUNK = 4 << 20  # bytes of a request, at most
PARTS = 512  # of a GATHER, at most
VECTORS = 1024  # UIO_MAXIOV: pieces of memory that the kernel takes in one call

_READ_WRITE = 0x200  # PyBUF_WRITE
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_view.restype = ctypes.py_object


def view_of(address: int, size: int) -> memoryview:
    """Bytes at an address. Keeps nothing alive: the caller sees to it that they stay."""
    view: memoryview = _view(address, size, _READ_WRITE)
    return view


class StreamClosedError(Exception):
    """The other side is gone, or its side of the stream is."""


class PolledStream:
    """A stream whose waits its user has in his hands: `wait(poll)` returns when the socket can go on, or raises."""

    def __init__(self, sock: socket.socket, wait: Callable[[select.poll], None]) -> None:
        self.sock = sock
        self._wait = wait
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def readable(self) -> None:
        self._wait(self._readable)

    def writable(self) -> None:
        self._wait(self._writable)

    def wait(self, event: int, seconds: float) -> bool:
        """At most so long, in steps of a millisecond, for POLLIN or POLLOUT; by nobody's hands."""
        poll = self._readable if event == select.POLLIN else self._writable
        return seconds > 0 and bool(poll.poll(seconds * 1000))

    def ended(self) -> bool:
        """True if the stream is of no use any more. Only while nothing is expected on it."""
        return bool(self._readable.poll(0))

    def send(self, pieces: list[bytes | memoryview]) -> None:
        """All of it, from where it lies."""
        while pieces:
            try:
                sent = self.sock.sendmsg(pieces[:VECTORS], (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                pieces = rest(pieces, sent)
            except (BlockingIOError, InterruptedError):
                self.writable()

    def receive(self, into: memoryview) -> None:
        """Fills `into`. StreamClosedError when the stream ends before."""
        while into:
            try:
                count = self.sock.recv_into(into, 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self.readable()
                continue
            if not count:
                raise StreamClosedError("the other side has closed the stream")
            into = into[count:]

    def scatter(self, into: Sequence[memoryview]) -> None:
        """Fills one piece of memory after the other. StreamClosedError when the stream ends before."""
        left: list[bytes | memoryview] = list(into)
        while left:
            try:
                count = self.sock.recvmsg_into(left[:VECTORS], 0, socket.MSG_DONTWAIT)[0]
            except (BlockingIOError, InterruptedError):
                self.readable()
                continue
            if not count:
                raise StreamClosedError("the other side has closed the stream")
            left = rest(left, count)


class Exchange:
    """One READ or WRITE, alone on its stream: goes as far as it can without a wait, from where it stopped before."""

    def __init__(self, request: list[bytes | memoryview], data: memoryview | None) -> None:
        """`data`: where the bytes of a READ go."""
        self._send = request
        self._answer = bytearray(2)
        status = memoryview(self._answer)
        self._receive: list[bytes | memoryview] = [status[:1]] if data is None else [status[:1], data, status[1:]]
        self._read = data is not None
        self._begun = False

    def step(self, sock: socket.socket) -> int:
        """Returns 0 when it is done, else POLLIN or POLLOUT, which it waits for. OSError, StreamClosedError."""
        try:
            while self._send:
                sent = sock.sendmsg(self._send, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._send = rest(self._send, sent)
        except (BlockingIOError, InterruptedError):
            return select.POLLOUT
        try:
            while self._receive and not (self._begun and self._answer[0] != OK):
                count = sock.recvmsg_into(self._receive, 0, socket.MSG_DONTWAIT)[0]
                if not count:
                    raise StreamClosedError("the other side has closed the stream")
                self._begun = True
                self._receive = rest(self._receive, count)
        except (BlockingIOError, InterruptedError):
            return select.POLLIN
        return 0

    @property
    def status(self) -> int:
        """Returns what the owner said, once it is done."""
        return self._answer[0] or self._answer[1]


def rest(pieces: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Returns what is left of them behind their first `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
