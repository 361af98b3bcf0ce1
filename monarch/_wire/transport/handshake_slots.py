"""Slots for connections in their handshake, and the choice of the one that has to go when they are too many. Pure.

Any process that reaches a port can fill its slots, and must not keep those out who belong there:

- Those that have said nothing go first: a peer of ours says its first message together with its last packet of connecting.
- Then it is the turn of the source (an IPv4 address, an IPv6 network) that has the most: its crowd keeps itself out.
- Among these one is chosen at random: always the oldest would be, of a steady crowd, everybody who lives far away. Where all
  are near, and say what they want as soon as they come, it is the oldest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_IPV6_NETWORK = 64  # bits: as many addresses as it likes belong to one machine


class HandshakeSlots(Generic[T]):
    """Slots for at most `limit` items. `choose`: one of a crowd, which is in the order of coming."""

    def __init__(self, limit: int, choose: Callable[[Sequence[T]], T]) -> None:
        self.limit = limit
        self._choose = choose
        self._source: dict[T, str] = {}
        self._silent: dict[str, list[T]] = {}  # by source
        self._spoken: dict[str, list[T]] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._source))

    def __repr__(self) -> str:
        return f"<HandshakeSlots {len(self)} of {self.limit}, from {len(self._silent.keys() | self._spoken.keys())} sources>"

    @property
    def full(self) -> bool:
        return len(self._source) >= self.limit

    def add(self, item: T, source: str) -> None:
        self._source[item] = source
        self._silent.setdefault(source, []).append(item)

    def enter(self, item: T, source: str) -> T | None:
        """Adds it. Returns the one that has to go for it and is removed already; None where there was a free slot."""
        self.add(item, source)
        if len(self._source) <= self.limit:
            return None
        goes = self.victim()
        if goes is not None:
            self.remove(goes)
        return goes

    def spoke(self, item: T) -> None:
        """It has sent a valid first message."""
        source = self._source.get(item)
        if source is not None and _take(self._silent, source, item):
            self._spoken.setdefault(source, []).append(item)

    def remove(self, item: T) -> bool:
        """Returns False when it was not there: it had to go before."""
        source = self._source.pop(item, None)
        if source is None:
            return False
        return _take(self._silent, source, item) or _take(self._spoken, source, item)

    def victim(self) -> T | None:
        """Returns the one that has to go; None when nobody is there. It stays until it is removed."""
        crowds = self._silent or self._spoken
        if not crowds:
            return None
        return self._choose(max(crowds.values(), key=len))


def _take(crowds: dict[str, list[T]], source: str, item: T) -> bool:
    crowd = crowds.get(source)
    if crowd is None or item not in crowd:
        return False
    crowd.remove(item)
    if not crowd:
        del crowds[source]
    return True


def source_of(host: str) -> str:
    """The address of a peer as a source; processes of this machine (no address) are one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, _IPV6_NETWORK), strict=False))
    return str(address)
