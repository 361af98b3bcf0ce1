"""The mounts of a job.

Where hosts outlive the program, the job's sidecar holds them, one for all programs of the job: so that two programs do not
mount at one place, and what was gathered can be looked at when the program has ended. Where they do not (LocalJob), the
program holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import monarch.job.mounts.orders as mount_orders
from monarch.job.components import JobComponent
from monarch.job.job_state import JobState
from monarch.job.mounts.held import HeldMounts
from monarch.job.mounts.orders import GatheredMount, RemoteMount
from monarch.job.mounts.sidecar import Sidecar
from monarch.job.progress import job_logger


class Mounts(JobComponent):
    order = 0

    def __init__(self) -> None:
        self.remote: list[RemoteMount] = []
        self.gathered: list[GatheredMount] = []
        self._held = HeldMounts()
        self._sidecar: Sidecar | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"remote": self.remote, "gathered": self.gathered}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Mounts.__init__(self)
        self.__dict__.update(state)

    def add_remote(
        self, source: str, mntpoint: str | None, meshes: Sequence[str] | None, python_exe: str | None, mode: str
    ) -> None:
        """ValueError for what cannot be, before anything is asked for."""
        self.remote.append(mount_orders.remote_mount(source, mntpoint, meshes, python_exe, mode))

    def add_gathered(self, remote: str, local: str, meshes: Sequence[str] | None, mode: str) -> None:
        self.gathered.append(mount_orders.gathered_mount(remote, local, meshes, mode))

    def connect(self, job: Any, state: JobState) -> None:
        """Everything declared is mounted, and up to date. Meshes whose mount brings an interpreter use it."""
        names = list(state._hosts)
        orders = mount_orders.orders(self.remote, self.gathered, names)
        if job._hosts_outlive_program():
            sidecar = self._sidecar or Sidecar(job)
            sidecar.open_mounts(job, orders)
            self._sidecar = sidecar
            job._mirrored = names
        else:
            self._held.update(orders, state._hosts)
        for name, executable in mount_orders.executables(self.remote, names).items():
            state._hosts[name] = state._hosts[name].with_python_executable(executable)

    def forget(self) -> None:
        self._sidecar = None

    def close(self, job: Any) -> None:
        if job._hosts_outlive_program():
            sidecar = self._sidecar or Sidecar(job)
            if not sidecar.end(job) and self._find_mirrors(job, sidecar):
                sidecar.end(job)
            self._sidecar = None
        else:
            self._held.close()

    def _find_mirrors(self, job: Any, sidecar: Sidecar) -> bool:
        """A sidecar that has gone has left its mirrors on the hosts: a new one takes them up, to take them away. True if one
        runs."""
        names = job.__dict__.get("_mirrored", ())
        if not names:
            return False
        mirrors = mount_orders.orders(self.remote, [], names)
        try:
            sidecar.open_mounts(job, [order for order in mirrors if order.mode != "fuse"])
        except RuntimeError as exc:
            job_logger().warning("files of the job's mounts may be left on its hosts: %s", exc)
        return True
