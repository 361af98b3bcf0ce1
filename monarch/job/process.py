"""Jobs on the machine of the program, whose hosts are processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.job import detached_sessions
from monarch.job.detached_sessions import DetachedSession
from monarch.job.log_file import end_of
from monarch.job.progress import job_logger
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, SchedulerError, Waiting
from monarch.job.worker_launch import WorkerLaunch

_LONGEST = 100  # bytes of a socket's path
_TOLD = 2000  # bytes of what a worker that failed has written
_TERMINATED = (0, -15)


class ProcessJob(ScheduledJob):
    """Hosts that are processes of this machine: of each mesh in `meshes` so many. They outlive the program, and the next one
    that asks for the same finds them (`state`); `kill` ends them and everything they started.

    `env`: variables of the hosts, over this process's own. What hosts write goes to `stderr.log` files in a folder of mode
    0700, which goes with the job. There is no batch mode.
    """

    poll_interval = 0.02
    hosts_come_back = True

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        for name, count in meshes.items():
            if not isinstance(name, str) or not name or "/" in name:
                raise ValueError(f"{name!r} is not a name of a mesh")
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"mesh {name!r} has one host or more, got {count!r}")
        if not meshes:
            raise ValueError("meshes is empty: a job has one mesh or more")
        self._meshes = dict(meshes)
        self._env = dict(env or {})
        self._folder: str | None = None
        self._workers: dict[str, DetachedSession] = {}

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("ProcessJob cannot run batch-mode scripts")
        self._folder = tempfile.mkdtemp(prefix="monarch_process_job_")
        try:
            for key in self._keys():
                self._start(key, launch)
        except BaseException:
            self._cancel()
            raise

    def _start(self, key: str, launch: WorkerLaunch) -> None:
        address = self._address(key)
        if len(os.fsencode(address)) > _LONGEST:
            raise ValueError(f"{address} is too long for a socket's path: choose a shorter name, or a shorter TMPDIR")
        environment = os.environ | launch.environment() | {"HYPERACTOR_PROCESS_NAME": key} | self._env
        with open(self._log(key), "wb") as log:
            process = subprocess.Popen(
                launch.command(sys.executable, address),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._workers[key] = detached_sessions.session_of(process.pid)
        threading.Thread(target=_watch, args=(process, key), name=f"monarch-watch-{key}", daemon=True).start()

    def _poll(self) -> Poll:
        ended = [key for key, session in self._workers.items() if not session.alive()]
        if ended:
            if self._met:
                return Ended(
                    f"lost connection to worker processes ({', '.join(ended)}); `monarch kill` ends the others"
                )
            return Ended(f"worker {ended[0]} has ended: {self._said(ended[0])}")
        coming = [key for key in self._workers if not Path(self._address(key).removeprefix("ipc://")).exists()]
        if coming:
            return Waiting("its worker processes are starting")
        return Ready(
            {name: [self._address(f"{name}_{rank}") for rank in range(count)] for name, count in self._meshes.items()}
        )

    def _replacements(self, name: str, ranks: list[int]) -> list[str]:
        """Starts new workers in the place of those that have died, at their addresses."""
        assert self._launch is not None
        for key in [f"{name}_{rank}" for rank in ranks]:
            if not self._workers[key].alive():
                detached_sessions.end([self._workers[key]])
                Path(self._address(key).removeprefix("ipc://")).unlink(missing_ok=True)
                self._start(key, self._launch)
        self._keep()
        return super()._replacements(name, ranks)

    def _cancel(self) -> None:
        detached_sessions.end(list(self._workers.values()))
        self._workers = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _same(self, spec: ProcessJob) -> bool:
        return self._meshes == spec._meshes and list(self._meshes) == list(spec._meshes) and self._env == spec._env

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"pids": sorted(session.pid for session in self._workers.values()), "folder": self._folder}

    def _log_files(self) -> dict[str, str]:
        return {key: self._log(key) for key in self._workers}

    def _keys(self) -> list[str]:
        return [f"{name}_{rank}" for name, count in self._meshes.items() for rank in range(count)]

    def _address(self, key: str) -> str:
        return f"ipc://{self._folder}/{key}"

    def _log(self, key: str) -> str:
        return f"{self._folder}/{key}.stderr.log"

    def _said(self, key: str) -> str:
        try:
            return end_of(self._log(key), _TOLD).strip() or "it wrote nothing"
        except OSError as exc:
            raise SchedulerError(f"the log of worker {key} is gone: {exc}") from None


def _watch(process: subprocess.Popen[bytes], key: str) -> None:
    """Says when a worker ends, and takes its status from the kernel."""
    code = process.wait()
    if code not in _TERMINATED:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        job_logger().warning("worker process %s (pid %d) %s", key, process.pid, how)
