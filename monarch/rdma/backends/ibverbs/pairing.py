"""Pairs of a device here and a device there that move bytes, and how many. No I/O.

Both ends offer all their devices and say which are near the memory. Two that are near are paired where that is possible.
Where it is not, a device that is farther off takes part: on a fabric of separate rails a GPU on rail 0 reaches one on rail 3
because the bytes cross to rail 3 within this host.

A port has several addresses (GIDs): one for each address of its network interfaces, VLANs included, and on Ethernet each of
them once for every kind of RoCE. Two ends reach each other only by the same kind and the same family of addresses, and of
several VLANs only by the one they share. So the side that connects looks at both tables and chooses for both ends.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import NamedTuple

TOLD = 32  # entries of a port that another process is told of, the likeliest first

ROCE2 = "RoCE v2"
_ROUTABLE_4, _ROUTABLE_6, _LINK = range(3)
_SUBNET = 8  # bytes of an InfiniBand GID that name its subnet

PAGE = 4096
PAIRS = 16  # of devices that a transfer is spread over, at most

_AFFINITIES = "any, match_name or groups:a,b|c,d"


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


class NicPort(NamedTuple):
    """A device as the other side needs it to choose. `near`: to the memory; `rate`: Mb/s, 0 when unknown; `pkey`: the
    partition key that it uses; `gids`: what it offers, one at least."""

    nic: str
    near: bool
    ethernet: bool
    rate: int
    pkey: int
    gids: tuple[Gid, ...]


class Pairing(NamedTuple):
    """A device here and one there, the addresses they use, and what they carry of a transfer, in proportion to others."""

    here: str
    there: str
    gid: Gid
    peer: Gid
    rate: int


Allowed = Callable[[str, str], bool]


def affinity(text: str) -> Allowed:
    """Returns what `rdma_peer_device_affinity` allows: whether a device here may pair with one there, by their names.
    ChoiceError.

    Of `groups:`, a device that is in none pairs with nobody.
    """
    if text in ("", "any"):
        return lambda here, there: True
    if text == "match_name":
        return lambda here, there: here == there
    if text.startswith("groups:"):
        return _groups(text)
    raise _no_affinity(text, "this is none of these")


def _groups(text: str) -> Allowed:
    group: dict[str, int] = {}
    for number, names in enumerate(text.removeprefix("groups:").split("|")):
        for name in (name.strip() for name in names.split(",")):
            if not name:
                raise _no_affinity(text, "a name is empty")
            if name in group:
                raise _no_affinity(text, f"{name} stands in it twice")
            group[name] = number
    return lambda here, there: here in group and group[here] == group.get(there)


def _no_affinity(text: str, why: str) -> ChoiceError:
    return ChoiceError(
        f"MONARCH_RDMA_PEER_DEVICE_AFFINITY (rdma_peer_device_affinity) is {text!r}: expected {_AFFINITIES}; {why}"
    )


def pairings(here: Sequence[NicPort], there: Sequence[NicPort], allowed: Allowed) -> list[Pairing]:
    """The nearest devices that can reach each other. Empty when none can: `why_none` says why.

    First both ends' near ones; then any here with the near ones there, whose owner has them ready; then the near ones
    here with any there; then any.
    """
    ways = {
        (one.nic, other.nic): met
        for one in here
        for other in there
        if allowed(one.nic, other.nic) and (met := _meet(one, other)) is not None
    }
    near = [[port.nic for port in ports if port.near] for ports in (here, there)]
    far = [[port.nic for port in ports if not port.near] for ports in (here, there)]
    for left, right in (near, (far[0], near[1]), (near[0], far[1]), far):
        found = pairs(sorted(left), sorted(right), lambda one, other: (one, other) in ways)
        if left is not near[0] or right is not near[1]:
            found = found[: min(len(left), len(right))]  # no near device is shared by many that are far
        if found:
            return _rated(found, ways, {p.nic: p.rate for p in here}, {p.nic: p.rate for p in there})
    return []


def _meet(one: NicPort, other: NicPort) -> tuple[Gid, Gid] | None:
    """Returns how two ports reach each other; None when they cannot."""
    if one.ethernet != other.ethernet or not same_partition(one.pkey, other.pkey):
        return None
    return agree(one.gids, other.gids, one.ethernet)


def _rated(
    found: list[tuple[str, str]],
    ways: dict[tuple[str, str], tuple[Gid, Gid]],
    here: dict[str, int],
    there: dict[str, int],
) -> list[Pairing]:
    """A device that is in several pairs shares its rate among them; a pair is as fast as its slower end."""
    known = [rate for rate in (*here.values(), *there.values()) if rate]
    usual = max(known, default=1)
    result = []
    for one, other in found:
        left = (here[one] or usual) // sum(pair[0] == one for pair in found)
        right = (there[other] or usual) // sum(pair[1] == other for pair in found)
        result.append(Pairing(one, other, *ways[one, other], max(1, min(left, right))))
    return result


def why_none(here: Sequence[NicPort], there: Sequence[NicPort], allowed: Allowed) -> str:
    """Returns what stands in the way of two ends that have no pairing, and which setting may help."""
    may = [(one, other) for one in here for other in there if allowed(one.nic, other.nic)]
    names = f"no device here ({_names(here)}) may pair with one there ({_names(there)})"
    if not may:
        return f"{names}: see rdma_peer_device_affinity"
    may = [(one, other) for one, other in may if one.ethernet == other.ethernet]
    if not may:
        return f"{names}: one side has Ethernet, the other InfiniBand"
    alike = [(one, other) for one, other in may if same_partition(one.pkey, other.pkey)]
    if not alike:
        one, other = may[0]
        return (
            f"{names}: they are in different partitions ({one.nic} here has key {one.pkey:#06x}, {other.nic} there "
            f"{other.pkey:#06x}, of which one has to be a full member): see rdma_ib_pkey_index"
        )
    one, other = alike[0]
    return (
        f"{names}: no addresses of the same kind and family ({one.nic} here has {'; '.join(map(str, one.gids))}, {other.nic} "
        f"there {'; '.join(map(str, other.gids))}): see rdma_ib_gid_index"
    )


def _names(ports: Sequence[NicPort]) -> str:
    return ", ".join(port.nic for port in ports)


def pairs(here: Sequence[str], there: Sequence[str], allowed: Allowed) -> list[tuple[str, str]]:
    """Each device of the longer side with one of the other, in turn; at most PAIRS. Empty when none may pair."""
    swap = len(there) > len(here)
    longer, shorter = (there, here) if swap else (here, there)
    result = []
    for number, one in enumerate(longer):
        may = [other for other in shorter if (allowed(other, one) if swap else allowed(one, other))]
        if may:
            other = may[number % len(may)]
            result.append((other, one) if swap else (one, other))
    return result[:PAIRS]


class Stripe(NamedTuple):
    """`size` bytes from `at` on, for the way with that number."""

    way: int
    at: int
    size: int


def stripes(size: int, rates: Sequence[int], least: int) -> list[Stripe]:
    """`size` bytes over ways of these rates, in proportion, so that all are done at the same time; whole pages but for the
    last. A way whose share would be shorter than `least` is left out, the slowest first and of equal ones the last; one
    is always left.
    """
    if len(rates) == 1:
        return [Stripe(0, 0, size)]
    ways, least = list(range(len(rates))), max(least, PAGE)
    total = sum(rates)
    while len(ways) > 1:
        slowest = min(ways, key=lambda way: (rates[way], -way))
        if size * rates[slowest] >= least * total:
            break
        ways.remove(slowest)
        total -= rates[slowest]
    result, at, sum_of_rates = [], 0, 0
    for way in ways:
        sum_of_rates += rates[way]
        end = size if way == ways[-1] else min(size, -(-size * sum_of_rates // (total * PAGE)) * PAGE)
        if end > at:
            result.append(Stripe(way, at, end - at))
            at = end
    return result or [Stripe(ways[0], 0, size)]


# --- addresses


def offered(name: str, gids: Sequence[Gid], ethernet: bool, index: int | None) -> tuple[Gid, ...]:
    """Returns what a port offers to others, the best first: routable RoCE v2 before local before RoCE v1; of InfiniBand
    by slot.

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
    """True if two partition keys let their ports speak: the same partition, at least one of them a full member.

    InfiniBand Architecture Specification, volume 1, 10.9.3: the upper bit says full member.
    """
    return here & 0x7FFF == there & 0x7FFF and bool((here | there) & 0x8000)
