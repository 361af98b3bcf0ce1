"""Jobs on the machine of the program, in the program's own host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch.actor import this_host
from monarch.job.batch import keep_for_client
from monarch.job.cache import make_folder
from monarch.job.job_state import JobState
from monarch.job.job_trait import JobTrait
from monarch.job.names import BATCH_JOB, FOLDER
from monarch.job.progress import job_logger


class LocalJob(JobTrait):
    """This machine, as each of the meshes named in `hosts`: every one is `this_host()`. Nothing is kept between runs, and
    nothing has to be given back.

    Batch mode runs the script in a process of its own, which outlives this one; what it prints goes to
    `.monarch/logs/job_*/stdout.log` and `stderr.log`.
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        if isinstance(hosts, str) or not all(isinstance(name, str) and name for name in hosts):
            raise TypeError(f"hosts is a sequence of names of meshes, got {hosts!r}")
        self._host_names = tuple(hosts)
        self._batch: subprocess.Popen[bytes] | None = None
        self._log_dir: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_batch": None}

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return
        logs = Path(FOLDER, "logs")
        make_folder(logs)
        keep_for_client(self)
        self._log_dir = tempfile.mkdtemp(prefix="job_", dir=logs)
        outputs = [os.open(Path(self._log_dir, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                   for name in ("stdout.log", "stderr.log")]  # fmt: skip
        try:
            self._batch = subprocess.Popen(
                [sys.executable, client_script],
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                env=os.environ | {BATCH_JOB: "1"},
                start_new_session=True,
            )
        finally:
            for output in outputs:
                os.close(output)
        job_logger().info("%s runs as process %d; its output is in %s", client_script, self._batch.pid, self._log_dir)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The batch client. ValueError when there is none, or when it was started by another process."""
        if self._batch is None:
            raise ValueError("no local batch job")
        return self._batch

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self._host_names})

    def _log_files(self) -> dict[str, str]:
        names = ("stdout", "stderr") if self._log_dir is not None else ()
        return {name: f"{self._log_dir}/{name}.log" for name in names}

    def can_run(self, spec: JobTrait) -> bool:
        return False

    def _hosts_outlive_program(self) -> bool:
        return False

    def _is_running(self) -> bool:
        return True

    def _kill(self) -> None:
        if self._batch is not None and self._batch.poll() is None:
            self._batch.terminate()
            self._batch.wait()
