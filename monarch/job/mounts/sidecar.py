"""A job's sidecar: one detached process for each allocation, which holds what is to outlive the program. Here is the
program's side of it.

It has a folder of its own, 0700, among those of this user's runs: `socket`, `lock` (held locked as long as it lives), `log`
(0600). Each program that uses the job keeps a connection open, so that the sidecar knows when nobody is there any more. A
sidecar that has gone is started again by the next request.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from monarch._linux import companion, local_socket
from monarch._linux.companion import Companion
from monarch.actor.run_folders import user_folder
from monarch.job.mounts.orders import MountOrder
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
from monarch.job.progress import job_logger

_MOUNTS = 900.0  # seconds to mount and bring files
_CLEAR = 180.0  # to unmount, which takes longer when hosts are lost
_OBSERVER = 90.0  # to start the process that keeps telemetry
_END = 10.0  # to end, before it is killed
_LOOK = 2.0  # between two looks whether one that is at work is still there
_SIGN = 8.0  # for it to say so


def folder_of(job: Any) -> str:
    """Returns the folder of the sidecar of the job's allocation. Kept in the job, for programs whose runs are elsewhere."""
    name = f"sidecar-{job.apply_id}"
    kept: str = job.__dict__.get("_sidecar_folder", "")
    if os.path.basename(kept) != name:
        kept = job._sidecar_folder = os.path.join(user_folder(), name)
    return kept


class SidecarLost(RuntimeError):
    """The sidecar has ended, or gives no sign of life. `ended`: which of the two."""

    def __init__(self, text: str, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


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
        self._ask_again(job, "open the mounts", OpenMounts(list(orders)), _MOUNTS)

    def start_observer(self, job: Any) -> None:
        """The job's observer runs in `observer_folder`. Starts the sidecar if there is none. RuntimeError in its words."""
        self._ask_again(job, "start the observer", StartObserver(), _OBSERVER)

    @property
    def observer_folder(self) -> str:
        return os.path.join(self.folder, OBSERVER)

    def end(self, job: Any) -> bool:
        """Unmounts everything and ends it. True if it has done so in order; False if there was none, or one that was stuck,
        which is killed within seconds, with a warning. RuntimeError when a mount is in use; then all stays."""
        try:
            if not self._connect():
                return False
        except SidecarLost as exc:
            job_logger().warning("%s; end it by hand", exc)
            return False
        connection = self._connection
        assert connection is not None
        pid = local_socket.peer_of(connection)[0]
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:  # it has just ended
            self._drop()
            return False
        try:
            if companion.readable([connection.fileno()], 0):  # another process may have its pid
                return False
            why = self._end(job, process)
            if why:
                job_logger().warning("%s; process %d is killed", why, pid)
                companion.end_process(process, 0.0)
                return False
            job.__dict__.pop("_mirrored", None)
            return True
        finally:
            os.close(process)
            self._drop()

    def _end(self, job: Any, process: int) -> str:
        """Returns why it did not end in order, "" if it did."""
        try:
            self._ask(job, "close the mounts", CloseMounts(), _CLEAR)
            assert self._connection is not None
            send(self._connection, EndSidecar())
        except (SidecarLost, OSError) as exc:
            return str(exc)
        if companion.readable([process], _END):
            return ""
        return f"job sidecar failed to end in {_END:g} s; its log: {self.folder}/log"

    def _ask_again(self, job: Any, what: str, request: Request, limit: float) -> None:
        """Asks another, once, if the one that was there has ended: it takes connections until its very last moment."""
        try:
            self._ask(job, what, request, limit)
        except SidecarLost as exc:
            if not exc.ended:
                raise
            self._ask(job, what, request, limit)

    def _ask(self, job: Any, what: str, request: Request, limit: float) -> None:
        """RuntimeError in its words; SidecarLost when it has none."""
        if not self._connect():
            self._start(job)
        connection = self._connection
        assert connection is not None
        connection.settimeout(_SIGN)
        try:
            send(connection, request)
            self._await(connection, limit)
            reply: Reply = receive(connection, Reply)
        except TimeoutError as exc:
            self._drop()
            raise SidecarLost(f"job sidecar failed to {what}: {exc}; its log: {self.folder}/log") from None
        except (OSError, EOFError):
            self._drop()
            raise SidecarLost(
                f"job sidecar failed to {what}: it has ended; it wrote: {Companion(self.folder).said()}; the next state() "
                f"starts another",
                ended=True,
            ) from None
        if isinstance(reply, SidecarFailed):
            raise RuntimeError(f"job sidecar failed to {what}:\n{reply.why}")
        assert isinstance(reply, SidecarDone)
        for warning in reply.warnings:
            job_logger().warning("%s", warning)

    def _await(self, connection: socket.socket, limit: float) -> None:
        """Waits for an answer as long as the sidecar is at work, `limit` seconds at most. TimeoutError."""
        until = time.monotonic() + limit
        while not companion.readable([connection.fileno()], _LOOK):
            if not self._is_awake():
                pid = local_socket.peer_of(connection)[0]
                raise TimeoutError(
                    f"process {pid} gives no sign of life (stopped? `kill -CONT {pid}` lets it go on; job.kill() kills it)"
                )
            if time.monotonic() > until:
                raise TimeoutError(f"no answer in {limit:g} s")

    def _is_awake(self) -> bool:
        """False if it does not say on another connection that it is there. One that has ended is not asleep."""
        try:
            with Companion(self.folder).connect(_SIGN) as connection:
                send(connection, AnswerPlease())
                receive(connection, Reply)
        except (TimeoutError, BlockingIOError):
            return False
        except (OSError, EOFError):
            pass
        return True

    def _connect(self) -> bool:
        """True if there is one, which is connected then."""
        if self._connection is not None:
            if not companion.readable([self._connection.fileno()], 0):
                return True
            self._drop()
        try:
            self._connection = Companion(self.folder).connect(_SIGN)
        except BlockingIOError:  # many have connected, and it takes none of them
            raise SidecarLost(f"job sidecar takes no connections any more; its log: {self.folder}/log") from None
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
            helper.start("monarch.job.mounts.sidecar_program", environment, owned=False, stdin=job.dumps())
        except companion.CompanionFailed as exc:
            raise RuntimeError(f"job sidecar failed to start: it wrote: {exc}") from None
        if not self._connect():
            raise RuntimeError(f"job sidecar failed to start: it wrote: {helper.said()}")
