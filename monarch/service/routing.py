"""Routing policies: pure functions that choose a replica for a request from what is known of the replicas.

A policy gets the request and the replicas that can take it, one or more, and returns the number of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica as a routing policy sees it. Since 0.2.0."""

    number: int
    outstanding: int  # requests that it has, running and queued
    queued: int
    served: int
    version: int
    matched: int  # leading blocks of the request that went to this replica before: see `by_prefix`


class RouteRequest(NamedTuple):
    """A request as a routing policy sees it. Since 0.2.0."""

    method: str
    session: str  # "" without one: a request of a session is routed once, and when its replica is gone
    turn: int  # counts the decisions of the service


Policy = Callable[[RouteRequest, Sequence[ReplicaView]], int]


def round_robin(request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
    """Chooses one after the other. Since 0.2.0."""
    return replicas[request.turn % len(replicas)].number


def least_outstanding(request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
    """Chooses the replica that has the fewest requests, of several in turn. Since 0.2.0."""
    fewest = min(replica.outstanding for replica in replicas)
    return round_robin(request, [replica for replica in replicas if replica.outstanding == fewest])


def two_choices(request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
    """Draws two replicas and chooses the one that has fewer requests. Since 0.2.0."""
    if len(replicas) == 1:
        return replicas[0].number
    drawn = (request.turn + 1) * 0x9E3779B97F4A7C15 >> 16 & 0xFFFFFFFF
    first = drawn % len(replicas)
    second = (first + 1 + (drawn >> 16) % (len(replicas) - 1)) % len(replicas)
    return min(replicas[first], replicas[second], key=lambda replica: replica.outstanding).number


def by_prefix(request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
    """Chooses the replica that has had the longest part of the request's beginning, for caches of keys and values; of equal
    ones that with the fewest requests. `@prefixed` says what the beginning of a request is. Since 0.2.0.
    """
    longest = max(replica.matched for replica in replicas)
    return least_outstanding(request, [replica for replica in replicas if replica.matched == longest])


# Policies that look at nothing but how much there is to do: a replica without work may take what waits for another.
EVEN: tuple[Policy, ...] = (round_robin, least_outstanding, two_choices)
NAMED: dict[str, Policy] = {
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "two_choices": two_choices,
    "by_prefix": by_prefix,
}
