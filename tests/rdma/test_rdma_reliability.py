"""On every path: either side is killed, stopped or drops at each step of a transfer; nothing is left, however often."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._linux import memory_map
from monarch._runtime.context import home
from monarch._runtime.payloads import Payloads
from monarch._wire import shared_memory
from monarch.actor import Actor, Channel, endpoint, this_host
from monarch.config import configure
from monarch.rdma import (
    BufferDroppedError,
    OwnerEndedError,
    RDMABuffer,
    RDMATimeoutError,
    StateDict,
    empty,
    manager,
    paths,
)
from monarch.rdma.backends import mapped_segment, owner_view, process_vm, through_actors
from monarch.rdma.backends.tcp import backend as tcp
from monarch.rdma.backends.tcp import batched_reads, stream_server
from monarch.rdma.backends.tcp.protocol import OK, view_of
from monarch.rdma.registry import registry
from tests.rdma.buffers import Owner as PlainOwner
from tests.rdma.buffers import Reader as PlainReader
from tests.rdma.buffers import call
from tests.support.pairs import pairs
from tests.support.patience import TIMEOUT, until
from tests.support.processes import kill
from tests.support.resources import open_files, resident
from tests.support.tiers import first_of, full

pytestmark = [pytest.mark.procs, pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")]
MIB = 1 << 20
SIZE = 13 * MIB
PATHS = ["process_vm", "segment", "tcp", "actor"]
BOTH = pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
ALL = pytest.mark.parametrize("path", PATHS)

Step = Callable[[int], None]  # is told how many steps were before, on any thread, and may raise or never return


def take_only(path: str) -> None:
    """From here on this process knows no other path, and behind streams the actors. Small chunks are of 1 MiB."""
    configure(rdma_max_chunk_size_mb=1, rdma_tcp_fallback_parallelism=2)
    paths.allow(path, *(["actor"] if path == "tcp" else []))


def last_of(path: str) -> int:
    """The number of the last chunk."""
    return -(-SIZE // (process_vm.copying.CHUNK if path in ("process_vm", "segment") else MIB)) - 1


def steps(path: str, step: Step, replace: Callable[[Any, str, Any], None]) -> None:
    """Has `step` called before each chunk that this process moves on that path."""
    lock, count = threading.Lock(), 0

    def next_step() -> None:
        nonlocal count
        with lock:
            count += 1
            step(count - 1)

    if path == "actor":
        real_chunk = through_actors._chunk

        async def chunk(transfer: Any, at: int, size: int) -> None:
            await asyncio.to_thread(next_step)
            await real_chunk(transfer, at, size)

        replace(through_actors, "_chunk", chunk)
        return
    places = {
        "process_vm": [(process_vm, "read"), (process_vm, "write")],
        "segment": [(mapped_segment, "copy")],
        "tcp": [(tcp.StreamJob, "ask")],
    }
    for place, name in places[path]:
        real = getattr(place, name)

        def moved(*args: Any, real: Any = real) -> Any:
            next_step()
            return real(*args)

        replace(place, name, moved)


class Stuck:
    """An endpoint that a process gets stuck in that is to be killed then: it says so and waits for ever."""

    def __init__(self, port: Any, at: int = 0) -> None:
        self._port = port
        self._at = at

    def __call__(self, number: int = 0) -> None:
        if number == self._at:
            self._port.send(os.getpid())
            threading.Event().wait()


class Owner(PlainOwner):
    @endpoint
    def make_shared(self, size: int) -> RDMABuffer:
        self.shared = empty(size)
        return RDMABuffer(self.shared)

    @endpoint
    def stick(self, path: str, port: Any) -> None:
        """Gets stuck in the middle of the next request that comes over streams or through actors."""
        stuck = Stuck(port)
        if path == "actor":
            manager.memmove = lambda *_: stuck()
            return

        def read(server: Any, number: int, token: int, offset: int, size: int) -> None:
            with registry().using(number, token) as region:
                server._way.send([bytes([OK]), view_of(region.memory.address + offset, size // 2)])
                stuck()

        def write(server: Any, number: int, token: int, offset: int, size: int) -> None:
            with registry().using(number, token) as region:
                server._way.receive(view_of(region.memory.address + offset, size // 2))
                stuck()

        stream_server._StreamServer._read, stream_server._StreamServer._write = read, write


class Reader(PlainReader):
    @endpoint
    def only(self, path: str) -> None:
        take_only(path)
        tcp.IDLE = 0.1

    @endpoint
    def stick(self, path: str, where: str, at: int, write: bool, buffer: RDMABuffer, port: Any) -> None:
        """Begins a transfer and gets stuck in it: before a chunk is moved, with its lock, or in the middle of it."""
        take_only(path)
        stuck = Stuck(port, at)
        if where == "before":
            steps(path, stuck, setattr)
        elif where == "locked":
            enter = owner_view.OwnerView.enter

            def entered(peer: Any, handle: Any) -> None:
                enter(peer, handle)
                stuck(at)

            owner_view.OwnerView.enter = entered
        elif write:

            def ask(job: Any, way: Any, start: int, count: int) -> None:
                way.send([job._request(start, count), view_of(job.transfer.memory.address + start, count // 2)])
                stuck(at)

            tcp.StreamJob.ask = ask
        else:
            tcp.StreamJob.answer = lambda *_: stuck(at)
        self.local = bytearray(buffer.size())
        self.begun = buffer.write_from(self.local) if write else buffer.read_into(self.local)

    @endpoint
    def many(self, path: str, owner: Any, buffer: RDMABuffer, count: int, payload: Any) -> None:
        local = bytearray(buffer.size())
        part = bytearray(1000)
        for _ in range(count):
            buffer.read_into(local, timeout=TIMEOUT).get()
            buffer.write_from(part, offset=5, timeout=TIMEOUT).get()
            assert len(owner.bounce.call_one(payload).get()) == len(payload)

    @endpoint
    def left(self) -> tuple[int, int]:
        """Descriptors and resident bytes."""
        gc.collect()
        return open_files(), resident()


class Trainer(Owner):
    @endpoint
    def publish(self, count: int) -> Any:
        import numpy as np

        self.weights = StateDict({str(number): np.ones(1000, dtype=np.uint8) for number in range(count)})
        return self.weights.handle


class Bouncer(Owner):
    @endpoint
    def bounce(self, value: Any) -> Any:
        return value

    @endpoint
    def left(self) -> tuple[int, int]:
        gc.collect()
        return open_files(), resident()


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`only(path)`: this process reads and writes in that way; lanes end with their work."""
    monkeypatch.setattr(paths, "BACKENDS", paths.BACKENDS)
    monkeypatch.setattr(tcp, "IDLE", 0.0)
    yield take_only
    configure(rdma_max_chunk_size_mb=64, rdma_tcp_fallback_parallelism=1)
    until(lambda: not any(lanes._count for lanes in tcp._lanes.values()))


