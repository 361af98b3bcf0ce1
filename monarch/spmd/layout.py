"""The ranks of processes, as torchrun's environment variables say it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# torchrun's defaults. By the first torch, and what is built on it, finds out that ranks are started so.
ELASTIC = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store at which the ranks meet
}


class RankLocation(NamedTuple):
    """The location of a rank: its host, by the prefix of its address, and which of its mesh's processes there it is."""

    host: str
    number: int


class VisibleDevices(NamedTuple):
    """The devices that a rank sees: how many, and what variables make of them ("" for all)."""

    present: int
    visible: str


def environments(local: Sequence[tuple[int, int, int, int]]) -> list[dict[str, str]]:
    """Returns each rank's variables, but for MASTER_ADDR and MASTER_PORT. `local`: of each rank (local rank, local size,
    group rank, groups)."""
    size = str(len(local))
    return [
        {
            "RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(mine), "LOCAL_WORLD_SIZE": str(here),
            "GROUP_RANK": str(group), "GROUP_WORLD_SIZE": str(groups),
            "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": size, "ROLE_NAME": "rank",
        }
        for rank, (mine, here, group, groups) in enumerate(local)
    ]  # fmt: skip


def by_host(places: Sequence[RankLocation]) -> list[tuple[int, int, int, int]]:
    """Ranks of one host are a group, in their order; groups in the order in which they first come."""
    sizes = Counter(place.host for place in places)
    order = {host: number for number, host in enumerate(sizes)}
    seen: Counter[str] = Counter()
    found = []
    for host, _ in places:
        found.append((seen[host], sizes[host], order[host], len(order)))
        seen[host] += 1
    return found


def by_last_dimension(sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Ranks that differ in the last coordinate only are a group, as the field's `setup_torch_elastic_env` has it."""
    count = 1
    for size in sizes:
        count *= size
    here = sizes[-1] if sizes else 1
    return [(rank % here, here, rank // here, -(-count // here)) for rank in range(count)]


def backend_for(places: Sequence[RankLocation], devices: Sequence[VisibleDevices]) -> str:
    """nccl when every rank has a device that no other rank of the group has, else gloo."""
    taken = set()
    for place, (present, visible) in zip(places, devices, strict=True):
        if not present:
            return "gloo"
        taken.add((place.host, visible, place.number % present))
    return "nccl" if len(taken) == len(places) else "gloo"
