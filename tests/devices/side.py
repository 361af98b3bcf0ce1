"""Processes that use devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from monarch import _devices
from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.rdma import RDMABuffer
from tests.rdma.buffers import use_path

TIMEOUT = 120  # the first use of a device takes seconds


def call(endpoint: Any, *args: Any) -> Any:
    return endpoint.call_one(*args).get(TIMEOUT)


def one_process_a_device() -> Iterator[ProcMesh]:
    """Two at most: nccl refuses two ranks on one device. A fixture of tests."""
    mesh = this_host().spawn_procs({"gpus": min(2, _devices.count())})
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


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
        use_path(path)

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
