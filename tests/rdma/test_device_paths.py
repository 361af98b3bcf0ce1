"""Buffers on a device, with a faked card in two real processes: every path, and what is open in which process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from monarch.actor import Actor, Channel, ProcMesh, endpoint, this_host
from monarch.rdma import BufferDroppedError, RDMAAction, RDMABuffer
from tests.rdma.buffers import call
from tests.support.processes import kill

pytestmark = [
    pytest.mark.procs,
    pytest.mark.usefixtures("torch_preloaded"),
    pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning"),
]
TIMEOUT = 30
MIB = 1 << 20
SIZES = [1, 4096, (1 << 16) + 1, 9 * MIB + 3]


class Side(Actor):
    """A process with tensors on a card, "cuda", and on the host, "cpu"."""

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

    def tensor(self, where: str, data: bytes) -> Any:
        if where == "cuda":
            return self.card.tensor(data)
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8)

    def bytes_of(self, tensor: Any) -> bytes:
        return self.card.bytes_of(tensor)

    @endpoint
    def use(self, path: str) -> None:
        from monarch.rdma import paths

        every = (
            paths.Local(), paths.DeviceIpc(paths.elsewhere), paths.ProcessVm(), paths.Streams(), paths.ThroughActors(),
        )  # fmt: skip
        paths.BACKENDS = tuple(backend for backend in every if path in ("", backend.name))

    @endpoint
    def has(self, **kwargs: Any) -> None:
        """What the card says of itself."""
        for name, value in kwargs.items():
            setattr(self.card, name, value)

    @endpoint
    def card_says(self, name: str) -> Any:
        return getattr(self.card, name)

    @endpoint
    def make(self, where: str, data: bytes, start: int = 0) -> RDMABuffer:
        tensor = self.tensor(where, data)
        buffer = RDMABuffer(tensor[start:])
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
        """Whether the memory stays as it is when the drop is done."""
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


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs(per_host={"who": 2}, name="cards")
    yield procs
    procs.stop().get(timeout=TIMEOUT)


@pytest.fixture
def owner(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=0).spawn("card_owner", Side)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def reader(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=1).spawn("card_reader", Side)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


def pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
@pytest.mark.parametrize("size", SIZES)
def test_every_path_reads_and_writes_memory_of_a_device(
    owner: Any, reader: Any, path: str, here: str, size: int
) -> None:
    call(reader.use, path)
    data = pattern(size)
    buffer = call(owner.make, "cuda", b"???" + data, 3)
    assert call(reader.path, buffer) == path
    assert call(reader.read, buffer, here, size + 2, {}) == data + b".."
    assert call(reader.write, buffer, here, data[::-1], {}) == b"ok"
    assert call(owner.seen, buffer) == b"???" + data[::-1]
    call(reader.drop, buffer)
    name, text = call(reader.read, buffer, here, size, {})
    assert (name, "not found" in text) == ("BufferDroppedError", True)
    for side in (owner, reader):
        assert call(side.card_says, "begun") == call(side.card_says, "waited")


@pytest.mark.parametrize("path", ["process_vm", "tcp", "actor"])
@pytest.mark.parametrize("size", SIZES)
def test_every_path_serves_a_reader_whose_memory_is_on_a_device(owner: Any, reader: Any, path: str, size: int) -> None:
    call(reader.use, path)
    data = pattern(size)
    buffer = call(owner.make, "cpu", data)
    assert call(reader.path, buffer) == path
    assert call(reader.read, buffer, "cuda", size + 2, {}) == data + b".."
    assert call(reader.write, buffer, "cuda", data[::-1], {}) == b"ok"
    assert call(owner.seen, buffer) == data[::-1]
    call(reader.drop, buffer)
    name, text = call(reader.write, buffer, "cuda", data, {})
    assert (name, "not found" in text) == ("BufferDroppedError", True)


@pytest.mark.parametrize("there", ["cuda", "cpu"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
@pytest.mark.parametrize("size", [7, 5 * MIB])
def test_within_a_process(owner: Any, here: str, there: str, size: int) -> None:
    data = pattern(size)
    buffer = call(owner.make, there, data)
    assert call(owner.path, buffer) == "local"
    assert call(owner.read, buffer, here, size, {}) == data
    assert call(owner.write, buffer, here, data[::-1], {}) == b"ok"
    assert call(owner.seen, buffer) == data[::-1]
    call(owner.drop, buffer)


@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
def test_parts_of_a_buffer(owner: Any, reader: Any, path: str, here: str) -> None:
    call(reader.use, path)
    buffer = call(owner.make, "cuda", pattern(1000))
    assert call(reader.read, buffer, here, 5, {"offset": 100, "size": 3}) == bytes([100, 101, 102]) + b".."
    assert call(reader.write, buffer, here, b"xyz", {"offset": 200}) == b"ok"
    assert call(owner.seen, buffer)[199:204] == bytes([199]) + b"xyz" + bytes([203])
    call(owner.drop, buffer)


@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
@pytest.mark.parametrize("size", [100, 9 * MIB])
def test_nobody_writes_into_memory_whose_drop_is_done(owner: Any, reader: Any, path: str, size: int) -> None:
    call(reader.use, path)
    for _ in range(2):
        buffer = call(owner.make, "cuda", bytes(size))
        port, receiver = Channel[None].open()
        writing = reader.write_on.call_one(buffer, port)
        receiver.recv().get(TIMEOUT)
        assert call(owner.drop_and_look, buffer)
        assert writing.get(TIMEOUT) >= 3
        assert call(owner.all_zero, buffer)


def test_the_way_that_is_taken_when_nothing_is_said(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, "cuda", b"abc")
    assert call(reader.path, buffer) == "device_ipc"
    call(reader.has, uuid="card-2")
    assert call(reader.path, buffer) == "tcp"
    assert call(reader.read, buffer, "cuda", 3, {}) == b"abc"
    call(owner.drop, buffer)


def test_a_storage_is_opened_once_whatever_lies_in_it(owner: Any, reader: Any) -> None:
    data = pattern(20 * 100)
    buffers = call(owner.make_slices, data, 20)
    assert b"".join(call(reader.read_many, buffers, "cuda")) == data
    assert call(owner.card_says, "shares") == 1
    for buffer in buffers:
        call(owner.drop, buffer)


def test_a_storage_is_opened_once_though_others_began_when_it_was_not_open(owner: Any, reader: Any) -> None:
    data = pattern(3 * 100)
    buffers = call(owner.make_slices, data, 3)
    assert b"".join(call(reader.read_in_turn, buffers)) == data
    assert call(owner.card_says, "shares") == 1
    for buffer in buffers:
        call(owner.drop, buffer)


def test_a_storage_is_closed_when_its_last_buffer_is_dropped(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, "cuda", b"abc")
    assert call(reader.hold, buffer) == b"abc"
    assert call(reader.open_storages) == 1
    call(owner.drop, buffer)
    assert call(reader.again)[0] == "BufferDroppedError"
    assert call(reader.open_storages) == 0


def test_it_is_closed_though_the_reader_does_not_look_again(owner: Any, reader: Any) -> None:
    """The owner says so, without waiting for it."""
    buffer = call(owner.make, "cuda", b"abc")
    call(reader.hold, buffer)
    call(reader.drop, buffer)
    deadline = monotonic() + TIMEOUT
    while call(reader.open_storages):
        assert monotonic() < deadline


def test_it_is_closed_with_the_last_handle(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, "cuda", b"abc")
    assert call(reader.read, buffer, "cuda", 3, {}) == b"abc"
    assert call(reader.open_storages) == 0
    call(owner.drop, buffer)


@pytest.mark.parametrize("ipc", ["torch has no IPC today"])
def test_where_the_owner_cannot_lend_it_another_way_is_taken(owner: Any, reader: Any, ipc: str) -> None:
    call(owner.has, ipc=ipc)
    buffer = call(owner.make, "cuda", pattern(100))
    for where in ("cuda", "cpu"):
        assert call(reader.read, buffer, where, 100, {}) == pattern(100)
    assert call(reader.path, buffer) == "tcp"
    call(owner.drop, buffer)


@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
def test_no_time_at_all(owner: Any, reader: Any, path: str) -> None:
    call(reader.use, path)
    buffer = call(owner.make, "cuda", b"abc")
    assert call(reader.read, buffer, "cuda", 3, {"timeout": 0})[0] == "RDMATimeoutError"
    call(owner.drop, buffer)


@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
@pytest.mark.parametrize("fails", ["owner", "reader"])
def test_a_device_that_fails_fails_the_transfer_and_nothing_else(
    owner: Any, reader: Any, path: str, here: str, fails: str
) -> None:
    call(reader.use, path)
    buffer = call(owner.make, "cuda", pattern(3 * MIB))
    side = {"owner": owner, "reader": reader}[fails]
    touched = fails == "reader" if path == "device_ipc" else (fails == "owner" or here == "cuda")
    call(side.has, fails=RuntimeError("the device is out of order"))
    data = pattern(3 * MIB)
    for _ in range(2):
        got = call(reader.read, buffer, here, len(data), {})
        assert (got == data) is not touched
        assert isinstance(got, bytes) or got[0] == "RDMAError"
        wrote = call(reader.write, buffer, here, data, {})
        assert (wrote == b"ok") is not touched
    call(side.has, fails=None)
    assert call(reader.read, buffer, here, len(data), {}) == data
    call(owner.drop, buffer)


def test_the_owner_has_ended(procs: ProcMesh, reader: Any) -> None:
    alone = this_host().spawn_procs(name="ends")
    mesh = alone.spawn("ends", Side)
    known, fresh = call(mesh.make, "cuda", b"abc"), call(mesh.make, "cuda", b"def")
    assert call(reader.hold, known) == b"abc"
    kill(call(mesh.pid))
    assert call(reader.again)[0] == "OwnerEndedError"
    assert call(reader.read, fresh, "cuda", 3, {})[0] == "OwnerEndedError"
    assert call(reader.open_storages) == 0
    alone.stop().get(timeout=TIMEOUT)


def test_a_reader_that_has_ended_is_told_nothing(owner: Any) -> None:
    alone = this_host().spawn_procs(name="gone")
    mesh = alone.spawn("gone", Side)
    buffer = call(owner.make, "cuda", b"abc")
    assert call(mesh.hold, buffer) == b"abc"
    alone.stop().get(timeout=TIMEOUT)
    call(owner.drop, buffer)
    again = call(owner.make, "cuda", b"def")
    assert call(owner.read, again, "cpu", 3, {}) == b"def"
    call(owner.drop, again)


def test_registering_waits_for_the_device(owner: Any) -> None:
    call(owner.drop, call(owner.make, "cuda", b"abc"))
    assert call(owner.card_says, "settled") == 1


def test_what_is_not_for_devices_says_so(owner: Any) -> None:
    assert "not contiguous" in call(owner.refused)
