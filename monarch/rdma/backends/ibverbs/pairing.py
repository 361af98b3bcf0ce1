"""Which device here moves bytes with which device there, and how many of them. No I/O.

Both ends offer all their devices and say which are near the memory. Two that are near are paired where that is possible.
Where it is not, a device that is farther off takes part: on a fabric of separate rails a GPU on rail 0 reaches one on rail 3
because the bytes cross to rail 3 within this host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from monarch.rdma.backends.ibverbs.gids import ChoiceError, Gid, agree, same_partition

PAGE = 4096
PAIRS = 16  # of devices that a transfer is spread over, at most

_AFFINITIES = "any, match_name or groups:a,b|c,d"


class Port(NamedTuple):
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
    """What `rdma_peer_device_affinity` allows: whether a device here may pair with one there, by their names. ChoiceError.

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


def pairings(here: Sequence[Port], there: Sequence[Port], allowed: Allowed) -> list[Pairing]:
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


def _meet(one: Port, other: Port) -> tuple[Gid, Gid] | None:
    """How two ports reach each other; None when they cannot."""
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


def why_none(here: Sequence[Port], there: Sequence[Port], allowed: Allowed) -> str:
    """Of two ends that have no pairing: what stands in the way, and which setting may help."""
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


def _names(ports: Sequence[Port]) -> str:
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
