"""Dialling another host: names, addresses one after the other, and the handshake."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._linux.local_socket import same_user
from monarch._wire.auth import Dialler, HandshakeFailure, Secret
from monarch._wire.host_address import HostAddress, Ipc, Tcp, is_address
from monarch._wire.transport.base import DialFailed, Reactor, StreamSocket, Timer
from monarch._wire.transport.handshake import Handshake
from monarch._wire.transport.listeners import TLS_MISSING, name_of, tls_over, tune
from monarch._wire.transport.socket_errors import OnDial, explain, on_dial

if TYPE_CHECKING:
    import ssl

CONNECT_DEADLINE = 5.0  # seconds for one address to take the connection
RESOLVE_DEADLINE = 10.0  # seconds for the name service
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
_ADDRESSES = 8  # of one name that are tried


def dial(
    address: HostAddress,
    loop: Reactor,
    done: Callable[[StreamSocket | DialFailed], None],
    *,
    secret: Secret | None,
    tls: ssl.SSLContext | None = None,
    start_thread: Callable[[Callable[[], None], str], Any],
) -> DialAttempt:
    """Connects to the host at `address.dial`; call it on the I/O thread. `done` hears of the outcome there, once, after this
    returned: the socket, ready for a StreamConnection, or why there is none.

    `tls`: a context for clients. `start_thread(fn, name)` runs `fn` beside the loop, for names that have to be looked up.
    Bounds: 10 seconds for the name service, 8 addresses of a name one after the other, 5 seconds for each to connect and
    5 for the handshake.
    """
    attempt = DialAttempt(address, loop, done, secret, tls, start_thread)
    loop.call_soon(attempt._begin)
    return attempt


class DialAttempt:
    """One attempt to reach a host; see `dial`."""

    def __init__(
        self,
        address: HostAddress,
        loop: Reactor,
        done: Callable[[StreamSocket | DialFailed], None],
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        start_thread: Callable[[Callable[[], None], str], Any],
    ) -> None:
        if address.dial is None:
            raise ValueError(f"nobody can dial {address.bind}: it is a place to listen at")
        self._to = address.dial
        self._wants_tls = address.tls
        self._loop = loop
        self._done = done
        self._secret = secret
        self._tls = tls
        self._start_thread = start_thread
        self._left: deque[tuple[int, Any]] = deque()  # (family, address) still to be tried
        self._failures: list[str] = []
        self._refused = True
        self._final = False
        self._unexpected = False
        self._sock: socket.socket | None = None
        self._handshake: Handshake | None = None
        self._timer: Timer | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<DialAttempt {self._to}{' (over)' if self._over else ''}>"

    def cancel(self) -> None:
        """On the I/O thread: gives it up; `done` is not called."""
        if not self._over:
            self._over = True
            self._drop()

    def _begin(self) -> None:
        if self._over:
            return
        if self._wants_tls and self._tls is None:
            self._final = True
            self._give_up(TLS_MISSING)
        elif isinstance(self._to, Ipc):
            self._tls = None
            self._try_all([(socket.AF_UNIX, self._to.name)])
        elif is_address(self._to.host):
            self._look_up()  # no wait: nobody is asked
        else:
            self._timer = self._loop.call_later(RESOLVE_DEADLINE, self._unresolved)
            try:
                self._start_thread(self._look_up, "monarch-resolve")
            except RuntimeError as exc:  # no more threads
                self._resolved([], f"the name {self._to.host!r} cannot be looked up: {exc}")

    def _look_up(self) -> None:
        """Resolves names on a thread of its own: the name service may take its time."""
        assert isinstance(self._to, Tcp)
        try:
            found = _resolve(self._to)
        except OSError as exc:
            unknown = isinstance(exc, socket.gaierror) and exc.errno in _NO_SUCH_NAME
            text = (
                f"the name {self._to.host!r} is not known: {exc.strerror or exc} (is it spelt right, and known on this host? "
                f"That of a pod is known once the pod runs)"
                if unknown
                else f"the name {self._to.host!r} could not be looked up: {exc.strerror or exc}"
            )
            self._loop.call_soon(lambda: self._resolved([], text))
        else:
            self._loop.call_soon(lambda: self._resolved(found, ""))

    def _unresolved(self) -> None:
        self._resolved([], f"the name service did not answer within {RESOLVE_DEADLINE:g} s")

    def _resolved(self, found: list[tuple[int, Any]], failure: str) -> None:
        if self._over or self._left or self._sock is not None:  # the name service answered too late
            return
        self._drop()
        if failure:
            self._refused, self._unexpected = False, True
            self._give_up(failure)
        else:
            self._try_all(found)

    def _try_all(self, found: list[tuple[int, Any]]) -> None:
        self._left.extend(found[:_ADDRESSES])
        self._try_next()

    def _try_next(self) -> None:
        if not self._left:
            self._give_up("; ".join(self._failures))
            return
        family, where = self._left.popleft()
        try:
            sock = self._sock = socket.socket(family, socket.SOCK_STREAM)
            tune(sock)
            error = sock.connect_ex(where)
        except OSError as exc:
            self._failed(where, exc.errno or errno.EIO)
            return
        if error == errno.EINPROGRESS:
            self._timer = self._loop.call_later(CONNECT_DEADLINE, lambda: self._failed(where, errno.ETIMEDOUT))
            self._loop.add(sock.fileno(), lambda _mask: self._connected(sock, where))
            self._loop.want_write(sock.fileno(), True)
        elif error:
            self._failed(where, error)
        else:
            self._shake_hands(sock, where)

    def _connected(self, sock: socket.socket, where: Any) -> None:
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._failed(where, error)
            return
        try:
            sock.getpeername()
        except OSError:  # an event that came early
            return
        self._shake_hands(sock, where)

    def _shake_hands(self, sock: socket.socket, where: Any) -> None:
        self._stop_watching()
        try:
            if sock.family == socket.AF_UNIX and not same_user(sock):
                self._refuse(where, HandshakeFailure("it belongs to another user", final=True))
                return
            tls = None if self._tls is None else tls_over(sock, self._tls, server=False)
        except OSError as exc:
            self._failed(where, exc.errno or errno.EIO)
            return

        def finished(outcome: StreamSocket | HandshakeFailure) -> None:
            self._handshake = None
            if self._over:
                if not isinstance(outcome, HandshakeFailure):
                    outcome.close()
            elif isinstance(outcome, HandshakeFailure):
                self._refuse(where, outcome)
            else:
                self._over = True
                self._sock = None
                self._done(outcome)

        self._handshake = Handshake(sock, self._loop, Dialler(self._secret), finished, tls=tls)
        self._handshake.start()

    def _refuse(self, where: Any, failure: HandshakeFailure) -> None:
        """Somebody answered, but is not to be spoken to. Another address of the name may belong to somebody else."""
        self._drop()
        self._final = self._final or failure.final
        self._refused, self._unexpected = self._refused and failure.final, True
        self._failures.append(self._at(where, failure.text))
        self._try_next()

    def _failed(self, where: Any, error: int) -> None:
        self._drop()
        self._refused = self._refused and on_dial(error) is OnDial.ENDED
        self._failures.append(self._at(where, _explain(error)))
        self._try_next()

    def _at(self, where: Any, text: str) -> str:
        """Names the address when it is not the one that was asked for."""
        name = name_of(where.encode() if isinstance(where, str) and where.startswith("\0") else where)
        return text if name == str(self._to) else f"{name.removeprefix('tcp://')}: {text}"

    def _give_up(self, text: str) -> None:
        self._over = True
        self._done(DialFailed(f"no connection to {self._to}: {text}", self._refused, self._final, self._unexpected))

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._loop.remove(self._sock.fileno())

    def _drop(self) -> None:
        """Lets go of the socket that is tried just now."""
        self._stop_watching()
        if self._handshake is not None:
            self._handshake.give_up("given up")
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _resolve(place: Tcp) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    return [(entry[0], entry[4]) for entry in found]


def _explain(error: int) -> str:
    """Returns what the kernel says, and what people can do about it."""
    text = os.strerror(error)
    if error in (errno.ECONNREFUSED, errno.ENOENT):
        return f"{text} (nobody listens there: is the worker running, and is the port right?)"
    if error == errno.ETIMEDOUT:
        return f"{text} (no answer within {CONNECT_DEADLINE:g} s: is the host up, and does a firewall let the port through?)"
    return explain(OSError(error, text))
