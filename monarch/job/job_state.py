"""The hosts of a job that runs, as a program sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.actor import HostMesh


class JobState:
    """The result of `job.state()`: each mesh of the job as an attribute, in the order in which the job declares them.

    `state.trainers` is the HostMesh called `trainers`; another name raises AttributeError, which lists the names there are.
    What the job's components add has fixed names: `query_engine_client`, `telemetry_url`, `dashboard_url`, `admin_url`
    (None without the component).
    """

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)
        self.query_engine: Any = None
        self.query_engine_client: Any = None
        self.telemetry_url: str | None = None
        self.dashboard_url: str | None = None
        self.admin_url: str | None = None

    def __getattr__(self, name: str) -> HostMesh:
        hosts = self.__dict__.get("_hosts", {})
        try:
            return hosts[name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(
                f"'{name}' is not a valid host mesh name. Available names: {', '.join(sorted(hosts))}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._hosts]

    def __repr__(self) -> str:
        return f"JobState(hosts={self._hosts!r})"
