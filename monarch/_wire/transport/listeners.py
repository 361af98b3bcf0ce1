"""Sockets between hosts before and after the handshake: making those that listen, tuning, naming."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

from monarch._text import bracketed
from monarch._wire.host_address import HostAddress, Inherited, Ipc, Tcp, routable_address
from monarch._wire.logs import warn
from monarch.config import settings

if TYPE_CHECKING:
    import ssl

    from monarch._wire.transport.tls import TlsSocket

TLS_MISSING = "it wants certificates (tls://); give ca, certificate and private_key, or write tcp://"
_BACKLOG = 4096
_PROBES, _PROBE_INTERVAL = 3, 10  # TCP keepalive, after channel_tcp_keepalive_idle


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
        raise OSError(exc.errno, f"descriptor {fd} is not an inherited socket: {exc.strerror}") from exc
    try:
        _listen_adopted(sock)
    except OSError as exc:
        sock.detach()  # it is somebody else's
        raise OSError(exc.errno or errno.EINVAL, f"descriptor {fd} {exc.strerror}") from exc
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _listen_adopted(sock: socket.socket) -> None:
    """Listens, where its maker has left that to us; not where it is bound."""
    if sock.type != socket.SOCK_STREAM:
        raise OSError(errno.EINVAL, "is not a stream socket")
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return
    if sock.family != socket.AF_UNIX and not sock.getsockname()[1]:
        raise OSError(errno.EINVAL, "is a socket without a port; call bind() before handing it on")
    try:
        sock.listen(_BACKLOG)
    except OSError as exc:  # connected, or a Unix socket without a name
        raise OSError(exc.errno, f"is a socket that cannot listen ({exc.strerror}); hand on one that is bound") from exc


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
        raise OSError(errno.EADDRINUSE, "there is a file that is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            remove_own(path, found.st_ino)
            return
        except OSError:  # its backlog is full: somebody listens
            pass
    raise OSError(errno.EADDRINUSE, "another process listens there")


def socket_file(address: HostAddress) -> tuple[str, int] | None:
    place = address.bind
    if not isinstance(place, Ipc) or place.path.startswith("@"):
        return None
    return place.path, os.lstat(place.path).st_ino


def remove_own(path: str, inode: int) -> None:
    """Removes a file, unless another took its place."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass


def prefix_of(address: HostAddress, sock: socket.socket) -> str:
    """Returns the prefix for a port or an address that only the socket knows."""
    where = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return name_of(where)
    host = address.bind.host if not isinstance(address.bind, Ipc) else "*"
    if host == "*":
        host = routable_address()
    return str(Tcp(host, where[1]))


def name_of(where: Any) -> str:
    """A socket's address as the prefix of a host; "" for a Unix socket without one."""
    if isinstance(where, bytes):  # abstract
        return f"ipc://@{os.fsdecode(where[1:])}"
    if isinstance(where, str):
        return f"ipc://{where}" if where else ""
    host = str(where[0]).removeprefix("::ffff:") if "." in where[0] else str(where[0])
    return f"tcp://{bracketed(host)}:{where[1]}"


def peer_of(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "a process of this machine"
    return name_of(sock.getpeername()).removeprefix("tcp://")


def tune(sock: socket.socket) -> None:
    """Options of a TCP connection between hosts. The kernel's buffers are left to grow by themselves."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle = settings.channel_tcp_keepalive_idle()
    if idle > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(max(1, round(idle)), 32767))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    congestion = settings.channel_tcp_congestion()
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
        warn("channel_tcp_congestion=%r cannot be used, the system's is: %s", name, exc.strerror)


def tls_over(sock: socket.socket, context: ssl.SSLContext, server: bool) -> TlsSocket:
    from monarch._wire.transport.tls import TlsSocket

    return TlsSocket(sock, context, server=server)
