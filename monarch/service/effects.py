"""The effects: things that the dispatcher wants done. A replica is named by its number and its generation."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch.service.errors import ServiceError


class SendBatch(NamedTuple):
    """Run these requests at a replica, in one call; then `answered(attempt)`."""

    replica: int
    generation: int
    attempt: int
    requests: tuple[int, ...]


class ReplyWith(NamedTuple):
    """Give a request its answer: item `place` of what its call returned."""

    request: int
    place: int
    replica: int
    version: int
    moves: int  # of its session


class FailRequest(NamedTuple):
    """Raise `error` where the request was made."""

    request: int
    error: ServiceError


class StartReplica(NamedTuple):
    """Start processes on host number `host`, run update `version` there (0: none); then `started`, or `lost`."""

    replica: int
    generation: int
    host: int
    version: int


class StopReplica(NamedTuple):
    """Stop what is left of a replica. Nobody waits for it."""

    replica: int
    generation: int


class ReplicaFailed(NamedTuple):
    """Say that a replica failed, and starts again after `pause` seconds; None: it was given up. `failures`: within the
    window of the rules; 0 if it never could start."""

    replica: int
    cause: Any
    pause: float | None
    failures: int


class PrepareReplica(NamedTuple):
    """Prepare update `version` beside the requests that it runs; then `prepared`, or `prepare_failed`."""

    replica: int
    generation: int
    version: int


class UpdateReplica(NamedTuple):
    """Run update `version`, which it may have prepared; then `updated`, or `update_failed`."""

    replica: int
    generation: int
    version: int


class UpdateEnded(NamedTuple):
    """Tell whoever wants update `version`: it is done, or stopped by `error`."""

    version: int
    error: ServiceError | None


class ProbeReplica(NamedTuple):
    """Ask its health check; then `probed`."""

    replica: int
    generation: int


class PolicyFailed(NamedTuple):
    """Say that the routing policy raised, or returned none of the replicas that it was given; `least_outstanding` decided."""

    error: Exception
    given: tuple[int, ...]


class ServiceClosed(NamedTuple):
    """Tell whoever shuts the service down: nothing is left."""


ServiceEffect = (
    SendBatch
    | ReplyWith
    | FailRequest
    | StartReplica
    | StopReplica
    | ReplicaFailed
    | PrepareReplica
    | UpdateReplica
    | UpdateEnded
    | ProbeReplica
    | PolicyFailed
    | ServiceClosed
)
Cause = Any  # an exception, or a text
