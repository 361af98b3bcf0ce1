"""The user at the other end of a TCP connection within this machine. A Unix socket says so itself (SO_PEERCRED); of
a loopback connection the kernel's own table of sockets knows.

It is asked for the one socket (sock_diag(7)): some microseconds, however many sockets there are. Where that is not to be had,
all of the table is read (proc(5), /proc/net/tcp): milliseconds.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from monarch._linux import owners
from monarch._linux.descriptors import OUT_OF

# States of a connected socket: established, and one of the sides has closed or sends no more. Without an inode it has lost
# its process, and the table says user 0.
_CONNECTED = (1, 4, 5, 8)

# sock_diag(7): a header, and the socket that is asked for; in the answer its state, its ends, its user.
_SOCK_DIAG = 4  # of netlink(7)
_BY_FAMILY, _REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_ANY_DEVICE_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER = struct.Struct("=xBxx60xII")
_ALL_STATES = 0xFFFFFFFF
_SOON = 1.0  # seconds for the kernel, which answers within the call
_SAY_AGAIN = 60.0  # seconds between two words of a Doorkeeper on those whom it has refused
_answers: bool | None = None  # whether it answers such questions; None: not known yet


def is_loopback(host: str) -> bool:
    """Returns whether it is an address that only this machine reaches; `host` as a socket's name has it."""
    try:
        return _plain(host).is_loopback
    except ValueError:
        return False


def is_ours(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Returns whether the process that has connected from `peer` to our end `here` is of this user, or of root. False
    for other machines, for what cannot be known, and where there is no such table."""
    return is_loopback(peer[0]) and user_of(peer, here) in (os.geteuid(), 0)


def is_socket_ours(sock: Any) -> bool:
    """`is_ours` of who is at the other end of that connected TCP socket. False when nobody is there any more: a connection
    that was reset has no name."""
    try:
        return is_ours(sock.getpeername()[:2], sock.getsockname()[:2])
    except OSError:
        return False


def stranger_at(sock: Any) -> str:
    """Says whose program of this machine is at the other end of a connected socket, if that is neither this user's nor
    root's; "" if it is, for other machines, and where nobody can tell.

    Who has proven himself may still be such a one, who knows no secret: he took a port that is dialled here, and passes on
    what two hosts say, to put words of his own in between when they trust each other.
    """
    if sock.family == socket.AF_UNIX:
        return ""
    try:
        user = user_of(sock.getpeername()[:2], sock.getsockname()[:2])
    except OSError:
        return ""
    if user in (None, os.geteuid(), 0) or (user == owners.OVERFLOW and not owners.is_mapped(user)):
        return ""
    return (
        f"it belongs to {owners.named(user)}, who may be passing on what others say: within a machine both ends are of one "
        f"user, or have certificates (TLS)"
    )


class Doorkeeper:
    """A check at a TCP port whether a connection is of this user's program. `say` is told how many were not: at the first of
    them, and then at most once a minute. For one thread."""

    def __init__(self, say: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._refused = 0  # not said yet
        self._silent_until = 0.0

    def lets_in(self, sock: Any) -> bool:
        """Returns `is_socket_ours`. Not a byte need have been read before."""
        if is_socket_ours(sock):
            return True
        self._refused += 1
        now = self._clock()
        if now >= self._silent_until:
            count, self._refused, self._silent_until = self._refused, 0, now + _SAY_AGAIN
            self._say(count)
        return False


def user_of(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user of the socket at `peer` that is connected to `here`, both of this machine; None when it is not there."""
    global _answers
    if _answers is not False:
        try:
            found = _user_by_diag(peer, here)
        except OSError as exc:  # no such socket, or a kernel or a sandbox without such questions
            if _answers and exc.errno == errno.ENOENT:
                return None
            if not _answers and exc.errno not in (errno.ENOENT, *OUT_OF):
                _answers = False
        else:
            _answers = True
            return found
    return _user_by_table(peer, here)


def _user_by_diag(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Does as `user_of`. OSError when the kernel does not answer."""
    one, other = (_plain(host).packed for host, _ in (peer, here))
    family = socket.AF_INET if len(one) == 4 else socket.AF_INET6
    ends = _PORTS.pack(peer[1], here[1]) + one.ljust(16, b"\0") + other.ljust(16, b"\0")
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES) + ends + _ANY_DEVICE_ANY_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_SOON)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        (error,) = struct.unpack_from("=i", answer, _HEADER.size)
        raise OSError(-error, os.strerror(-error))
    state, user, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return user if state in _CONNECTED and inode else None


def _user_by_table(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Does as `user_of`."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                next(file, None)
                found = find_user(file, peer, here)
        except OSError:
            continue
        if found is not None:
            return found
    return None


def find_user(lines: Iterable[str], peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Does as `user_of`, in the lines of such a table, its header left out."""
    peer_forms, here_forms = _forms(*peer), _forms(*here)
    for line in lines:
        fields = line.split(maxsplit=10)
        if len(fields) < 10 or fields[1] not in peer_forms or fields[2] not in here_forms:
            continue
        if int(fields[3], 16) in _CONNECTED and int(fields[9]):
            return int(fields[7])
    return None


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address as such, also where a socket of IPv6 has it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _forms(host: str, port: int) -> frozenset[str]:
    """An address as either table writes it: words of 32 bits in the machine's byte order."""
    plain = _plain(host)
    forms = [plain.packed]
    if plain.version == 4:
        forms.append(bytes(10) + b"\xff\xff" + plain.packed)
    return frozenset(f"{_words(form)}:{port:04X}" for form in forms)


def _words(packed: bytes) -> str:
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
