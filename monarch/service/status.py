"""The status of a service: a table with a row for each replica."""

from __future__ import annotations

from dataclasses import dataclass

from monarch.actor.lowlevel import StatusTable
from monarch.service.dispatcher import Dispatcher
from monarch.service.fleet import in_short
from monarch.service.replica_record import ReplicaState

_COLUMNS = [
    "replica",
    "state",
    "host",
    "outst.",
    "queued",
    "served",
    "failed",
    "p50",
    "p99",
    "batch",
    "version",
    "restarts",
]


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica. Times are in seconds, from the arrival of a request to its answer; None without any. Since 0.2.0."""

    number: int
    state: ReplicaState
    host: int  # its place among the hosts of the service, all dimensions flattened
    outstanding: int  # running and queued
    queued: int
    served: int
    failed: int  # answered with an exception of the endpoint
    p50: float | None
    p99: float | None
    version: int
    restarts: int
    why: str  # it died last; "" if it has not
    batch: float | None = None  # requests a call, on average

    def cells(self) -> list[str]:
        """Returns its row of the table."""
        numbers = (self.host, self.outstanding, self.queued, self.served, self.failed)
        batch = "-" if self.batch is None else f"{self.batch:.3g}"
        ends = (_shown(self.p50), _shown(self.p99), batch, str(self.version), str(self.restarts))
        return [str(self.number), self.state, *map(str, numbers), *ends]


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service as `service.status()` tells it: `print` shows a table. Since 0.2.0."""

    name: str
    replicas: list[ReplicaStatus]
    version: int  # that new replicas get
    outstanding: int  # requests that were not answered
    limit: int
    waiting: int  # of them, those that no replica has
    refused: int
    expired: int  # not answered within their timeout
    retried: int
    died: int  # failed with their replica
    cancelled: int = 0  # given up by who made them

    def table(self) -> StatusTable:
        """Returns it as `monarch status` shows it."""
        head = (
            f"service {self.name!r}, version {self.version}: {self.outstanding} outstanding of at most {self.limit}, "
            f"{self.waiting} without a replica, {self.refused} refused, {self.expired} expired, {self.retried} retried, "
            f"{self.died} died, {self.cancelled} cancelled"
        )
        notes = {place: one.why for place, one in enumerate(self.replicas) if one.why}
        return StatusTable(head, _COLUMNS, [one.cells() for one in self.replicas], notes)

    def __str__(self) -> str:
        return "\n".join(self.table().lines())

    __repr__ = __str__


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def status_of(dispatcher: Dispatcher) -> ServiceStatus:
    """Returns the status of a service now."""
    replicas = [
        ReplicaStatus(
            one.number, one.state, one.host, one.running + len(one.queue), len(one.queue), one.served, one.failed,
            one.latency.percentile(50), one.latency.percentile(99), one.version, one.restarts,
            "" if one.cause is None else in_short(one.cause),
            (one.served + one.failed) / one.answered if one.answered else None,
        )
        for one in sorted(dispatcher.replicas.values(), key=lambda one: one.number)
    ]  # fmt: skip
    counts = dispatcher.counts
    return ServiceStatus(
        dispatcher.rules.name, replicas, dispatcher.version, len(dispatcher.requests), dispatcher.limit,
        len(dispatcher.backlog), counts["refused"], counts["expired"], counts["retried"], counts["died"],
        counts["cancelled"],
    )  # fmt: skip


def updated(status: ServiceStatus) -> tuple[int, int]:
    """Returns how many replicas have the newest version, and how many there are. One that is being updated does not count."""
    done = sum(one.version == status.version and one.state != "updating" for one in status.replicas)
    return done, len(status.replicas)
