"""The rules of a service: bounds, restarts, scaling. They are checked once, when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from monarch.service.numbers import check_number
from monarch.service.routing import Policy, least_outstanding


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Scaling by outstanding work: so many replicas that each has `target` requests, running and waiting, between `least` and
    `most`.

    More are started as soon as they are wanted. Fewer are kept when fewer were wanted for `idle` seconds on end: as many as
    were wanted at most in that time. With `least=0` a service without work has no replica; the next request starts one and
    waits for it. `target` None: the service's `concurrency`. Since 0.2.0.
    """

    least: int = 1
    most: int = 4
    target: float | None = None
    idle: float = 30.0

    def __post_init__(self) -> None:
        for field in ("least", "most"):
            check_number(f"Autoscale: {field}", getattr(self, field), whole=True)
        if not self.least <= self.most or self.most < 1:
            raise ValueError(
                f"Autoscale needs 0 <= least <= most and 1 <= most, got least={self.least}, most={self.most}"
            )
        check_number("Autoscale: idle", self.idle)
        if self.target is not None:
            check_number("Autoscale: target", self.target, above=True)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A check of each replica by an endpoint of its own, without arguments, every `every` seconds: a replica whose endpoint
    raises, or does not answer within `timeout` seconds, is replaced.

    An ordinary endpoint is asked only while the replica does nothing else; a `@concurrent_endpoint` also beside requests.
    Since 0.2.0.
    """

    endpoint: str
    every: float = 10.0
    timeout: float = 30.0

    def __post_init__(self) -> None:
        check_number("HealthCheck: every", self.every, above=True)
        check_number("HealthCheck: timeout", self.timeout, above=True)


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """The rules of one service, as `serve` was told them."""

    name: str
    replicas: int = 1
    policy: Policy = least_outstanding
    concurrency: int = 1  # calls under way at a replica
    queue: int = 16  # requests that wait for a replica
    limit: int | None = None  # requests in the service; None: as many as fit the replicas
    restarts: int = 5  # of a replica within `within` seconds
    within: float = 60.0
    backoff: float = 0.1  # seconds before the first of them, doubled each time
    breaker: int = 5  # errors in a row after which a replica is left alone; 0: never
    pause: float = 5.0  # seconds for that
    autoscale: Autoscale | None = None
    health: HealthCheck | None = None
    health_beside: bool = False  # whether the check is answered beside requests
    hosts: int = 1
    spares: int = 0  # of them, the last ones: for replicas of hosts where none can be started
    waiting: int = 10_000  # requests that wait for a place, when the service is full

    def __post_init__(self) -> None:
        whole = {"replicas": 0, "concurrency": 1, "queue": 0, "restarts": 0, "breaker": 0, "waiting": 0, "spares": 0}
        for field, least in whole.items():
            check_number(f"service {self.name!r}: {field}", getattr(self, field), least, whole=True)
        for field in ("within", "backoff", "pause"):
            check_number(f"service {self.name!r}: {field}", getattr(self, field))
        if self.limit is not None:
            check_number(f"service {self.name!r}: limit", self.limit, 1, whole=True)
        for field, kind, example in (
            ("health", HealthCheck, 'HealthCheck("check")'),
            ("autoscale", Autoscale, "Autoscale(least=1, most=4)"),
        ):
            value = getattr(self, field)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"service {self.name!r}: {field} is such as {example}, got {value!r}")
        if self.spares >= self.hosts:
            raise ValueError(
                f"service {self.name!r}: {self.spares} of its hosts are to be spares, and it has {self.hosts}: leave one "
                "or more for its replicas"
            )

    def backoff_of(self, failures: int) -> float:
        """Returns the seconds to wait before the restart that follows so many failures (1 or more) in the window."""
        return float(min(30.0, self.backoff * 2 ** min(failures - 1, 30)))
