"""Connections between hosts: listening and dialling over TCP, or over a Unix socket (`ipc://`) on one machine.

Whoever gets a socket from here knows that the other side has gone through the Greeting: TLS where certificates are given,
and the challenge on the job's secret. Everything runs on the I/O thread, but for names that have to be looked up.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch._wire.auth import Acceptor, Dialler, Failure, Secret
from monarch._wire.host_address import HostAddress, Inherited, Ipc, Tcp, bracketed, is_address, routable_address
from monarch._wire.transport.base import DialFailed, Reactor, StreamSocket, Timer
from monarch._wire.transport.greeting import Greeting
from monarch._wire.transport.unix import same_user
from monarch.config import settings

if TYPE_CHECKING:
    import ssl

    from monarch._wire.transport.tls import TlsSocket

logger = logging.getLogger("monarch")

IN_GREETING = 64  # connections of one listener that have not shown yet who they are
CONNECT_DEADLINE = 5.0  # seconds for one address to take the connection
RESOLVE_DEADLINE = 10.0  # seconds for the name service
_ADDRESSES = 8  # of one name that are tried
_BACKLOG = 4096
_ACCEPTS_A_TURN = 64
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds without accepting when there are no descriptors left
_LINES, _LINES_SECONDS = 5, 10.0
_PROBES, _PROBE_INTERVAL = 3, 10  # TCP keepalive, after channel_tcp_keepalive_idle
_TLS_MISSING = "it wants certificates (tls://); give ca, certificate and private_key, or write tcp://"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A connection that has come and may speak. `peer` is its address, for people; `reached` the prefix of this host as the
    other side dialled it (`tcp://10.0.0.1:22222`)."""

    sock: StreamSocket
    peer: str
    reached: str


