"""An older path of what `monarch.actor` has: actors, endpoints and their meshes."""

from __future__ import annotations

import warnings

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    Context,
    Endpoint,
    EndpointProperty,
    Future,
    Point,
    Port,
    PortReceiver,
    RankedPortReceiver,
    ValueMesh,
    as_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    send,
)

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Context",
    "Endpoint",
    "EndpointProperty",
    "Future",
    "Point",
    "Port",
    "PortReceiver",
    "RankedPortReceiver",
    "ValueMesh",
    "as_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "send",
]

warnings.warn(
    "monarch.actor_mesh is an older path: import from monarch.actor instead", DeprecationWarning, stacklevel=2
)
