"""The life of a job: hosts that a program asks for, uses, keeps between its runs, and gives back.

not running ── apply, state ──► running ── kill ──► not running
     │                            ▲
     └── state finds another ─────┘  in the file: this object holds that job, which holds the hosts
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from monarch._linux.maker import Maker
from monarch.job import cache
from monarch.job.components import JobComponent, MeshAdminConfig, ObserverComponent, TelemetryConfig, observed_url
from monarch.job.job_state import JobState
from monarch.job.names import DEFAULT_JOB_PATH
from monarch.job.progress import LiveLine, job_logger

if TYPE_CHECKING:
    from monarch.job.mounts.component import Mounts
    from monarch.telemetry import QueryEngineClient
    from monarch.trace.profiling import Profile

C = TypeVar("C", bound=JobComponent)

_NOT_RUNNING = "not_running"
_RUNNING = "running"


class JobTrait(ABC):
    """Hosts of whatever origin: what every kind of job has in common.

    A kind says how: it overrides `_create`, `_state`, `can_run` and `_kill`. One whose hosts come from a scheduler is better
    made from `ScheduledJob`, which needs less. A job is pickled into its file, so attributes that only this process can
    use have to be left out by `__getstate__`; `_status` belongs to this class.
    """

    def __init__(self) -> None:
        super().__init__()
        self._status: Any = _NOT_RUNNING  # or _RUNNING, or the job that holds the hosts
        self._apply_id: str | None = None
        self._kept_at: str | None = None  # the file that keeps it between runs
        self._components: list[JobComponent] = []
        self._maker = Maker()  # of the order for the hosts
        self._tls: dict[str, str] = {}

    # --- what a kind of job says

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Asks for the hosts. With `client_script` (batch mode), they run that program when they are there: kinds that have
        it call `batch.keep_for_client` first, others raise RuntimeError."""

    @abstractmethod
    def _state(self) -> JobState:
        """Waits for the hosts and attaches to them: the meshes of the job."""

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """True if this job, which was kept from an earlier run, has living hosts and is what `spec` asks for."""

    @abstractmethod
    def _kill(self) -> None:
        """Gives the hosts back. Nothing of what was started may be left."""

    def _is_running(self) -> bool:
        return self.can_run(self)

    def _rebind_connection_inputs(self, spec: JobTrait) -> None:
        """Takes from `spec` what could not be kept in a file, such as credentials of the process."""
        return

    def _cleanup_log_context(self) -> dict[str, Any]:
        """Returns what a person needs to clean up by hand when killing fails: ids that may be printed."""
        return {}

    def _log_files(self) -> dict[str, str]:
        """The logs of its hosts that can be read here: a name and a path of each."""
        return {}

    def _requires_sidecar_gateway(self) -> bool:
        return False

    def _prepare_client_gateway(self) -> None:
        """Connects this process to the network of the hosts, when it is outside."""
        return

    def _sidecar_attach_to(self) -> str | None:
        return None

    def _hosts_outlive_program(self) -> bool:
        """True if hosts stay when the program ends, and the next one finds them."""
        return True

    # --- its life

    @property
    def active(self) -> bool:
        """True if hosts were asked for, by this object or by the job it found in the file, and not given back."""
        return bool(self._holder.__dict__.get("_status", _NOT_RUNNING) == _RUNNING)

    @property
    def apply_id(self) -> str | None:
        """The name of this allocation, another one for each `apply`; None when there is none."""
        return self._holder._apply_id

    def _check_maker(self) -> None:
        """Raises ForkedClientError in a forked child of the process that has the hosts."""
        maker: Maker | None = self._holder.__dict__.get("_maker")  # None in the file of an earlier version
        if self.active and maker is not None:
            maker.check(f"this {type(self._holder).__name__}")

    @property
    def _holder(self) -> JobTrait:
        """The job that holds the hosts: this one, or the one that was found in the file."""
        status = self.__dict__.get("_status", _NOT_RUNNING)
        return status if isinstance(status, JobTrait) else self

    def apply(self, client_script: str | None = None) -> None:
        """Asks for the hosts, unless they were asked for. Returns when the scheduler has taken the order, which may be long
        before the hosts are there; `state` waits for them.

        `client_script`: batch mode. The hosts run this command when they are there (`python` goes before the name of a
        script), with MONARCH_BATCH_JOB=1 in its environment, where `state()` of an equal job finds the hosts; they end with
        it. This process is not needed any more. RuntimeError for kinds of jobs that have no batch mode.
        """
        self._check_maker()
        if self.active:
            return
        self._maker = Maker()
        self._apply_id = str(uuid.uuid4())
        self._create(client_script)
        self._status = _RUNNING

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """The job's hosts, attached to. Those of the job in the file `cached_path` when it can run this job; else that one is
        killed and this one is applied, waited for, and kept in the file. None looks for no file and leaves none.

        Waits as long as the scheduler lets it; Ctrl-C gives back what was asked for. Several programs may use one job at a
        time; of several that would start it one does, and the others wait for it. What connecting raises is raised, and
        then nothing is kept.
        """
        self._check_maker()
        if self.active:
            job_logger().info("Job is running, returning current state")
            return self._connect()
        if cached_path is None:
            self.apply()
            return self._connect()
        line = LiveLine("another program starts this job")
        with cache.locked(cached_path, line.show):
            line.end()
            self._adopt(cached_path)
            if self.active:
                return self._connect()
            job_logger().info("Applying job")
            self.apply()
            state = self._connect()
            self._kept_at = os.path.realpath(cached_path)
            self._keep()
            return state

    def _keep(self) -> None:
        """Writes the job into its file, if it is kept: after it was applied, and when what it holds has changed."""
        if self._kept_at is not None:
            self.dump(self._kept_at)

    def _adopt(self, path: str) -> None:
        """Takes the job in the file as this one, or ends it when it is another."""
        try:
            cached = cache.read(path)
        except FileNotFoundError:
            return
        except ValueError as exc:
            job_logger().warning("%s", exc)
            return
        if not isinstance(cached, JobTrait) or not cached.active:
            return
        cached = cached._holder
        cached._rebind_connection_inputs(self)
        if cached.can_run(self):
            job_logger().info("Connecting to cached job")
            self._status = cached
            cached._components = self._components or cached._components
            return
        job_logger().info("The cached job has ended, or is another one: what is left of it is taken down")
        try:
            cached.kill()
        except Exception as exc:
            told = {"job_type": type(cached).__name__, **cached._cleanup_log_context()}
            job_logger().warning("the cached job could not be ended (%s: %s); look for what is left: %s",
                type(exc).__name__, exc, told, exc_info=True)  # fmt: skip
        cache.remove(path)

    def _connect(self) -> JobState:
        holder = self._holder
        components = sorted(holder._components, key=lambda component: component.order)
        if components and holder._requires_sidecar_gateway():
            holder._prepare_client_gateway()
        for component in components:
            component.before_connect(holder)
        state = holder._state()
        for component in components:
            component.connect(holder, state)
        return state

    def kill(self) -> None:
        """Gives the hosts back, mounts and other components first. Nothing when there are none. When a component cannot be
        closed (a mount is in use), that is raised and the job stays as it is, to be killed again. The job's file stays
        as well; `monarch kill` removes it."""
        self._check_maker()
        if not self.active:
            return
        holder = self._holder
        for component in sorted(holder._components, key=lambda component: -component.order):
            component.close(holder)
        holder._kill()
        for component in holder._components:
            component.forget()
        for job in (holder, self):
            job._over()

    def _over(self) -> None:
        """Notes that the hosts were given back."""
        self._status = _NOT_RUNNING
        self._apply_id = None

    # --- files

    def dumps(self) -> bytes:
        """The job as bytes for `job_loads`, its secret with it."""
        return cache.encode(self)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Writes the job to a file of mode 0600, or to the one that the link `path` leads to. `job_load` reads it."""
        cache.write(path, self.dumps())

    # --- what it has beside its hosts

    def use_tls(self, ca: str, certificate: str, private_key: str) -> Self:
        """Workers and clients of this job speak TLS with these PEM files, whose paths are good on every host and here
        (`monarch certs` makes them)."""
        self._tls = {"ca": str(ca), "certificate": str(certificate), "private_key": str(private_key)}
        return self

    def enable_telemetry(
        self,
        config: TelemetryConfig | None = None,
        *,
        mesh_admin_config: MeshAdminConfig | None = None,
        **options: Any,
    ) -> Self:
        """The job records what it does, from the next `state()` on, for SQL and the dashboard. Also enables admin.

            job.enable_telemetry(include_dashboard=True, retention_secs=7200)

        `config`, or `options` which are its fields: retention_secs, include_dashboard, dashboard_port,
        snapshot_interval_secs, host_metrics_interval_secs, gpu_metrics_interval_secs, path; TypeError for both at once.
        """
        if config is not None and options:
            raise TypeError("give a TelemetryConfig or its fields, not both")
        self._observed().telemetry = config or TelemetryConfig(**options)
        return self.enable_admin(mesh_admin_config)

    def profile(self, on_trace_ready: Callable[[Profile], Any] | None = None, *, torch: bool = False) -> Profile:
        """A `with` block whose calls and endpoints become a trace, which `profile.export_perfetto_trace(path)` writes. At its
        end `on_trace_ready(profile)` is called, unless it raised. `torch`: with torch.profiler in every process.

        RuntimeError without telemetry: see `enable_telemetry`, and docs/tracing.md.
        """
        from monarch.trace.profiling import Profile, ask_this

        if self._observed().telemetry is None:
            raise RuntimeError(
                "job.profile() requires distributed telemetry; call job.enable_telemetry() before job.state()"
            )
        client = self._observed().query_client()
        if client is None:
            raise RuntimeError(
                "distributed telemetry is not active; call job.state() before job.profile() and check telemetry startup logs"
            )
        return Profile(lambda: client, ask_this, on_trace_ready, torch=torch)

    def enable_admin(self, config: MeshAdminConfig | None = None, **options: Any) -> Self:
        """The job answers questions about itself, from the next `state()` on. `config`, or `options` which are its fields:
        admin_addr ("host:port"); TypeError for both at once."""
        if config is not None and options:
            raise TypeError("give a MeshAdminConfig or its fields, not both")
        self._observed().admin = config or MeshAdminConfig(**options)
        return self

    def telemetry_query_client(self) -> QueryEngineClient:
        """Returns a client for SQL over what the job records, in a program that has only loaded it. Starts and attaches
        nothing.

        RuntimeError when the job does not run or its health cannot be known, when telemetry was not enabled, or when its
        process does not answer.
        """
        from monarch.telemetry import QueryEngineClient

        return QueryEngineClient(observed_url(self._holder))

    def remote_mount(
        self,
        source: str | os.PathLike[str],
        mntpoint: str | None = None,
        meshes: Sequence[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
        *,
        mode: str = "auto",
    ) -> Self:
        """The directory `source` of this machine is at `mntpoint` (None: the same path) on all hosts, or on those of
        `meshes`, from the next `state()` on, and each `state()` brings what has changed.

        `python_exe`: the interpreter in `source` that processes of these hosts run, None for that of their workers;
        ValueError when it does not exist here. `mode`: "fuse", "mirror", or "auto", which is FUSE where all hosts have it.
        See docs/mounts.md.
        """
        self._mounts().add_remote(os.fspath(source), mntpoint, meshes, python_exe, mode)
        return self

    def gather_mount(
        self,
        remote_mount_point: str,
        local_mount_point: str | os.PathLike[str],
        meshes: Sequence[str] | None = None,
        *,
        mode: str = "auto",
    ) -> Self:
        """The directory `remote_mount_point` of each host can be read below `local_mount_point` here, from the next `state()`
        on and as long as the job lives: as `<host>/...`, and as `<mesh>/<host>/...` when several meshes are gathered. See
        docs/mounts.md."""
        self._mounts().add_gathered(remote_mount_point, os.fspath(local_mount_point), meshes, mode)
        return self

    def _mounts(self) -> Mounts:
        from monarch.job.mounts.component import Mounts

        return self._component(Mounts)

    def _observed(self) -> ObserverComponent:
        return self._component(ObserverComponent)

    def _component(self, kind: type[C]) -> C:
        """The job's component of that kind; made when it has none."""
        for component in self._components:
            if isinstance(component, kind):
                return component
        made = kind()
        self._components.append(made)
        return made


def job_loads(content: bytes) -> JobTrait:
    """The job in the bytes that `dumps` gave. Reading them runs what is in them: only bytes from where you trust."""
    import pickle

    return pickle.loads(content)  # type: ignore[no-any-return]


def job_load(path: str | os.PathLike[str] = DEFAULT_JOB_PATH) -> JobTrait:
    """The job in the file that `dump` or `state` wrote. FileNotFoundError without one; PermissionError when others own or may
    write it; ValueError when it is no job's file."""
    found = cache.read(path)
    if not isinstance(found, JobTrait):
        raise ValueError(f"{os.fspath(path)} holds {type(found).__name__}, which is not a job")
    return found
