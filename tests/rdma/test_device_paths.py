"""Buffers on a device, with an imitated card in two real processes: every path, and what is open in which process."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from monarch.actor import Channel, ProcMesh, this_host
from tests.rdma.buffers import call
from tests.rdma.cards import (
    TIMEOUT,
    Side,
    both_cards,
    card_owner,
    card_reader,
    card_side,
    on_a_gpu,
    pattern,
    two_processes,
)
from tests.support.patience import until
from tests.support.processes import kill

pytestmark = [
    pytest.mark.procs,
    pytest.mark.usefixtures("torch_preloaded"),
    pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning"),
]
MIB = 1 << 20
SIZES = [1, 4096, (1 << 16) + 1, 9 * MIB + 3]


procs = pytest.fixture(two_processes, scope="module", name="procs")
owner = pytest.fixture(card_owner, name="owner")
reader = pytest.fixture(card_reader, name="reader")
side = pytest.fixture(card_side, name="side")


@both_cards
@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
def test_every_path_reads_and_writes_memory_of_a_device(
    owner: Any, reader: Any, side: type[Side], path: str, here: str
) -> None:
    call(reader.use, path)
    for size in SIZES:
        data = pattern(size)
        buffer = call(owner.make, "cuda", b"???" + data, 3)
        assert call(reader.path, buffer) == path
        assert call(reader.read, buffer, here, size + 2, {}) == data + b".."
        assert call(reader.write, buffer, here, data[::-1], {}) == b"ok"
        assert call(owner.seen, buffer) == b"???" + data[::-1]
        assert call(reader.read, buffer, here, size, {"timeout": 0})[0] == "RDMATimeoutError"
        call(reader.drop, buffer)
        name, text = call(reader.read, buffer, here, size, {})
        assert (name, "not found" in text) == ("BufferDroppedError", True)
    buffer = call(owner.make, "cuda", pattern(1000))
    assert call(reader.read, buffer, here, 5, {"offset": 100, "size": 3}) == bytes([100, 101, 102]) + b".."
    assert call(reader.write, buffer, here, b"xyz", {"offset": 200}) == b"ok"
    assert call(owner.seen, buffer)[199:204] == bytes([199]) + b"xyz" + bytes([203])
    call(owner.drop, buffer)
    if side is Side:
        for one in (owner, reader):
            assert call(one.card_says, "begun") == call(one.card_says, "waited")


@both_cards
def test_every_dtype(owner: Any, reader: Any) -> None:
    data = bytes([0, 1] * 64)
    for dtype in ("float32", "bfloat16", "bool", "complex64"):
        buffer = call(owner.make, "cuda", data, 0, dtype)
        assert call(reader.path, buffer) == "device_ipc"  # two processes on one card
        assert call(reader.read, buffer, "cuda", len(data), {}) == data
        call(owner.drop, buffer)


@on_a_gpu
@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
def test_what_the_device_still_computes_is_waited_for(owner: Any, reader: Any, path: str) -> None:
    call(reader.use, path)
    buffer = call(owner.make_computed, 1024)
    assert call(reader.read, buffer, "cuda", buffer.size(), {}) == struct.pack("f", 1) * (1024 * 1024)
    call(reader.write_computed, buffer, 1024)
    assert call(owner.seen, buffer) == struct.pack("f", 2) * (1024 * 1024)
    call(owner.drop, buffer)


@both_cards
@pytest.mark.parametrize("path", ["process_vm", "tcp", "actor"])
def test_every_path_serves_a_reader_whose_memory_is_on_a_device(owner: Any, reader: Any, path: str) -> None:
    call(reader.use, path)
    for size in SIZES:
        data = pattern(size)
        buffer = call(owner.make, "cpu", data)
        assert call(reader.path, buffer) == path
        assert call(reader.read, buffer, "cuda", size + 2, {}) == data + b".."
        assert call(reader.write, buffer, "cuda", data[::-1], {}) == b"ok"
        assert call(owner.seen, buffer) == data[::-1]
        call(reader.drop, buffer)
        name, text = call(reader.write, buffer, "cuda", data, {})
        assert (name, "not found" in text) == ("BufferDroppedError", True)


@both_cards
@pytest.mark.parametrize("there", ["cuda", "cpu"])
@pytest.mark.parametrize("here", ["cuda", "cpu"])
def test_within_a_process(owner: Any, here: str, there: str) -> None:
    for size in (7, 5 * MIB):
        data = pattern(size)
        buffer = call(owner.make, there, data)
        assert call(owner.path, buffer) == "local"
        assert call(owner.read, buffer, here, size, {}) == data
        assert call(owner.write, buffer, here, data[::-1], {}) == b"ok"
        assert call(owner.seen, buffer) == data[::-1]
        call(owner.drop, buffer)


@both_cards
@pytest.mark.parametrize("path", ["device_ipc", "tcp", "actor"])
def test_nobody_writes_into_memory_whose_drop_is_done(owner: Any, reader: Any, path: str) -> None:
    call(reader.use, path)
    for size in (100, 9 * MIB) * 2:
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


@both_cards
def test_a_storage_is_closed_when_its_last_buffer_is_dropped(owner: Any, reader: Any, side: type[Side]) -> None:
    before = call(owner.allocated)
    for _ in range(3):
        buffer = call(owner.make, "cuda", b"abc")
        assert call(reader.hold, buffer) == b"abc"
        if side is Side:
            assert call(reader.open_storages) == 1
        call(owner.forget, buffer)
        assert call(reader.again)[0] == "BufferDroppedError"
        if side is Side:
            until(lambda: call(reader.open_storages) == 0)
    call(reader.allocated)  # collects what it had open
    assert call(owner.allocated) == before


def test_it_is_closed_though_the_reader_does_not_look_again(owner: Any, reader: Any) -> None:
    """The owner says so, without waiting for it."""
    buffer = call(owner.make, "cuda", b"abc")
    call(reader.hold, buffer)
    call(reader.drop, buffer)
    until(lambda: call(reader.open_storages) == 0)


def test_it_stays_open_for_the_next_handle_of_the_same_storage(owner: Any, reader: Any) -> None:
    buffer = call(owner.make, "cuda", b"abc")
    for _ in range(3):
        assert call(reader.read, buffer, "cuda", 3, {}) == b"abc"
        assert call(reader.open_storages) == 1
    assert call(owner.card_says, "shares") == 1
    call(owner.drop, buffer)


def test_where_the_owner_cannot_lend_it_another_way_is_taken(owner: Any, reader: Any) -> None:
    call(owner.has, ipc="torch has no IPC today")
    buffer = call(owner.make, "cuda", pattern(100))
    for where in ("cuda", "cpu"):
        assert call(reader.read, buffer, where, 100, {}) == pattern(100)
    assert call(reader.path, buffer) == "tcp"
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


@both_cards
def test_the_owner_has_ended(procs: ProcMesh, reader: Any, side: type[Side]) -> None:
    alone = this_host().spawn_procs(name="ends")
    mesh = alone.spawn("ends", side)
    known, fresh = call(mesh.make, "cuda", b"abc"), call(mesh.make, "cuda", b"def")
    assert call(reader.hold, known) == b"abc"
    kill(call(mesh.pid))
    assert call(reader.again)[0] == "OwnerEndedError"
    assert call(reader.read, fresh, "cuda", 3, {})[0] == "OwnerEndedError"
    if side is Side:
        until(lambda: call(reader.open_storages) == 0)
    alone.stop().get(timeout=TIMEOUT)


@both_cards
def test_a_reader_that_has_ended_is_told_nothing(owner: Any, side: type[Side]) -> None:
    alone = this_host().spawn_procs(name="gone")
    mesh = alone.spawn("gone", side)
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


@both_cards
def test_what_is_not_for_devices_says_so(owner: Any) -> None:
    assert "not contiguous" in call(owner.refused)
