"""The process that holds a job's mounts: `python -m monarch.job.mounts.sidecar_program FOLDER READY`, the job on its stdin.

It ends when it is told to, when the allocation has ended, or when no program has been connected for as long as workers wait
for a client (`job_lease`); so it does not keep hosts that nobody uses.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from typing import Any

import monarch.actor
from monarch._linux import local_socket
from monarch.config import settings
from monarch.job.job_trait import job_loads
from monarch.job.mounts.held import HeldMounts
from monarch.job.mounts.sidecar_messages import (
    OBSERVER,
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
_ATTEMPTS = 200  # at the lock
_BETWEEN = 0.05


class SidecarProgram:
    def __init__(self, folder: str, job: Any) -> None:
        self._folder = folder
        self._job = job
        self._mounts = HeldMounts()
        self._meshes: Any = None
        self._working = threading.Lock()  # one request at a time
        self._programs = 0
        self._left = time.monotonic()  # when the last program went
        self._counting = threading.Lock()
        self._ended = threading.Event()

    def serve(self, listening: socket.socket) -> None:
        """Serves until it is to end."""
        threading.Thread(target=self._accept, args=(listening,), name="accept", daemon=True).start()
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

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # it is closed: this process ends
                return
            try:
                local_socket.check_peer(connection, "the job's sidecar's socket")
                with self._counting:
                    if self._programs >= _CONNECTIONS:
                        raise PermissionError(f"more than {_CONNECTIONS} programs at a time")
                    self._programs += 1
            except OSError as exc:
                logger.warning("refused: %s", exc)
                connection.close()
                continue
            threading.Thread(target=self._talk, args=(connection,), name="program", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while not self._ended.is_set():
                    request: Request = receive(connection, Request)
                    if isinstance(request, EndSidecar):
                        self._ended.set()
                        return
                    send(connection, self._do(request))
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


def own_folder(folder: str) -> bool:
    """Takes its lock, for as long as this process lives, and writes to its log. False when another sidecar has it.

    Runs that begin remove the folders of dead ones, so this one may be removed until its lock is taken.
    """
    pause = threading.Event()
    for _ in range(_ATTEMPTS):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(os.path.join(folder, "lock"))):
                    _log_to(os.path.join(folder, "log"))
                    return True
            except BlockingIOError:
                if _answers(os.path.join(folder, "socket")):
                    return False
            os.close(lock)
        except FileNotFoundError:
            pass
        pause.wait(_BETWEEN)
    raise RuntimeError(f"the lock of {folder} is taken, and nobody answers there")


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        return connection.connect_ex(path) == 0


def main() -> None:
    folder, ready = sys.argv[1], int(sys.argv[2])
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    job = job_loads(sys.stdin.buffer.read())
    if not own_folder(folder):
        return  # another program has just started one
    path = os.path.join(folder, "socket")
    if os.path.lexists(path):
        os.unlink(path)  # of one that was killed
    monarch.actor.unhandled_fault_hook = lambda failure: logger.warning("%s", failure)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listening:
        listening.bind(path)
        listening.listen(_CONNECTIONS)
        os.write(ready, b"ready")
        os.close(ready)
        SidecarProgram(folder, job).serve(listening)
    shutil.rmtree(folder, ignore_errors=True)  # not after a failure, which is in the log
    # What it holds ends with it: mounts see that their owner is gone.


if __name__ == "__main__":
    main()
