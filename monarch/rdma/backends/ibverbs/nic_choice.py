"""The choice of RDMA devices that serve a piece of memory. No I/O: what the machine has comes from `sysfs`.

Nearer is better: the same PCI switch before the same root complex before the same NUMA node before the rest of the machine.
Memory of GPUs takes the nearest devices; memory of the host takes those that are equally near to its NUMA node, beginning at
one that its address chooses, so that many buffers spread over all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from monarch.rdma.backends.ibverbs.pairing import ChoiceError, Gid

SAME, SWITCH, ROOT, NODE, MACHINE = range(5)  # how far a device is, from near to far


class Nic(NamedTuple):
    """An RDMA device whose port is up. `pci`: its place, from the root complex on; `node`: its NUMA node, -1 when unknown;
    `rate`: what its port carries, in Mb/s, 0 when unknown; `pkeys`: its partition table, 0 where an entry is not in use."""

    name: str
    pci: tuple[str, ...]
    node: int
    ethernet: bool
    gids: tuple[Gid, ...]
    rate: int = 0
    pkeys: tuple[int, ...] = ()


class Locality(NamedTuple):
    """The place of memory: a NUMA node (-1: anywhere), or a PCI device. `name`: only the device with this name will do."""

    node: int = -1
    pci: tuple[str, ...] = ()
    name: str = ""


Distances = dict[int, tuple[int, ...]]  # of NUMA nodes: that of node n to node i is [n][i]


def place_of_target(target: str, gpu: Callable[[int], Locality]) -> Locality | None:
    """Returns what `rdma_ibverbs_target` means: `cpu:<numa>`, `gpu:<ordinal>`, `nic:<name>`; None for "". ChoiceError."""
    if not target:
        return None
    kind, _, what = target.partition(":")
    if kind == "nic" and what:
        return Locality(name=what)
    if kind in ("cpu", "gpu") and what.isascii() and what.isdigit():
        return Locality(node=int(what)) if kind == "cpu" else gpu(int(what))
    raise ChoiceError(
        f"MONARCH_RDMA_IBVERBS_TARGET (rdma_ibverbs_target) is {target!r}: expected cpu:<numa node>, gpu:<ordinal>, "
        "nic:<name>, or nothing for the nearest device"
    )


def nearest(
    nics: Sequence[Nic], place: Locality, distances: Distances, spread: int, most: int | None, unusable: str = ""
) -> list[Nic]:
    """The devices that are equally near and none of which is farther than another; at most `most`, from `spread` on in turn.

    Empty only when `nics` is. ChoiceError when the place is a device that is not there; `unusable` says why others are none.
    """
    if place.name:
        named = [nic for nic in nics if nic.name == place.name]
        if not named:
            known = ", ".join(nic.name for nic in nics) or "none"
            raise ChoiceError(
                f"MONARCH_RDMA_IBVERBS_TARGET (rdma_ibverbs_target) names {place.name!r}, but no such usable device is "
                f"here (usable: {known}{f'; {unusable}' if unusable else ''})"
            )
        return named
    ranked = sorted((_rank(nic, place, distances), nic.name, nic) for nic in nics)
    near = [nic for rank, _, nic in ranked if rank == ranked[0][0]]
    first = spread % len(near) if near else 0
    turned = near[first:] + near[:first]
    return turned[:most]


def _rank(nic: Nic, place: Locality, distances: Distances) -> tuple[int, int]:
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


def node_of(cpus: Iterable[int], nodes: dict[int, frozenset[int]]) -> int:
    """The NUMA node that has all of these processors; -1 when there is none."""
    wanted = frozenset(cpus)
    return next((node for node, has in sorted(nodes.items()) if wanted and wanted <= has), -1)
