"""What a job may have beside its hosts: mounts, telemetry, an admin server."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any

from monarch.job.progress import job_logger

if TYPE_CHECKING:
    from monarch.job.job_state import JobState


class Component:
    """A part of a job; its hooks are given that JobTrait. It is pickled with the job, so what is only good in this process
    stays out of its state."""

    order = 0  # components connect from the lowest on, and close in reverse

    def before_connect(self, job: Any) -> None:
        """Before the job's host meshes are made."""

    def connect(self, job: Any, state: JobState) -> None:
        """The host meshes are there. May replace a mesh, by `state._hosts[name] = ...`, and set fields of the state."""

    def close(self, job: Any) -> None:
        """The job is to be killed. An exception keeps it as it is, so that it can be killed again."""

    def forget(self) -> None:
        """The job is gone: nothing of this process is left to it."""


@dataclasses.dataclass(frozen=True)
class TelemetryConfig:
    """What a job records of itself. Times in seconds.

    `retention_secs`: how long rows are kept, 0 for ever. `include_dashboard`, `dashboard_port` (0: any free one).
    `snapshot_interval_secs`: how often the tree of actors is recorded, 0 never. `host_metrics_interval_secs`,
    `gpu_metrics_interval_secs`: how often the machine is measured, 0 never.
    """

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0
    host_metrics_interval_secs: float = 1.0
    gpu_metrics_interval_secs: float = 1.0


@dataclasses.dataclass(frozen=True)
class MeshAdminConfig:
    """Where a job answers questions about itself: `host:port`, None for any free port of this machine."""

    admin_addr: str | None = None


class Observed(Component):
    """Telemetry and admin of a job, as far as this installation has them. A job runs without them, too, and says so."""

    order = 10

    def __init__(self) -> None:
        self.telemetry: TelemetryConfig | None = None
        self.admin: MeshAdminConfig | None = None

    def query_client(self) -> Any:
        """What answers queries about the job, in a process in which `state()` was called; None when nothing is recorded."""
        if importlib.util.find_spec("monarch.telemetry") is None:
            return None
        from monarch import telemetry

        running = telemetry.running()
        return running.client if running is not None else None

    def before_connect(self, job: Any) -> None:
        for name, wanted in (("telemetry", self.telemetry), ("admin", self.admin)):
            if wanted is not None and importlib.util.find_spec(f"monarch.{name}") is None:
                job_logger().warning("this version has no monarch.%s: the job goes on without it", name)
