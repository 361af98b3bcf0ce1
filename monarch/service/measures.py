"""The measures of a service that go to telemetry, from the router's process, while that runs."""

from __future__ import annotations

from monarch.actor import get_meter


class ServiceMeasures:
    """Each has the attributes `service` and, where one is meant, `replica`."""

    def __init__(self, name: str) -> None:
        meter = get_meter()
        self._name = name
        self._of: dict[int, dict[str, str | int]] = {}
        self._latency = meter.create_histogram("service.latency", "ms", "From the arrival of a request to its answer")
        self._batch = meter.create_histogram("service.batch_size", "requests", "Requests that ran in one call")
        self._outstanding = meter.create_gauge("service.outstanding", "requests", "Requests that a replica has")
        self._version = meter.create_gauge("service.version", "", "The update that a replica has")
        self._failed = meter.create_counter("service.not_answered", "requests", "By the error that they raised")

    def _attributes(self, replica: int) -> dict[str, str | int]:
        return self._of.setdefault(replica, {"service": self._name, "replica": replica})

    def sent(self, replica: int, batch: int, outstanding: int) -> None:
        """Notes a call to a replica."""
        attributes = self._attributes(replica)
        self._batch.record(batch, attributes)
        self._outstanding.set(outstanding, attributes)

    def answered(self, replica: int, seconds: float, version: int, outstanding: int) -> None:
        """Notes an answer."""
        attributes = self._attributes(replica)
        self._latency.record(seconds * 1e3, attributes)
        self._outstanding.set(outstanding, attributes)
        self._version.set(version, attributes)

    def not_answered(self, error: str) -> None:
        """Notes that a request was refused, or failed; `error` is the name of what it raised."""
        self._failed.add(1, {"service": self._name, "error": error})
