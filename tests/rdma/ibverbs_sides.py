"""Both sides of transfers in one process, over an imitation of the devices; fixtures for tests that use them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.rdma.backends.ibverbs import backend as ibverbs
from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
from monarch.rdma.backends.ibverbs import plaintext, responder
from monarch.rdma.backends.ibverbs.backend import StripedTransfer
from monarch.rdma.backends.ibverbs.binding import DeviceLimits
from monarch.rdma.backends.ibverbs.devices import RDMADevices
from monarch.rdma.backends.ibverbs.requester import Requester
from monarch.rdma.backends.ibverbs.responder import Responder
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import memory_of
from monarch.rdma.registry import RegisteredBuffer, Registry
from monarch.rdma.transfer import Transfer
from tests.rdma.ibverbs_fake import FakeBinding, FakeDevice, nic_tree
from tests.support.patience import TIMEOUT

MIB = 1 << 20
HERE, THERE = ("here_0", "here_1"), ("there_0", "there_1")


class Loop:
    """Stands in for the process's Mover."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def start(self, work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self.loop)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Sides:
    """An owner and one that asks."""

    def __init__(
        self,
        folder: Path,
        loop: Loop,
        limits: DeviceLimits | None = None,
        here: tuple[str, ...] = HERE,
        there: tuple[str, ...] = THERE,
        nics: dict[str, dict[str, Any]] | None = None,
        rails: tuple[set[str], ...] = (),
    ) -> None:
        """`nics`: what is said of one in /sys; `rails`: devices that reach each other, all when there are none."""
        self.devices, self.roots, nics = {}, {}, nics or {}
        for side, names in (("here", here), ("there", there)):
            root = self.roots[side] = nic_tree(
                folder / side, *names, **{one: nics[one] for one in names if one in nics}
            )
            self.devices[side] = RDMADevices(FakeBinding(folder, names, limits, rails), root)
        self.loop = loop
        self.registry = Registry()
        self.owner = Responder(self.devices["there"])
        self.engine = Requester(self.devices["here"])
        self.asked: list[Any] = []
        self.wrong: BaseException | None = None  # what the owner raises instead of an answer
        self.answer: Any = None  # what it answers instead
        self.wait: asyncio.Event | None = None
        self.regions: list[RegisteredBuffer] = []

    async def ask(self, request: Any) -> Any:
        self.asked.append(request)
        if self.wait is not None:
            await self.wait.wait()
        if self.wrong is not None:
            raise self.wrong
        if self.answer is not None:
            return self.answer
        return responder.answer(request, self.owner, self.registry)

    def make(self, data: Any) -> BufferHandle:
        memory = memory_of(data)
        region = self.registry.register(memory)
        self.regions.append(region)
        service: Any = SimpleNamespace(verbs=SimpleNamespace(call_one=self.ask))
        return BufferHandle(
            self.registry.owner, region.number, region.token, region.slot, region.word, memory.address, memory.size,
            memory.writable, service, None,
        )  # fmt: skip

    def begin(
        self, handle: BufferHandle, local: Any, offset: int = 0, write: bool = False, timeout: float = TIMEOUT
    ) -> Result:
        memory = memory_of(local)
        transfer = Transfer(handle, memory, offset, memory.size, write, timeout)
        transfer.path = "ibverbs"
        result = Result(transfer)
        StripedTransfer(self.engine, transfer).begin()
        return result

    def read(self, handle: BufferHandle, size: int, offset: int = 0) -> bytes:
        into = bytearray(size)
        self.begin(handle, into, offset).get()
        return bytes(into)

    def write(self, handle: BufferHandle, data: bytes, offset: int = 0) -> None:
        self.begin(handle, data, offset, True).get()

    def device(self, name: str) -> FakeDevice:
        found = self.devices["there" if name in self.devices["there"].nics else "here"].device(name)
        assert isinstance(found, FakeDevice)
        return found

    def close(self) -> None:
        self.engine.close()
        self.owner.close()
        for region in self.regions:
            assert self.registry.drop(region.number, region.token)
        for devices in self.devices.values():
            devices.close()


class Result:
    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.ends: list[BaseException | None] = []
        self._over = threading.Event()
        transfer.ended = self._end

    def _end(self, error: BaseException | None) -> None:
        self.ends.append(error)
        self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def get(self) -> None:
        assert self._over.wait(TIMEOUT)
        assert len(self.ends) == 1
        if self.ends[0] is not None:
            raise self.ends[0]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    running = Loop()
    monkeypatch.setattr(ibverbs.manager, "start", running.start)
    yield running
    running.close()


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns whether the job uses TLS, which a test may change."""
    uses = [False]
    monkeypatch.setattr(plaintext, "encrypted", lambda handle: uses[0])
    return uses


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns why transfers went another way."""
    why: list[str] = []

    def take_next_path(transfer: Transfer, text: str) -> None:
        why.append(text)
        transfer.finish()

    monkeypatch.setattr(ibverbs, "take_next_path", take_next_path)
    return why


@pytest.fixture
def make(
    tmp_path: Path, loop: Loop, tls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Sides]]:
    # Else the address of a small buffer says which of the devices serves it, and two reads may go over two.
    monkeypatch.setattr(ibverbs_devices, "SPREAD", 1 << 64)
    made: list[Sides] = []

    def start(limits: DeviceLimits | None = None, **fabric: Any) -> Sides:
        made.append(Sides(tmp_path, loop, limits, **fabric))
        return made[-1]

    yield start
    ibverbs.unreachable.clear()
    for sides in made:
        sides.close()
    assert not [entry for entry in tmp_path.iterdir() if entry.is_file()]  # no key and no queue pair is left


@pytest.fixture
def sides(make: Callable[..., Sides]) -> Sides:
    return make()
