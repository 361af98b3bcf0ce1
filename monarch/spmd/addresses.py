"""By which of its addresses a host is dialled."""

from __future__ import annotations

import ipaddress
import socket

ANY = 0


def ip_address(host: str, port: int | None = None, family: int = ANY) -> str:
    """An address of `host` as text, without brackets. Of any family, IPv6 is preferred; those that are good on one link only
    (fe80::...) are left out. OSError, with the host's name, when there is none."""
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except OSError as exc:
        raise type(exc)(exc.errno, f"{exc.strerror}: {host}") from None
    known = [(kind, str(name[0])) for kind, _, _, _, name in found]
    good = [(kind, address) for kind, address in known if not is_link_local(address)]
    if not good:
        raise OSError(f"{host} has no address that other hosts can dial (it has: {', '.join(a for _, a in known)})")
    return next((address for kind, address in good if kind == socket.AF_INET6), good[0][1])


def is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
