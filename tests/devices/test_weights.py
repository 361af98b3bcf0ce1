"""Weights on a real device, read in place by another process while they change."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, Channel, Port, ProcMesh, endpoint
from monarch.rdma import RDMABuffer, Shard, StateDict, StateDictHandle
from tests.rdma.buffers import use_path
from tests.rdma.cards import two_processes
from tests.support.devices import TIMEOUT, call

pytestmark = [pytest.mark.device, pytest.mark.procs]
PATHS = ["device_ipc", "tcp", "actor"]
SIZES = [1, 1000, 77_777, 500_000, 2_000_000]  # numbers: four bytes to 8 MB
VERSIONS = 8  # that a reader sees

procs = pytest.fixture(two_processes, scope="module", name="procs")


class Owner(Actor):
    """A trainer on the first device."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.weights: StateDict | None = None

    @endpoint
    def publish(self, double_buffer: Any) -> StateDictHandle:
        torch = self.torch
        self.source = {f"w{i}": torch.zeros(size, device="cuda") for i, size in enumerate(SIZES)}
        self.weights = StateDict(self.source, double_buffer=double_buffer)
        return self.weights.handle

    @endpoint
    def publish_rows(self, rank: int) -> StateDictHandle:
        """Rows of a matrix of numbers, one half of 3,000; and small tensors that every rank has."""
        torch = self.torch
        full = torch.arange(3000 * 512, device="cuda").view(3000, 512)
        source = {"w": full.chunk(2)[rank].clone(), "half": (full[:64] % 251).to(torch.bfloat16)}
        source |= {f"b{i}": torch.full((33,), float(i), device="cuda") for i in range(100)}
        self.weights = StateDict(source, shards={"w": ((3000, 512), Shard(0, rank, 2))})
        return self.weights.handle

    @endpoint
    def hammer(self, ready: Port[RDMABuffer]) -> int:
        """Makes versions until it is told to stop. The device is busy first, so that an update that is not waited for would
        be seen half done; half of the tensors are written on another stream.
        """
        torch, weights = self.torch, self.weights
        assert weights is not None
        stop, side, luck = bytearray(1), torch.cuda.Stream(), random.Random(1)
        buffer = RDMABuffer(stop)
        busy = torch.ones(2048, 2048, device="cuda")
        ready.send(buffer)
        while not stop[0]:
            with weights.updating():
                version = weights.version + 1
                side.wait_stream(torch.cuda.current_stream())
                for number, tensor in enumerate(self.source.values()):
                    with torch.cuda.stream(side if number % 2 else torch.cuda.current_stream()):
                        busy.matmul(busy)
                        tensor.fill_(version)
            time.sleep(0.2 * luck.random())  # as if it computed a gradient; readers in place need a pause
        buffer.drop().get(TIMEOUT)
        return weights.version

    @endpoint
    def drop(self) -> None:
        if self.weights is not None:
            self.weights.drop().get(TIMEOUT)


