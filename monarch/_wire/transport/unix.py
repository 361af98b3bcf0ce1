"""Unix sockets between processes of one user on one host.

A socket lives in a 0700 folder, and a peer must have our uid (SO_PEERCRED): nothing of another user reaches a
decoder, let alone pickle.

The host agent hands connections of other hosts to the processes they are for, over the same socket, and processes lend each
other memory: a peer that connects from a socket with the name of a handover (of a loan) sends one descriptor and a few
bytes that go with it, then closes.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
import weakref
from collections.abc import Callable
from typing import Any

from monarch._linux.descriptors import for_unknown
from monarch._linux.local_socket import same_user
from monarch._linux.locks import RLock
from monarch._wire.address import name_of
from monarch._wire.transport.accepting import Accepting
from monarch._wire.transport.base import Handler, Reactor
from monarch._wire.transport.stream import QUICK, StreamConnection

PATH_LIMIT = 107  # bytes the kernel takes for a socket's path
_BACKLOG = 4096
UNKNOWN = (
    512  # connections that have come and not said who they are; beyond that, and without descriptors, the late ones go
)
SAYS_WITHIN = 5.0  # seconds
_BUFFER = 1 << 20  # kernel buffer of a connection: fewer wake-ups for large payloads
_HANDOVER, _LOAN = "handover.", "loan."
_HANDOVER_BYTES = 16 * 1024  # that may go with a descriptor; the kernel takes so many at once
_DESCRIPTOR = struct.Struct("i")
_handovers = itertools.count(1)


def listen(path: str) -> socket.socket:
    """A listening socket at `path`. OSError when the folder is missing, full or the path too long."""
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise OSError(
            f"the socket path {path!r} is longer than the {PATH_LIMIT} bytes a Unix socket may have; "
            f"choose a shorter folder with MONARCH_RUNTIME_DIR"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bind(sock, path)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def bind(sock: socket.socket, path: str) -> None:
    """Gives the socket its place. OSError, which names it, as Python's own does not."""
    try:
        sock.bind(path)
    except OSError as exc:
        why = exc.strerror
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"{why}, not for one more file; MONARCH_RUNTIME_DIR names another folder"
        raise OSError(exc.errno, why, path) from None


