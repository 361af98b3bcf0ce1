"""Real devices: every test here is skipped, with the reason, where torch sees none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.rdma import RDMABuffer
from tests.support.faults import Faults
from tests.support.processes import kill

TIMEOUT = 120  # the first use of a device takes seconds


@pytest.fixture(scope="module", autouse=True)
def _with_torch(torch_preloaded: None) -> None:
    pass


@pytest.fixture(scope="session", autouse=True)
def _devices() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(
            "torch.cuda.is_available() is False: there is no GPU here, or torch was built without CUDA and ROCm"
        )


@pytest.fixture(autouse=True)
def _deaths_are_expected(faults: Faults) -> None:
    """Tests here kill processes, and look elsewhere for what comes of that."""


class Side(Actor):
    """A process that uses the first device: it makes tensors, registers them, reads and writes others' buffers."""

    def __init__(self) -> None:
        import warnings

        import torch

        from monarch.rdma import RDMATcpFallbackWarning

        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.torch = torch
        self.tensors: dict[int, Any] = {}

    @endpoint
    def use(self, path: str) -> None:
        from monarch.rdma import paths

        every = (
            paths.Local(), paths.DeviceIpc(paths.elsewhere), paths.ProcessVm(), paths.Streams(), paths.ThroughActors(),
        )  # fmt: skip
        paths.BACKENDS = tuple(backend for backend in every if path in ("", backend.name))

    @endpoint
    def make(self, data: Any, device: str) -> RDMABuffer:
        tensor = data.to(device)
        buffer = RDMABuffer(tensor)
        self.tensors[buffer._handle.number] = tensor
        return buffer

    @endpoint
    def make_computed(self, n: int) -> RDMABuffer:
        """Of a tensor that the device is still computing."""
        tensor = self.torch.ones(n, n, device="cuda")
        for _ in range(20):
            tensor = tensor @ tensor / n
        buffer = RDMABuffer(tensor)
        self.tensors[buffer._handle.number] = tensor
        return buffer

    @endpoint
    def seen(self, buffer: RDMABuffer) -> Any:
        self.torch.cuda.synchronize()
        return self.tensors[buffer._handle.number].cpu()

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, like: Any, device: str) -> Any:
        into = self.torch.zeros_like(like, device=device)
        try:
            buffer.read_into(into, timeout=TIMEOUT).get(TIMEOUT)
        except Exception as exc:
            return type(exc).__name__
        return into.cpu()

    @endpoint
    def write(self, buffer: RDMABuffer, data: Any, device: str) -> None:
        buffer.write_from(data.to(device), timeout=TIMEOUT).get(TIMEOUT)

    @endpoint
    def write_computed(self, buffer: RDMABuffer, n: int) -> None:
        """From a tensor that the device is still computing, on a stream of its own."""
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            tensor = self.torch.full((n, n), 3.0, device="cuda")
            for _ in range(20):
                tensor = tensor @ tensor / (3 * n)
            buffer.write_from(tensor, timeout=TIMEOUT).get(TIMEOUT)

    @endpoint
    def hold(self, buffer: RDMABuffer) -> None:
        self.held = buffer
        self.into = self.torch.zeros(buffer.size(), dtype=self.torch.uint8, device="cuda")
        buffer.read_into(self.into, timeout=TIMEOUT).get(TIMEOUT)

    @endpoint
    def again(self) -> str:
        try:
            self.held.read_into(self.into, timeout=TIMEOUT).get(TIMEOUT)
        except Exception as exc:
            return type(exc).__name__
        return ""

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get(TIMEOUT)
        self.tensors.pop(buffer._handle.number, None)

    @endpoint
    def reserved(self) -> int:
        """Bytes of the device that tensors of this process use, those that others still have open included."""
        import gc

        gc.collect()
        self.torch.cuda.ipc_collect()
        return int(self.torch.cuda.memory_allocated())

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def describe(self, *tensors: Any) -> Any:
        return [(str(one.device), str(one.dtype), tuple(one.shape), one.cpu()) for one in tensors]

    @endpoint
    def shared(self, one: Any, other: Any) -> bool:
        """Whether a write to one is seen in the other."""
        one.view(-1)[0] = 42
        return bool((other.view(-1)[0] == 42).item())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="session")
def procs() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs(per_host={"who": 2}, name="devices")
    yield procs
    procs.stop().get(timeout=TIMEOUT)


@pytest.fixture
def owner(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=0).spawn("owner", Side)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def reader(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=1).spawn("reader", Side)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def doomed() -> Iterator[Any]:
    """One in a process of its own, and what kills it and waits until it is gone."""
    procs = this_host().spawn_procs(name="doomed")
    mesh = procs.spawn("doomed", Side)

    yield mesh, lambda: kill(mesh.pid.call_one().get(TIMEOUT))
    procs.stop().get(timeout=TIMEOUT)
