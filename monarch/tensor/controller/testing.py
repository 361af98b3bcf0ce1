"""Meshes for tests of programs with distributed tensors: of real processes, which are kept from one test to the next, and
without any: operations are checked and give tensors of the right metadata, and nothing runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from monarch.actor import NDSlice, ProcMesh, Promise, Shape, this_host
from monarch.tensor import worker_commands
from monarch.tensor.controller.engine import TensorEngine
from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.controller.mesh import DeviceMesh

if TYPE_CHECKING:
    from monarch.tensor.signature import Args, Kwargs


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
        controller_params: object = None,
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
        """Gives the same mesh, not active."""
        return self.local_device_mesh(num_hosts, gpu_per_host, activate=False)


def mock_mesh(hosts: int, gpus: int) -> DeviceMesh:
    """A DeviceMesh with the dimensions `host` and `gpu` of those sizes whose workers do nothing.

    For tests of shapes, slices, misuse and what code would issue. Fetching raises RuntimeError.
    """
    shape = Shape(["host", "gpu"], NDSlice.new_row_major([hosts, gpus]))
    return TensorEngine("mock", shape, _MockWorkers(hosts * gpus), lambda: None).root


class _MockSpec:
    key = "mock"

    def __init__(self, count: int) -> None:
        self.addresses = [f"mock:{rank}" for rank in range(count)]


class _MockWorkers:
    """A stand-in for an engine's workers that takes everything."""

    def __init__(self, count: int) -> None:
        self._spec = _MockSpec(count)

    @property
    def execute(self) -> _MockWorkers:
        return self

    def _new_with_shape(self, _shape: object) -> _MockWorkers:
        return self

    def _send(self, args: Args, kwargs: Kwargs, port: object = None, selection: str = "all") -> None:
        """Sends nothing: there is nobody."""

    def call(self, number: int, data: bytes, payloads: tuple[object, ...]) -> Any:
        """Fails for what asks for values; everything else is done."""
        promise: Promise[dict[int, Any]] = Promise()
        last = worker_commands.decode(data)[-1]
        if isinstance(last, worker_commands.Sync):
            promise.set({})
        else:
            promise.fail(RuntimeError("a mock mesh has no processes, so nothing can be fetched from it"))
        return promise.future
