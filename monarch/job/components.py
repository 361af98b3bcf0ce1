"""Parts that a job may have beside its hosts: mounts, telemetry, an admin server."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import msgspec

from monarch.config import settings
from monarch.job.mounts.sidecar import Sidecar
from monarch.job.progress import job_logger

if TYPE_CHECKING:
    from monarch.job.job_state import JobState


class JobComponent:
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
    """Settings of what a job records of itself. Times in seconds.

    `retention_secs`: how long rows are kept, 0 for ever. `include_dashboard`, `dashboard_port` (0: any free one).
    `snapshot_interval_secs`: how often the tree of actors is recorded, 0 never. `host_metrics_interval_secs`,
    `gpu_metrics_interval_secs`: how often the machine is measured, 0 never. `path`: of a DuckDB file on the client's machine
    that the rows are written to as well, as by `monarch.telemetry.start`; of the folder in which this is made.
    """

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0
    host_metrics_interval_secs: float = 1.0
    gpu_metrics_interval_secs: float = 1.0
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.path is not None:  # a later program, in another folder, goes on with it
            object.__setattr__(self, "path", os.path.abspath(self.path))


@dataclasses.dataclass(frozen=True)
class MeshAdminConfig:
    """The address at which a job answers questions about itself: `host:port`, None for any free port of this machine."""

    admin_addr: str | None = None


class ObserverComponent(JobComponent):
    """Telemetry and admin of a job, as far as they are to be had: the job never fails because they are not, and says so.

    A process beside keeps and serves both (`dashboard.process`). Where hosts outlive the program, the job's sidecar holds it,
    so that what one program did can be asked for by the next; otherwise it ends with the program.
    """

    order = 10

    def __init__(self) -> None:
        self.telemetry: TelemetryConfig | None = None
        self.admin: MeshAdminConfig | None = None
        self._sidecar: Sidecar | None = None
        self._addresses: Any = None
        self._recording: Any = None
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {"telemetry": self.telemetry, "admin": self.admin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObserverComponent.__init__(self)
        self.__dict__.update(state)

    def query_client(self) -> Any:
        """Returns what answers queries about the job, in a process in which `state()` was called; None when nothing is
        recorded."""
        return getattr(self._addresses, "client", None)

    def before_connect(self, job: Any) -> None:
        """Begins the recording, so that the making of the hosts is part of it."""
        self._addresses = None
        try:
            self._open(job)
        except Exception as exc:
            expected = isinstance(exc, ImportError)
            job_logger().warning(
                "job sidecar telemetry bootstrap failed; telemetry disabled for this job: %s",
                exc,
                exc_info=not expected,
            )

    def _open(self, job: Any) -> None:
        from monarch.dashboard.process.launcher import Observer, observer_at
        from monarch.dashboard.process.observer_config import ObserverConfig
        from monarch.telemetry.starting import FOLDER, record, run_folder, tls_files

        telemetry = self.telemetry if self.telemetry is not None and _installed() else None
        if telemetry is None and self.admin is None:
            return
        tls = job._tls
        files = {"certificate": tls["certificate"], "private_key": tls["private_key"]} if tls else tls_files()
        wanted = ObserverConfig(
            admin=self.admin is not None,
            admin_addr=(self.admin.admin_addr if self.admin else None) or settings.mesh_admin_addr() or None,
            **files,
        )
        if job._hosts_outlive_program():
            sidecar = self._sidecar = self._sidecar or Sidecar(job)
            observer = Observer(sidecar.observer_folder, lambda: sidecar.start_observer(job))
        else:
            observer = observer_at(os.path.join(run_folder(), FOLDER))
        if telemetry is None:
            self._addresses = observer.serve(wanted, run_folder())
            for note in self._addresses.notes:
                job_logger().warning("%s", note)
            return
        wanted = msgspec.structs.replace(
            wanted,
            telemetry=True,
            retention_secs=float(telemetry.retention_secs),
            snapshot_interval_secs=telemetry.snapshot_interval_secs,
            host_metrics_interval_secs=telemetry.host_metrics_interval_secs,
            gpu_metrics_interval_secs=telemetry.gpu_metrics_interval_secs,
            path=str(telemetry.path or ""),
            dashboard=telemetry.include_dashboard,
            dashboard_port=telemetry.dashboard_port,
        )
        self._addresses = record(observer, wanted)

    def connect(self, job: Any, state: JobState) -> None:
        found = self._addresses
        if found is None:
            return
        state.admin_url = found.admin_url
        if found.admin_url and not self._told:
            from monarch.admin.starting import announce

            announce(found.admin_url)
        if self.telemetry is not None and hasattr(found, "client"):
            state.query_engine_client = found.client
            state.telemetry_url = found.url
            state.dashboard_url = found.dashboard_url
            if found.dashboard_url and not self._told:
                print(f"Monarch Dashboard: {found.dashboard_url}", flush=True)
        self._told = True

    def close(self, job: Any) -> None:
        """The sidecar, and with it the observer, ends last: mounts close before it does."""
        found, self._addresses = self._addresses, None
        if hasattr(found, "stop"):
            found.stop()
        if job._hosts_outlive_program():
            (self._sidecar or Sidecar(job)).end(job)
            self._sidecar = None

    def forget(self) -> None:
        self._sidecar = self._addresses = None


Observed = ObserverComponent  # jobs that an earlier version has kept name it so


def _installed() -> bool:
    """True if what keeps the tables is installed; logs what is missing."""
    from monarch.telemetry.store import check_installed

    try:
        check_installed()
    except ImportError as exc:
        job_logger().warning("%s; the job goes on without telemetry", exc)
        return False
    return True


def observed_url(job: Any) -> str:
    """Returns the address at which the telemetry of a running job is asked. RuntimeError, which says why it cannot be."""
    if not job.active:
        raise RuntimeError("the saved job is not active: there is nothing to ask; call state(), or run 'monarch apply'")
    try:
        healthy = job._is_running()
    except Exception as exc:
        raise RuntimeError(f"the health of the job could not be checked: {type(exc).__name__}: {exc}") from exc
    if not healthy:
        raise RuntimeError("the job is not running or not healthy: its hosts have ended, or do not answer")
    observed = next((component for component in job._components if isinstance(component, ObserverComponent)), None)
    if observed is None or observed.telemetry is None:
        raise RuntimeError("telemetry was not configured for this job: call enable_telemetry() and apply it again")
    from monarch.dashboard.process.launcher import Observer, ObserverFailed

    try:
        url = Observer(Sidecar(job).observer_folder, lambda: None).look().telemetry_url
    except ObserverFailed as exc:
        raise RuntimeError(f"the connection to the job's telemetry failed: {exc}") from exc
    if url is None:
        raise RuntimeError("the connection to the job's telemetry failed: its process serves none")
    return url
