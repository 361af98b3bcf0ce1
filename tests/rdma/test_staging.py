"""Transfers whose local side is on a device, over a path that is in the test's hands."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._devices import memory as devices
from monarch.actor import Future, Promise
from monarch.rdma import RDMABuffer, RDMAError, RDMATimeoutError, staging
from monarch.rdma.backends.tcp.protocol import view_of
from monarch.rdma.local_memory import memory_of
from monarch.rdma.transfer import Transfer
from tests._devices.fake import FakeCard
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs
MIB = 1 << 20


class Path:
    """Does nothing by itself: the test takes the parts it is given."""

    name = "path"
    uses_network = True
    takes_devices = False

    def __init__(self) -> None:
        self.parts: queue.Queue[Transfer] = queue.Queue()

    def why_unavailable(self, handle: Any) -> str:
        return ""

    def start(self, transfer: Transfer) -> None:
        self.parts.put(transfer)

    def next(self) -> Transfer:
        return self.parts.get(timeout=TIMEOUT)


@pytest.fixture
def card() -> Iterator[FakeCard]:
    fake = FakeCard()
    before = devices.replace(fake)
    yield fake
    devices.replace(before)
    fake.close()
    assert fake.begun == fake.waited


@pytest.fixture
def buffer() -> Iterator[RDMABuffer]:
    """Only its handle counts."""
    one = RDMABuffer(bytearray(64 * MIB))
    yield one
    one.drop().get(TIMEOUT)


def begin(path: Path, buffer: RDMABuffer, tensor: Any, write: bool = False, timeout: float = TIMEOUT) -> Future[None]:
    memory = memory_of(tensor)
    transfer = Transfer(buffer._handle, memory, 5, memory.size, write, timeout)
    promise: Promise[None] = Promise()
    transfer.ended = promise.settle
    staging.start(path, transfer)
    return promise.future


def fill(part: Transfer, value: int) -> None:
    view_of(part.memory.address, part.size)[:] = bytes([value]) * part.size
    part.finish()


def test_two_pieces_are_under_way_and_no_more(card: FakeCard, buffer: RDMABuffer) -> None:
    path, into = Path(), card.tensor(bytes(10 * MIB))
    done = begin(path, buffer, into)
    first, second = path.next(), path.next()
    assert path.parts.empty()
    assert [(one.offset, one.size) for one in (first, second)] == [(5, 4 * MIB), (5 + 4 * MIB, 4 * MIB)]
    fill(second, 2)
    third = path.next()
    assert (third.offset, third.size) == (5 + 8 * MIB, 2 * MIB)
    fill(third, 3)
    fill(first, 1)
    done.get(TIMEOUT)
    assert card.bytes_of(into) == b"\1" * (4 * MIB) + b"\2" * (4 * MIB) + b"\3" * (2 * MIB)


def test_a_piece_is_written_after_the_device_has_copied_it(card: FakeCard, buffer: RDMABuffer) -> None:
    path = Path()
    data = bytes(range(256)) * (5 * MIB // 256)
    done = begin(path, buffer, card.tensor(data), write=True)
    for part in (path.next(), path.next()):
        at = part.offset - 5
        assert bytes(view_of(part.memory.address, part.size)) == data[at : at + part.size]
        part.finish()
    done.get(TIMEOUT)
    assert [one for one in card.after if one is None] == []


def test_after_an_error_nothing_more_is_begun(card: FakeCard, buffer: RDMABuffer) -> None:
    path = Path()
    done = begin(path, buffer, card.tensor(bytes(64 * MIB)))
    first, second = path.next(), path.next()
    first.finish(RDMAError("it broke"))
    fill(second, 2)  # it is waited for: what is under way writes into its piece
    with pytest.raises(RDMAError, match=r"^RdmaAction.submit failed: .*\n\(none\) it broke \["):
        done.get(TIMEOUT)
    assert path.parts.empty()


def test_who_waits_for_a_turn_hears_of_the_end_of_its_time(card: FakeCard, buffer: RDMABuffer) -> None:
    path = Path()
    tensor = card.tensor(bytes(100))
    slow = [begin(path, buffer, tensor) for _ in range(staging.STAGED)]
    parts = [path.next() for _ in slow]
    with pytest.raises(RDMATimeoutError, match="read from buffer"):
        begin(path, buffer, tensor, timeout=0.2).get(TIMEOUT)
    waiting = begin(path, buffer, tensor)
    assert path.parts.empty()
    for part in parts:
        fill(part, 1)
    fill(path.next(), 1)
    for done in (*slow, waiting):
        done.get(TIMEOUT)


def test_a_path_that_cannot_begin_says_why(card: FakeCard, buffer: RDMABuffer) -> None:
    class Broken(Path):
        def start(self, transfer: Transfer) -> None:
            raise RDMAError("no way")

    with pytest.raises(RDMAError, match="no way"):
        begin(Broken(), buffer, card.tensor(bytes(100))).get(TIMEOUT)
