"""A job's sidecar: one detached process for each allocation, which holds what is to outlive the program. Here is the
program's side of it.

It has a folder of its own, 0700, among those of this user's runs: `socket`, `lock` (held locked as long as it lives), `log`
(0600). Each program that uses the job keeps a connection open, so that the sidecar knows when nobody is there any more. A
sidecar that has gone is started again by the next request.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from monarch._linux import companion, local_socket
from monarch._linux.companion import Companion
from monarch.actor.run_folders import user_folder
from monarch.job.mounts.orders import MountOrder
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
from monarch.job.progress import job_logger

_MOUNTS = 900.0  # seconds to mount and bring files
_CLEAR = 180.0  # to unmount, which takes longer when hosts are lost
_OBSERVER = 90.0  # to start the process that keeps telemetry
_END = 10.0  # to end, before it is killed


def folder_of(job: Any) -> str:
    """Returns the folder of the sidecar of the job's allocation. Kept in the job, for programs whose runs are elsewhere."""
    name = f"sidecar-{job.apply_id}"
    kept: str = job.__dict__.get("_sidecar_folder", "")
    if os.path.basename(kept) != name:
        kept = job._sidecar_folder = os.path.join(user_folder(), name)
    return kept


class Sidecar:
    """The sidecar of a job's allocation, running or not."""

    _connection: socket.socket | None = None

    def __init__(self, job: Any) -> None:
        self.folder = folder_of(job)

    def __del__(self) -> None:
        """A job that a program drops is still a job."""
        self._drop()

    def open_mounts(self, job: Any, orders: Sequence[MountOrder]) -> None:
        """These are mounted and up to date, and no others. Starts the sidecar if there is none and something to mount.
        RuntimeError in its words."""
        if not orders and not self._connect():
            return
        self._ask(job, "open the mounts", OpenMounts(list(orders)), _MOUNTS)

    def start_observer(self, job: Any) -> None:
        """The job's observer runs in `observer_folder`. Starts the sidecar if there is none. RuntimeError in its words."""
        self._ask(job, "start the observer", StartObserver(), _OBSERVER)

    @property
    def observer_folder(self) -> str:
        return os.path.join(self.folder, OBSERVER)

    def runs(self) -> bool:
        return self._connect()

    def end(self, job: Any) -> None:
        """Unmounts everything and ends it. Nothing if there is none. RuntimeError when a mount is in use; then all stays."""
        if not self._connect():
            return
        self._ask(job, "close the mounts", CloseMounts(), _CLEAR)
        connection = self._connection
        if connection is None:
            return
        pid = os.pidfd_open(local_socket.peer_of(connection)[0])
        try:
            send(connection, EndSidecar())
            if not companion.readable([pid], _END):
                job_logger().warning("the job's sidecar does not end, and is killed; its log was %s/log", self.folder)
                companion.end_process(pid, 0.0)
        except OSError:  # it has ended
            pass
        finally:
            os.close(pid)
            self._drop()

    def _ask(self, job: Any, what: str, request: Request, limit: float) -> None:
        if not self._connect():
            self._start(job)
        connection = self._connection
        assert connection is not None
        connection.settimeout(limit)
        try:
            send(connection, request)
            reply: Reply = receive(connection, Reply)
        except TimeoutError:
            self._drop()
            raise RuntimeError(
                f"job sidecar failed to {what}: no answer in {limit:g} s; its log: {self.folder}/log"
            ) from None
        except (OSError, EOFError):
            self._drop()
            raise RuntimeError(
                f"job sidecar failed to {what}: it has ended; it wrote: {Companion(self.folder).said()}; the next state() "
                f"starts another"
            ) from None
        if isinstance(reply, SidecarFailed):
            raise RuntimeError(f"job sidecar failed to {what}:\n{reply.why}")
        assert isinstance(reply, SidecarDone)
        for warning in reply.warnings:
            job_logger().warning("%s", warning)

    def _connect(self) -> bool:
        """True if there is one, which is connected then."""
        if self._connection is not None:
            if not companion.readable([self._connection.fileno()], 0):
                return True
            self._drop()
        try:
            self._connection = Companion(self.folder).connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _start(self, job: Any) -> None:
        """Starts one, unless another program has at the same time. RuntimeError with what it wrote when none comes up."""
        # Its hosts were there a moment ago: one that is not is lost.
        environment = {
            "HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT": "20s",
            **companion.environment(HYPERACTOR_PROCESS_NAME="job_sidecar"),
        }
        helper = Companion(self.folder)
        try:
            helper.start(
                "monarch.job.mounts.sidecar_program", environment, owned=False, stdin=job.dumps(), keep_log=True
            )
        except companion.CompanionFailed as exc:
            raise RuntimeError(f"job sidecar failed to start: it wrote: {exc}") from None
        if not self._connect():
            raise RuntimeError(f"job sidecar failed to start: it wrote: {helper.said()}")
