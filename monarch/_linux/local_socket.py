"""Unix sockets between processes of one user: messages with their length in front, and whose process is at the other end.

Everything here blocks, for as long as the socket's timeout lets it.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from typing import Protocol

_LENGTH = struct.Struct("!I")
_TIMEVAL = struct.Struct("@ll")
_CREDENTIALS = struct.Struct("=iII")
_LONGEST = 86400.0  # seconds of one wait: what the deadline leaves may be infinite
_JOINED = 1 << 16  # bytes of a message up to which it goes out in one piece with its length


class PeerClosedError(EOFError, ConnectionError):
    """The other side has closed the connection, between two messages."""


class TornMessageError(PeerClosedError):
    """The other side has gone in the middle of a message."""


def connect(path: str, timeout: float | None = None, *, root: bool = False) -> socket.socket:
    """Returns a socket connected to a process of this user (with `root`, or of root) that listens at `path`.

    OSError when nobody listens there; PermissionError when it is another user's; TimeoutError when it takes no connection for
    `timeout` seconds.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # The kernel waits for room in the other's queue, but for a socket that blocks only: Python's timeout makes one that
        # does not.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout or 0.0))
        try:
            sock.connect(path)
        except BlockingIOError:
            raise TimeoutError(f"the process at {path} took no connection for {timeout:g} s") from None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0.0))
        sock.settimeout(timeout)
        check_peer(sock, f"the socket {path}", root=root)
    except BaseException:
        sock.close()
        raise
    return sock


def _timeval(seconds: float) -> bytes:
    """Returns it as setsockopt(2) takes it; 0 is for ever, and the least of other times a microsecond."""
    micros = math.ceil(min(seconds, _LONGEST) * 1e6)
    return _TIMEVAL.pack(*divmod(micros, 1_000_000))


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Returns (pid, uid) of the process that has connected, or that listened; the kernel says so."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def same_user(sock: socket.socket, *, root: bool = False) -> bool:
    """True if a process of this user is at the other end, or one of root where that is as good."""
    uid = peer_of(sock)[1]
    return uid == os.geteuid() or (root and uid == 0)


def check_peer(sock: socket.socket, what: str, *, root: bool = True) -> int:
    """Returns the pid of the other side of `what`. PermissionError unless it is this user's, or with `root` that one's."""
    pid, uid = peer_of(sock)
    if not same_user(sock, root=root):
        raise PermissionError(f"process {pid} of user {uid} is at the other end of {what}")
    return pid


def send(sock: socket.socket, data: bytes, limit: int | None = None) -> None:
    """Sends a message. OSError when the other side has gone; ValueError for one over the limit, of which nothing was sent."""
    _check_size(len(data), limit)
    head = _LENGTH.pack(len(data))
    if len(data) <= _JOINED:
        sock.sendall(head + data)
    else:
        sock.sendall(head)
        sock.sendall(data)


def receive(sock: socket.socket, limit: int) -> bytearray:
    """Returns the next message. PeerClosedError when there is none, ValueError when it is over the limit."""
    (length,) = _LENGTH.unpack(read_exactly(sock, _LENGTH.size))
    _check_size(length, limit)
    return read_rest(sock, length)


class Receiving(Protocol):
    """The part of a socket by which it is read."""

    def settimeout(self, seconds: float | None, /) -> None: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...


def read_exactly(sock: Receiving, length: int, deadline: float | None = None) -> bytearray:
    """Reads so many bytes. PeerClosedError when the other side had closed before the first, TornMessageError afterwards.

    TimeoutError at `deadline`, a time of time.monotonic(), which sets the socket's timeout; without one, that one holds for
    each piece.
    """
    data = bytearray(length)
    view = memoryview(data)
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the other side did not send all in time")
            sock.settimeout(min(left, _LONGEST))
        try:
            count = sock.recv_into(view)
        except ConnectionResetError:  # the end of one that has not read all that was sent to it
            count = 0
        if not count:
            if len(view) < length:
                raise TornMessageError(f"the other side has gone after {length - len(view)} of {length} bytes")
            raise PeerClosedError("the other side has closed the connection")
        view = view[count:]
    return data


def read_rest(sock: socket.socket, length: int) -> bytearray:
    """Reads so many bytes of a message that has begun: an end is in its middle."""
    try:
        return read_exactly(sock, length)
    except TornMessageError:
        raise
    except PeerClosedError:
        raise TornMessageError(f"the other side has gone before {length} bytes that it has announced") from None


def _check_size(length: int, limit: int | None) -> None:
    if limit is not None and length > limit:
        raise ValueError(f"a message of {length:,} bytes is over the limit of {limit:,}")
