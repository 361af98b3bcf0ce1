"""SkyPilotJob: hosts are the nodes of a SkyPilot cluster, in whatever cloud that finds them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.job.progress import job_logger
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, SchedulerError, Waiting
from monarch.job.worker_launch import SECRET, WorkerLaunch

TASK = "monarch-workers"
DEFAULT_PORT = 22222
_NEEDS_SKYPILOT = "SkyPilotJob needs SkyPilot: pip install 'pymonarch[skypilot]'"
_IN_CLUSTER = "SKYPILOT_IN_CLUSTER_CONTEXT_NAME"  # of the pod this runs in: would be taken for where to launch
_COMING = ("INIT", "PENDING", "SETTING_UP")


class SkyPilotJob(ScheduledJob):
    """Hosts that SkyPilot launches, of each mesh in `meshes` so many: one cluster, a node each.

        hosts = SkyPilotJob({"trainers": 2}, resources={"accelerators": "H100:8"}).state().trainers

    `resources`: a `sky.Resources`, or its arguments. `cluster_name`: by default `monarch-` and the pid; `kill` takes the
    whole cluster down. `monarch_port`: of the workers; a client outside the cluster's network needs it open
    (`resources={"ports": [22222]}`), one for a SkyPilot cluster in Kubernetes runs in that Kubernetes.
    `idle_minutes_to_autostop`, `down_on_autostop`: what SkyPilot does with a cluster whose workers have ended.
    `python_exe`: on the nodes, of the client's minor version; `setup_commands` install this package there, by default with
    pip when it is missing. `workdir`, `file_mounts`: what SkyPilot copies to the nodes. `start_timeout`: seconds that all
    of it may take.

    Dialled are the nodes' external addresses where there are some, else the internal ones. There is no batch mode.
    """

    poll_interval = 10.0

    def __init__(
        self,
        meshes: Mapping[str, int],
        resources: Any = None,
        cluster_name: str | None = None,
        monarch_port: int = DEFAULT_PORT,
        idle_minutes_to_autostop: int | None = None,
        down_on_autostop: bool = True,
        python_exe: str = "python",
        setup_commands: str | Sequence[str] | None = None,
        workdir: str | None = None,
        file_mounts: Mapping[str, str] | None = None,
        *,
        start_timeout: float | None = 1800.0,
    ) -> None:
        super().__init__()
        for name, count in meshes.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"{name!r} is not a name of a mesh")
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"mesh {name!r} has one host or more, got {count!r}")
        if not meshes:
            raise ValueError("meshes is empty: a job has one mesh or more")
        self.start_timeout = start_timeout
        self._meshes = dict(meshes)
        self._resources = resources
        self._cluster = cluster_name or f"monarch-{os.getpid()}"
        self._port = monarch_port
        self._autostop = idle_minutes_to_autostop
        self._down = down_on_autostop
        self._python = python_exe
        if setup_commands is None:
            python = shlex.quote(python_exe)
            setup_commands = f"{python} -c 'import monarch' || {python} -m pip install pymonarch"
        self._setup = setup_commands if isinstance(setup_commands, str) else "\n".join(setup_commands)
        self._workdir = workdir
        self._file_mounts = dict(file_mounts or {})
        self._launched = False
        self._request = ""  # SkyPilot's id of the launch; "" when that is done
        self._sky_job: int | None = None

    # --- what the scheduler says

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("SkyPilotJob cannot run batch-mode scripts")
        sky = self._sky()
        try:
            task = self._task(sky, launch)
            self._launched = True
            self._request = str(
                sky.launch(
                    task,
                    cluster_name=self._cluster,
                    idle_minutes_to_autostop=self._autostop,
                    down=self._autostop is not None and self._down,
                )
            )
        except BaseException as error:
            self._cancel()
            if isinstance(error, Exception):
                raise SchedulerError(f"SkyPilot does not launch cluster {self._cluster}: {_words(error)}") from error
            raise
        job_logger().info("asked SkyPilot for %d nodes (cluster %s)", self._size, self._cluster)

    def _task(self, sky: Any, launch: WorkerLaunch) -> Any:
        told = launch.environment()
        secret = {SECRET: told.pop(SECRET)}  # left out of logs; the API server keeps them: docs/ray.md
        words = launch.command(self._python, f"{launch.scheme}://*:{self._port}")
        task = sky.Task(
            TASK,
            setup=self._setup,
            run=f"exec {shlex.join(words)}",
            envs=told,
            secrets=secret,
            workdir=self._workdir,
            num_nodes=self._size,
        )
        if self._file_mounts:
            task.set_file_mounts(self._file_mounts)
        resources = self._resources
        if isinstance(resources, Mapping):
            resources = sky.Resources(**resources)
        if resources is not None:
            task.set_resources(resources)
        return task

    @property
    def _size(self) -> int:
        return sum(self._meshes.values())

    def _poll(self) -> Poll:
        sky = self._sky()
        try:
            return self._launching(sky) or self._running(sky)
        except Exception as error:
            raise SchedulerError(f"SkyPilot cannot be asked about cluster {self._cluster}: {_words(error)}") from error

    def _launching(self, sky: Any) -> Poll | None:
        """Returns what there is to say while the launch goes on; None once it is done."""
        if not self._request:
            return None
        found = sky.api_status(request_ids=[self._request])
        status = str(found[0].status) if found else "SUCCEEDED"  # SkyPilot forgets after a while
        if status not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            said = getattr(found[0], "status_msg", None) or status
            return Waiting(f"SkyPilot launches cluster {self._cluster}: {said}")
        try:
            job, _ = sky.get(self._request) if found else (None, None)
        except Exception as error:
            return Ended(f"SkyPilot could not launch cluster {self._cluster}: {_words(error)}")
        self._request, self._sky_job = "", job
        return None

    def _running(self, sky: Any) -> Poll:
        clusters = sky.get(sky.status(cluster_names=[self._cluster]))
        if not clusters:
            return Ended(f"cluster {self._cluster} is gone: SkyPilot or somebody has taken it down")
        state = _name(_field(clusters[0], "status"))
        if state in _COMING:
            return Waiting(f"cluster {self._cluster} is in state {state}")
        if state != "UP":
            return Ended(f"cluster {self._cluster} is in state {state}")
        jobs = sky.get(sky.job_status(self._cluster, None if self._sky_job is None else [self._sky_job]))
        status = _name(next(iter(jobs.values()), None)) if jobs else "INIT"
        if status in _COMING:
            return Waiting(f"the nodes of cluster {self._cluster} are being set up: {status}")
        if status != "RUNNING":
            return Ended(f"the workers on cluster {self._cluster} ended: {status}; see `sky logs {self._cluster}`")
        handle = _field(clusters[0], "handle")
        external = handle.cached_external_ips or []
        addresses = external if external and all(external) else handle.cached_internal_ips or []
        if len(addresses) != self._size or not all(addresses):
            return Waiting(f"cluster {self._cluster} has {len(addresses)} addresses for {self._size} nodes")
        return Ready(self._dealt(list(addresses)))

    def _dealt(self, nodes: list[str]) -> dict[str, list[str]]:
        """The nodes in order, to the meshes in the order of their declaration."""
        assert self._launch is not None
        workers, rest = {}, iter(nodes)
        for mesh, count in self._meshes.items():
            hosts = [next(rest) for _ in range(count)]
            workers[mesh] = [
                f"{self._launch.scheme}://{f'[{host}]' if ':' in host else host}:{self._port}" for host in hosts
            ]
        return workers

    def _cancel(self) -> None:
        if not self._launched:
            return
        sky = self._sky()
        try:
            if self._request:
                sky.get(sky.api_cancel(request_ids=[self._request]))
                self._request = ""
            sky.get(sky.down(self._cluster))
        except Exception as error:
            if type(error).__name__ != "ClusterDoesNotExist":
                raise SchedulerError(f"SkyPilot cannot take cluster {self._cluster} down: {_words(error)}") from error
        self._launched, self._request, self._sky_job = False, "", None

    def _same(self, spec: SkyPilotJob) -> bool:
        return (
            list(self._meshes.items()) == list(spec._meshes.items())
            and _plain(self._resources) == _plain(spec._resources)
            and self._port == spec._port
        )

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"cluster": self._cluster}

    def _sky(self) -> Any:
        os.environ.pop(_IN_CLUSTER, None)
        try:
            import sky
        except ModuleNotFoundError as error:
            if error.name != "sky":
                raise
            raise RuntimeError(_NEEDS_SKYPILOT) from None
        return sky


def _field(record: Any, name: str) -> Any:
    """SkyPilot's answers are objects, in its older versions dicts."""
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _name(value: Any) -> str:
    """Returns the name of a member of one of SkyPilot's enums."""
    return str(getattr(value, "value", value))


def _plain(resources: Any) -> Any:
    return resources.to_yaml_config() if hasattr(resources, "to_yaml_config") else resources


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
