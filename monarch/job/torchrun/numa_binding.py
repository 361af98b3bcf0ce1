"""The processors of each rank, by --numa-binding: those near its device. `binds` is pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from monarch._devices import vendors
from monarch._linux import processors
from monarch._linux.processors import Topology

MODES = ("node", "socket", "exclusive", "core-complex")


class HostLayout(NamedTuple):
    """The processors of a host that ranks may use, and the NUMA node of each device that they see, in their order; `problem`:
    why that cannot be told, or ""."""

    topology: Topology
    devices: list[int]
    problem: str = ""


def look(environ: Mapping[str, str], allowed: Collection[int], root: Path = Path("/")) -> HostLayout:
    """Returns the layout of this host, for ranks with that environment."""
    sys = root / "sys"
    topology = processors.topology(allowed, sys)
    try:
        addresses = vendors.addresses(environ, root)
    except ValueError as error:
        return HostLayout(topology, [], str(error))
    # Machines with one node often say -1.
    return HostLayout(topology, [max(0, processors.node_of_pci(address, sys)) for address in addresses])


def look_here(env: Mapping[str, str]) -> HostLayout:
    return look({**os.environ, **env}, os.sched_getaffinity(0))


def binds(mode: str, count: int, host: str, layout: HostLayout) -> list[dict[str, str]]:
    """Returns where each of `count` ranks of a host is bound, as `proc_bind` takes it. Rank n is where device n is; ranks of
    a host without devices are spread over its NUMA nodes. ValueError, naming `host`, where that cannot be."""
    option = f"--numa-binding {mode}"
    if layout.problem:
        raise ValueError(f"{option}: {host} does not tell where its devices are ({layout.problem}): leave it out")
    topology = layout.topology
    known = sorted(topology.nodes)
    devices = layout.devices or [known[rank * len(known) // count] for rank in range(count)]
    if count > len(devices):
        raise ValueError(
            f"{option} binds each rank near the device of its number, and {host} shows {len(devices)} device(s) for {count} "
            f"ranks: give --nproc-per-node {len(devices)} or fewer, or leave {option} out"
        )
    found = []
    for rank, node in enumerate(devices[:count]):
        if node not in topology.nodes:
            raise ValueError(
                f"{option}: device {rank} of {host} is at NUMA node {node}, of whose processors ranks may use none (they may "
                f"use some of nodes {', '.join(map(str, known))}): give the job processors there, or leave {option} out"
            )
        peers = [other for other, at in enumerate(devices) if at == node]
        own = _chosen(mode, topology, node, peers.index(rank), len(peers), f"{option}: {host}")
        found.append({"cpus": ",".join(map(str, sorted(own)))})
    return found


def _chosen(mode: str, topology: Topology, node: int, index: int, peers: int, who: str) -> Sequence[int]:
    """The processors for the device that is number `index` of `peers` on that node."""
    own = topology.nodes[node]
    if mode == "node":
        return own
    if mode == "socket":
        socket = topology.sockets[own[0]]
        return [one for node in topology.nodes.values() if topology.sockets[node[0]] == socket for one in node]
    if mode == "exclusive":
        cores = sorted({topology.cores[one] for one in own})
        if len(cores) < peers:
            raise ValueError(
                f"{who} has {len(cores)} core(s) on NUMA node {node} that ranks may use, and {peers} would each have one of "
                f"their own: give fewer ranks, or --numa-binding node"
            )
        each, more = divmod(len(cores), peers)  # the first ones get one more
        start = index * each + min(index, more)
        mine = cores[start : start + each + (index < more)]
        return [one for one in own if topology.cores[one] in mine]
    if not all(one in topology.caches for one in own):
        raise ValueError(
            f"{who} does not tell which processors share a cache (/sys/devices/system/cpu/cpu{own[0]}/cache): give "
            f"--numa-binding node or exclusive"
        )
    sizes = Counter(topology.caches[one] for one in own)
    largest_first = sorted(sizes, key=lambda cache: (-sizes[cache], cache))
    cache = largest_first[index % len(largest_first)]
    return [one for one in own if topology.caches[one] == cache]
