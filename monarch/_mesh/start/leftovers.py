"""Leftovers of a host agent that was killed: nobody is the parent of what its processes had started.

Procs die with their agent, because the kernel is asked to see to that; a program that an endpoint has started does not. Two
signs tell it, and neither needs privileges: every agent leads a session, which its processes and theirs share unless they
leave it, and the environment of every process of a run names the run's folder, unless it is started without environment.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

from monarch._linux import procfs

if TYPE_CHECKING:
    import subprocess

RUN = "MONARCH_RUN"  # the environment variable that names the folder of the run
_ROUNDS = 20  # walks over all processes, until one finds nothing new: those that are killed may be starting others


def reap(agent: subprocess.Popen[bytes], directory: str, timeout: float | None = None) -> int:
    """Waits for the end of a host agent; returns its status, as Popen has it. Unless it ended in order, what is left of its
    run is killed. subprocess.TimeoutExpired after `timeout` seconds."""
    import subprocess  # slow to import; used when a host ends

    if agent.returncode is None:
        try:
            process = os.pidfd_open(agent.pid)
        except ProcessLookupError:  # another thread has waited for it
            return agent.wait(timeout)
        except OSError:  # no descriptor is free
            agent.wait(timeout)
            kill_run(directory)
            return agent.wait()
        try:
            ended = select.poll()
            ended.register(process, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(agent.args, timeout or 0.0)
            status = os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOWAIT)
            if status is None or status.si_code != os.CLD_EXITED or status.si_status:
                kill_run(directory, agent.pid)  # before its pid, the session's number, may be given to another
        except ChildProcessError:
            pass
        finally:
            os.close(process)
    return agent.wait()


def kill_run(directory: str, session: int = 0) -> None:
    """Kills the processes of the run of that folder, and of the session if one is given."""
    sign = f"{RUN}={directory}".encode(errors="surrogateescape")
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = [
            pid for pid in _others() if pid not in killed and (_is_in(pid, session) or sign in procfs.environment(pid))
        ]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # gone, or it has become another user's
                pass
        if not found:
            return
        killed.update(found)


def _others() -> list[int]:
    return [pid for pid in procfs.pids() if pid != os.getpid()]


def _is_in(pid: int, session: int) -> bool:
    """True if it lives, and in that session."""
    found = procfs.stat(pid) if session else None
    return found is not None and found.session == session and found.alive
