"""The watch over a job of Slurm beside the program: a process that cancels it while it is waited for and the program dies,
and a thread that says what becomes of it."""

from __future__ import annotations

import subprocess
import threading

from monarch.job.progress import job_logger
from monarch.job.scheduled import SchedulerError
from monarch.job.slurm import slurm_commands

_WATCH = 5.0  # seconds between two looks

# Its end of the pipe closes before a word was written when the program dies, of kill -9 too.
_GUARD = 'read -r word || exec scancel "$1" >/dev/null 2>&1'


class Guard:
    """Cancels a job that is still waited for when this process dies, of kill -9 too."""

    def __init__(self, job: str) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", job],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        try:
            self._process.communicate(b"released\n")
        except OSError:
            self._process.wait()


def watch(ended: threading.Event, job: str) -> None:
    last = ""
    while not ended.wait(_WATCH):
        try:
            rows = slurm_commands.look(job)
        except SchedulerError:
            continue
        now = next((row.why() for row in rows if not row.running), "")
        if now != last and not ended.is_set():
            job_logger().warning("Slurm job %s: %s", job, now or "RUNNING again")
            last = now
        if not rows or any(row.gone for row in rows):
            if not rows and not ended.is_set():
                job_logger().warning("Slurm job %s is no longer known to Slurm", job)
            return
