"""The choice of the processes that keep copies of a value. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.actor import ProcMesh
from monarch.actor.lowlevel import host_of


def places_for_copies(had: Sequence[str], copies: int, on: ProcMesh | None, own: str) -> list[str]:
    """Returns the processes that are to have a copy, beside those at `had`. ValueError when there are not so many, TypeError
    where `on` is no mesh of processes."""
    if on is not None and not isinstance(on, ProcMesh):
        raise TypeError(f"pin(on=...) takes a mesh of processes, such as spawn_procs() gives, got {on!r}")
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
        raise ValueError(f"copies is how many processes have the value, 1 or more, got {copies!r}")
    offered = [own] if on is None else list(dict.fromkeys(on._addresses()))
    free = [address for address in offered if address not in had]
    hosts = {host_of(address) for address in had}
    free.sort(key=lambda address: host_of(address) in hosts)
    missing = max(0, copies - len(had))
    if missing > len(free):
        where = "this process" if on is None else f"the {len(offered)} of the mesh"
        raise ValueError(
            f"pin(copies={copies}) needs {missing} processes that do not have the value yet, and {where} offers "
            f"{len(free)}: say on=procs, a mesh of enough processes"
        )
    return free[:missing]
