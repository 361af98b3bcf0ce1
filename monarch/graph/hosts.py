"""The hosts of a graph: what is in the memory of each, and which values go from one to another. Pure.

Every host has a memory of its own with room for all rings, of which it uses those that are written or read there. Its gate is
the process that made the memory: it has a stream with the client, and with each host that values go to or come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from monarch import _text
from monarch.actor.lowlevel import host_of
from monarch.graph.plan import CLIENT, Plan, Ring, control_size

CLIENT_HOST = 0


@dataclass
class GateSpec:
    """A gate as it is told of itself. `host` is its number; by the other host, `sends` and `takes` are the rings whose values
    go and come, `tells` and `hears` those of which the client only hears; `needed` are the bytes of memory at most."""

    host: int
    names: list[str]
    rings: int
    depth: int
    slot_size: int
    buffer: int
    sends: dict[int, list[int]]
    takes: dict[int, list[int]]
    tells: list[int]
    hears: dict[int, list[int]]
    needed: int


def stream_reader(host: int) -> int:
    """Returns the number, as a reader of rings, of the stream to that host."""
    return -2 - host


class PlanHosts:
    """The hosts of a plan by number, that of the client, `own`, first. The gate of another host is its first place."""

    def __init__(self, plan: Plan, own: str) -> None:
        self._plan = plan
        self.names = list(dict.fromkeys([own, *(host_of(place.address) for place in plan.places)]))
        self.of_place = [self.names.index(host_of(place.address)) for place in plan.places]
        self._written = [CLIENT_HOST] * len(plan.rings)
        for number, steps in enumerate(plan.steps):
            for step in steps:
                self._written[step.ring] = self.of_place[number]

    def __len__(self) -> int:
        return len(self.names)

    def of_reader(self, reader: int) -> int:
        return CLIENT_HOST if reader == CLIENT else self.of_place[reader]

    @cached_property
    def gates(self) -> list[int]:
        """The place of each host's gate; -1: the client."""
        return [CLIENT, *(self.of_place.index(host) for host in range(1, len(self)))]

    def places(self, host: int) -> list[int]:
        return [place for place, at in enumerate(self.of_place) if at == host]

    def crossing(self, here: int, there: int) -> list[int]:
        """The rings that are written here and read there."""
        return [
            number
            for number, ring in enumerate(self._plan.rings)
            if self._written[number] == here and any(self.of_reader(reader) == there for reader in ring.readers)
        ]

    def rings(self, host: int) -> list[Ring]:
        """The rings as they are seen there: with readers of that host, and the streams to others."""
        found = []
        for number, ring in enumerate(self._plan.rings):
            readers = [reader for reader in ring.readers if self.of_reader(reader) == host]
            if self._written[number] == host:
                others = {self.of_reader(reader) for reader in ring.readers} - {host}
                readers += [stream_reader(other) for other in sorted(others)]
            found.append(Ring(ring.label, ring.rank, ring.reads, readers))
        return found

    def memory(self, host: int) -> int:
        """Bytes of shared memory there at most."""
        plan = self._plan
        used = sum(
            self._written[number] == host or any(self.of_reader(reader) == host for reader in ring.readers)
            for number, ring in enumerate(plan.rings)
        )
        return control_size(len(plan.rings), plan.depth) + used * plan.depth * plan.slot_size

    def gate(self, host: int) -> GateSpec:
        plan = self._plan
        others = [other for other in range(len(self)) if other != host]
        sends = {other: self.crossing(host, other) for other in others}
        takes = {other: self.crossing(other, host) for other in others}
        with_streams = [
            other for other in others if CLIENT_HOST in (host, other) or sends[other] or takes[other]
        ]  # the client hears of every end
        return GateSpec(
            host,
            self.names,
            len(plan.rings),
            plan.depth,
            plan.slot_size,
            plan.buffer,
            {other: sends[other] for other in with_streams},
            {other: takes[other] for other in with_streams},
            [] if host == CLIENT_HOST else self._told(host),
            {other: self._told(other) if host == CLIENT_HOST else [] for other in with_streams},
            self.memory(host),
        )

    def _told(self, host: int) -> list[int]:
        """The rings of that host of which the client only hears."""
        to_client = self.crossing(host, CLIENT_HOST)
        return [ring for ring, at in enumerate(self._written) if at == host and ring not in to_client]

    def awaiting(self, host: int) -> dict[int, list[int]]:
        """The readers there of each ring whose values come from other hosts."""
        taken = (ring for rings in self.gate(host).takes.values() for ring in rings)
        return {ring: [one for one in self._plan.rings[ring].readers if self.of_reader(one) == host] for ring in taken}

    def dials(self, host: int) -> list[int]:
        """The hosts whose gates that of this host dials: of two the lower number dials, for everybody may dial the hosts
        that the client has attached, and not the client."""
        return [other for other in self.gate(host).sends if other > host]


def too_large(spec: GateSpec, room: int, where: str) -> str:
    """Returns why the memory is not to be had, where there is `room`; "" when it is, or nothing is known (0)."""
    if not 0 < room < spec.needed:
        return ""
    return (
        f"the graph may need {_text.size(spec.needed)} of shared memory ({spec.rings} values, depth {spec.depth}, "
        f"buffer {_text.size(spec.buffer)} each), and {where} has {_text.size(room)} available: lower depth= or buffer="
    )
