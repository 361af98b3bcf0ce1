"""An actor with a card, an imitated or a real one: it owns buffers on it, and reads and writes those of others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.rdma import BufferDroppedError, RDMAAction, RDMABuffer
from tests.rdma.buffers import use_path
from tests.support.devices import skip_without_gpu
from tests.support.patience import TIMEOUT


class Side(Actor):
    """A process with tensors on an imitated card, "cuda", and on the host, "cpu"."""

    def __init__(self) -> None:
        import warnings

        import torch

        from monarch._devices import memory
        from monarch.rdma import RDMATcpFallbackWarning
        from tests._devices.fake import FakeCard

        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.torch = torch
        self.card = FakeCard()
        self.before = memory.replace(self.card)
        self.tensors: dict[int, Any] = {}

    def __cleanup__(self, exc: Exception | None) -> None:
        from monarch._devices import memory

        memory.replace(self.before)
        self.card.close()

    def tensor(self, where: str, data: bytes) -> Any:
        if where == "cuda":
            return self.card.tensor(data)
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8)

    def bytes_of(self, tensor: Any) -> bytes:
        return self.card.bytes_of(tensor)

    @endpoint
    def use(self, path: str) -> None:
        use_path(path)

    @endpoint
    def use_verbs(self, fabric: str, nics: list[str]) -> None:
        """RDMA devices, imitated ones, and what leads to other hosts."""
        from pathlib import Path

        from monarch.rdma import paths
        from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
        from tests.rdma import gpu_direct
        from tests.rdma.ibverbs_fake import FakeBinding, nic_tree

        paths.allow("local", "ibverbs", "tcp", "actor")
        root = nic_tree(Path(fabric) / nics[0] / str(os.getpid()), *nics)
        self.exports = gpu_direct.Exports()
        devices = ibverbs_devices.RDMADevices(FakeBinding(Path(fabric), nics), root, self.exports, lambda ordinal: "")
        ibverbs_devices.use(devices)
        gpu_direct.install()

    @endpoint
    def exports_fail(self, fail: bool) -> None:
        self.exports.fail = fail

    @endpoint
    def has(self, **kwargs: Any) -> None:
        """Sets what the card says of itself."""
        for name, value in kwargs.items():
            setattr(self.card, name, value)

    @endpoint
    def card_says(self, name: str) -> Any:
        return getattr(self.card, name)

    @endpoint
    def make(self, where: str, data: bytes, start: int = 0, dtype: str = "uint8") -> RDMABuffer:
        tensor = self.tensor(where, data)
        return self.register(tensor, tensor[start:].view(getattr(self.torch, dtype)))

    def register(self, tensor: Any, part: Any) -> RDMABuffer:
        buffer = RDMABuffer(part)
        self.tensors[buffer._handle.number] = tensor
        return buffer

    @endpoint
    def make_slices(self, data: bytes, count: int) -> list[RDMABuffer]:
        tensor = self.tensor("cuda", data)
        return [RDMABuffer(part) for part in tensor.view(count, -1)]

    @endpoint
    def seen(self, buffer: RDMABuffer) -> bytes:
        return self.bytes_of(self.tensors[buffer._handle.number])

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, where: str, room: int, options: dict[str, Any]) -> Any:
        into = self.tensor(where, b"." * room)
        return self.outcome(lambda: buffer.read_into(into, **options).get(TIMEOUT), into)

    @endpoint
    def write(self, buffer: RDMABuffer, where: str, data: bytes, options: dict[str, Any]) -> Any:
        return self.outcome(
            lambda: buffer.write_from(self.tensor(where, data), **options).get(TIMEOUT), self.tensor("cpu", b"ok")
        )

    @endpoint
    def read_many(self, buffers: list[RDMABuffer], where: str) -> list[bytes]:
        into = [self.tensor(where, b"." * buffer.size()) for buffer in buffers]
        action = RDMAAction()
        for buffer, one in zip(buffers, into, strict=True):
            action.read_remote(one, buffer)
        action.submit(timeout=TIMEOUT).get(TIMEOUT)
        return [self.bytes_of(one) for one in into]

    @endpoint
    def read_in_turn(self, buffers: list[RDMABuffer]) -> list[bytes]:
        """All reads have begun, and found no open storage, before the first goes on."""
        from monarch.rdma import manager

        into = [self.tensor("cuda", b"." * buffer.size()) for buffer in buffers]
        begun: list[Any] = []
        start = manager.start
        manager.start = begun.append
        try:
            reads = [buffer.read_into(one) for buffer, one in zip(buffers, into, strict=True)]
        finally:
            manager.start = start
        assert len(begun) == len(buffers)
        for work, read in zip(begun, reads, strict=True):
            start(work)
            read.get(TIMEOUT)
        return [self.bytes_of(one) for one in into]

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get(TIMEOUT)

    @endpoint
    def open_storages(self) -> int:
        import gc

        gc.collect()
        return self.card.open_storages

    @endpoint
    def allocated(self) -> int:
        """Bytes of the card that this process has taken, those that others still have open included."""
        import gc

        gc.collect()
        self.card.collect()
        return self.card.allocated()

    @endpoint
    def forget(self, buffer: RDMABuffer) -> None:
        """Drops it, and the tensor."""
        buffer.drop().get(TIMEOUT)
        del self.tensors[buffer._handle.number]

    @endpoint
    def given(self) -> int:
        from monarch.rdma.lending import lending

        return lending.given()

    @endpoint
    def hold(self, buffer: RDMABuffer) -> bytes:
        """Reads it and keeps the RDMABuffer object."""
        self.held = buffer
        into = self.tensor("cuda", b"." * buffer.size())
        buffer.read_into(into).get(TIMEOUT)
        return self.bytes_of(into)

    @endpoint
    def again(self) -> Any:
        into = self.tensor("cuda", b"." * self.held.size())
        return self.outcome(lambda: self.held.read_into(into).get(TIMEOUT), into)

    @endpoint
    def write_on(self, buffer: RDMABuffer, started: Any) -> int:
        """Writes ones until it is dropped."""
        ones, count = self.tensor("cuda", b"\1" * buffer.size()), 0
        while True:
            try:
                buffer.write_from(ones).get(TIMEOUT)
            except BufferDroppedError:
                return count
            count += 1
            if count == 3:
                started.send(None)

    @endpoint
    def drop_and_look(self, buffer: RDMABuffer) -> bool:
        """Returns whether the memory stays as it is when the drop is done."""
        tensor = self.tensors[buffer._handle.number]
        buffer.drop().get(TIMEOUT)
        self.card.flat(tensor).zero_()
        return self.bytes_of(tensor) == bytes(buffer.size())

    @endpoint
    def all_zero(self, buffer: RDMABuffer) -> bool:
        return self.bytes_of(self.tensors[buffer._handle.number]) == bytes(buffer.size())

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def refused(self) -> str:
        tensor = self.tensor("cuda", bytes(64))
        try:
            RDMABuffer(tensor.view(8, 8).t())
        except ValueError as exc:
            return str(exc)
        return ""

    def outcome(self, do: Any, tensor: Any) -> Any:
        try:
            do()
        except Exception as exc:
            return type(exc).__name__, str(exc)
        return self.bytes_of(tensor)

    @endpoint
    def read_copies(self, buffer: RDMABuffer, times: int) -> list[str]:
        """By a new RDMABuffer object each time, as messages bring them: the paths that were taken."""
        import pickle

        paths, into = set(), self.tensor("cuda", b"." * buffer.size())
        for _ in range(times):
            copied = pickle.loads(pickle.dumps(buffer))
            copied.read_into(into).get(TIMEOUT)
            paths.add(copied.path)
        return sorted(paths)

    @endpoint
    def keep_open(self, most: int) -> None:
        from monarch.rdma import lending

        lending.OPEN = most

    @endpoint
    def close_all(self) -> None:
        from monarch.rdma.lending import borrowing

        for owner, _ in list(borrowing._open):
            borrowing.lost(owner)

    @endpoint
    def uses_the_second(self) -> None:
        """From here on the card is this process's cuda:1."""
        self.card.second = True

    @endpoint
    def wait_no_longer(self) -> None:
        """Makes due again what is left alone for a while."""
        from monarch.rdma import paths

        for backend in paths.BACKENDS:
            if isinstance(backend, paths.DeviceIpc):
                backend._refused.clear()