def made(owner: Any, path: str) -> RDMABuffer:
    buffer: RDMABuffer
    buffer = call(owner.make_shared, SIZE) if path == "segment" else call(owner.make, bytes(SIZE))[1]
    return buffer


def transfer(buffer: RDMABuffer, write: bool, timeout: float = TIMEOUT) -> Any:
    local = bytearray(SIZE)
    return buffer.write_from(local, timeout=timeout) if write else buffer.read_into(local, timeout=timeout)


def streams() -> int:
    """Counts those that others have open to this process, and it to others."""
    proc = home()
    assert proc is not None
    return proc.streams()._served + len(proc.streams()._open)


# --- the owner


@pytest.mark.parametrize(("path", "write", "when"), first_of(pairs(PATHS, [False, True], ["first", "third", "last"])))
def test_an_owner_that_is_killed_before_a_chunk_is_named(
    fresh: Any, only: Any, monkeypatch: pytest.MonkeyPatch, path: str, write: bool, when: str
) -> None:
    owner = fresh(Owner)
    buffer, pid = made(owner, path), call(owner.pid)
    at = {"first": 0, "third": 2, "last": last_of(path)}[when]
    asked = []

    def step(number: int) -> None:
        asked.append(number)
        if number == at:
            kill(pid)

    only(path)
    steps(path, step, monkeypatch.setattr)
    assert buffer.path == path
    with pytest.raises(OwnerEndedError, match=f"process {pid}"):
        transfer(buffer, write).get(TIMEOUT)
    assert max(asked) >= at
    with pytest.raises(OwnerEndedError, match=f"process {pid}"):
        transfer(buffer, not write).get(TIMEOUT)
    buffer.drop().get(TIMEOUT)


