"""Memory that several processes map: no copy, no lag, freed with the last of them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from monarch.actor import Actor, endpoint
from monarch.rdma import (
    BufferDroppedError,
    OwnerEndedError,
    RDMABuffer,
    RDMAError,
    RDMAUnavailableError,
    empty,
)
from monarch.rdma.backends import owner_view
from tests.rdma.buffers import call
from tests.support.patience import TIMEOUT
from tests.support.processes import kill
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("torch_preloaded")]
MIB = 1 << 20


class Sharer(Actor):
    """Allocates, or maps what others allocated."""

    @endpoint
    def make(self, shape: tuple[int, ...], dtype: Any) -> RDMABuffer:
        self.mine = empty(shape, dtype)
        return RDMABuffer(self.mine)

    @endpoint
    def fill(self, value: float) -> None:
        self.mine.fill_(value)

    @endpoint
    def map(self, buffer: RDMABuffer) -> None:
        self.mine = buffer.map()

    @endpoint
    def total(self) -> float:
        return float(self.mine.sum())

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def segments() -> int:
    """Returns those of this process, open or mapped."""
    folder = Path("/proc/self/fd")
    links = []
    for entry in folder.iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:  # the folder's own descriptor
            continue
    maps = Path("/proc/self/maps").read_text()
    return sum("monarch-shared" in link for link in links) + maps.count("monarch-shared")


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int64],
    ids=str,
)
def test_a_tensor_is_mapped_as_it_was_registered(dtype: Any) -> None:
    tensor = empty((3, 4), dtype)
    assert (tensor.shape, tensor.dtype, tensor.count_nonzero() if dtype != torch.float8_e4m3fn else 0) == (
        (3, 4),
        dtype,
        0,
    )
    mapped = RDMABuffer(tensor).map()
    assert (mapped.shape, mapped.dtype) == (tensor.shape, dtype)
    tensor.view(torch.uint8).fill_(1)
    assert torch.equal(mapped.view(torch.uint8), tensor.view(torch.uint8))


def test_bytes_are_mapped_as_bytes() -> None:
    data = empty(10)
    data[:] = b"0123456789"
    mapped = RDMABuffer(data).map()
    assert isinstance(mapped, memoryview)
    assert mapped.tobytes() == b"0123456789"
    mapped[0] = ord("x")
    assert bytes(data[:2]) == b"x1"
    assert empty((2, 3)).shape == (2, 3)


def test_a_part_is_mapped_where_it_stands() -> None:
    whole = empty((100, 1000), torch.int32)
    whole += torch.arange(1000, dtype=torch.int32)
    part = RDMABuffer(whole[7]).map()
    assert torch.equal(part, torch.arange(1000, dtype=torch.int32))
    part.fill_(-1)
    assert int((whole == -1).sum()) == 1000


def test_other_processes_see_each_write(fresh: Any) -> None:
    owner, other = fresh(Sharer), fresh(Sharer)
    buffer = call(owner.make, (1000, 100), torch.float32)
    call(other.map, buffer)
    mine = buffer.map()
    assert call(other.total) == 0
    call(owner.fill, 1.0)
    assert call(other.total) == 100_000
    mine.fill_(2.0)
    assert call(owner.total) == call(other.total) == 200_000


def test_a_segment_is_read_and_written_like_any_memory(fresh: Any) -> None:
    owner = fresh(Sharer)
    for count in (100, 3 * MIB):
        buffer = call(owner.make, (count,), torch.float32)
        assert buffer.path == "segment"
        source = torch.arange(float(count))
        buffer.write_from(source).get(TIMEOUT)
        assert torch.equal(buffer.map(), source)
        into = torch.zeros(count)
        buffer.read_into(into[1:], offset=4).get(TIMEOUT)
        assert torch.equal(into[1:], source[1:])
        with pytest.raises(TimeoutError):
            buffer.read_into(into, timeout=0).get(TIMEOUT)
        call(owner.drop, buffer)
        with pytest.raises(BufferDroppedError):
            buffer.read_into(into).get(TIMEOUT)
        with pytest.raises(BufferDroppedError):
            buffer.write_from(into).get(TIMEOUT)
    buffer = call(owner.make, (100,), torch.float32)
    buffer.read_into(into).get(TIMEOUT)
    kill(call(owner.pid))
    with pytest.raises(OwnerEndedError):
        buffer.read_into(into).get(TIMEOUT)


@full
def test_a_drop_waits_for_a_write_into_the_segment(fresh: Any) -> None:
    buffer = call(fresh(Sharer).make, (100,), torch.float32)
    handle = buffer._handle
    owner_view.view_of_owner(handle).enter(handle)
    dropped = buffer.drop()
    with pytest.raises(BufferDroppedError):
        while True:  # until the drop has arrived
            buffer.write_from(torch.ones(100)).get(TIMEOUT)
    assert "pending" in repr(dropped)
    owner_view.view_of_owner(handle).leave(handle.slot)
    dropped.get(TIMEOUT)


def test_read_only_parts_of_a_segment_stay_so(fresh: Any) -> None:
    data = empty(10)
    mapped = RDMABuffer(data.toreadonly()).map()
    assert mapped.readonly
    data[0] = 7
    assert mapped[0] == 7


def test_what_is_mapped_outlives_buffer_and_owner(fresh: Any) -> None:
    owner = fresh(Sharer)
    buffer = call(owner.make, (10,), torch.float32)
    call(owner.fill, 3.0)
    mapped = buffer.map()
    call(owner.drop, buffer)
    with pytest.raises(BufferDroppedError, match="not found"):
        buffer.map()
    again = call(owner.make, (10,), torch.float32)
    kill(call(owner.pid))
    with pytest.raises(OwnerEndedError):
        again.map()
    assert mapped.sum() == 30


def test_other_memory_cannot_be_mapped() -> None:
    with pytest.raises(RDMAError, match=r"not allocated by monarch\.rdma\.empty"):
        RDMABuffer(bytearray(10)).map()


def test_a_host_that_is_another_cannot_map(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = RDMABuffer(empty(10))
    monkeypatch.setattr("monarch.rdma.backends.owner_view.this_host", lambda: "elsewhere")
    with pytest.raises(RDMAUnavailableError, match="on another host"):
        buffer.map()


def test_shapes_and_types_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"invalid shape \(-1,\)"):
        empty(-1)
    with pytest.raises(TypeError, match="invalid dtype 'float32'"):
        empty(3, "float32")
    with pytest.raises(TypeError):
        empty(1.5)
    assert empty((0, 3), torch.float32).shape == (0, 3)
    assert empty(0).nbytes == 0
    assert empty((), torch.float32).shape == ()


def test_too_much_is_an_error_and_not_a_signal() -> None:
    for size in (1 << 62, 1 << 70):
        with pytest.raises(MemoryError, match=f"{size} bytes of shared memory were asked for, the machine has"):
            empty(size)
    assert empty(3).nbytes == 3


def test_the_last_view_frees_it() -> None:
    gc.collect()
    before = segments()
    tensor = empty((100, 10), torch.float32)
    view = tensor[3:5].flatten()
    buffer = RDMABuffer(view)
    assert segments() > before
    mapped = buffer.map()
    del tensor, view
    gc.collect()
    assert segments() > before
    buffer.drop().get(TIMEOUT)
    del buffer
    gc.collect()
    mapped.fill_(1.0)
    assert segments() > before
    del mapped
    gc.collect()
    assert segments() == before


def test_a_thousand_segments_come_and_go() -> None:
    gc.collect()
    before = segments()
    for size in range(1, 1001):
        data = empty(size)
        buffer = RDMABuffer(data)
        assert buffer.map().nbytes == size
        buffer.drop().get(TIMEOUT)
        del data, buffer
    gc.collect()
    assert segments() == before
