"""The process that holds a job's mounts: `python -m monarch.job.mounts.sidecar_program FOLDER READY 0 0`, the job on stdin.

It ends when it is told to, when the allocation has ended, or when no program has been connected for as long as workers wait
for a client (`job_lease`); so it does not keep hosts that nobody uses.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any

import monarch.actor
from monarch._linux import companion, locked_folder
from monarch._linux.locks import Lock
from monarch.config import settings
from monarch.job.job_trait import job_loads
from monarch.job.mounts.held import HeldMounts
from monarch.job.mounts.sidecar_messages import (
    OBSERVER,
    AnswerPlease,
    CloseMounts,
    EndSidecar,
    OpenMounts,
    Reply,
    Request,
    SidecarDone,
    SidecarFailed,
    StartObserver,
    receive,
    send,
)

logger = logging.getLogger("monarch.job.mounts.sidecar")

_LOOK = 60.0  # seconds between two looks at the allocation
_CONNECTIONS = 64


class SidecarProgram:
    def __init__(self, folder: str, job: Any) -> None:
        self._folder = folder
        self._job = job
        self._mounts = HeldMounts()
        self._meshes: Any = None
        self._working = Lock()  # one request at a time
        self._programs = 0
        self._left = time.monotonic()  # when the last program went
        self._counting = Lock()
        self._ended = threading.Event()

    def serve(self, listening: socket.socket) -> None:
        """Serves until it is to end."""
        served = (listening, "the job's sidecar's socket", _CONNECTIONS, self.talk)
        threading.Thread(target=companion.serve, args=served, name="accept", daemon=True).start()
        lease = settings.job_lease()
        while not self._ended.wait(_LOOK):
            with self._counting:
                idle = 0.0 if self._programs else time.monotonic() - self._left
            if lease and idle > lease:
                logger.warning("no program has used the job for %g s: ending", idle)
                break
            if not self._job._is_running():
                logger.warning("the allocation has ended")
                break

    def talk(self, connection: socket.socket) -> None:
        """Does what a program asks, until it has gone."""
        with self._counting:
            self._programs += 1
        with connection:
            try:
                while not self._ended.is_set():
                    request: Request = receive(connection, Request)
                    if isinstance(request, EndSidecar):
                        self._ended.set()
                        return
                    send(connection, SidecarDone([]) if isinstance(request, AnswerPlease) else self._do(request))
            except (OSError, EOFError):
                pass
            finally:
                with self._counting:
                    self._programs -= 1
                    self._left = time.monotonic()

    def _do(self, request: OpenMounts | CloseMounts | StartObserver) -> Reply:
        with self._working, Warnings() as said:
            try:
                if isinstance(request, OpenMounts):
                    self._mounts.update(request.orders, self._hosts())
                elif isinstance(request, StartObserver):
                    self._start_observer()
                else:
                    self._mounts.close()
            except (RuntimeError, ValueError, OSError) as exc:
                logger.warning("a request failed: %s", exc)
                return SidecarFailed(f"{type(exc).__name__}: {exc}")
            except Exception:
                logger.exception("a request failed")
                return SidecarFailed(traceback.format_exc())
            return SidecarDone(said.lines)

    def _start_observer(self) -> None:
        from monarch.dashboard.process import launcher

        launcher.start(os.path.join(self._folder, OBSERVER))

    def _hosts(self) -> Any:
        if self._meshes is None:
            if self._job._requires_sidecar_gateway():
                self._job._prepare_client_gateway()
            self._meshes = self._job._state()._hosts
        return self._meshes


class Warnings(logging.Handler):
    """A collector of what the logger `monarch` says while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logging.getLogger("monarch").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("monarch").removeHandler(self)


def main() -> None:
    folder, ready = sys.argv[1], int(sys.argv[2])
    companion.log_to_stderr()
    job = job_loads(sys.stdin.buffer.read())
    if not companion.take(folder, keep_log=True):
        return  # another program has just started one
    monarch.actor.unhandled_fault_hook = lambda failure: logger.warning("%s", failure)
    with companion.listen(folder, ready) as listening:
        SidecarProgram(folder, job).serve(listening)
    locked_folder.remove(folder)  # not after a failure, which is in the log
    # What it holds ends with it: mounts see that their owner is gone.


if __name__ == "__main__":
    main()
