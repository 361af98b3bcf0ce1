"""The records that the dispatcher keeps of a request, a call and a replica."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from monarch.service.histogram import DurationHistogram
from monarch.service.routing import ReplicaView

# backoff: its process ended, and another will be started. suspended: it answered only errors, and is left alone. trial: one
# request will show whether it is well again. draining: what runs ends, then it is updated. leaving: what runs ends, then
# it is stopped. lost: it failed too often.
ReplicaState = Literal[
    "backoff", "starting", "up", "suspended", "trial", "draining", "updating", "leaving", "lost"
]  # fmt: skip

LIVING = frozenset(["up", "suspended", "trial", "draining", "updating"])  # it is constructed, and stays
_BLOCKS_KEPT = 4096  # of a replica, the latest used


@dataclass(slots=True, eq=False)
class ServiceRequest:
    """A request that was not answered. Made by the shell; what is below the line belongs to the dispatcher."""

    number: int  # later ones have higher numbers
    method: str
    deadline: float = math.inf
    retries: int = 0  # how often it may still run again
    wait: bool = False  # for a place, when the service is full
    session: str = ""
    once: bool = False  # it cannot run again, whatever is declared: a part of it was read
    pin: int = -1  # the replica that it is for, whatever the policy says
    blocks: Sequence[int] = ()
    max_batch: int = 0  # 0: alone
    max_wait: float = 0.0
    key: Hashable = None

    arrived: float = 0.0
    queued_at: float = 0.0
    place: int = -1  # the replica that has it; -1: none
    running: bool = False
    taken: bool = False  # it counts towards the service's limit
    runs: int = 0  # how often it has begun

    @property
    def bound(self) -> bool:
        """True if it is for one replica only."""
        return self.pin >= 0 or bool(self.session)


@dataclass(slots=True, eq=False)
class ReplicaCall:
    """Requests that a replica runs in one call."""

    requests: list[ServiceRequest]
    began: float


@dataclass(slots=True, eq=False)
class Replica:
    """One place of a service, and the processes that have it now: `generation` counts those, and those of replicas that
    had the number before."""

    number: int
    host: int = 0
    state: ReplicaState = "starting"
    generation: int = 0
    version: int = 0
    until: float = math.inf  # when the state is over that has an end: backoff, suspended
    queue: deque[ServiceRequest] = field(default_factory=deque)
    calls: dict[int, ReplicaCall] = field(default_factory=dict)
    errors: int = 0  # in a row
    failures: deque[float] = field(default_factory=deque)  # when it died, within the window
    cause: Any = None  # of the last death
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    next_probe: float = math.inf
    probe_deadline: float = math.inf  # of the check under way
    served: int = 0
    failed: int = 0
    restarts: int = 0
    answered: int = 0  # calls
    asked: int = 0  # the update that it prepares, or has prepared
    prepared: int = 0
    latency: DurationHistogram = field(default_factory=DurationHistogram)

    @property
    def running(self) -> int:
        """The number of requests that it runs."""
        return sum(len(call.requests) for call in self.calls.values())

    def view(self, blocks: Sequence[int]) -> ReplicaView:
        matched = 0
        while matched < len(blocks) and blocks[matched] in self.blocks:
            matched += 1
        queued = len(self.queue)
        return ReplicaView(self.number, self.running + queued, queued, self.served, self.version, matched)

    def remember(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > _BLOCKS_KEPT:
            self.blocks.popitem(last=False)

    def forget(self) -> None:
        """Its processes are gone: forgets what they had."""
        self.calls, self.queue, self.errors = {}, deque(), 0
        self.asked = self.prepared = 0
        self.blocks.clear()
        self.next_probe = self.probe_deadline = self.until = math.inf
