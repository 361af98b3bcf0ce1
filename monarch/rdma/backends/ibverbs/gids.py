"""Which addresses (GIDs) two ports use to reach each other. No I/O: what a port has comes from `sysfs`.

A port has several: one for each address of its network interfaces, VLANs included, and on Ethernet each of them once for
every kind of RoCE. Two ends reach each other only by the same kind and the same family of addresses, and of several VLANs
only by the one they share. So whoever connects looks at both tables and chooses for both ends.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

TOLD = 32  # entries of a port that another process is told of, the likeliest first

ROCE2 = "RoCE v2"
_ROUTABLE_4, _ROUTABLE_6, _LINK = range(3)
_SUBNET = 8  # bytes of an InfiniBand GID that name its subnet


class ChoiceError(Exception):
    """A setting that means nothing, or means no device of this machine; the text names it."""


class Gid(NamedTuple):
    """An address of a port: its slot in the port's table, its 16 bytes, and "IB/RoCE v1", "RoCE v2" or ""."""

    slot: int
    raw: bytes
    kind: str

    def __str__(self) -> str:
        address = ipaddress.IPv6Address(self.raw)
        return f"{self.slot}: {address.ipv4_mapped or address} {self.kind}".strip()


def offered(name: str, gids: Sequence[Gid], ethernet: bool, index: int | None) -> tuple[Gid, ...]:
    """What a port offers to others, the best first: routable RoCE v2 before local before RoCE v1; of InfiniBand by slot.

    `index` is `rdma_ib_gid_index`: only that entry. ChoiceError when there is none.
    """
    if index is not None:
        chosen = tuple(gid for gid in gids if gid.slot == index)
        if not chosen:
            has = "; ".join(map(str, sorted(gids)[:TOLD])) or "none"
            raise ChoiceError(
                f"MONARCH_RDMA_IB_GID_INDEX (rdma_ib_gid_index) is {index}, but the port of {name} has no such address "
                f"(it has {has}); `show_gids` or /sys/class/infiniband/{name}/ports/1/gids list them"
            )
        return chosen
    if not gids:
        raise ChoiceError(f"the port of {name} has no GID (no address, or none this network namespace may see)")
    best = sorted(gids, key=lambda gid: (gid.kind != ROCE2, _scope(gid.raw), gid.slot)) if ethernet else sorted(gids)
    return tuple(best[:TOLD])


def agree(here: Sequence[Gid], there: Sequence[Gid], ethernet: bool) -> tuple[Gid, Gid] | None:
    """The addresses by which two ports reach each other, of what each offers; None when there are none.

    On Ethernet: the same kind of RoCE and the same scope; among those, the two that have most leading bits in common, for
    they are in the same subnet if any are. On InfiniBand: the same subnet, if both have one. Else the lowest slots.
    """
    best: tuple[tuple[int, ...], Gid, Gid] | None = None
    for one in here:
        for other in there:
            rank = _rank(one, other) if ethernet else (int(one.raw[:_SUBNET] != other.raw[:_SUBNET]),)
            if rank is None:
                continue
            full = (*rank, one.slot, other.slot)
            if best is None or full < best[0]:
                best = full, one, other
    return None if best is None else best[1:]


def _rank(one: Gid, other: Gid) -> tuple[int, ...] | None:
    """Less is better; None when the two cannot speak to each other."""
    scope = _scope(one.raw)
    if one.kind != other.kind or scope != _scope(other.raw) or _is_4(one.raw) != _is_4(other.raw):
        return None
    return int(one.kind != ROCE2), scope, 128 - _common_bits(one.raw, other.raw)


def _common_bits(one: bytes, other: bytes) -> int:
    return 128 - (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_length()


def _is_4(raw: bytes) -> bool:
    return ipaddress.IPv6Address(raw).ipv4_mapped is not None


def _scope(raw: bytes) -> int:
    """Routable IPv4, as fabrics are usually configured, before routable IPv6 before what is of the link alone."""
    address = ipaddress.IPv6Address(raw)
    mapped = address.ipv4_mapped
    if mapped is not None:
        return _LINK if mapped.is_link_local or mapped.is_loopback else _ROUTABLE_4
    return _LINK if address.is_link_local or address.is_loopback else _ROUTABLE_6


def same_partition(here: int, there: int) -> bool:
    """Whether two partition keys let their ports speak: the same partition, at least one of them a full member.

    InfiniBand Architecture Specification, volume 1, 10.9.3: the upper bit says full member.
    """
    return here & 0x7FFF == there & 0x7FFF and bool((here | there) & 0x8000)