@BOTH
@pytest.mark.parametrize("path", first_of(["tcp", "actor"]))
def test_an_owner_that_is_killed_in_the_middle_of_a_chunk_is_named(
    fresh: Any, only: Any, path: str, write: bool
) -> None:
    owner = fresh(Owner)
    buffer = made(owner, path)
    port, receiver = Channel[int].open()
    call(owner.stick, path, port)
    only(path)
    begun = transfer(buffer, write)
    pid = receiver.recv().get(TIMEOUT)
    kill(pid)
    with pytest.raises(OwnerEndedError, match=f"process {pid}"):
        begun.get(TIMEOUT)


@BOTH
@pytest.mark.parametrize("path", first_of(["tcp", "actor"]))
def test_an_owner_that_is_stopped_is_waited_for_until_the_timeout(
    fresh: Any, only: Any, held: Any, path: str, write: bool
) -> None:
    owner = fresh(Owner)
    buffer, pid = made(owner, path), call(owner.pid)
    only(path)
    transfer(buffer, write).get(TIMEOUT)
    with held(pid), pytest.raises(RDMATimeoutError, match=f"process {pid}"):
        transfer(buffer, write, timeout=0.2).get(TIMEOUT)
    transfer(buffer, write).get(TIMEOUT)


@pytest.mark.parametrize(("path", "write", "at"), first_of(pairs(PATHS, [False, True], [0, 2])))
def test_a_buffer_that_is_dropped_in_the_middle_fails_the_transfer(
    fresh: Any, only: Any, monkeypatch: pytest.MonkeyPatch, path: str, write: bool, at: int
) -> None:
    owner = fresh(Owner)
    buffer, other = made(owner, path), made(owner, path)
    copy = other.__reduce__()[0](*buffer.__reduce__()[1])  # a drop of `buffer` itself would forget its mapping

    def step(number: int) -> None:
        if number == at:
            copy.drop().get(TIMEOUT)

    only(path)
    with monkeypatch.context() as patched:
        steps(path, step, patched.setattr)
        with pytest.raises(BufferDroppedError, match="not found"):
            transfer(buffer, write).get(TIMEOUT)
    transfer(other, write).get(TIMEOUT)
    assert call(owner.registered) == 1


@pytest.mark.parametrize("how", first_of(["killed", "dropped"]))
@pytest.mark.parametrize("at", first_of([0, 2]))
def test_weights_whose_owner_goes_away_between_two_requests(
    fresh: Any, only: Any, monkeypatch: pytest.MonkeyPatch, at: int, how: str
) -> None:
    np = pytest.importorskip("numpy")
    owner = fresh(Trainer)
    handle, pid = call(owner.publish, 2000), call(owner.pid)
    mine = {str(number): np.zeros(1000, dtype=np.uint8) for number in range(2000)}
    only("tcp")
    assert handle.path == "tcp"
    assert handle.read_into(mine).get(TIMEOUT) == 0
    assert all((array == 1).all() for array in mine.values())
    lock, asked, real = threading.Lock(), [], batched_reads._GatherJob.ask

    def ask(job: Any, way: Any, number: int, count: int) -> None:
        with lock:
            asked.append(number)
            if len(asked) == at + 1 and how == "killed":
                kill(pid)
            elif len(asked) == at + 1:
                for buffer in handle.registered()[1:]:
                    buffer.drop().get(TIMEOUT)
        real(job, way, number, count)

    monkeypatch.setattr(batched_reads._GatherJob, "ask", ask)
    expected = OwnerEndedError if how == "killed" else BufferDroppedError
    with pytest.raises(expected, match=f"process {pid}"):
        handle.read_into(mine).get(TIMEOUT)
    assert len(asked) > at


# --- the reader

STEPS = [
    ("process_vm", "before", 2, False),
    ("process_vm", "before", 2, True),
    ("process_vm", "locked", 0, True),
    ("segment", "before", 2, False),
    ("segment", "locked", 0, False),
    ("segment", "locked", 0, True),
    ("tcp", "before", 2, False),
    ("tcp", "before", 2, True),
    ("tcp", "middle", 0, False),
    ("tcp", "middle", 0, True),
    ("actor", "before", 2, False),
    ("actor", "before", 2, True),
]


