"""Memory of a real GPU over NIXL and over RDMA devices, between two hosts on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.config import configure
from monarch.rdma import RDMABuffer, is_ibverbs_available
from monarch.rdma.backends.nixl import nixl_agent
from tests.support.devices import TIMEOUT, call
from tests.support.hosts import Hosts

pytestmark = [pytest.mark.device, pytest.mark.procs]

needs_nixl = pytest.mark.skipif(
    not any(importlib.util.find_spec(name.partition(".")[0]) for name in nixl_agent.MODULES),
    reason="NIXL is not installed",
)
needs_verbs = pytest.mark.skipif(not is_ibverbs_available(), reason="no RDMA device, or no binding to it, is here")


class Side(Actor):
    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.tensors: list[Any] = []

    @endpoint
    def use(self, path: str, nixl: bool) -> None:
        """Processes of a test are on one machine: only what leads to others is used."""
        from monarch.rdma import paths

        configure(rdma_nixl=nixl)
        paths.allow(path, "tcp", "actor")

    @endpoint
    def make(self, data: bytes, device: str) -> RDMABuffer:
        self.tensors.append(self._tensor(data, device))
        return RDMABuffer(self.tensors[-1])

    @endpoint
    def seen(self) -> bytes:
        self.torch.cuda.synchronize()
        return bytes(self.tensors[-1].cpu().numpy())

    @endpoint
    def summed(self) -> int:
        """By a kernel that is launched now: it sees what has been written to the GPU."""
        return int(self.tensors[-1].sum(dtype=self.torch.int64).item())

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, device: str) -> tuple[bytes, int]:
        """Returns what has come, and its sum by a kernel launched right after."""
        into = self.torch.zeros(buffer.size(), dtype=self.torch.uint8, device=device)
        buffer.read_into(into, timeout=TIMEOUT).get(TIMEOUT)
        total = int(into.sum(dtype=self.torch.int64).item())
        return bytes(into.cpu().numpy()), total

    @endpoint
    def write(self, buffer: RDMABuffer, data: bytes, device: str) -> None:
        """From a tensor that the device has still to compute."""
        tensor = self._tensor(data, device)
        for _ in range(50):
            tensor = tensor ^ 0xFF
        buffer.write_from(tensor, timeout=TIMEOUT).get(TIMEOUT)

    @endpoint
    def failed(self) -> list[str]:
        """With whom a way is not tried, and why."""
        from monarch.rdma.backends.ibverbs import backend as ibverbs
        from monarch.rdma.backends.nixl import backend as nixl

        return [str(why) for way in (ibverbs.unreachable, nixl.unreachable) for why in way._known.values()]

    def _tensor(self, data: bytes, device: str) -> Any:
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).to(device)


@pytest.fixture
def two(hosts: Hosts) -> Iterator[HostMesh]:
    mesh = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
    yield mesh
    mesh.shutdown().get(TIMEOUT)


def sides(two: HostMesh, path: str) -> tuple[Any, Any]:
    procs = two.spawn_procs()
    owner = procs.slice(hosts=0).spawn("owner", Side)
    other = procs.slice(hosts=1).spawn("other", Side)
    for side in (owner, other):
        call(side.use, path, path == "nixl")
    return owner, other


@needs_nixl
@pytest.mark.parametrize("there", ["cuda:0", "cpu"])
@pytest.mark.parametrize("here", ["cuda:0", "cpu"])
def test_nixl(two: HostMesh, here: str, there: str) -> None:
    owner, other = sides(two, "nixl")
    data = bytes(range(251)) * 100_000
    buffer = call(owner.make, data, there)
    assert call(other.path, buffer) == "nixl"
    assert call(other.read, buffer, here) == (data, sum(data))
    for number in range(3):  # whatever is written is seen by the next kernel, every time
        new = data[number + 1 :] + data[: number + 1]
        call(other.write, buffer, new, here)
        assert call(owner.summed) == sum(new)
        assert call(owner.seen) == new
    assert call(other.failed) == []  # all of it went by NIXL


@needs_verbs
@pytest.mark.parametrize("here", ["cuda:0", "cpu"])
def test_a_gpu_is_read_in_place(two: HostMesh, here: str) -> None:
    owner, other = sides(two, "ibverbs")
    data = bytes(range(251)) * 100_000
    buffer = call(owner.make, data, "cuda:0")
    assert call(other.path, buffer) == "ibverbs"
    assert call(other.read, buffer, here) == (data, sum(data))
    assert call(other.failed) == []