class TcpListener:
    """Listens where `address` says, from its making until `close`, and hands each connection that may speak to `accept`.

    `*` listens over IPv6 and IPv4 where the machine has both. A Unix socket has mode 0600 and takes our own user only; a
    file that is left there is removed when nobody listens to it. Bounds: 64 connections in their Greeting, the oldest gives
    way to the next; each for 5 seconds at most. Those that fail are logged with their address, 5 lines in 10 seconds.

    Make and close it on the I/O thread, or before it runs. OSError when the address cannot be had, ValueError when it wants
    certificates (`tls`, a context for servers) and there are none.
    """

    def __init__(
        self,
        address: HostAddress,
        loop: Reactor,
        accept: Callable[[Accepted], None],
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if address.tls and tls is None:
            raise ValueError(f"cannot listen at {address.bind}: {_TLS_MISSING}")
        self._loop = loop
        self._accept = accept
        self._secret = secret
        self._greetings: dict[Greeting, str] = {}  # oldest first
        self._log = _FailureLog(loop)
        self._timer: Timer | None = None
        self._sock = listen(address)
        self._tls = None if self._sock.family == socket.AF_UNIX else tls
        self._file = _socket_file(address)
        self._closed = False
        self.prefix = address.prefix or _prefix_of(address, self._sock)
        """What addresses of processes on this host begin with."""
        loop.add(self._sock.fileno(), self._on_event)

    def __repr__(self) -> str:
        return f"<TcpListener {self.prefix} ({len(self._greetings)} in greeting{', closed' if self._closed else ''})>"

    def statistics(self) -> dict[str, int]:
        return {"greeting": len(self._greetings), "failed": self._log.total}

    def _on_event(self, _mask: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if self._closed:
                    return
                if exc.errno not in _OUT_OF_DESCRIPTORS:
                    self._log.failed("a connection that was not accepted", str(exc), self.prefix)
                    return
                self._pause(exc)
                return
            self._greet(sock)

    def _pause(self, exc: OSError) -> None:
        """Without descriptors the kernel would tell of the waiting connection again and again."""
        self._log.failed("the next connection", f"it is accepted later: {exc.strerror}", self.prefix)
        self._give_up_oldest()
        self._loop.remove(self._sock.fileno())
        self._timer = self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if not self._closed:
            self._loop.add(self._sock.fileno(), self._on_event)

    def _give_up_oldest(self) -> None:
        for greeting in self._greetings:
            greeting.give_up("it was slow, and others were waiting to be greeted")
            return

    def _greet(self, sock: socket.socket) -> None:
        try:
            peer = _peer_of(sock)
            reached = _name(sock.getsockname()) or self.prefix
            if sock.family == socket.AF_UNIX and not same_user(sock):
                self._log.failed(peer, "it belongs to another user", self.prefix)
                sock.close()
                return
            tune(sock)
            tls = None if self._tls is None else _tls_over(sock, self._tls, server=True)
        except OSError:  # gone already
            sock.close()
            return
        if len(self._greetings) >= IN_GREETING:
            self._give_up_oldest()

        def done(outcome: StreamSocket | Failure) -> None:
            del self._greetings[greeting]
            if isinstance(outcome, Failure):
                if not self._closed:
                    self._log.failed(peer, outcome.text, self.prefix)
            else:
                self._accept(Accepted(outcome, peer, reached))

        greeting = Greeting(sock, self._loop, Acceptor(self._secret), done, tls=tls)
        self._greetings[greeting] = peer
        greeting.start()

    def close(self) -> None:
        """Stops listening and gives up connections in their Greeting; what was handed to `accept` lives on."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove(self._sock.fileno())
        self._sock.close()
        if self._file is not None:
            _remove_own(*self._file)
        for greeting in list(self._greetings):
            greeting.give_up("the listener was closed")
        self._log.close()


class _FailureLog:
    """Lines about connections that failed: `_LINES` in `_LINES_SECONDS`, then one that says how many were left out."""

    def __init__(self, loop: Reactor) -> None:
        self._loop = loop
        self._written = 0
        self._left_out = 0
        self._timer: Timer | None = None
        self.total = 0

    def failed(self, peer: str, text: str, prefix: str) -> None:
        self.total += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_LINES_SECONDS, self._summary)
        if self._written < _LINES:
            self._written += 1
            logger.warning("%s: refused %s: %s", prefix, peer, text)
        else:
            self._left_out += 1

    def _summary(self) -> None:
        left_out, self._left_out, self._written, self._timer = self._left_out, 0, 0, None
        if left_out:
            logger.warning("refused %d more connections in %g seconds", left_out, _LINES_SECONDS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._summary()


# --- listening


def listen(address: HostAddress) -> socket.socket:
    """A non-blocking listening socket at `address.bind`. OSError saying which address, when it cannot be had."""
    place = address.bind
    try:
        if isinstance(place, Inherited):
            return _adopt(place.fd)
        if isinstance(place, Ipc):
            sock = _listen_ipc(place)
        else:
            sock = _listen_tcp(place)
    except OSError as exc:
        raise OSError(exc.errno, f"cannot listen at {place}: {exc.strerror or exc}") from exc
    sock.setblocking(False)
    return sock


def _listen_tcp(place: Tcp) -> socket.socket:
    if place.host == "*":
        if socket.has_dualstack_ipv6():
            try:
                return _bound(socket.AF_INET6, ("::", place.port), both=True)
            except OSError as exc:
                if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # IPv6 is switched off
                    raise
        return _bound(socket.AF_INET, ("0.0.0.0", place.port))
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return _bound(found[0][0], found[0][4])


def _bound(family: int, where: Any, both: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _adopt(fd: int) -> socket.socket:
    """The descriptor becomes ours: no child inherits it, and it is closed with the listener."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        raise OSError(exc.errno, f"descriptor {fd} is no socket that this process inherited: {exc.strerror}") from exc
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or sock.type != socket.SOCK_STREAM:
        sock.detach()  # it is somebody else's
        raise OSError(
            errno.EINVAL, f"descriptor {fd} is a socket that does not listen; call listen() before handing it on"
        )
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _listen_ipc(place: Ipc) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not place.path.startswith("@"):
            os.fchmod(sock.fileno(), 0o600)  # the mode that bind gives the file: it is never there with another
        try:
            sock.bind(place.name)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or place.path.startswith("@"):
                raise
            _remove_stale(place.path)
            sock.bind(place.name)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Removes a socket file that nobody listens to. OSError when it is something else, or in use."""
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EADDRINUSE, "there is a file that is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            _remove_own(path, found.st_ino)
            return
        except OSError:  # its backlog is full: somebody listens
            pass
    raise OSError(errno.EADDRINUSE, "another process listens there")


def _socket_file(address: HostAddress) -> tuple[str, int] | None:
    place = address.bind
    if not isinstance(place, Ipc) or place.path.startswith("@"):
        return None
    return place.path, os.lstat(place.path).st_ino


def _remove_own(path: str, inode: int) -> None:
    """Removes a file, unless another took its place."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass


def _prefix_of(address: HostAddress, sock: socket.socket) -> str:
    """For a port or an address that only the socket knows."""
    where = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return _name(where)
    host = address.bind.host if not isinstance(address.bind, Ipc) else "*"
    if host == "*":
        host = routable_address()
    return str(Tcp(host, where[1]))


def _name(where: Any) -> str:
    """A socket's address as the prefix of a host; "" for a Unix socket without one."""
    if isinstance(where, bytes):  # abstract
        return f"ipc://@{os.fsdecode(where[1:])}"
    if isinstance(where, str):
        return f"ipc://{where}" if where else ""
    host = str(where[0]).removeprefix("::ffff:") if "." in where[0] else str(where[0])
    return f"tcp://{bracketed(host)}:{where[1]}"


def _peer_of(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "a process of this machine"
    return _name(sock.getpeername()).removeprefix("tcp://")


def tune(sock: socket.socket) -> None:
    """Options of a TCP connection between hosts. The kernel's buffers are left to grow by themselves."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle = settings.get("channel_tcp_keepalive_idle")
    if idle > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(max(1, round(idle)), 32767))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    congestion = settings.get("channel_tcp_congestion")
    if congestion:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except OSError as exc:
            _warn_of_congestion(congestion, exc)


_warned: set[str] = set()


def _warn_of_congestion(name: str, exc: OSError) -> None:
    """Once for each name: the system's choice serves as well."""
    if name not in _warned and len(_warned) < 16:
        _warned.add(name)
        logger.warning("channel_tcp_congestion=%r cannot be used, the system's is: %s", name, exc.strerror)


def _tls_over(sock: socket.socket, context: ssl.SSLContext, server: bool) -> TlsSocket:
    from monarch._wire.transport.tls import TlsSocket

    return TlsSocket(sock, context, server=server)


# --- dialling


def dial(
    address: HostAddress,
    loop: Reactor,
    done: Callable[[StreamSocket | DialFailed], None],
    *,
    secret: Secret | None,
    tls: ssl.SSLContext | None = None,
    start_thread: Callable[[Callable[[], None], str], Any],
) -> Dial:
    """Connects to the host at `address.dial`; call it on the I/O thread. `done` hears of the outcome there, once, after this
    returned: the socket, greeted and ready for a StreamConnection, or why there is none.

    `tls`: a context for clients. `start_thread(fn, name)` runs `fn` beside the loop, for names that have to be looked up.
    Bounds: 10 seconds for the name service, 8 addresses of a name one after the other, 5 seconds for each to connect and
    5 for the Greeting.
    """
    attempt = Dial(address, loop, done, secret, tls, start_thread)
    loop.call_soon(attempt._begin)
    return attempt


class Dial:
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
        self._sock: socket.socket | None = None
        self._greeting: Greeting | None = None
        self._timer: Timer | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Dial {self._to}{' (over)' if self._over else ''}>"

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
            self._give_up(_TLS_MISSING)
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
        """For names on a thread of its own: the name service may take its time."""
        assert isinstance(self._to, Tcp)
        try:
            found = _resolve(self._to)
        except OSError as exc:
            text = f"the name {self._to.host!r} is not known: {exc.strerror or exc}"
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
            self._refused = False
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
            self._greet(sock, where)

    def _connected(self, sock: socket.socket, where: Any) -> None:
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._failed(where, error)
            return
        try:
            sock.getpeername()
        except OSError:  # an event that came early
            return
        self._greet(sock, where)

    def _greet(self, sock: socket.socket, where: Any) -> None:
        self._stop_watching()
        try:
            if sock.family == socket.AF_UNIX and not same_user(sock):
                self._refuse(where, Failure("it belongs to another user", final=True))
                return
            tls = None if self._tls is None else _tls_over(sock, self._tls, server=False)
        except OSError as exc:
            self._failed(where, exc.errno or errno.EIO)
            return

        def greeted(outcome: StreamSocket | Failure) -> None:
            self._greeting = None
            if self._over:
                if not isinstance(outcome, Failure):
                    outcome.close()
            elif isinstance(outcome, Failure):
                self._refuse(where, outcome)
            else:
                self._over = True
                self._sock = None
                self._done(outcome)

        self._greeting = Greeting(sock, self._loop, Dialler(self._secret), greeted, tls=tls)
        self._greeting.start()

    def _refuse(self, where: Any, failure: Failure) -> None:
        """Somebody answered, but is not to be spoken to. Another address of the name may belong to somebody else."""
        self._drop()
        self._final = self._final or failure.final
        self._refused = self._refused and failure.final
        self._failures.append(self._at(where, failure.text))
        self._try_next()

    def _failed(self, where: Any, error: int) -> None:
        self._drop()
        self._refused = self._refused and error in (errno.ECONNREFUSED, errno.ENOENT)
        self._failures.append(self._at(where, _explain(error)))
        self._try_next()

    def _at(self, where: Any, text: str) -> str:
        """Names the address when it is not the one that was asked for."""
        name = _name(where.encode() if isinstance(where, str) and where.startswith("\0") else where)
        return text if name == str(self._to) else f"{name.removeprefix('tcp://')}: {text}"

    def _give_up(self, text: str) -> None:
        self._over = True
        self._done(DialFailed(f"no connection to {self._to}: {text}", refused=self._refused, final=self._final))

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._loop.remove(self._sock.fileno())

    def _drop(self) -> None:
        """Lets go of the socket that is tried just now."""
        self._stop_watching()
        if self._greeting is not None:
            self._greeting.give_up("given up")
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _resolve(place: Tcp) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    return [(entry[0], entry[4]) for entry in found]


def _explain(error: int) -> str:
    """What the kernel says, and what people can do about it."""
    text = os.strerror(error)
    if error in (errno.ECONNREFUSED, errno.ENOENT):
        return f"{text} (nobody listens there: is the worker running, and is the port right?)"
    if error == errno.ETIMEDOUT:
        return f"{text} (no answer within {CONNECT_DEADLINE:g} s: is the host up, and does a firewall let the port through?)"
    if error == errno.EAGAIN:
        return "its queue of connections is full; it may be busy"
    return text