class GpuSide(Side):
    """The same on the first GPU of this machine, of which nobody knows what it does."""

    def __init__(self) -> None:
        import warnings

        import torch

        from monarch._devices import memory
        from monarch.rdma import RDMATcpFallbackWarning

        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.torch = torch
        self.card: Any = memory.interface()
        self.tensors: dict[int, Any] = {}

    def __cleanup__(self, exc: Exception | None) -> None:
        pass

    def tensor(self, where: str, data: bytes) -> Any:
        return super().tensor("cpu", data).to(where)

    def bytes_of(self, tensor: Any) -> bytes:
        return bytes(tensor.cpu().numpy())

    @endpoint
    def allocated(self) -> int:
        import gc

        gc.collect()
        self.torch.cuda.ipc_collect()
        return int(self.torch.cuda.memory_allocated())

    @endpoint
    def make_computed(self, n: int) -> RDMABuffer:
        """Makes one of a tensor that the device is still computing."""
        tensor = self.torch.ones(n, n, device="cuda")
        for _ in range(20):
            tensor = tensor @ tensor / n
        return self.register(tensor, tensor)

    @endpoint
    def write_computed(self, buffer: RDMABuffer, n: int) -> None:
        """From a tensor that the device is still computing, on a stream of its own."""
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            tensor = self.torch.full((n, n), 2.0, device="cuda")
            for _ in range(20):
                tensor = tensor @ tensor / (2 * n)
            buffer.write_from(tensor, timeout=TIMEOUT).get(TIMEOUT)


_gpu = pytest.param(GpuSide, id="gpu", marks=pytest.mark.device)
on_a_gpu = pytest.mark.parametrize("side", [_gpu], indirect=True)
both_cards = pytest.mark.parametrize("side", [pytest.param(Side, id="imitated"), _gpu], indirect=True)


def card_side(request: pytest.FixtureRequest) -> type[Side]:
    """A fixture of tests: the class of their actors. With `both_cards` it is a GPU's as well, with `on_a_gpu` that alone."""
    found: type[Side] = getattr(request, "param", Side)
    if found is GpuSide:
        skip_without_gpu()
    return found


def two_processes() -> Iterator[ProcMesh]:
    """A fixture of tests: `who` 0 owns, 1 reads."""
    procs = this_host().spawn_procs(per_host={"who": 2}, name="cards")
    yield procs
    procs.stop().get(timeout=TIMEOUT)


def card_reader(procs: ProcMesh, side: type[Side]) -> Iterator[Any]:
    """A fixture of tests, whose path is what it was at first when they end."""
    mesh = procs.slice(who=1).spawn("card_reader", side)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


def pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


def counts_of(pid: int) -> list[str]:
    """The files in which torch counts what a process has shared."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{pid}_")]


def card_owner(procs: ProcMesh, side: type[Side]) -> Iterator[Any]:
    """A fixture of tests."""
    mesh = procs.slice(who=0).spawn("card_owner", side)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)
