"""The address of a process, from which any holder can reach it with no name server.

An address is a string, cheap to compare and to send:

    unix:<folder>/<name>      a Unix socket in a host's runtime folder
    inproc:<network>/<name>   a process simulated inside this one (monarch.testing)
    inproc:<network>.h<i>/<name>   the same on a further host

The folder (or network) is the host; `agent`, `client` and `<mesh uid>.<rank>` are the names in it. Because names follow
from a mesh's uid, a mesh of any size is one uid and its hosts, and references can be sent before its processes live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

AGENT = "agent"
CLIENT = "client"
UNNAMED = "anon"  # a mesh of processes that the program gave no name


def host_of(address: str) -> str:
    """The host part of a process's address (also of the agent's own); of no other meaning than being equal on one host.

    Since 0.2.0.
    """
    return address.rpartition("/")[0]


def name_of(address: str) -> str:
    return address.rpartition("/")[2]


def agent_at(host: str) -> str:
    """The address of the agent of `host`."""
    return f"{host}/{AGENT}"


def agent_of(address: str) -> str:
    """The address of the host agent that answers for the process at `address`."""
    return f"{host_of(address)}/{AGENT}"


def proc_address(host: str, mesh: str, rank: int) -> str:
    """The address of process `rank` of proc mesh `mesh` on `host` (a folder or network, with its scheme)."""
    return f"{host}/{mesh}.{rank}"


def split_proc_name(name: str) -> tuple[str, int] | None:
    """(mesh uid, rank) of a process's name; None for names that belong to no mesh (`client`, `agent`)."""
    mesh, dot, rank = name.rpartition(".")
    return (mesh, int(rank)) if dot and rank.isdigit() else None


def by_ranges(numbers: Mapping[str, int]) -> dict[str, list[tuple[int, int, int]]]:
    """Packs a number for each of many processes of meshes: by what their addresses have in common, (first rank, last rank,
    number) of neighbours with the same."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    split = ((*address.rpartition("."), number) for address, number in numbers.items())
    for mesh, rank, number in sorted((mesh, int(rank), number) for mesh, _, rank, number in split):
        ranges = found.setdefault(mesh, [])
        if ranges and ranges[-1][1:] == (rank - 1, number):
            ranges[-1] = (ranges[-1][0], rank, number)
        else:
            ranges.append((rank, rank, number))
    return found


def of_ranges(ranges: Mapping[str, Iterable[tuple[int, int, int]]]) -> dict[str, int]:
    """Returns what `by_ranges` has packed."""
    return {
        f"{mesh}.{rank}": number
        for mesh, runs in ranges.items()
        for first, last, number in runs
        for rank in range(first, last + 1)
    }


def is_dialable(host: str) -> bool:
    """Returns whether others can connect to the host of that prefix; a client's own machine usually has no address."""
    return "." in host if host.startswith("inproc:") else not host.startswith("unix:")
