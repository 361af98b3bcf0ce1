"""A socket in a program's run folder where other programs of the same user ask it questions (see `questions`), so
that each program can be looked at, also one whose main thread is stuck.

The folder is 0700, and the kernel says who connects. A request is four bytes of length, big-endian, and msgpack; so are the
answers. One request at a time on a connection. A connection may also be made into a stream: then a function of STREAMS has
it, on a thread of its own, for what is a conversation (the debugger).

Everything here runs on the I/O thread and never waits. Bounds: CONNECTIONS, LARGEST_REQUEST, LARGEST_ANSWER, SLOWEST, LAST.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Any

import msgspec

from monarch._linux.local_socket import same_user
from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch._mesh.inspection.admin_messages import (
    LARGEST_ANSWER,
    LENGTH,
    NAME,
    AskAll,
    AskAnswers,
    Refused,
    Request,
    Response,
    Streaming,
    StreamRequest,
    packed,
)
from monarch._mesh.inspection.survey import Survey
from monarch._runtime.loop import TimerHandle, start_thread
from monarch._runtime.proc import Proc
from monarch._wire.message import UNREADABLE
from monarch._wire.transport import unix
from monarch._wire.transport.accepting import Accepting

CONNECTIONS = 32  # at a time; then the oldest that is asking nothing gives way, else who comes is told and sent away
LARGEST_REQUEST = 1 << 20
SLOWEST = 30.0  # seconds a reader may take none of an answer before the connection is closed
LAST = 5.0  # seconds until a connection that was refused is closed at the latest
LONGEST = 3600.0  # seconds that a question may take

# Each is called with a socket that blocks, and an argument, on a thread of the client. It closes the socket.
STREAMS = {"dashboard": "dashboard.serve", "debug": "debugger.serve"}  # by name: which of `plugins.OUTER`

_READ = 1 << 16

_decode = msgspec.msgpack.Decoder(Request).decode


class LocalAdminSocket:
    """The socket of a client. `close` on any thread."""

    def __init__(self, proc: Proc, folder: str) -> None:
        self.proc = proc
        self.path = os.path.join(folder, NAME)
        self._lock = Lock()
        self._connections: dict[_AdminConnection, None] = {}  # in the order of coming
        self._listening = unix.listen(self.path)
        self._accepting = Accepting(self._listening, proc.loop, self._accepted)

    def _accepted(self, sock: socket.socket, where: Any) -> None:
        if not same_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        with self._lock:
            present = list(self._connections)
        if len(present) >= 2 * CONNECTIONS:  # nearly all are being told that they are too many
            sock.close()
            return
        served = [each for each in present if not each.last]
        if len(served) >= CONNECTIONS:
            for each in served:  # a question may have come in the same turn
                each.look()
            with self._lock:
                served = [each for each in self._connections if not each.last]
        too_many = len(served) >= CONNECTIONS
        if too_many:
            for idle in (each for each in served if each.is_idle or each.has_gone):
                idle.close()
                too_many = False
                break
        connection = _AdminConnection(self, sock)
        with self._lock:
            self._connections[connection] = None
        if too_many:
            connection.send(
                Refused(f"{CONNECTIONS} connections are open here already, and all ask something"), last=True
            )

    def closed(self, connection: _AdminConnection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def close(self) -> None:
        self._accepting.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()


class _AdminConnection:
    """One connection, and the request on it that is being answered."""

    def __init__(self, owner: LocalAdminSocket, sock: socket.socket) -> None:
        self._owner = owner
        self._loop = owner.proc.loop
        self._sock = sock
        self._came = bytearray()
        self._to_send = memoryview(b"")
        self._survey: Survey | None = None
        self.last = False  # it has been told why, and is closed soon
        self._gone = False
        self._slow: TimerHandle | None = None
        self._loop.add(sock.fileno(), self._on_event)

    @property
    def is_idle(self) -> bool:
        """True if nothing is being answered."""
        return self._survey is None and not self._to_send and not self._gone

    @property
    def has_gone(self) -> bool:
        """True if the other side has closed, which may not have been looked at yet."""
        try:
            return not self._gone and self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def look(self) -> None:
        """Takes what has come, if nothing is being answered."""
        if self.is_idle:
            self._on_event(select.EPOLLIN)

    def _on_event(self, mask: int) -> None:
        if self._gone:
            return
        if self._to_send:
            if mask & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
                self._write()
            return
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self.last:  # what it still says is not looked at
            return
        self._came += data
        self._read()

    def _read(self) -> None:
        if self._survey is not None:  # its answer first; what comes meanwhile is bounded too
            if len(self._came) > LARGEST_REQUEST:
                self.close()
            return
        if len(self._came) < LENGTH.size:
            return
        (length,) = LENGTH.unpack_from(self._came)
        if length > LARGEST_REQUEST:
            self.send(Refused(f"a request has at most {LARGEST_REQUEST:,} bytes"), last=True)
            return
        end = LENGTH.size + length
        if len(self._came) < end:
            return
        body = bytes(self._came[LENGTH.size : end])
        del self._came[:end]
        try:
            request = _decode(body)
        except UNREADABLE as exc:
            self.send(Refused(f"this is no request: {exc}"), last=True)
            return
        if isinstance(request, StreamRequest):
            self._stream(request)
        else:
            self._ask(request)

    def _ask(self, request: AskAll) -> None:
        timeout = min(max(0.0, request.timeout), LONGEST)  # in this order NaN is none
        survey = self._survey = Survey(
            self._owner.proc, timeout, request.question, request.argument, request.only, request.agents
        )
        survey.on_ready(lambda: self._loop.call_soon(lambda: self._answer(survey)))
        survey.start()

    def _answer(self, survey: Survey) -> None:
        if self._survey is survey:
            self._survey = None
            self.send(AskAnswers(survey.answers()))

    def _stream(self, request: StreamRequest) -> None:
        stream = STREAMS.get(request.name)
        if stream is None:
            self.send(Refused(f"there is no stream {request.name[:60]!r} here: is the program of another version?"))
            return
        self._loop.remove(self._sock.fileno())
        self._gone = True
        self._sock.setblocking(True)
        try:
            start_thread(self._talk, f"monarch-{request.name}", stream, request.argument)
        except RuntimeError:  # no more threads
            self._owner.closed(self)
            self._sock.close()

    def _talk(self, stream: str, argument: bytes) -> None:
        try:
            self._sock.sendall(packed(Streaming()))
            plugins.outer(stream)(self._sock, argument)
        except OSError:  # the other side has gone
            pass
        finally:
            self._owner.closed(self)
            self._sock.close()

    def send(self, response: Response, last: bool = False) -> None:
        """`last`: then the connection is closed."""
        data = packed(response)
        if len(data) > LARGEST_ANSWER:
            data = packed(
                Refused(f"the answer has {len(data):,} bytes, more than {LARGEST_ANSWER:,}; ask fewer processes")
            )
        self.last = last
        self._to_send = memoryview(data)
        self._write()

    def _write(self) -> None:
        try:
            while self._to_send:
                self._to_send = self._to_send[self._sock.send(self._to_send) :]
                if self._slow is not None:
                    self._slow.cancel()
                    self._slow = None
        except BlockingIOError:
            self._loop.want_write(self._sock.fileno(), True, read=False)
            self._slow = self._loop.call_later(SLOWEST, self.close)
            return
        except OSError:
            self.close()
            return
        self._loop.want_write(self._sock.fileno(), False)
        if self.last:  # closed at once, the other side might lose what it was told
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self._slow = self._loop.call_later(LAST, self.close)
            return
        if self._came:
            self._read()

    def close(self) -> None:
        """Closes the connection. Any thread, but a stream's."""
        self._owner.closed(self)
        if self._slow is not None:
            self._slow.cancel()
        if self._survey is not None:
            self._survey.abandon()
            self._survey = None
        if self._gone:
            try:  # a stream: its thread wakes up, and closes it
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            return
        self._gone = True
        self._loop.remove(self._sock.fileno())
        self._sock.close()
