"""Connections that have not shown yet that they may come in: a few at a time, each for a while. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 16  # that wait at a time


class WaitingRoom(Generic[T]):
    """A room in which nobody is kept out by those who wait. Where it is full one of them has to go: the oldest of the place
    that has sent the most, so that who fills it pushes out himself."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: dict[T, str] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, visitor: T, address: str) -> T | None:
        """Adds one that comes from that IP address. Returns who has to go for it."""
        self._waiting[visitor] = _place(address)
        if len(self._waiting) <= self._most:
            return None
        counts = Counter(self._waiting.values())
        most = max(counts.values())
        goes = next(one for one, place in self._waiting.items() if counts[place] == most)
        del self._waiting[goes]
        return goes

    def leave(self, visitor: T) -> bool:
        """Takes out one that has come in, has gone, or was too slow. False when it had to go before."""
        return self._waiting.pop(visitor, None) is not None


def _place(address: str) -> str:
    """A machine. With IPv6 one has a network of addresses for itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