class Reader(Actor):
    """A generator, of which the tests say how it reaches others."""

    def __init__(self) -> None:
        import warnings

        import torch

        from monarch.rdma import RDMATcpFallbackWarning

        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.torch = torch

    @endpoint
    def use(self, path: str) -> None:
        use_path(path, "process_vm")  # by which buffers of the host's memory, such as counters, are always read

    @endpoint
    def watch(self, handle: StateDictHandle, device: str) -> tuple[str, list[int], list[str]]:
        """Reads until it has seen some versions: the path, the versions, and every tensor that was not of its version."""
        torch = self.torch
        mine = {name: torch.full(shape, -1.0, device=device) for name, shape in handle.shapes.items()}
        reader, versions, torn = handle.reader(mine), [], []
        while len(set(versions)) < VERSIONS:
            version = reader.read(timeout=TIMEOUT).get(TIMEOUT)
            versions.append(version)
            for name, tensor in mine.items():
                low, high = tensor.aminmax()
                if not low.item() == high.item() == version:
                    torn.append(f"{name} of version {version}: {low.item()} to {high.item()}")
        return handle.path, versions, torn

    @endpoint
    def columns(self, handle: StateDictHandle, device: str, staged: bool) -> list[bool]:
        """The right half of the columns, and all that is small."""
        torch = self.torch
        mine = {
            "w": torch.zeros(3000, 256, dtype=torch.int64, device=device),
            "half": torch.zeros(64, 512, dtype=torch.bfloat16, device=device),
        }
        mine |= {f"b{i}": torch.zeros(33, device=device) for i in range(100)}
        full = torch.arange(3000 * 512).view(3000, 512)
        handle.reader(mine, shards={"w": Shard(1, 1, 2)}, staged=staged).read().get(TIMEOUT)
        small = all(bool((mine[f"b{i}"] == i).all()) for i in range(100))
        half = torch.equal(mine["half"].cpu(), (full[:64] % 251).to(torch.bfloat16))
        return [torch.equal(mine["w"].cpu(), full[:, 256:]), half, small]

    @endpoint
    def after(self, handle: StateDictHandle) -> bool:
        """Reads into a tensor that this thread's own stream still works on: the read comes after that."""
        torch = self.torch
        name = f"w{len(SIZES) - 1}"
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = {name: torch.empty(SIZES[-1], device="cuda")}
            busy = torch.ones(4096, 4096, device="cuda")
            reader = handle.reader(mine, strict=False)
            for _ in range(20):
                busy = busy.matmul(busy) / 4096
            mine[name].fill_(-1)
            reader.read().get(TIMEOUT)
            torch.cuda.synchronize()
            return bool((mine[name] == 0).all().item())

    @endpoint
    def devices(self) -> int:
        return int(self.torch.cuda.device_count())


@pytest.fixture
def trainers(procs: ProcMesh) -> Iterator[list[Any]]:
    """Two owners in one process: its device is the first one."""
    meshes = [procs.slice(who=0).spawn(f"trainer{i}", Owner) for i in range(2)]
    yield meshes
    for mesh in meshes:
        call(mesh.drop)
        mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def generator(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=1).spawn("generator", Reader)
    yield mesh
    call(mesh.use, "")
    mesh.stop().get(timeout=TIMEOUT)


@pytest.mark.parametrize("double_buffer", [False, "host", "device"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("path", PATHS)
def test_no_version_is_torn(trainers: Any, generator: Any, path: str, device: str, double_buffer: Any) -> None:
    call(generator.use, path)
    trainer = trainers[0]
    handle = call(trainer.publish, double_buffer)
    port, receiver = Channel[RDMABuffer].open()
    ended = trainer.hammer.call_one(port)
    stop = receiver.recv().get(TIMEOUT)
    try:
        took, versions, torn = call(generator.watch, handle, device)
    finally:
        stop.write_from(b"x").get(TIMEOUT)
    assert torn == []
    assert versions == sorted(versions)
    assert versions[-1] <= ended.get(TIMEOUT)
    assert took == ("process_vm" if double_buffer == "host" else path)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("path", PATHS)
def test_rows_are_read_as_columns(trainers: Any, generator: Any, path: str, device: str, staged: bool) -> None:
    call(generator.use, path)
    handles = [call(trainer.publish_rows, rank) for rank, trainer in enumerate(trainers)]
    assert call(generator.columns, StateDictHandle.combine(handles), device, staged) == [True, True, True]


def test_to_another_device(trainers: Any, generator: Any) -> None:
    if call(generator.devices) < 2:
        pytest.skip("there is one GPU here")
    handles = [call(trainer.publish_rows, rank) for rank, trainer in enumerate(trainers)]
    assert call(generator.columns, StateDictHandle.combine(handles), "cuda:1", False) == [True, True, True]


@pytest.mark.parametrize("path", PATHS)
def test_a_read_comes_after_what_the_reader_still_computes(trainers: Any, generator: Any, path: str) -> None:
    call(generator.use, path)
    assert call(generator.after, call(trainers[0].publish, False))
