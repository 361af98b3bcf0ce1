"""Tests of who dies, is stopped or drops at which moment; what is left behind."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from typing import Any

import pytest

from monarch.actor import Channel, endpoint
from monarch.rdma import BufferDroppedError, OwnerEndedError, RDMABuffer, RDMAError
from monarch.rdma.backends import owner_view
from monarch.rdma.buffer import _restore
from monarch.rdma.buffer_handle import Owner
from monarch.rdma.registry import registry
from tests.rdma.buffers import call
from tests.support.patience import TIMEOUT
from tests.support.processes import kill
from tests.support.resources import open_files, resident
from tests.support.tiers import full

pytestmark = pytest.mark.procs
MIB = 1 << 20


def test_an_owner_that_was_dead_before_is_named(fresh: Any, owners: type, reader: Any) -> None:
    owner = fresh(owners)
    _, buffer = call(owner.make, b"data")
    pid = call(owner.pid)
    kill(pid)
    for kind, text in (call(reader.read, buffer, 4, {}), call(reader.write, buffer, b"more", {})):
        assert kind == "OwnerEndedError"
        assert f"process {pid}" in text
    call(reader.drop, buffer)  # there is nothing left to drop


def test_a_stopped_owner_is_read_and_written_all_the_same(fresh: Any, owners: type, reader: Any, held: Any) -> None:
    owner = fresh(owners)
    number, buffer = call(owner.make, b"still here")
    with held(call(owner.pid)):
        assert call(reader.read, buffer, 10, {}) == b"still here"
        call(reader.write, buffer, b"moved", {})
    assert call(owner.bytes_of, number) == b"moved here"


def test_a_drop_waits_for_the_write_of_another_process(
    fresh: Any, readers: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer holds still between its look at the control word and the write."""

    class Slow(readers):  # type: ignore[misc]
        @endpoint
        async def write_held(self, buffer: RDMABuffer, ready: Any) -> None:
            owner_view.view_of_owner(buffer._handle).enter(buffer._handle)
            ready.send(None)

        @endpoint
        def let_go(self, buffer: RDMABuffer) -> None:
            owner_view.view_of_owner(buffer._handle).leave(buffer._handle.slot)

    data = bytearray(8)
    buffer = RDMABuffer(data)
    slow = fresh(Slow)
    port, receiver = Channel[None].open()
    slow.write_held.call_one(buffer, port).get(TIMEOUT)
    receiver.recv().get(TIMEOUT)
    dropped = buffer.drop()
    with pytest.raises(BufferDroppedError):
        buffer.read_into(bytearray(8)).get(TIMEOUT)
    with pytest.raises(BufferError):
        data.append(1)  # still in use
    assert "pending" in repr(dropped)
    call(slow.let_go, buffer)
    dropped.get(TIMEOUT)
    data.append(1)


def test_memory_that_went_away_under_the_buffer() -> None:
    """A buffer's mapping closed by hand, say: an error, not a crash, and not called dropped."""
    code = """
import ctypes, mmap, pickle, sys
from monarch.rdma.local_memory import memory_of
from monarch.rdma.registry import registry
page = mmap.mmap(-1, 1 << 20)
memory = memory_of(page)
region = registry().register(memory)
ctypes.CDLL(None).munmap(ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.size))
fields = (tuple(registry().owner), region.number, region.token, region.slot, region.word, memory.address, memory.size)
print(pickle.dumps(fields).hex(), flush=True)
sys.stdin.read()
import os; os._exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        owner, *rest = pickle.loads(bytes.fromhex(process.stdout.readline().decode()))
        buffer = _restore(Owner(*owner), *rest, True, None, None)
        assert buffer.path == "process_vm"
        with pytest.raises(RDMAError, match="memory of one side is gone"):
            buffer.read_into(bytearray(1 << 20)).get(TIMEOUT)
        with pytest.raises(RDMAError, match="memory of one side is gone"):
            buffer.write_from(bytearray(1 << 20)).get(TIMEOUT)
        assert process.stdin is not None
        process.stdin.close()
    with pytest.raises(OwnerEndedError):
        buffer.read_into(bytearray(1 << 20)).get(TIMEOUT)


@full
def test_ten_thousand_buffers_leave_nothing(reader: Any) -> None:
    data = bytearray(1 << 16)
    RDMABuffer(data).drop().get()

    def round_trip() -> None:
        buffers = [RDMABuffer(data) for _ in range(10_000)]
        into = bytearray(1 << 16)
        buffers[-1].read_into(into).get()
        call(reader.read, buffers[5000], 1 << 16, {})
        for buffer in buffers:
            buffer.drop().get()

    round_trip()
    gc.collect()
    files, memory, known = open_files(), resident(), len(registry())
    for _ in range(3):
        round_trip()
    gc.collect()
    assert open_files() <= files
    assert len(registry()) == known
    assert resident() < memory + 8 * MIB
    data.append(1)


@full
def test_descriptors_of_owners_are_bounded(fresh: Any, owners: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_view, "VIEWS", 2)
    buffers = [call(fresh(owners).make, b"data")[1] for _ in range(4)]
    owner_view._views.clear()
    for buffer in buffers:
        buffer.write_from(b"more").get(TIMEOUT)
    assert len(owner_view._views) == 2
    for buffer in buffers:  # those forgotten are met again
        into = bytearray(4)
        buffer.read_into(into).get(TIMEOUT)
        assert into == b"more"
