"""Meshes for tests of programs with distributed tensors: of real processes, which are kept from one test to the
next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from monarch.actor import ProcMesh, this_host
from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.controller.mesh import DeviceMesh


class TestingContext:
    """`with TestingContext() as local:` gives meshes of processes of this host. They are started on first use of a
    shape, serve every later use of it, and stop with the `with` block."""

    __test__ = False  # no test itself

    def __init__(self) -> None:
        self._procs: dict[tuple[int, int], ProcMesh] = {}

    def __enter__(self) -> TestingContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        procs, self._procs = self._procs, {}
        for stopping in [mesh.stop() for mesh in procs.values()]:
            stopping.get()

    @contextlib.contextmanager
    def local_device_mesh(
        self,
        num_hosts: int,
        gpu_per_host: int,
        activate: bool = True,
        backend: str = "mesh",
        controller_params: Any = None,
    ) -> Iterator[DeviceMesh]:
        """A mesh with the dimensions `host` and `gpu` on a fresh engine, active unless `activate` is False.

        At the end of the block the engine is exited, which raises RemoteException for a failure that nobody was told
        of; when the block raises, that is raised and nothing else. `backend` and `controller_params` are accepted and
        mean nothing.
        """
        key = (num_hosts, gpu_per_host)
        if key not in self._procs:
            self._procs[key] = this_host().spawn_procs(per_host={"host": num_hosts, "gpu": gpu_per_host})
        mesh = spawn_tensor_engine(self._procs[key])
        try:
            with mesh.activate() if activate else contextlib.nullcontext():
                yield mesh
        except BaseException:
            with contextlib.suppress(Exception):
                mesh.exit()
            raise
        mesh.exit()

    def local_engine_on_proc_mesh(
        self, num_hosts: int, gpu_per_host: int
    ) -> contextlib.AbstractContextManager[DeviceMesh]:
        """The same, not active."""
        return self.local_device_mesh(num_hosts, gpu_per_host, activate=False)
