"""Further hosts of an InProcessCluster: how their agents reach each other, and what a test can do about it.

Agents of simulated hosts talk as those of real ones do: over links (`linked.LinkConnection`) whose connections are those of
the cluster's network, so that one which breaks is dialled anew and nothing is lost. Links have timers: heartbeats, pauses
between attempts to dial, limits. A virtual clock governs them; while it stands still, a link whose redial was put off stays
down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from monarch._mesh.agent.routes import Routes
from monarch._mesh.meshes.attach import Workers
from monarch._runtime.loop import Loop
from monarch._wire.address import agent_at, is_dialable
from monarch._wire.ids import new_id
from monarch._wire.link import LinkTarget
from monarch._wire.link_connection import LinkConnection, limits_from_settings
from monarch._wire.message import LinkHello
from monarch._wire.transport.base import DialFailed
from monarch.config import settings
from monarch.testing.network import InprocTransport, Network


class Reach:
    """The pairs of hosts that can connect, for all agents of a cluster. Any thread."""

    def __init__(self) -> None:
        self._parted: list[frozenset[str]] = []
        self._dark: set[str] = set()

    def obstacle(self, one: str, other: str) -> str:
        """Returns why host `one` cannot connect to `other`, or ""."""
        if other in self._dark:
            return "no answer: that machine has no power"
        return "the network between the two hosts is cut" if frozenset((one, other)) in self._parted else ""

    def part(self, one: str, other: str) -> NetworkPartition:
        pair = frozenset((one, other))
        self._parted.append(pair)
        return NetworkPartition(lambda: self._parted.remove(pair))

    def darken(self, host: str) -> None:
        """Makes nobody ever answer there again."""
        self._dark.add(host)

    def light(self, host: str) -> None:
        """Gives the machine power again."""
        self._dark.discard(host)

    def heal(self) -> None:
        """Ends every partition: all hosts reach each other again."""
        self._parted = []


class NetworkPartition:
    """Two hosts that cannot connect to each other until it ends; made by `InProcessCluster.part_hosts`. A context manager
    that ends itself."""

    def __init__(self, heal: Callable[[], None]) -> None:
        self._heal: Callable[[], None] | None = heal

    def end(self) -> None:
        """They can connect again, and do with their next attempt. May be called again."""
        heal, self._heal = self._heal, None
        if heal is not None:
            try:
                heal()
            except ValueError:  # the cluster has healed everything
                pass

    def __enter__(self) -> NetworkPartition:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


class SimulatedLinks:
    """Makes the links of one agent; their handler is its `routes`. On the cluster's loop."""

    def __init__(self, network: Network, host: str, loop: Loop, reach: Reach) -> None:
        self._network = network
        self._host = host
        self._loop = loop
        self._reach = reach
        self._rng = random.Random(f"{network.seed} {host.rpartition('.')[2]}")
        self._made: list[LinkConnection] = []
        self._transports: list[InprocTransport] = []  # one a link that dials, whose handler it is

    def dial(self, host: str, routes: Routes) -> LinkConnection:
        """A link that begins to dial."""
        limits = limits_from_settings()
        link = LinkConnection(
            self._loop, routes, uid=new_id(), host=routes.name, agent=routes.agent, limits=limits, rng=self._rng,
            reached=host, target_incarnation=LinkTarget(target_incarnation=routes.generation(host)),
            dial=lambda done: self._loop.call_soon(lambda: done(self._attempt(routes.at(host), transport))),
        )  # fmt: skip
        sizes = (limits.queue, settings.codec_max_frame_length())
        transport = InprocTransport(self._network, agent_at(self._host), self._loop, link, lambda: sizes, of_link=True)
        self._made.append(link)
        self._transports.append(transport)
        link.start()
        return link

    def _attempt(self, host: str, transport: InprocTransport) -> Any:
        why = self._reach.obstacle(self._host, host)
        if why:
            return DialFailed(why)
        try:
            return transport.dial(agent_at(host))
        except ConnectionRefusedError as exc:
            return DialFailed(str(exc), refused=True)

    def take(self, hello: LinkHello, routes: Routes) -> LinkConnection:
        """The other end of a link that was dialled."""
        limits = limits_from_settings()
        if not is_dialable(hello.host):  # a client
            limits = limits._replace(reconnect=settings.mesh_orphan_timeout())
        link = LinkConnection(
            self._loop, routes, uid=hello.link, host=hello.reached, agent=routes.agent, limits=limits, rng=self._rng
        )
        self._made.append(link)
        return link

    def abandon(self) -> None:
        """Their agent has died: connections break, timers stop, nobody says goodbye."""
        for transport in self._transports:
            transport.sever("the agent was killed")
        for link in self._made:
            link.close("the agent was killed")


class Prefixes(Workers):
    """Hosts of a cluster, whose addresses are of a kind that only a cluster knows."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._workers = list(prefixes)
        self.complete = True

    def admit(self, worker: str) -> str:
        return worker
