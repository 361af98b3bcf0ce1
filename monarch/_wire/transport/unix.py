"""Unix sockets between processes of one user on one host.

A socket lives in a 0700 folder, and whoever connects must have our uid (SO_PEERCRED): nothing of another user reaches a
decoder, let alone pickle.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from monarch._wire.address import name_of
from monarch._wire.transport.base import Handler, Reactor
from monarch._wire.transport.stream import StreamConnection

PATH_LIMIT = 107  # bytes the kernel takes for a socket's path
_BACKLOG = 4096
_BUFFER = 1 << 20  # kernel buffer of a connection: fewer wake-ups for large payloads


def listen(path: str) -> socket.socket:
    """A listening socket at `path`. OSError when the folder is missing, full or the path too long."""
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise OSError(
            f"the socket path {path!r} is longer than the {PATH_LIMIT} bytes a Unix socket may have; "
            f"choose a shorter folder with MONARCH_RUNTIME_DIR"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def dial(path: str) -> socket.socket:
    """A connected socket. FileNotFoundError or ConnectionRefusedError when nobody listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


def same_user(sock: socket.socket) -> bool:
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())


class Listener:
    """Accepts on a listening socket and hands each connected socket of our own user to `accepted`."""

    def __init__(self, sock: socket.socket, loop: Reactor, accepted: Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._loop = loop
        self._accepted = accepted
        self.refused = 0
        loop.add(sock.fileno(), self._on_event)

    def _on_event(self, _mask: int) -> None:
        for _ in range(64):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                if self._sock.fileno() < 0:  # closed by another thread just now
                    return
                raise
            if same_user(sock):
                tune(sock)
                self._accepted(sock)
            else:
                self.refused += 1
                sock.close()

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove(self._sock.fileno())
            self._sock.close()


class UnixTransport:
    """Dials and accepts for one process of a host whose sockets lie in `folder`, by the names in their addresses. `limits` gives
    (bytes queued before senders wait, largest frame)."""

    def __init__(self, folder: str, loop: Reactor, handler: Handler, limits: Callable[[], tuple[int, int]]) -> None:
        self._folder = folder
        self._loop = loop
        self._handler = handler
        self._limits = limits
        self._listener: Listener | None = None

    def dial(self, address: str) -> StreamConnection:
        connection = self.connect(dial(f"{self._folder}/{name_of(address)}"), address)
        connection.start()
        return connection

    def connect(self, sock: socket.socket, remote: str) -> StreamConnection:
        """A connected socket as a Connection; `start` it when its owner is ready."""
        queue_limit, frame_limit = self._limits()
        connection = StreamConnection(sock, self._loop, self._handler, limit=queue_limit, frame_limit=frame_limit)
        connection.remote = remote
        return connection

    def listen(self, sock: socket.socket) -> None:
        self._listener = Listener(sock, self._loop, lambda accepted: self.connect(accepted, "").start())

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
