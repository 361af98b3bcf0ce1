"""At which address a host is dialled."""

from __future__ import annotations

import enum
import socket

from monarch._text import bracketed
from monarch.spmd.addresses import ip_address

__all__ = ["AddrType", "get_ipaddr", "get_sockaddr"]


class AddrType(enum.Enum):
    """The kind of address that is wanted: Default takes IPv6 where the host has it."""

    Default = socket.AF_UNSPEC
    IPv4 = socket.AF_INET
    IPv6 = socket.AF_INET6


def get_ipaddr(hostname: str, port: int | None = None, addr_type: AddrType = AddrType.Default) -> str:
    """Returns an address of the host as text, without brackets. Link-local ones are skipped; by default an IPv4 address is
    asked for where there is no IPv6 address. RuntimeError when there is none."""
    families = (socket.AF_INET6, socket.AF_INET) if addr_type is AddrType.Default else (addr_type.value,)
    reasons = []
    for family in families:
        try:
            return ip_address(hostname, port, family)
        except OSError as error:
            reasons.append(str(error))
    raise RuntimeError(f"no address of {hostname} was found: {'; '.join(reasons)}")


def get_sockaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """Returns `address:port`, an IPv6 address in brackets. RuntimeError when the host has none of this kind."""
    address = get_ipaddr(hostname, port, addr_type)
    return f"{bracketed(address)}:{port}"
