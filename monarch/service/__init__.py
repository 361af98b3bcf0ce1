"""Services: replicas of an actor class behind one handle, with routing, bounds, retries, restarts and rolling updates.

    service = serve(this_host(), Generator, replicas=4)
    text = await service.generate.route(prompt)

Which request goes where is decided by `dispatcher.py` (requests) and `fleet.py` (replicas), pure; `router.py` does it, in an
actor of its own, which owns the replicas. It uses the public API only, and a program that does not import it pays nothing.
"""

from __future__ import annotations

from monarch.service.declared import batched, prefixed, retried
from monarch.service.errors import (
    ReplicaLostError,
    ServiceError,
    ServiceOverloaded,
    ServiceTimeoutError,
    ServiceUnavailableError,
    ServiceUpdateError,
)
from monarch.service.http_front import HttpFront, serve_http
from monarch.service.http_routes import ClientGone, ServiceRoutes
from monarch.service.routing import (
    ReplicaView,
    RouteRequest,
    by_prefix,
    least_outstanding,
    round_robin,
    two_choices,
)
from monarch.service.rules import Autoscale, HealthCheck
from monarch.service.service import Service, ServiceAnswer, ServiceEndpoint, ServiceSession, serve
from monarch.service.status import ReplicaStatus, ServiceStatus
from monarch.service.stream import ServiceStream

__all__ = [
    "Autoscale",
    "ClientGone",
    "HealthCheck",
    "HttpFront",
    "ReplicaLostError",
    "ReplicaStatus",
    "ReplicaView",
    "RouteRequest",
    "Service",
    "ServiceAnswer",
    "ServiceEndpoint",
    "ServiceError",
    "ServiceOverloaded",
    "ServiceRoutes",
    "ServiceSession",
    "ServiceStatus",
    "ServiceStream",
    "ServiceTimeoutError",
    "ServiceUnavailableError",
    "ServiceUpdateError",
    "batched",
    "by_prefix",
    "least_outstanding",
    "prefixed",
    "retried",
    "round_robin",
    "serve",
    "serve_http",
    "two_choices",
]