@pytest.mark.parametrize(("path", "where", "at", "write"), first_of(STEPS))
def test_a_reader_that_is_killed_leaves_nothing(fresh: Any, path: str, where: str, at: int, write: bool) -> None:
    data: Any = empty(SIZE) if path == "segment" else bytearray(SIZE)
    before, served = len(registry()), streams()
    buffer = RDMABuffer(data)
    reader = fresh(Reader)
    port, receiver = Channel[int].open()
    reader.stick.broadcast(path, where, at, write, buffer, port)
    pid = receiver.recv().get(TIMEOUT)
    dropped = None if where == "locked" else buffer.drop()  # that waits for the lock
    if dropped is not None and path != "actor":
        dropped.get(TIMEOUT)
    kill(pid)
    (dropped or buffer.drop()).get(TIMEOUT)
    until(lambda: streams() <= served)
    assert len(registry()) == before
    if path != "segment":
        data.append(1)  # nothing looks at it any more


# --- again and again


@full
@pytest.mark.parametrize("path", first_of(PATHS))
def test_messages_and_transfers_again_and_again_leave_nothing(fresh: Any, path: str) -> None:
    """A warm-up, then as much again three times: neither descriptors nor memory grow."""
    np = pytest.importorskip("numpy")
    owner, reader = fresh(Bouncer), fresh(Reader)
    buffer = call(owner.make_shared, 100_000) if path == "segment" else call(owner.make, bytes(100_000))[1]
    call(reader.only, path)
    payload = np.ones(300_000, dtype=np.uint8)
    count = 300

    def some() -> None:
        reader.many.call_one(path, owner, buffer, count, payload).get(4 * TIMEOUT)

    some()
    call(reader.left), call(owner.left)
    some()
    before = call(reader.left), call(owner.left)
    for _ in range(3):
        some()
    after = call(reader.left), call(owner.left)
    for (files, memory), (files_after, memory_after) in zip(before, after, strict=True):
        assert files_after <= files + 6  # segments of the pools come and go
        assert memory_after < memory + 24 * MIB


