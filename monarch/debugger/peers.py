"""Whose program is at the other end of a connection of this machine to itself, as /proc/net says."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable

_ADDRESS, _REMOTE, _USER = 1, 2, 7  # columns


def user_of(sock: socket.socket) -> int | None:
    """The user id of the program at the other end of a TCP connection on loopback; None when it cannot be seen."""
    theirs, ours = sock.getpeername()[:2], sock.getsockname()[:2]
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(file) as lines:
                next(lines, None)
                found = find_user(lines, theirs, ours)
        except OSError:
            continue
        if found is not None:
            return found
    return None


def is_ours(sock: socket.socket) -> bool:
    return user_of(sock) == os.geteuid()


def find_user(lines: Iterable[str], local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user of the socket with these two ends, among the lines of such a file."""
    wanted = _plain(local), _plain(remote)
    for line in lines:
        columns = line.split()
        if len(columns) > _USER and (_parse(columns[_ADDRESS]), _parse(columns[_REMOTE])) == wanted:
            return int(columns[_USER])
    return None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(end: tuple[str, int]) -> tuple[str, int]:
    address = ipaddress.ip_address(end[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), end[1]


def _parse(text: str) -> tuple[str, int]:
    """`0100007F:6978`: words of four bytes in the byte order of the machine."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    order = "<" if sys.byteorder == "little" else ">"
    packed = struct.pack(f"{order}{len(words)}I", *words)
    return _plain((str(ipaddress.ip_address(packed)), int(port, 16)))
