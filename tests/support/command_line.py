"""The command `monarch`, as people use it: in a folder of its own, as a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 90
JOBS = """
from monarch.job import LocalJob, ProcessJob

job = ProcessJob({"trainers": 2})
local = LocalJob()
"""


class CommandLine:
    """Runs `monarch` in `folder`, where jobs.py has some jobs."""

    def __init__(self, folder: Path, temporary: str) -> None:
        self.folder = folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MONARCH_JOB", "MONARCH_SECRET", "MONARCH_SECRET_FILE") and not name.startswith("PET_")
        } | {"PYTHONPATH": str(ROOT), "TMPDIR": temporary, "MONARCH_RUNTIME_DIR": f"{temporary}/run", "COLUMNS": "120"}
        (folder / "jobs.py").write_text(JOBS)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "monarch"]

    def __call__(self, *words: str, status: int = 0, text: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.command, *words],
            input=text,
            cwd=self.folder,
            env=self.environment | more.pop("env", {}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == status, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str, program: Sequence[str] = ()) -> subprocess.Popen[str]:
        """For programs that are talked to. Whoever started it waits for its end."""
        return subprocess.Popen(
            [*(program or self.command), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def worker_pid(self, key: str) -> int:
        """Returns the pid of the worker program of one host of a job: "trainers_0"."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if line.endswith(f"/{key}\0".encode()) and self.environment["TMPDIR"].encode() in line:
                    return int(entry.name)
        raise AssertionError("no worker program")


@contextmanager
def command_line(folder: Path) -> Iterator[CommandLine]:
    """At the end no job of the folder runs, whatever happened."""
    temporary = tempfile.mkdtemp(prefix="mnc")  # short: Unix sockets lie below it
    os.mkdir(f"{temporary}/run")
    line = CommandLine(folder, temporary)
    try:
        yield line
        for state in folder.glob(".monarch/*/state.pkl"):
            line("kill", state.parent.name)
        left = [path.name for path in Path(temporary).iterdir() if path.name.startswith("monarch_process_job")]
        assert left == [] and list(Path(temporary, "run").iterdir()) == []
    finally:
        end_all_below(temporary)
        shutil.rmtree(temporary, ignore_errors=True)


def end_all_below(folder: str) -> None:
    """Kills what names this folder in its environment: what a test that failed has left."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                pass
