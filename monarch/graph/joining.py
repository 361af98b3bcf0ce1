"""The beginning of a graph: actors enter it, their hosts are connected, and they get their parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from monarch.actor._feeding import sender_name
from monarch.graph.bells import DescriptorAt, OtherBell, OwnBell, Spin, this_machine
from monarch.graph.driver import Connect, Entered, Part
from monarch.graph.gate import GateStream, GraphGate
from monarch.graph.hosts import CLIENT_HOST, GateSpec, PlanHosts, stream_reader
from monarch.graph.memory import GraphMemory, make_file
from monarch.graph.plan import CLIENT, INPUT_RING, Plan

_SPIN = 100e-6  # seconds that the client looks before it sleeps, and actors where there is a core for each


class GraphJoining:
    """The steps of the client, in this order: `enter`; `gate` and `connect` where there are other hosts; `share`; `join`.
    `orders` tell the actors of each node, `bell` is the client's own. What is made belongs to the graph."""

    def __init__(self, name: str, plan: Plan, hosts: PlanHosts, orders: Sequence[Any], bell: OwnBell) -> None:
        self._name = name
        self._plan = plan
        self._hosts = hosts
        self._orders = orders
        self._bell = bell
        self._entered: list[Entered] = []  # by place
        self._gate: GraphGate | None = None
        self._at = DescriptorAt(0, -1)  # of the memory here
        self.spin = Spin(0.0)
        self.input_bells: tuple[OtherBell | GateStream, ...] = ()  # of those who take the input

    def enter(self, watches: Sequence[int], back: str, incarnation: int) -> None:
        """Has all actors enter; `watches` are the numbers of the watches over each node's. ValueError when one cannot."""
        plan, hosts = self._plan, self._hosts
        specs: dict[str, dict[int, GateSpec]] = {}
        for host, number in enumerate(hosts.gates):
            if number != CLIENT:
                place = plan.places[number]
                specs.setdefault(place.key, {})[place.rank] = hosts.gate(host)
        calls = []
        for node, order, watch in zip(plan.nodes, self._orders, watches, strict=True):
            watched = {rank: [(watch, index)] for index, rank in enumerate(node.facts.ranks)}
            gates = specs.get(node.facts.key, {})
            calls.append(order.call("enter", self._name, back, incarnation, watched, gates))
        found: dict[tuple[str, int], Entered] = {}
        labels: dict[tuple[str, int], str] = {}
        for node, call in zip(plan.nodes, calls, strict=True):
            for rank, one in zip(node.facts.ranks, call.get().values(), strict=True):
                label = labels[node.facts.key, rank] = f"{node.facts.label} of rank {rank}"
                if one.why_not:
                    raise ValueError(f"{label} cannot take part in a graph: {one.why_not}")
                found[node.facts.key, rank] = one
        self._entered = entered = [found[place[:2]] for place in plan.places]
        for place, one, host in zip(plan.places, entered, hosts.of_place, strict=True):
            gate = hosts.gates[host]
            if one.machine != (this_machine() if gate == CLIENT else entered[gate].machine):
                other = "this process" if gate == CLIENT else labels[plan.places[gate][:2]]
                raise ValueError(
                    f"{labels[place[:2]]} shares no memory with {other} (another machine, container or user): use ordinary "
                    f"calls for it"
                )

    def gate(self, ended: Callable[[str], None]) -> GraphGate:
        """Makes the gate of this host."""
        self._gate = GraphGate(self._name, self._hosts.gate(CLIENT_HOST), ended)
        return self._gate

    def connect(self, own: GraphGate) -> None:
        """Connects the gates of all hosts. ValueError when that cannot be."""
        plan, hosts, entered = self._plan, self._hosts, self._entered
        calls = []
        for host, gate in list(enumerate(hosts.gates))[1:]:
            readers = hosts.awaiting(host)
            bells = {reader: entered[reader].bell for several in readers.values() for reader in several}
            place = plan.places[gate]
            order = next(
                order
                for order, node in zip(self._orders, plan.nodes, strict=True)
                if node.facts.key == place.key and place.rank in node.facts.ranks
            )
            told = {place.rank: Connect(self._dials(host), readers, bells)}
            calls.append(order.call("connect", self._name, told))
        mine = {
            ring: [self._bell if reader == CLIENT else OtherBell(entered[reader].bell) for reader in several]
            for ring, several in hosts.awaiting(CLIENT_HOST).items()
        }
        reasons = [own.connect(self._dials(CLIENT_HOST), mine)]
        for call in calls:
            reasons += call.get().values()
        why = next(filter(None, reasons), "")
        if why:
            raise ValueError(
                f"the values of this graph go from host to host by streams of their own, and {why}. Use ordinary calls, or a "
                f"graph for each host"
            )

    def _dials(self, host: int) -> dict[int, str]:
        hosts = self._hosts
        return {other: self._plan.places[hosts.gates[other]].address for other in hosts.dials(host)}

    def share(self, gate: GraphGate | None) -> GraphMemory:
        """Makes the memory of this host, or takes that of its gate, and finds who is to be woken by the input."""
        plan, hosts, entered = self._plan, self._hosts, self._entered
        streams = {} if gate is None else {stream_reader(host): stream for host, stream in gate.streams.items()}
        self.input_bells = tuple(
            OtherBell(entered[reader].bell) if reader >= 0 else streams[reader]
            for reader in hosts.rings(CLIENT_HOST)[INPUT_RING].readers
        )
        # Even where the actors sleep: its core stays awake, and they wake each other on another one, without starting it.
        self.spin = Spin(_SPIN if len(os.sched_getaffinity(0)) > 1 else 0.0)
        private = [ring.reads > 1 for ring in plan.rings]
        fd = make_file(plan.memory) if gate is None else os.dup(gate.at.fd)
        self._at = DescriptorAt(os.getpid(), fd)  # the memory has it
        return GraphMemory(fd, len(plan.rings), plan.depth, plan.slot_size, private, plan.buffer)

    def join(self, back: str) -> None:
        """Gives all actors their parts."""
        plan, hosts, entered = self._plan, self._hosts, self._entered
        parts: dict[str, dict[int, Part]] = {}
        sender = sender_name()
        for host, gate in enumerate(hosts.gates):
            memory, bells = self._at, {CLIENT: self._bell.at}
            if gate != CLIENT:
                at, bells = entered[gate].memory, dict(entered[gate].streams)
                assert at is not None
                memory = at
            elif self._gate is not None:
                bells |= self._gate.bells
            bells |= {reader: entered[reader].bell for reader in hosts.places(host)}
            rings = hosts.rings(host)
            for number in hosts.places(host):
                place, steps = plan.places[number], plan.steps[number]
                woken = {reader: bells[reader] for step in steps for reader in rings[step.ring].readers}
                spin = self._spin(host, entered[number].cores)
                parts.setdefault(place.key, {})[place.rank] = Part(
                    memory, plan.depth, plan.slot_size, plan.buffer, rings, steps, woken, spin, sender, back
                )
        calls = [
            order.call("join", self._name, parts[node.facts.key])
            for order, node in zip(self._orders, plan.nodes, strict=True)
        ]
        for call in calls:
            call.get()

    def _spin(self, host: int, cores: int) -> float:
        return _SPIN if len(self._hosts.places(host)) + 1 <= cores else 0.0