def dial(path: str, wait: bool = True) -> socket.socket:
    """A connected socket. FileNotFoundError or ConnectionRefusedError when nobody listens there; other OSErrors as
    `socket_errors` has them. When the queue of the listener is full it waits; without `wait` that is a BlockingIOError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(wait)
        sock.connect(path)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


def hand_over(folder: str, name: str, sock: socket.socket | StreamConnection, data: bytes) -> None:
    """Gives the process `name` of `folder` a connected socket of ours, and `data` with it. Never waits. OSError when nobody
    listens there or the process takes nothing at present."""
    _carry(folder, name, _HANDOVER, sock.fileno(), data)


def lend(folder: str, name: str, fd: int, data: bytes) -> None:
    """Gives the process `name` of `folder` a descriptor of ours that is no socket; otherwise as `hand_over`.

    It has it, as soon as it looks, before anything that is sent to it afterwards, whatever becomes of us.
    """
    _carry(folder, name, _LOAN, fd, data)


def _carry(folder: str, name: str, kind: str, fd: int, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as carrier:
        carrier.setblocking(False)
        # The name tells the other side what this is; the folder is ours alone, and nobody needs the file.
        path = f"{folder}/{kind}{os.getpid()}.{next(_handovers)}"
        bind(carrier, path)
        os.unlink(path)
        carrier.connect(f"{folder}/{name}")
        if len(data) > _HANDOVER_BYTES or socket.send_fds(carrier, [data], [fd]) != len(data):
            raise OSError(f"{len(data)} bytes are too many to go with a descriptor")


# Gets a socket that was handed over, and the bytes that came with it.
Handed = Callable[[socket.socket, bytes], None]

# Gets a descriptor that was lent, to close it one day, and the bytes that came with it.
Lent = Callable[[int, bytes], None]


# Gets a connection and the (head, body) of a short frame that a thread that waits has read there; False: not for that thread.
Small = Callable[[StreamConnection, bytes, bytes], bool]


class Listener:
    """Accepts on a listening socket and hands each connected socket of our own user to `accepted`, and what comes in a
    handover to `handed`, in a loan to `lent`. `paused`: as `Accepting` has it."""

    def __init__(
        self,
        sock: socket.socket,
        loop: Reactor,
        accepted: Callable[[socket.socket], None],
        handed: Handed | None = None,
        lent: Lent | None = None,
        paused: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._handed = handed
        self._lent = lent
        self._carriers: dict[socket.socket, bool] = {}  # and whether it brings a loan
        self.refused = 0
        self._accepting = Accepting(sock, loop, self._on_accepted, paused)

    def _on_accepted(self, sock: socket.socket, where: Any) -> None:
        name = os.path.basename(os.fsdecode(where))
        if not same_user(sock):
            self.refused += 1
            sock.close()
        elif name.startswith((_HANDOVER, _LOAN)):
            self._receive(sock, name.startswith(_LOAN))
        else:
            tune(sock)
            self._accepted(sock)

    def look(self) -> None:
        """On the loop's thread: takes what has come and was not read yet."""
        self._accepting.look()
        for carrier in list(self._carriers):
            self._on_carrier(carrier)

    def _receive(self, carrier: socket.socket, loan: bool) -> None:
        carrier.setblocking(False)
        self._loop.add(carrier.fileno(), lambda _mask: self._on_carrier(carrier))
        self._carriers[carrier] = loan

    def _on_carrier(self, carrier: socket.socket) -> None:
        room = socket.CMSG_SPACE(_DESCRIPTOR.size)
        try:  # one message, which the kernel never splits; `socket.recv_fds` would not set close-on-exec
            data, extra, _, _ = carrier.recvmsg(_HANDOVER_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, extra = b"", []
        loan = self._carriers[carrier]
        self._drop(carrier)
        if not extra:
            return
        fd = _DESCRIPTOR.unpack_from(extra[0][2])[0]
        if loan and self._lent is not None:
            self._lent(fd, data)
        elif not loan and self._handed is not None:
            self._handed(socket.socket(fileno=fd), data)
        else:
            os.close(fd)

    def _drop(self, carrier: socket.socket) -> None:
        del self._carriers[carrier]
        self._loop.remove(carrier.fileno())
        carrier.close()

    def close(self) -> None:
        self._accepting.close()
        for carrier in list(self._carriers):
            self._drop(carrier)


class UnixTransport:
    """Dials and accepts for one process of a host whose sockets lie in `folder`, by the names in their addresses.
    `limits` gives (bytes queued before senders wait, largest frame)."""

    def __init__(self, folder: str, loop: Reactor, handler: Handler, limits: Callable[[], tuple[int, int]]) -> None:
        self._folder = folder
        self._loop = loop
        self._handler = handler
        self._limits = limits
        self._listener: Listener | None = None
        self._lock = RLock()  # what comes with a connection may have this closed
        # Those that had not said who they are when they were last looked at, and when they came.
        self._accepted: weakref.WeakKeyDictionary[StreamConnection, float] = weakref.WeakKeyDictionary()
        self._most_unknown = for_unknown(UNKNOWN)
        self._closed = False
        self.handed: Handed | None = None  # see `Listener`; set before `listen`
        self.lent: Lent | None = None
        self.small: Small | None = None  # see `StreamConnection`; set before `listen`

    def dial(self, address: str) -> StreamConnection:
        sock = dial(f"{self._folder}/{name_of(address)}", wait=False)
        try:
            connection = self.connect(sock, address)
            connection.start()
        except BaseException:
            self._loop.remove(sock.fileno())
            sock.close()
            raise
        return connection

    def connect(self, sock: socket.socket, remote: str) -> StreamConnection:
        """A connected socket as a Connection; `start` it when its owner is ready."""
        queue_limit, frame_limit = self._limits()
        connection = StreamConnection(sock, self._loop, self._handler, limit=queue_limit, frame_limit=frame_limit)
        connection.remote = remote
        connection.says_why = True
        if not 0 < frame_limit < QUICK:  # else a limit is to be checked, which the I/O thread does
            connection.small = self.small
        return connection

    def listen(self, sock: socket.socket) -> None:
        self._listener = Listener(sock, self._loop, self._accept, self.handed, self.lent, self._give_up_silent)

    def _accept(self, sock: socket.socket) -> None:
        connection = self.connect(sock, "")
        with self._lock:
            if not self._closed:
                if len(self._accepted) >= self._most_unknown:
                    self._give_up_silent()
                self._accepted[connection] = self._loop.now()
                connection.start()
                return
        connection.close("this process is closing")  # another thread closed it since this one accepted

    def _give_up_silent(self) -> None:
        """Closes those that have had time to say who they are, and have not; on the loop's thread, where there is no room."""
        late = self._loop.now() - SAYS_WITHIN
        with self._lock:
            for connection, came in list(self._accepted.items()):
                if connection.remote or came <= late:
                    del self._accepted[connection]
                    if not connection.remote:
                        connection.close(f"it has not said who it is within {SAYS_WITHIN:g} s, and others came")

    def lend(self, address: str, fd: int, data: bytes) -> None:
        """See `lend`."""
        lend(self._folder, name_of(address), fd, data)

    def hand_over(self, address: str, sock: socket.socket, data: bytes) -> None:
        """See `hand_over`."""
        hand_over(self._folder, name_of(address), sock, data)

    def look(self) -> None:
        """On the loop's thread: takes what others have lent us so far."""
        if self._listener is not None:
            self._listener.look()

    def close(self) -> None:
        """No more come, and those that have not said who they are go; the others are closed by their owner."""
        with self._lock:
            self._closed = True
            accepted = list(self._accepted)
        if self._listener is not None:
            self._listener.close()
        for connection in accepted:
            if not connection.remote:
                connection.close("this process is closing")
