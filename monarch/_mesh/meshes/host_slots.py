"""The places of a mesh of hosts: who is at each, which are lost, and who may take their place. Pure.

A place keeps its name, by which every handle knows the host, and its rank. Who is there may change: by a worker that the
program names, by a spare, or by one that listens at the same address again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class NoReplacement(RuntimeError):
    """A host cannot be replaced, and why; the text is for the user."""


class HostSlots:
    """Not thread-safe: the caller holds a lock. `names` are the hosts' addresses as they were attached first."""

    def __init__(self, names: Sequence[str], spares: Iterable[str] = ()) -> None:
        self.names = list(names)
        self.at = list(names)  # where each is dialled
        self.agents: dict[str, str] = {}  # name of a host or spare -> the unique id of its agent, once it has answered
        self.lost: dict[int, str] = {}  # rank -> why
        self.answered: set[int] = set()  # lost ranks whose replacement has answered: it is told of other moves
        self.losses = [0] * len(self.names)  # how often its end was told
        self.spares = list(spares)  # those that are left, in the order in which they are used
        self.ready_spares: set[str] = set()  # those that have answered
        self.lost_spares: dict[str, str] = {}

    def host_lost(self, host: str, why: str) -> int | None:
        """The host of that name has ended. Its rank, if it lived as far as was known."""
        if host in self.spares:
            self.spares.remove(host)
            self.lost_spares[host] = why
        if host not in self.names:
            return None
        rank = self.names.index(host)
        self.losses[rank] += 1
        if rank in self.lost:
            return None
        self.lost[rank] = why
        return rank

    def living(self) -> list[str]:
        """The names of those that are not lost, and of the replacements and spares that have answered."""
        names = [name for rank, name in enumerate(self.names) if rank not in self.lost or rank in self.answered]
        return names + [spare for spare in self.spares if spare in self.ready_spares]

    def choose(self, ranks: Sequence[int] | None) -> list[int]:
        """Returns those of `ranks` (None: of all) that are to be replaced. NoReplacement for one that lives."""
        if ranks is None:
            return sorted(self.lost)
        for rank in ranks:
            if rank not in self.lost:
                raise NoReplacement(
                    f"{self.shown(rank)} is not dead, and only hosts that have died are replaced: end its worker first, or "
                    f"call replace(failed=True)"
                )
        return list(ranks)

    def candidates(self, rank: int) -> list[str]:
        """Returns who may take that place when nobody is named: the spares, then a worker at the same address."""
        return [*self.spares, *([] if self.at[rank] in self.spares else [self.at[rank]])]

    def check(self, rank: int, worker: str) -> str:
        """Returns why that worker cannot take the place of `rank`, or ""."""
        for other, there in enumerate(self.at):
            if there == worker and other != rank and other not in self.lost:
                return f"{worker} is host {other} of this mesh already"
        return ""

    def taken(self, rank: int, worker: str) -> None:
        """Notes that the worker has taken the place."""
        self.at[rank] = worker
        self.lost.pop(rank, None)
        if worker in self.spares:
            self.spares.remove(worker)

    def shown(self, rank: int) -> str:
        """`host 1 of the mesh, tcp://node1:26600`."""
        name, there = self.names[rank], self.at[rank]
        moved = "" if name == there else f", in whose place {there} is"
        return f"host {rank} of the mesh, {name}{moved},"

    def why_none(self, rank: int, tried: dict[str, str], named: bool) -> str:
        """Returns why a host was not replaced."""
        text = f"{self.shown(rank)} was not replaced ({self.lost.get(rank, 'it is lost')})"
        for worker, why in tried.items():
            text += f"\n    {worker}: {why}"
        if named:
            return f"{text}\n    Name other workers: hosts.replace(failed=True, workers=[...])"
        for worker, why in self.lost_spares.items():
            text += f"\n    spare {worker} was lost: {why}"
        return (
            f"{text}\n    No spare is left. Start a worker at its address and call hosts.replace(failed=True) again, or name "
            f"one: hosts.replace(failed=True, workers=[...])"
        )
