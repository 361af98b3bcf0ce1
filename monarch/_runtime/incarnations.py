"""Incarnations of actors and processes: names stay the same over restarts, and messages must not.

Every message names the incarnation of its receiver that the sender knew, and one for an earlier incarnation is refused, never
handed to the one that took its place. A sender that never sent to the earlier one knows of none (0), or of its process's only
(the first in that process); its messages are for the actor that is there when they arrive.

    incarnation of an actor = incarnation of its process * 2**32 + how often it was restarted within that process

A process whose host was lost, and which is started again on the one in its place, is newer than any that was at its address
before:

    incarnation of a process = generation of its host * 2**16 + how often it was restarted there

The generation of a host is how often it was replaced. It begins with 0 again for processes that are spawned there later:
nobody has known others at their addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_PROCESS = 32  # bits for restarts within one process
_HOST = 16  # bits for restarts of a process on one host
_KEPT = 10_000  # meshes with restarted actors remembered; of a forgotten one the first message is refused and tells


class Incarnations:
    """The restarts elsewhere that one process knows of. False (and never asked) as long as nothing was restarted."""

    __slots__ = ("_actors", "_processes")

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._actors: OrderedDict[str, dict[int, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._processes or self._actors)

    def statistics(self) -> dict[str, Any]:
        """Returns how many restarts are known, of the actors of each mesh and of processes."""
        return {
            "restarted_actors": {key: len(ranks) for key, ranks in list(self._actors.items())},
            "restarted_processes": len(self._processes),
        }

    def of(self, key: str, rank: int, address: str) -> int:
        """Returns that of actor `rank` of mesh `key`, which lives in the process at `address`."""
        least = self._processes.get(address, 0) << _PROCESS
        ranks = self._actors.get(key)
        return least if ranks is None else max(least, ranks.get(rank, 0))

    def process_restarted(self, address: str, incarnation: int) -> None:
        """A process took the place of the one at `address`."""
        if incarnation > self._processes.get(address, 0):
            self._processes[address] = incarnation

    def actor_restarted(self, key: str, rank: int, incarnation: int) -> None:
        """An actor took the place of the one that was rank `rank` of mesh `key`."""
        ranks = self._actors.get(key)
        if ranks is None:
            ranks = self._actors[key] = {}
            if len(self._actors) > _KEPT:
                self._actors.popitem(last=False)
        if incarnation > ranks.get(rank, 0):
            ranks[rank] = incarnation

    def forget_actors(self, key: str) -> None:
        """Forgets a mesh that is gone."""
        self._actors.pop(key, None)

    def forget_process(self, address: str) -> None:
        """It was stopped for good, or nobody remembers it."""
        self._processes.pop(address, None)


def first_in(process: int) -> int:
    """The incarnation of an actor that is the first of its name in a process of incarnation `process`."""
    return process << _PROCESS


def first_on(generation: int) -> int:
    """The least incarnation of a process that took the place of one that was lost with an earlier generation of its host."""
    return generation << _HOST


def last_on(generation: int) -> int:
    """The greatest incarnation of a process on that generation of its host."""
    return first_on(generation + 1) - 1


def process_of(incarnation: int) -> int:
    """The incarnation of the process that an actor lives in."""
    return incarnation >> _PROCESS
