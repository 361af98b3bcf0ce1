"""Tests of what registering a tensor of a device says and keeps, in the process that does it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monarch._devices import memory as devices
from monarch._devices.memory import Card
from monarch.actor import this_host
from monarch.rdma import RDMAAction, RDMABuffer, RDMAMemoryError, lending, paths
from monarch.rdma.buffer_handle import Owner
from monarch.rdma.buffer_handle import this_host as host_name
from monarch.rdma.lending import NotLentError
from monarch.rdma.local_memory import memory_of
from tests._devices.fake import FakeCard, plain
from tests._devices.nowhere import NOWHERE
from tests.support.patience import TIMEOUT


@pytest.fixture(autouse=True)
def _nobody_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending.deaths, "watch", lambda process, ended: None)


def process(number: int) -> Owner:
    """Another one, of this host."""
    return Owner(host_name(), number, 0, 0, "here")


@pytest.fixture
def card() -> Iterator[FakeCard]:
    fake = FakeCard()
    before = devices.replace(fake)
    yield fake
    devices.replace(before)
    fake.close()


def test_memory_of_a_device_is_its_bytes_and_where_they_are(card: FakeCard) -> None:
    there = card.tensor(bytes(range(96)), torch.float32).view(4, 6)
    memory = memory_of(there[1:3])
    assert (memory.size, memory.dtype, memory.shape) == (48, "float32", (2, 6))
    assert memory.device == Card("cuda", "card-1")
    assert memory.address > NOWHERE
    assert bytes(plain(memory.keep).numpy()) == bytes(range(24, 72))
    assert "cuda:0" in memory.shown
    assert memory_of(torch.zeros(3)).device is None


def test_devices_without_memory_of_their_own_are_refused() -> None:
    with pytest.raises(RDMAMemoryError, match="it is on device meta"):
        memory_of(torch.zeros(3, device="meta"))


def test_of_a_storage_with_several_buffers_the_last_one_ends_it(card: FakeCard) -> None:
    mine = lending.Lending()
    whole = card.tensor(bytes(100))
    places = [mine.place(memory_of(part)) for part in (whole[:50], whole[50:])]
    assert [(place.storage, place.offset) for place, _ in places] == [(0, 0), (0, 50)]
    assert mine.give(memory_of(whole), "borrower", process(1))[2] == 100
    places[0][1]()
    assert mine.over() == []
    places[1][1]()
    assert mine.over() == [(0, "borrower")]
    assert mine.over() == []
    again, _ = mine.place(memory_of(whole))
    assert again.storage == 1  # what a borrower still has of the one before is not taken for it


def test_what_cannot_be_lent_says_why(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = lending.Lending()
    memory = memory_of(card.tensor(bytes(10)))
    mine.place(memory)
    with pytest.raises(NotLentError, match="not memory of a device"):
        mine.give(memory_of(bytearray(10)), "borrower", process(1))
    card.ipc = "not today"
    with pytest.raises(NotLentError, match="not today"):
        mine.give(memory, "borrower", process(1))
    card.ipc = ""
    with pytest.raises(NotLentError, match="processes of its host only"):
        mine.give(memory, "borrower", process(1)._replace(host="another"))

    def fail(flat: Any) -> Any:
        raise RuntimeError("invalid argument")

    with monkeypatch.context() as broken:
        broken.setattr(card, "share", fail)
        with pytest.raises(NotLentError, match="RuntimeError: invalid argument"):
            mine.give(memory, "borrower", process(1))
    monkeypatch.setattr(lending, "BORROWERS", 2)
    for number in (1, 2, 1, 2):  # one that has it may ask again
        mine.give(memory, "borrower", process(number))
    with pytest.raises(NotLentError, match="2 processes have it already"):
        mine.give(memory, "borrower", process(3))
    monkeypatch.setattr(lending, "SHARES", 5)
    mine.give(memory, "borrower", process(1))
    with pytest.raises(NotLentError, match="lent 5 times already"):
        mine.give(memory, "borrower", process(1))


@pytest.mark.procs
def test_a_buffer_is_made_and_read_under_an_active_mesh(card: FakeCard) -> None:
    class Takes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{func} was taken")

    this_host()
    there, back, other = card.tensor(b"abcdef"), torch.zeros(6, dtype=torch.uint8), card.tensor(b"......")
    with Takes():
        buffer = RDMABuffer(there)
        buffer.read_into(back).get(TIMEOUT)
        buffer.write_from(other).get(TIMEOUT)
        action = RDMAAction().read_remote(other, buffer)
        action.submit().get(TIMEOUT)
        buffer.drop().get(TIMEOUT)
    assert (bytes(back.numpy()), card.bytes_of(there)) == (b"abcdef", b"......")


@pytest.mark.procs
@pytest.mark.parametrize(
    ("backend", "setting", "warned"),
    [("ibverbs", "", True), ("ibverbs", "expandable_segments:True", False), ("tcp", "", False)],
)
def test_segments_that_grow_are_advised_where_rdma_devices_are_used(
    card: FakeCard, monkeypatch: pytest.MonkeyPatch, backend: str, setting: str, warned: bool
) -> None:
    this_host()
    monkeypatch.setattr(paths, "get_rdma_backend", lambda: backend)
    monkeypatch.setattr(paths, "_allocator_seen", False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", setting)
    for again in (False, True):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            RDMABuffer(card.tensor(bytes(10))).drop().get(TIMEOUT)
        assert ["expandable_segments" in str(one.message) for one in told] == [True] * (warned and not again)
        assert all(one.filename == __file__ for one in told)
