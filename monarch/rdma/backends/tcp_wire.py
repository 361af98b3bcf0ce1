"""What goes over a stream between a process that reads and writes a buffer and the buffer's owner.

    request   operation u8, number u64, token u64, offset u64, size u64; behind a WRITE its bytes
    READ      answered by a status; behind OK the bytes, then a status again: not OK when the buffer was dropped meanwhile
    WRITE     answered by a status, once all its bytes have been taken
    LEND      (LEND_WRITABLE) answered by a status; behind OK a length u32 and so many bytes by which `nixl` reaches the
              buffer, which stays registered until a byte comes, or the end of the stream

Answers come in the order of the requests. All numbers big-endian.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from collections.abc import Callable

PURPOSE = "rdma"
REQUEST = struct.Struct("!BQQQQ")
READ, WRITE, LEND, LEND_WRITABLE = 1, 2, 3, 4
OK, DROPPED, OUTSIDE, READ_ONLY, UNMAPPED, UNSUPPORTED = range(6)
LENGTH = struct.Struct("!I")
CHUNK = 4 << 20  # bytes of a request, at most

_READ_WRITE = 0x200  # PyBUF_WRITE
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_view.restype = ctypes.py_object


def view_of(address: int, size: int) -> memoryview:
    """Bytes at an address. Keeps nothing alive; whoever uses it sees to it that they stay."""
    view: memoryview = _view(address, size, _READ_WRITE)
    return view


class Closed(Exception):
    """The other side is gone, or its side of the stream is."""


class Way:
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

    def ended(self) -> bool:
        """Whether it is of no use any more, when nothing is expected on it."""
        return bool(self._readable.poll(0))

    def send(self, pieces: list[bytes | memoryview]) -> None:
        """All of it, from where it lies."""
        while pieces:
            try:
                pieces = rest(pieces, self.sock.sendmsg(pieces, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))
            except (BlockingIOError, InterruptedError):
                self.writable()

    def receive(self, into: memoryview) -> None:
        """Fills `into`. Closed when the stream ends before."""
        while into:
            try:
                count = self.sock.recv_into(into, 0, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self.readable()
                continue
            if not count:
                raise Closed("the other side has closed the stream")
            into = into[count:]


def rest(pieces: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What is left of them behind their first `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