@full
def test_a_thousand_buffers_that_others_drop_leave_nothing(fresh: Any) -> None:
    owner, reader = fresh(Bouncer), fresh(Reader)
    call(reader.only, "process_vm")

    def some(count: int) -> None:
        for _ in range(count // 500):
            buffers = [call(owner.make, b"0123456789")[1] for _ in range(50)]
            for buffer in buffers:
                assert call(reader.read, buffer, 10, {}) == b"0123456789"
                call(reader.drop, buffer)

    some(500)
    known, before = call(owner.registered), (call(owner.left), call(reader.left))
    some(10_000)
    assert call(owner.registered) == known == 0
    for (files, memory), (files_after, memory_after) in zip(before, (call(owner.left), call(reader.left)), strict=True):
        assert files_after <= files
        assert memory_after < memory + 16 * MIB


# --- memory for messages that is not to be had


def refuse(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


def refused_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what refuses in this thread, which sends; answers arrive in another one meanwhile, and are to be read."""
    sender = threading.get_ident()

    def either(*given: Any) -> Any:
        return refuse() if threading.get_ident() == sender else function(*given)

    return either


REFUSED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "memfd_create": lambda patch: patch.setattr(os, "memfd_create", refuse),
    "ftruncate": lambda patch: patch.setattr(os, "ftruncate", refuse),
    "seal": lambda patch: patch.setattr(shared_memory.fcntl, "fcntl", refused_here(shared_memory.fcntl.fcntl)),
    "mmap": lambda patch: patch.setattr(memory_map, "map_memory", refused_here(memory_map.map_memory)),
    "first page": lambda patch: patch.setattr(shared_memory.OwnMemory, "prepare", refuse),
}


@pytest.mark.parametrize("what", first_of(REFUSED))
def test_without_room_to_share_a_payload_goes_through_the_socket(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    np = pytest.importorskip("numpy")
    owner = fresh(Bouncer)
    payloads = own_payloads()
    others = empty_pool(payloads)["busy"]  # of whatever this process did before
    call(owner.bounce, np.ones(1 * MIB, dtype=np.uint8))
    until(lambda: empty_pool(payloads)["busy"] <= others)
    files, found = open_files(), empty_pool(payloads)
    size = payloads._pool.bytes
    sent = np.arange(3 * MIB, dtype=np.uint8)
    with monkeypatch.context() as patched:
        REFUSED[what](patched)
        answer = owner.bounce.call_one(sent)
        assert payloads.statistics()["segments"] == found["segments"] <= others
        assert payloads._pool.bytes == size
    assert (answer.get(TIMEOUT) == sent).all()
    del answer
    gc.collect()
    until(lambda: open_files() <= files)
    assert (call(owner.bounce, sent) == sent).all()  # there is room again
    assert payloads.statistics()["segments"] == found["segments"] + 1


@full
def test_a_payload_that_finds_no_more_pages_goes_through_the_socket(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is there, all of its memory is not: /dev/shm or the cgroup is full."""
    np = pytest.importorskip("numpy")
    owner = fresh(Bouncer)
    payloads = own_payloads()
    others = empty_pool(payloads)["busy"]
    call(owner.bounce, np.ones(1 * MIB, dtype=np.uint8))
    until(lambda: empty_pool(payloads)["busy"] <= others)
    prepare = shared_memory.OwnMemory.prepare
    monkeypatch.setattr(shared_memory.OwnMemory, "prepare", lambda own, size: refuse() if size else prepare(own, size))
    sent = np.arange(3 * MIB, dtype=np.uint8)
    for _ in range(5):
        assert (call(owner.bounce, sent) == sent).all()
    found = payloads.statistics()
    assert found["busy"] <= others
    assert found["segments"] <= others + 2  # not one for each; the I/O thread may give the first back after the second


def own_payloads() -> Payloads:
    proc = home()
    assert proc is not None
    assert proc.payloads is not None
    return proc.payloads


def empty_pool(payloads: Payloads) -> dict[str, int]:
    """Returns what there is when segments that nobody uses are given back."""
    with payloads._lock:
        payloads._pool.trim(float("inf"), 0.0)
    payloads._tell_dropped()
    return payloads.statistics()


# --- views of what is gone


def test_a_receiver_that_is_killed_with_a_mapping_leaves_the_memory_to_the_owner(fresh: Any) -> None:
    class Mapper(Reader):
        @endpoint
        def map(self, buffer: RDMABuffer) -> int:
            self.mapped = buffer.map()
            self.mapped[:5] = b"there"
            return os.getpid()

    memory = empty(MIB)
    buffer = RDMABuffer(memory)
    pid = call(fresh(Mapper).map, buffer)
    assert bytes(memory[:5]) == b"there"
    kill(pid)
    buffer.drop().get(TIMEOUT)
    maps = Path("/proc/self/maps").read_text().count("monarch-shared")
    del memory
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("monarch-shared") == maps - 1


def test_a_receiver_that_is_killed_with_views_gives_its_segments_back(fresh: Any) -> None:
    np = pytest.importorskip("numpy")

    class Keeper(Reader):
        @endpoint
        def keep(self, value: Any) -> int:
            self.kept = [*getattr(self, "kept", []), value[10:20]]
            return os.getpid()

    keeper = fresh(Keeper)
    call(keeper.pid)  # from here on there is a connection
    payloads = own_payloads()
    others = empty_pool(payloads)["busy"]
    for _ in range(5):
        pid = call(keeper.keep, np.ones(MIB, dtype=np.uint8))
    assert payloads.statistics()["busy"] == others + 5
    kill(pid)
    until(lambda: payloads.statistics()["busy"] <= others)
    assert empty_pool(payloads)["segments"] <= others


@full
def test_the_first_buffer_and_the_first_weights_of_a_process_come_to_two_actors_at_once() -> None:
    """Both threads import `monarch.rdma` for them."""

    class Taker(Actor):  # sent whole: its process has not imported this file, nor what this file does
        @endpoint
        def take(self, something: Any) -> str:
            return type(something).__name__

    procs = this_host().spawn_procs({"gpus": 4}, name="imports")
    takers = [procs.spawn(name, Taker) for name in ("first", "second")]
    sent = [RDMABuffer(bytearray(64)), StateDict({"a": memoryview(bytearray(64))}).handle]
    futures = [taker.take.call(something) for taker, something in zip(takers, sent, strict=True)]
    for future, something in zip(futures, sent, strict=True):
        assert set(future.get(timeout=TIMEOUT).values()) == {type(something).__name__}
    procs.stop().get(timeout=TIMEOUT)
