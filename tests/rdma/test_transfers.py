"""The same transfers over every path between two processes, and within one."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
import threading
import warnings
from typing import Any

import pytest

import monarch
from monarch.actor import bind_context
from monarch.rdma import (
    BufferDroppedError,
    RDMAAction,
    RDMABuffer,
    RDMAMemoryError,
    RDMAReadOnlyError,
    RDMASizeError,
    RDMATcpFallbackWarning,
    RDMATimeoutError,
    RDMAUnavailableError,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from tests.rdma.buffers import call
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs
MIB = 1 << 20
PATHS = ["local", "process_vm", "actor"]


def pattern(size: int, seed: int = 1) -> bytes:
    block = bytes((seed * 7 + i * i) % 251 for i in range(1009))
    return (block * (size // 1009 + 1))[:size]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peer(path: str, reader: Any, neighbour: Any) -> Any:
    """A reader that reaches the owner by `path` and by no other."""
    mesh = neighbour if path == "local" else reader
    mesh.use.call_one(path).get(TIMEOUT)
    return mesh


# --- every path


def test_bytes_of_every_size_arrive_both_ways(owner: Any, peer: Any, path: str) -> None:
    for size in (1, 7, 4096, (1 << 16) + 1, 9 * MIB + 5):
        data, new = pattern(size), pattern(size, 2)
        number, buffer = call(owner.make, data)
        assert (buffer.size(), call(peer.path, buffer)) == (size, path)
        assert call(peer.read, buffer, size + 3, {}) == data + b"..."
        assert call(peer.read_async, buffer, size) == data
        assert call(peer.write, buffer, new, {}) == new
        assert call(owner.bytes_of, number) == new


def test_a_part_is_read_and_written_and_what_the_owner_writes_is_seen(owner: Any, peer: Any) -> None:
    number, buffer = call(owner.make, b"0123456789")
    assert call(peer.read, buffer, 5, {"offset": 2, "size": 3}) == b"234.."
    assert call(peer.read, buffer, 5, {"offset": 7}) == b"789.."
    assert call(peer.read, buffer, 2, {"offset": 10}) == b".."
    call(peer.write, buffer, b"abc", {"offset": 4})
    call(peer.write, buffer, b"xyz", {"offset": 8, "size": 2})
    assert call(owner.bytes_of, number) == b"0123abc7xy"
    call(owner.set, number, b"0987654321")
    assert call(peer.read, buffer, 10, {}) == b"0987654321"


def test_a_dropped_buffer_cannot_be_read_or_written(owner: Any, peer: Any) -> None:
    before = call(owner.registered)
    number, buffer = call(owner.make, b"data")
    call(peer.drop, buffer)
    call(peer.drop, buffer)
    for kind, text in (call(peer.read, buffer, 4, {}), call(peer.write, buffer, b"more", {})):
        assert kind == "BufferDroppedError"
        assert text.startswith("RdmaAction.submit failed:")
        assert "not found" in text
    assert call(owner.bytes_of, number) == b"data"
    assert call(owner.registered) == before


def test_no_time_at_all_times_out(owner: Any, peer: Any) -> None:
    _, buffer = call(owner.make, b"data")
    for size in (4, MIB):
        _, buffer = call(owner.make, bytes(size))
        kind, text = call(peer.read, buffer, size, {"timeout": 0})
        assert kind == "RDMATimeoutError"
        assert "submit timed out" in text
        assert call(peer.write, buffer, bytes(size), {"timeout": 0})[0] == "RDMATimeoutError"
        for timeout in (10.5, 2**64 - 1):
            assert call(peer.read, buffer, size, {"timeout": timeout}) == bytes(size)


def test_mistakes_are_told_with_both_sizes(owner: Any, peer: Any) -> None:
    _, buffer = call(owner.make, bytes(40))
    kind, text = call(peer.read, buffer, 39, {})
    assert (kind, text) == (
        "RDMASizeError",
        "destination local memory size (39) must be >= remote buffer size (40)",
    )
    kind, text = call(peer.write, buffer, bytes(41), {})
    assert (kind, text) == ("RDMASizeError", "source local memory size (41) must be <= remote buffer size (40)")
    for options in ({"offset": 41}, {"offset": -1}, {"offset": 30, "size": 11}, {"size": -1}):
        assert call(peer.read, buffer, 60, options)[0] == "RDMASizeError"
    for options in ({"offset": 41}, {"offset": -1}, {"offset": 38}, {"size": 5}, {"size": -1}):
        assert call(peer.write, buffer, b"four", options)[0] == "RDMASizeError"
    assert call(peer.read, buffer, 40, {"timeout": -1})[0] == "OverflowError"
    assert call(peer.read, buffer, 40, {"offset": 1.5})[0] == "TypeError"


def test_read_only_memory_can_only_be_read(owner: Any, peer: Any) -> None:
    buffer = call(owner.make_read_only, b"constant")
    assert call(peer.read, buffer, 8, {}) == b"constant"
    assert call(peer.write, buffer, b"x", {})[0] == "RDMAReadOnlyError"
    assert call(peer.read, buffer, 8, {}) == b"constant"


def test_an_action_moves_all_and_again_and_many_at_once(owner: Any, peer: Any) -> None:
    _, first = call(owner.make, pattern(100))
    _, second = call(owner.make, pattern(3 * MIB, 4))
    number, third = call(owner.make, bytes(10))
    assert call(peer.act, [(first, 101), (second, 3 * MIB)], [(third, b"abc")], 3) == [
        pattern(100) + b"\0",
        pattern(3 * MIB, 4),
    ]
    assert call(owner.bytes_of, number) == b"abc" + bytes(7)
    made = [call(owner.make, pattern(1000 + i, i)) for i in range(50)]
    assert call(peer.act, [(buffer, buffer.size()) for _, buffer in made], []) == [
        pattern(1000 + i, i) for i in range(50)
    ]


def test_an_action_tells_of_all_its_failures(owner: Any, peer: Any) -> None:
    _, good = call(owner.make, b"good")
    _, one = call(owner.make, b"one")
    _, two = call(owner.make, b"two")
    call(peer.drop, one)
    assert call(peer.act, [(good, 4), (one, 3)], [])[0] == "BufferDroppedError"
    call(peer.drop, two)
    kind, text = call(peer.act, [(one, 3), (good, 4), (two, 3)], [])
    assert kind == "BufferDroppedError"
    assert text.startswith("RdmaAction.submit failed: RDMA submit failed on 2 backend(s):\n(")
    assert text.count("not found") == 2


# --- which path


def test_two_processes_of_a_host_use_the_kernel(owner: Any, reader: Any, neighbour: Any) -> None:
    _, buffer = call(owner.make, b"x")
    assert call(reader.path, buffer) == "process_vm"
    assert call(neighbour.path, buffer) == "local"
    assert buffer.path == "process_vm"


def test_no_path_left_says_why_each_is_not_there(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, buffer = call(owner.make, b"x")
    monkeypatch.setattr("monarch.rdma.backends.owner_view.CALLS", None)
    with monarch.configured(rdma_allow_tcp_fallback=False):
        with pytest.raises(RDMAUnavailableError, match=r"no process_vm_readv.*rdma_allow_tcp_fallback is off"):
            _ = buffer.path
        future = buffer.read_into(bytearray(1))
        with pytest.raises(RDMAUnavailableError, match="no compatible RDMA backend for buffer"):
            future.get(TIMEOUT)


def test_sockets_are_warned_of_once_for_an_owner(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, buffer = call(owner.make, b"x")
    monkeypatch.setattr("monarch.rdma.backends.owner_view.CALLS", None)
    monkeypatch.setattr("monarch.rdma.paths._warned", set())
    with pytest.warns(RDMATcpFallbackWarning, match="go through sockets.*no process_vm_readv") as seen:
        buffer.read_into(bytearray(1)).get(TIMEOUT)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.read_into(bytearray(1)).get(TIMEOUT)


def test_a_process_that_may_not_look_takes_the_longer_way(owner: Any, fresh: Any, readers: type) -> None:
    """The kernel lets a process look only into those whose capabilities it has as well."""
    if os.geteuid():
        pytest.skip("needs root, to have capabilities that can be given up")

    class Humble(readers):  # type: ignore[misc]
        @monarch.actor.endpoint
        def give_up_capabilities(self) -> None:
            import ctypes

            head = (ctypes.c_uint32 * 2)(0x20080522, 0)
            none = (ctypes.c_uint32 * 6)()
            assert ctypes.CDLL(None).capset(head, none) == 0

        @monarch.actor.endpoint
        def read_warned(self, buffer: RDMABuffer) -> tuple[bytes, list[str]]:
            into = bytearray(buffer.size())
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(2):
                    buffer.read_into(into).get()
            return bytes(into), [str(one.message) for one in seen]

    _, buffer = call(owner.make, pattern(100_000))
    humble = fresh(Humble)
    call(humble.give_up_capabilities)
    assert call(humble.path, buffer) in ("tcp", "actor")
    data, seen = call(humble.read_warned, buffer)
    assert data == pattern(100_000)
    assert len(seen) == 1
    assert "process_vm_readv: Operation not permitted" in seen[0]


def test_backends_as_programs_ask_for_them() -> None:
    assert get_rdma_backend() == "tcp"
    assert RDMABuffer(bytearray(1)).backend == "tcp"
    assert is_ibverbs_available() is False
    with pytest.warns(DeprecationWarning, match="is_ibverbs_available"):
        assert is_rdma_available() is False
    with monarch.configured(rdma_allow_tcp_fallback=False):
        assert get_rdma_backend() == "none"
        with pytest.raises(RDMAUnavailableError, match="RDMA is not available") as info:
            RDMABuffer(bytearray(1))
        assert isinstance(info.value, RuntimeError)


# --- the client's own buffers


def test_the_client_reads_and_writes_its_own() -> None:
    data = bytearray(b"0123456789")
    buffer = RDMABuffer(data)
    assert buffer.path == "local"
    into = bytearray(10)
    assert buffer.read_into(into).get() is None
    assert into == data
    buffer.write_from(b"abc", offset=3).get()
    assert data == b"012abc6789"
    buffer.drop().get()
    with pytest.raises(BufferDroppedError):
        buffer.read_into(into).get()
    data.append(1)  # nothing holds it any more


def test_others_read_and_write_the_clients(reader: Any) -> None:
    data = bytearray(b"0123456789")
    buffer = RDMABuffer(data)
    assert call(reader.read, buffer, 10, {}) == b"0123456789"
    call(reader.write, buffer, b"abc", {})
    assert data == b"abc3456789"
    call(reader.drop, buffer)
    with pytest.raises(BufferDroppedError):
        buffer.read_into(bytearray(10)).get()
    data.append(1)


def test_dropping_without_looking_drops(reader: Any) -> None:
    data = bytearray(4)
    buffer = RDMABuffer(data)
    call(reader.forget, buffer)
    while True:  # nobody knows when
        try:
            buffer.read_into(bytearray(4)).get()
        except BufferDroppedError:
            break
    call(reader.drop, buffer)
    data.append(1)


def test_a_buffer_of_nothing_and_of_no_memory() -> None:
    with pytest.raises(RDMAMemoryError, match=r"Cannot create RDMABuffer with size 0\."):
        RDMABuffer(bytearray())
    with pytest.raises(RDMAMemoryError, match="contiguous"):
        RDMABuffer("text")


def test_a_read_into_read_only_memory_raises_at_once() -> None:
    data = b"12345678"
    buffer = RDMABuffer(bytearray(8))
    with pytest.raises(RDMAReadOnlyError, match="read-only"):
        buffer.read_into(memoryview(data))
    with pytest.raises(RDMAReadOnlyError):
        RDMAAction().read_remote(data, buffer)
    assert data == b"12345678"


def test_a_handle_is_equal_wherever_it_has_been(reader: Any) -> None:
    buffer = RDMABuffer(bytearray(3))
    copy = pickle.loads(pickle.dumps(buffer))
    assert copy == buffer
    assert hash(copy) == hash(buffer)
    assert copy != RDMABuffer(bytearray(3))
    assert copy != 3
    assert copy.owner == buffer.owner
    assert copy.size() == 3
    assert "3 bytes" in repr(copy)


def test_futures_are_observed_in_event_loops_and_more_than_once(owner: Any) -> None:
    _, buffer = call(owner.make, pattern(2 * MIB))

    async def several() -> list[bytearray]:
        into = [bytearray(2 * MIB) for _ in range(5)]
        futures = [buffer.read_into(one) for one in into]
        await asyncio.gather(*futures)
        await futures[0]
        return into

    assert all(one == pattern(2 * MIB) for one in asyncio.run(several()))


def test_a_future_nobody_keeps_is_done_all_the_same() -> None:
    data = bytearray(3 * MIB)
    buffer = RDMABuffer(data)
    buffer.write_from(pattern(3 * MIB))
    into = bytearray(3 * MIB)
    while into != pattern(3 * MIB):  # a read has no order with the write before it
        buffer.read_into(into).get(TIMEOUT)


def test_plain_threads_transfer(owner: Any) -> None:
    _, buffer = call(owner.make, pattern(1000))
    seen: list[bytes] = []

    def work() -> None:
        into = bytearray(1000)
        buffer.read_into(into).get(TIMEOUT)
        seen.append(bytes(into))

    threads = [threading.Thread(target=run) for run in (work, bind_context(work))]
    threads.append(threading.Thread(target=contextvars.copy_context().run, args=(work,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert seen == [pattern(1000)] * 3


# --- actions


def test_an_action_checks_what_it_is_given() -> None:
    buffer = RDMABuffer(bytearray(40))
    action = RDMAAction()
    with pytest.raises(RDMASizeError):
        action.read_remote(bytearray(39), buffer)
    with pytest.raises(RDMASizeError):
        action.write_remote(buffer, bytes(41))
    with pytest.raises(OverflowError):
        action.submit(timeout=-1)
    assert action.submit().get() is None
    assert action.read_remote(bytearray(40), buffer) is action
    for method in (action.fetch_add, lambda *a: action.compare_and_swap(*a, 1)):
        with pytest.raises(NotImplementedError, match="Not yet supported"):
            method(buffer, buffer, 1)
    with pytest.raises(RDMATimeoutError):
        action.submit(timeout=0).get()


def test_submits_of_one_action_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.rdma.backends import same_process

    held, go = threading.Event(), threading.Event()
    running: list[int] = []

    def copy(transfer: Any, at: int, count: int) -> None:
        running.append(1)
        held.set()
        assert go.wait(TIMEOUT)

    monkeypatch.setattr(same_process, "copy", copy)
    buffer = RDMABuffer(bytearray(MIB))
    action = RDMAAction().read_remote(bytearray(MIB), buffer)
    first, second = action.submit(), action.submit()
    assert held.wait(TIMEOUT)
    with pytest.raises(RuntimeError, match="currently being submitted; await"):
        action.read_remote(bytearray(MIB), buffer)
    assert running == [1]
    go.set()
    first.get(TIMEOUT)
    second.get(TIMEOUT)
    assert running == [1, 1]
    action.read_remote(bytearray(MIB), buffer)
