"""Whose process is at the other end of a TCP connection within this machine. A Unix socket says so itself (SO_PEERCRED); of
a loopback connection the kernel's own table of sockets knows (proc(5), /proc/net/tcp)."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable
from typing import Any

_ESTABLISHED, _CLOSE_WAIT = "01", "08"  # in other states the socket has lost its process, and the table says user 0


def is_loopback(host: str) -> bool:
    """Returns whether it is an address that only this machine reaches; `host` as a socket's name has it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_ours(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Returns whether the process that has connected from `peer` to our end `here` is of this user, or of root. False
    for other machines, for what cannot be known, and where there is no such table."""
    return is_loopback(peer[0]) and user_of(peer, here) in (os.geteuid(), 0)


def is_socket_ours(sock: Any) -> bool:
    """`is_ours` of who is at the other end of that connected TCP socket."""
    return is_ours(sock.getpeername()[:2], sock.getsockname()[:2])


def user_of(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user of the socket at `peer` that is connected to `here`, both of this machine; None when it is not there."""
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
        fields = line.split(maxsplit=8)
        if len(fields) < 8 or fields[3] not in (_ESTABLISHED, _CLOSE_WAIT):
            continue
        if fields[1] in peer_forms and fields[2] in here_forms:
            return int(fields[7])
    return None


def _forms(host: str, port: int) -> frozenset[str]:
    """An address as either table writes it: words of 32 bits in the machine's byte order."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    plain = mapped or address
    forms = [plain.packed]
    if plain.version == 4:
        forms.append(bytes(10) + b"\xff\xff" + plain.packed)
    return frozenset(f"{_words(form)}:{port:04X}" for form in forms)


def _words(packed: bytes) -> str:
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
