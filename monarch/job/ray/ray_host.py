"""A host of a RayJob: what runs in a Ray actor. It holds a worker, and both end together.

    raylet ── Ray actor (Host) ── stdin ──► monarch worker ──► processes of meshes

- The Ray actor ends, however that may be: the worker's stdin ends, and with it the worker and all it started.
- The worker fails: so does the actor, and Ray starts both again, at most `max_restarts` times.
- The worker ends in order (a client shut it down, or its lease is over): the actor leaves for good. Rank 0 of the job
  waits until all others have left, and has the placement group given back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from monarch._text import bracketed
from monarch.job.worker_launch import WorkerLaunch

_FAILED = 1  # the actor's status, with which Ray starts it again
_ENDING = 10.0  # seconds that a worker gets to end
_LOOK = 5.0  # seconds between two looks whether others have left


class RayHost:
    """`job`: what the names of all actors of the job begin with."""

    def __init__(self, launch: WorkerLaunch, job: str, last: bool) -> None:
        import ray

        self._job = job
        self._last = last
        self._status: int | None = None
        self._stopping = False
        ip = ray.util.get_node_ip_address()
        shown = bracketed(ip)
        # Bound here, so that the port is known and nobody else can take it.
        with socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET) as listening:
            self._address = f"{launch.scheme}://{shown}:{listening.getsockname()[1]}"
            inherited = f"{launch.scheme}://{shown}:fd{listening.fileno()}"
            self._worker = subprocess.Popen(
                [*launch.command(sys.executable, inherited), "--stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listening.fileno(),),
                start_new_session=True,
            )
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._worker.stdin.write(launch.stdin())
        self._worker.stdin.flush()
        if not self._worker.stdout.readline():  # it says that it listens; after that it writes to stderr, Ray's log
            raise RuntimeError(f"the worker ended with status {self._worker.wait()}; why is in Ray's log of this actor")
        threading.Thread(target=self._watch, name="monarch-worker", daemon=True).start()

    def address(self) -> str:
        """Returns the address at which the worker is dialled. RuntimeError when it has ended."""
        if self._status is not None:
            raise RuntimeError(f"its worker ended with status {self._status}")
        return self._address

    def pids(self) -> tuple[int, int]:
        """Returns the pid of this actor's process, and that of its worker."""
        return os.getpid(), self._worker.pid

    def stop(self) -> None:
        """Ends the worker and all it started; the actor stays, for its stopper to kill it."""
        self._stopping = True
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait(_ENDING)

    def _watch(self) -> None:
        import ray

        self._status = self._worker.wait()
        if self._stopping:
            return
        if self._status != 0:
            print(
                f"monarch: the worker at {self._address} ended with status {self._status}", file=sys.stderr, flush=True
            )
            os._exit(_FAILED)
        if not self._last:
            ray.kill(ray.get_runtime_context().current_actor)
            return
        namespace = ray.get_runtime_context().namespace
        while [name for name in _actors(namespace) if name.startswith(self._job)][1:]:
            time.sleep(_LOOK)  # nobody tells an actor of the end of others
        me = ray.get_runtime_context().current_actor
        sweeper = ray.remote(Sweeper).options(num_cpus=0, lifetime="detached", name=f"sweep-{self._job}")
        sweeping = sweeper.remote()  # older Rays lose an actor of which no handle is kept
        sweeping.sweep.remote(me, self._job)


class Sweeper:
    """Gives back what the last host held. Another actor does that: one whose placement group goes first is started again for
    ever, and one that goes first cannot give the group back."""

    def sweep(self, last: Any, job: str) -> None:
        import ray

        ray.kill(last)
        ray.util.remove_placement_group(ray.util.get_placement_group(job))
        ray.actor.exit_actor()


def _actors(namespace: str) -> list[str]:
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return [str(entry["name"]) for entry in found if entry["namespace"] == namespace]
