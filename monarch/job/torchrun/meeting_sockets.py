"""The sockets of a meeting. Both ends prove that they know the secret of the job, as hosts do, before a line is read; the
lines are JSON, and bounded."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import msgspec

from monarch._linux.locks import Lock
from monarch._linux.loopback_peer import stranger_at
from monarch.actor.lowlevel import Acceptor, Dialler, Secret, start_thread
from monarch.job.torchrun.meeting import Message

_HANDSHAKE = 5.0  # seconds for the proofs, and for the first line
_HANDSHAKES = 64  # at once; who comes then is closed, and tries again
_LONGEST = 64 * 1024  # bytes of a line
_IDLE, _BETWEEN, _PROBES = 15, 5, 4  # seconds, seconds, times: then a silent host counts as gone
_decoder = msgspec.json.Decoder(Message)


class NotOursError(ConnectionError):
    """Raised when the other end is not of this job, or the connection ended. `final`: trying again does not help."""

    def __init__(self, text: str, final: bool) -> None:
        super().__init__(text)
        self.final = final


class MeetingLine:
    """A connection whose other end has proven itself. One thread reads; any may write."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._left = b""
        self._writing = Lock()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, _IDLE),
            (socket.TCP_KEEPINTVL, _BETWEEN),
            (socket.TCP_KEEPCNT, _PROBES),
            (socket.TCP_USER_TIMEOUT, 1000 * (_IDLE + _BETWEEN * _PROBES)),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def peer(self) -> str:
        return str(self._sock.getpeername()[0])

    @property
    def here(self) -> str:
        """The address of this machine that the other end is connected to."""
        return str(self._sock.getsockname()[0])

    def send(self, message: Message) -> None:
        """Sends it; nothing, when the other end has gone."""
        try:
            with self._writing:
                self._sock.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            pass

    def read(self, patience: float | None) -> Message | None:
        """Returns the next message, None at the end. TimeoutError after `patience` seconds; NotOursError for what is no
        message of ours."""
        deadline = None if patience is None else time.monotonic() + patience
        while b"\n" not in self._left:
            if len(self._left) > _LONGEST:
                raise NotOursError("a line of the meeting is too long", True)
            try:
                data = _receive(self._sock, 4096, deadline)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not data:
                return None
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        try:
            message: Message = _decoder.decode(line)
        except msgspec.DecodeError:
            raise NotOursError(
                "the other end says what is not known here; install the same release of pymonarch on all nodes", True
            ) from None
        return message

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


def dial(host: str, port: int, secret: Secret, patience: float) -> MeetingLine:
    """Connects to the leader. OSError when nobody is there; NotOursError when somebody else is."""
    sock = socket.create_connection((host, port), timeout=min(patience, _HANDSHAKE))
    try:
        _prove(sock, Dialler(secret))
        return MeetingLine(sock)
    except BaseException:
        sock.close()
        raise


class Door:
    """The leader's end: takes connections, and hands each that has proven itself, with its number, to `visit` on a thread of
    its own."""

    def __init__(self, listening: socket.socket, secret: Secret, visit: Callable[[int, MeetingLine], None]) -> None:
        self._listening = listening
        self._secret = secret
        self._visit = visit
        self._free = threading.Semaphore(_HANDSHAKES)
        self._closed = False
        start_thread(self._accept, "monarch-meeting")

    def close(self) -> None:
        self._closed = True
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listening.close()

    def _accept(self) -> None:
        number = 0
        while not self._closed:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                if not self._closed:
                    time.sleep(0.1)  # no descriptors are left for now
                continue
            number += 1
            if self._free.acquire(blocking=False):
                start_thread(self._converse, f"monarch-meeting-{number}", number, sock)
            else:
                sock.close()

    def _converse(self, number: int, sock: socket.socket) -> None:
        try:
            try:
                _prove(sock, Acceptor(self._secret))
                line = MeetingLine(sock)
            finally:
                self._free.release()
        except OSError:
            sock.close()
            return
        try:
            self._visit(number, line)
        except OSError:
            pass
        finally:
            line.close()


def listen(host: str, port: int) -> socket.socket:
    """Listens at an endpoint of this machine: at its loopback address where that was written, else at all of the family.
    OSError when the port is taken."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
    only_here = host in ("localhost", "::1") or host.startswith("127.")
    return socket.create_server((str(address[0]) if only_here else everywhere, port), family=family)


def is_here(host: str) -> bool:
    """Returns whether a host is this machine: it has one of its addresses, or its name."""
    if host == socket.gethostname():
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(entry[0], entry[4]) for entry in found)


def _can_bind(family: int, address: object) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)  # type: ignore[arg-type]
    except OSError:
        return False
    return True


def _prove(sock: socket.socket, challenge: Acceptor | Dialler) -> None:
    """Exchanges the proofs of both ends. NotOursError when the other end has none, TimeoutError when it is slow."""
    deadline = time.monotonic() + _HANDSHAKE
    whose = stranger_at(sock)  # asked now as well: who closes behind his last word is nobody's at the end
    sock.settimeout(_HANDSHAKE)
    sock.sendall(challenge.start())
    while not challenge.done and challenge.failure is None:
        data = b""
        while len(data) < challenge.wanted:
            more = _receive(sock, challenge.wanted - len(data), deadline)
            if not more:
                break
            data += more
        if len(data) < challenge.wanted:
            challenge.closed()
            break
        sock.settimeout(_HANDSHAKE)
        sock.sendall(challenge.received(data))
    if challenge.failure is not None:
        raise NotOursError(challenge.failure.text, challenge.failure.final)
    if whose := whose or stranger_at(sock):
        raise NotOursError(whose, True)


def _receive(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    if deadline is None:
        sock.settimeout(None)
    else:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other end is silent")
        sock.settimeout(left)
    return sock.recv(size)
