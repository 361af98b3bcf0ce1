"""A module that stands in for `sky`: what SkyPilotJob calls of it, with the signatures and answers that
SkyPilot 0.10 and 0.14 have in common.

Calls return request ids, `get` their results. Nodes are processes of this machine, each with a loopback address of its own: a
worker that would listen at all addresses of its node listens at that one.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.hosts import MORTAL, ROOT

_EXEC = MORTAL + "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class ClusterStatus(enum.Enum):
    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class JobStatus(enum.Enum):
    SETTING_UP = "SETTING_UP"
    RUNNING = "RUNNING"
    FAILED_SETUP = "FAILED_SETUP"


class ClusterDoesNotExist(ValueError):
    pass


class Resources:
    def __init__(self, accelerators: str | None = None, infra: str | None = None, ports: Any = None) -> None:
        self.accelerators = accelerators

    def to_yaml_config(self) -> dict[str, Any]:
        return {"accelerators": self.accelerators}


class Task:
    def __init__(
        self,
        name: str | None = None,
        *,
        setup: str | list[str] | None = None,
        run: str | list[str] | None = None,
        envs: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
        workdir: str | None = None,
        num_nodes: int | None = None,
    ) -> None:
        self.name, self.setup, self.run = name, setup, run
        self.envs, self.secrets = envs or {}, secrets or {}
        self.num_nodes = num_nodes or 1
        self.workdir = workdir
        self.file_mounts: dict[str, str] | None = None
        self.resources: Resources | None = None

    def set_file_mounts(self, file_mounts: dict[str, str] | None) -> Task:
        self.file_mounts = file_mounts
        return self

    def set_resources(self, resources: Resources) -> Task:
        self.resources = resources
        return self


class Cloud:
    """One cluster at most. `error`: why launches fail. `external`: whether nodes have external addresses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error = ""
        self.request_status = "SUCCEEDED"
        self.cluster_status = ClusterStatus.UP
        self.job_status = JobStatus.RUNNING
        self.task: Task | None = None
        self.cluster = ""
        self.options: dict[str, Any] = {}
        self.nodes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.cancelled: list[str] = []

    def module(self) -> Any:
        """Returns what `import sky` gives."""
        own = (self.launch, self.get, self.api_status, self.api_cancel, self.status, self.down)
        names = {function.__name__: function for function in own}
        return SimpleNamespace(Task=Task, Resources=Resources, job_status=self._job_status, **names)

    def launch(
        self,
        task: Task,
        cluster_name: str | None = None,
        retry_until_up: bool = False,
        idle_minutes_to_autostop: int | None = None,
        dryrun: bool = False,
        down: bool = False,
    ) -> str:
        assert cluster_name is not None
        self.task, self.cluster = task, cluster_name
        self.options = {"idle_minutes_to_autostop": idle_minutes_to_autostop, "down": down}
        if not self.error:
            self.nodes = [self._start(task, rank) for rank in range(task.num_nodes)]
        return "launch"

    def _start(self, task: Task, rank: int) -> tuple[str, subprocess.Popen[bytes]]:
        own = os.getpid()
        address = f"127.{30 + rank}.{own >> 8 & 255}.{max(1, own & 255)}"
        runtime = self.folder / str(rank)
        runtime.mkdir()
        assert isinstance(task.run, str)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")}
        environment = kept | {"PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(runtime), **task.envs, **task.secrets}
        script = task.run.replace("tcp://*:", f"tcp://{address}:")
        with (self.folder / f"{rank}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _EXEC, "bash", "-c", script],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return address, process

    def api_status(self, request_ids: list[str] | None = None, all_status: bool = False) -> list[Any]:
        assert request_ids == ["launch"]
        status = "FAILED" if self.error else self.request_status
        return [SimpleNamespace(request_id="launch", status=status, status_msg="Provisioning on AWS")]

    def get(self, request_id: Any) -> Any:
        if request_id == "launch":
            if self.error:
                raise RuntimeError(self.error)
            return 1, None
        return request_id()

    def status(self, cluster_names: list[str] | None = None, refresh: Any = None, all_users: bool = False) -> Any:
        assert cluster_names is not None
        if not self.nodes or self.cluster not in cluster_names:
            return lambda: []
        addresses = [address for address, _ in self.nodes]
        handle = SimpleNamespace(cached_external_ips=[None] * len(addresses), cached_internal_ips=addresses)
        record = SimpleNamespace(name=self.cluster, status=self.cluster_status, handle=handle)
        return lambda: [record]

    def _job_status(self, cluster_name: str, job_ids: list[int] | None = None) -> Any:
        assert (cluster_name, job_ids) == (self.cluster, [1])
        return lambda: {1: self.job_status}

    def api_cancel(self, request_ids: Any = None, all_users: bool = False, silent: bool = False) -> Any:
        self.cancelled += request_ids
        return lambda: request_ids

    def down(self, cluster_name: str, purge: bool = False) -> Any:
        def result() -> None:
            if not self.nodes:
                raise ClusterDoesNotExist(f"Cluster {cluster_name!r} does not exist.")
            self.close()

        return result

    def close(self) -> None:
        for _, process in self.nodes:
            process.kill()
            process.wait()
        self.nodes = []
