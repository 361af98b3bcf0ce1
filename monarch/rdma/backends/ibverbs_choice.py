"""Which RDMA devices serve a piece of memory, which of the other side's each pairs with, and what each carries. No I/O: what
the machine has comes from `ibverbs_sysfs`.

Nearer is better: the same PCI switch before the same root complex before the same NUMA node before the rest of the machine.
Memory of GPUs takes the nearest devices; memory of the host takes those that are equally near to its NUMA node, beginning at
one that its address chooses, so that many buffers spread over all.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

PAGE = 4096
PAIRS = 16  # of devices that a transfer is spread over, at most

ROCE2 = "RoCE v2"
SAME, SWITCH, ROOT, NODE, MACHINE = range(5)  # how far a device is, from near to far
_AFFINITIES = "any, match_name or groups:a,b|c,d"


class ChoiceError(Exception):
    """A setting that means nothing, or means no device of this machine; the text names it."""


class Gid(NamedTuple):
    """An address of a port: its slot in the port's table, its 16 bytes, and "IB/RoCE v1", "RoCE v2" or ""."""

    slot: int
    raw: bytes
    kind: str


class Nic(NamedTuple):
    """An RDMA device whose port is up. `pci`: its place, from the root complex on; `node`: its NUMA node, -1 when unknown."""

    name: str
    pci: tuple[str, ...]
    node: int
    ethernet: bool
    gids: tuple[Gid, ...]


class Place(NamedTuple):
    """Where memory is: a NUMA node (-1: anywhere), or a PCI device. `name`: only the device with this name will do."""

    node: int = -1
    pci: tuple[str, ...] = ()
    name: str = ""


Distances = dict[int, tuple[int, ...]]  # of NUMA nodes: that of node n to node i is [n][i]


def place_of_target(target: str, gpu: Callable[[int], Place]) -> Place | None:
    """What `rdma_ibverbs_target` means: `cpu:<numa>`, `gpu:<ordinal>`, `nic:<name>`; None for "". ChoiceError."""
    if not target:
        return None
    kind, _, what = target.partition(":")
    if kind == "nic" and what:
        return Place(name=what)
    if kind in ("cpu", "gpu") and what.isascii() and what.isdigit():
        return Place(node=int(what)) if kind == "cpu" else gpu(int(what))
    raise ChoiceError(
        f"MONARCH_RDMA_IBVERBS_TARGET (rdma_ibverbs_target) is {target!r}: expected cpu:<numa node>, gpu:<ordinal>, "
        "nic:<name>, or nothing for the nearest device"
    )


def nearest(nics: Sequence[Nic], place: Place, distances: Distances, spread: int, most: int | None) -> list[Nic]:
    """The devices that are equally near and none of which is farther than another; at most `most`, from `spread` on in turn.

    Empty only when `nics` is. ChoiceError when the place is a device that is not there.
    """
    if place.name:
        named = [nic for nic in nics if nic.name == place.name]
        if not named:
            known = ", ".join(nic.name for nic in nics) or "none"
            raise ChoiceError(
                f"MONARCH_RDMA_IBVERBS_TARGET (rdma_ibverbs_target) names {place.name!r}, but no such usable device is "
                f"here (usable: {known})"
            )
        return named
    ranked = sorted((_rank(nic, place, distances), nic.name, nic) for nic in nics)
    near = [nic for rank, _, nic in ranked if rank == ranked[0][0]]
    first = spread % len(near) if near else 0
    turned = near[first:] + near[:first]
    return turned[:most]


def _rank(nic: Nic, place: Place, distances: Distances) -> tuple[int, int]:
    if place.pci:
        shared = _shared(nic.pci, place.pci)
        if nic.pci == place.pci:
            return SAME, 0
        if shared > 1:
            return SWITCH, len(nic.pci) - shared
        if shared == 1:
            return ROOT, 0
    if place.node < 0 or nic.node < 0:
        return MACHINE, 255
    if nic.node == place.node:
        return NODE, 0
    row = distances.get(place.node, ())
    return MACHINE, row[nic.node] if nic.node < len(row) else 255


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def choose_gid(nic: Nic) -> Gid:
    """The address under which the other side reaches the device: routable RoCE v2 before local before RoCE v1.

    InfiniBand ports have one that always works, at 0. ChoiceError when there is none.
    """
    if not nic.gids:
        raise ChoiceError(f"the port of {nic.name} has no GID (no address, or none this network namespace may see)")
    if not nic.ethernet:
        return min(nic.gids)
    return min(nic.gids, key=lambda gid: (gid.kind != ROCE2, _scope(gid.raw), gid.slot))


def _scope(raw: bytes) -> int:
    """0: routable IPv4, as fabrics are usually configured; 1: routable IPv6; 2: of the link alone."""
    address = ipaddress.IPv6Address(raw)
    mapped = address.ipv4_mapped
    if mapped is not None:
        return 2 if mapped.is_link_local or mapped.is_loopback else 0
    return 2 if address.is_link_local or address.is_loopback else 1


# --- pairs


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


def stripes(size: int, ways: int, least: int) -> list[tuple[int, int]]:
    """`size` bytes as (offset, size), at most one for each of `ways` devices, none but the last shorter than `least`."""
    count = max(1, min(ways, size // max(1, least)))
    share = max(1, -(-size // count))
    if count > 1:
        share = -(-share // PAGE) * PAGE
    return [(at, min(share, size - at)) for at in range(0, size, share)] or [(0, 0)]


def node_of(cpus: Iterable[int], nodes: dict[int, frozenset[int]]) -> int:
    """The NUMA node that has all of these processors; -1 when there is none."""
    wanted = frozenset(cpus)
    return next((node for node, has in sorted(nodes.items()) if wanted and wanted <= has), -1)
