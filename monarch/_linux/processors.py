"""The processors of this machine and what they share, as /sys tells: NUMA nodes, sockets, cores, caches.

The files are described in the kernel's Documentation/ABI (sysfs-devices-node, sysfs-devices-system-cpu).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys")


class Topology(NamedTuple):
    """The processors that a process may use. `nodes`: those of each NUMA node that has any. Of each processor: `sockets` has
    the number of its socket, `cores` and `caches` the lowest processor of its core and of those that share its last cache.
    A processor of which /sys does not tell is a core of its own on socket 0, and has no entry in `caches`."""

    nodes: dict[int, list[int]]
    sockets: dict[int, int]
    cores: dict[int, int]
    caches: dict[int, int]


def topology(allowed: Collection[int], root: Path = ROOT) -> Topology:
    """Returns how the processors in `allowed` lie together; on one NUMA node where the kernel knows of none."""
    nodes = {node: sorted(own.intersection(allowed)) for node, own in of_nodes(root).items()}
    nodes = {node: own for node, own in nodes.items() if own} or {0: sorted(allowed)}
    sockets, cores, caches = {}, {}, {}
    for one in allowed:
        folder = root / f"devices/system/cpu/cpu{one}"
        sockets[one] = max(0, number(folder / "topology/physical_package_id"))
        cores[one] = min(_numbers(folder / "topology/thread_siblings_list"), default=one)
        shared = _last_cache(folder / "cache")
        if shared:
            caches[one] = min(shared)
    return Topology(nodes, sockets, cores, caches)


def of_nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Returns which processors each NUMA node has."""
    return {node: _numbers(folder / "cpulist") for node, folder in node_folders(root)}


def node_folders(root: Path = ROOT) -> list[tuple[int, Path]]:
    folders = (root / "devices/system/node").glob("node*")
    return sorted((int(folder.name[4:]), folder) for folder in folders if folder.name[4:].isdigit())


def node_of_pci(address: str, root: Path = ROOT) -> int:
    """Returns the NUMA node of the PCI device with that address, such as 0000:17:00.0; -1 where nobody knows."""
    return number(root / "bus/pci/devices" / address.lower() / "numa_node")


def parse_list(text: str) -> set[int]:
    """`0,2-4` -> {0, 2, 3, 4}. ValueError on anything else."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start, end = int(first), int(last if dash else first)
        if start > end:
            raise ValueError(f"invalid range {part!r}: it ends before it begins")
        numbers.update(range(start, end + 1))
    return numbers


def number(path: Path) -> int:
    """The number in a file; -1 where there is none."""
    text = _text(path)
    return int(text) if text.isdigit() else -1


def _last_cache(folder: Path) -> frozenset[int]:
    """The processors that share the last cache of one; none where it is not told."""
    last, shared = -1, frozenset[int]()
    for entry in folder.glob("index[0-9]*"):
        level = number(entry / "level")
        if level > last and _text(entry / "type") in ("Unified", "Data"):
            last, shared = level, _numbers(entry / "shared_cpu_list")
    return shared


def _numbers(path: Path) -> frozenset[int]:
    try:
        return frozenset(parse_list(_text(path)))
    except ValueError:  # no such file, or a node that has memory only
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
