"""Transfers over streams: the owner's side and the lanes by themselves over socket pairs, then between real hosts."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._errors import (
    BufferDroppedError,
    NoStreamError,
    OwnerEndedError,
    RDMAError,
    RDMASizeError,
    RDMATimeoutError,
)
from monarch.actor import SupervisionError
from monarch.config import configure
from monarch.rdma.backends import through_actors
from monarch.rdma.backends.nixl import backend as nixl
from monarch.rdma.backends.nixl import nixl_agent
from monarch.rdma.backends.nixl.nixl_agent import NixlError, NixlSegment
from monarch.rdma.backends.tcp import backend as tcp
from monarch.rdma.backends.tcp import batched_reads, stream_server
from monarch.rdma.backends.tcp.protocol import (
    CHUNK,
    DROPPED,
    ENDING,
    GATHER,
    LEND,
    LEND_WRITABLE,
    OK,
    OUTSIDE,
    PART,
    PARTS,
    READ,
    READ_ONLY,
    REQUEST,
    UNMAPPED,
    UNSUPPORTED,
    WRITE,
    PolledStream,
    StreamClosedError,
    rest,
)
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.local_memory import LocalMemory, memory_of
from monarch.rdma.registry import RegisteredBuffer, registry
from monarch.rdma.transfer import Transfer
from tests.rdma.between_hosts import Side, moves
from tests.rdma.buffers import call
from tests.support.patience import TIMEOUT

MIB = 1 << 20


# --- the owner's side


@pytest.fixture
def register() -> Iterator[Callable[[Any], RegisteredBuffer]]:
    regions: list[RegisteredBuffer] = []

    def one(data: Any) -> RegisteredBuffer:
        memory = data if isinstance(data, LocalMemory) else memory_of(data)
        regions.append(registry().register(memory))
        return regions[-1]

    yield one
    for region in regions:
        drop(region)


def drop(region: RegisteredBuffer) -> None:
    """The system call that a server is in is over soon; nothing else may hold it up."""
    give_up = monotonic() + TIMEOUT
    while not registry().drop(region.number, region.token):
        assert monotonic() < give_up


@pytest.fixture
def stream() -> Iterator[socket.socket]:
    """The asking end of a stream that a thread serves."""
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    thread = threading.Thread(target=_serve, args=(theirs,))
    thread.start()
    yield ours
    ours.close()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def _serve(sock: socket.socket) -> None:
    with sock:
        stream_server.serve(sock)


def ask(
    stream: socket.socket, operation: int, region: RegisteredBuffer, offset: int, size: int, data: bytes = b""
) -> None:
    stream.sendall(REQUEST.pack(operation, region.number, region.token, offset, size) + data)


def take(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        assert more, "the stream has ended"
        data += more
    return data


def test_a_read_is_two_statuses_and_the_bytes_between(stream: socket.socket, register: Any) -> None:
    region = register(bytearray(b"0123456789"))
    ask(stream, READ, region, 2, 5)
    ask(stream, READ, region, 10, 0)
    assert take(stream, 7) == b"\x00" + b"23456" + b"\x00"
    assert take(stream, 2) == b"\x00\x00"


def test_a_write_is_confirmed_when_it_is_there(stream: socket.socket, register: Any) -> None:
    data = bytearray(3 * MIB)
    region = register(data)
    new = os.urandom(2 * MIB)
    ask(stream, WRITE, region, 100, len(new), new)
    assert take(stream, 1)[0] == OK
    assert data == bytes(100) + new + bytes(MIB - 100)


@pytest.mark.parametrize(
    ("operation", "offset", "size", "status"),
    [
        (READ, 0, 11, OUTSIDE),
        (READ, 2**64 - 1, 1, OUTSIDE),
        (WRITE, 10, 1, OUTSIDE),
        (WRITE, 0, 100_000, OUTSIDE),
    ],
)
def test_ranges_are_checked(
    stream: socket.socket, register: Any, operation: int, offset: int, size: int, status: int
) -> None:
    data = bytearray(b"0123456789")
    region = register(data)
    ask(stream, operation, region, offset, size, bytes(size) if operation == WRITE else b"")
    assert take(stream, 1)[0] == status
    ask(stream, READ, region, 0, 10)  # the stream goes on
    assert take(stream, 12) == b"\x000123456789\x00"


def test_read_only_memory_stays_as_it_is(stream: socket.socket, register: Any) -> None:
    region = register(b"0123")
    ask(stream, WRITE, region, 0, 2, b"xx")
    assert take(stream, 1)[0] == READ_ONLY
    ask(stream, READ, region, 0, 4)
    assert take(stream, 6) == b"\x000123\x00"


@pytest.mark.parametrize("change", ["dropped", "token", "number"])
def test_what_is_not_registered_is_neither_read_nor_written(stream: socket.socket, register: Any, change: str) -> None:
    data = bytearray(b"0123")
    region = register(data)
    if change == "dropped":
        drop(region)
    asked = RegisteredBuffer(
        region.memory, region.number + (change == "number"), region.token ^ (change == "token"), region.slot, 0
    )
    ask(stream, READ, asked, 0, 4)
    ask(stream, WRITE, asked, 0, 2, b"xx")
    assert take(stream, 2) == bytes([DROPPED, DROPPED])
    assert data == b"0123"


def test_a_drop_does_not_wait_for_a_slow_reader(stream: socket.socket, register: Any) -> None:
    region = register(bytearray(b"\x01" * CHUNK))
    ask(stream, READ, region, 0, CHUNK)
    assert take(stream, 1)[0] == OK  # what the socket holds is on its way, the rest waits for us
    drop(region)
    got = take(stream, CHUNK + 1)
    assert got[-1] == DROPPED
    assert got[:-1].rstrip(b"\0").count(b"\x01") < CHUNK
    ask(stream, READ, region, 0, 1)
    assert take(stream, 1)[0] == DROPPED


def test_a_drop_in_the_middle_of_a_write_lets_nothing_more_in(stream: socket.socket, register: Any) -> None:
    data = bytearray(MIB)
    region = register(data)
    ask(stream, WRITE, region, 0, MIB, b"x" * 1000)
    ask(stream, READ, region, 0, 0, b"")  # taken for bytes of the write
    give_up = monotonic() + TIMEOUT
    while data[999] != ord("x"):  # the server's thread writes it
        assert monotonic() < give_up
    drop(region)
    before = bytes(data)
    stream.sendall(b"y" * (MIB - 1000 - REQUEST.size))
    assert take(stream, 1)[0] == DROPPED
    assert data == before
    assert b"y" not in data[1000 + REQUEST.size :]  # the request's token, taken for data, may have one


def test_memory_that_is_gone_is_an_answer_and_no_crash(stream: socket.socket, register: Any) -> None:
    page = mmap.PAGESIZE
    mapped = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(address, 2 * page, 0) == 0
    region = register(LocalMemory(address, 2 * page, True, mapped, "mapping"))
    ask(stream, READ, region, 0, page)
    ask(stream, WRITE, region, 0, 3, b"abc")
    assert take(stream, 2) == bytes([UNMAPPED, UNMAPPED])
    libc.mprotect(address, 2 * page, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize(
    ("operation", "size"), [(0, 1), (6, 1), (GATHER, CHUNK + 1), (READ, CHUNK + 1), (WRITE, 2**63)]
)
def test_a_request_that_is_none_ends_the_stream(
    stream: socket.socket, register: Any, operation: int, size: int
) -> None:
    ask(stream, operation, register(bytearray(1)), 0, size)
    assert stream.recv(1) == b""


@pytest.mark.parametrize("sent", [1, REQUEST.size, REQUEST.size + 10])
def test_an_end_in_the_middle_ends_the_thread(stream: socket.socket, register: Any, sent: int) -> None:
    region = register(bytearray(100))
    stream.sendall((REQUEST.pack(WRITE, region.number, region.token, 0, 100) + bytes(100))[:sent])
    stream.shutdown(socket.SHUT_WR)
    assert stream.recv(1) == b""


def test_one_that_stalls_in_the_middle_is_given_up(
    stream: socket.socket, register: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_server, "STALLED", 0.01)
    ask(stream, WRITE, register(bytearray(100)), 0, 100, b"x")
    assert stream.recv(1) == b""


def test_rest() -> None:
    assert rest([b"ab", b"", b"cd"], 0) == [b"ab", b"", b"cd"]
    assert rest([b"ab", b"", b"cd"], 3) == [b"d"]
    assert rest([b"ab"], 2) == []


def test_a_way_tells_an_end_from_silence() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        way = PolledStream(ours, lambda poll: None)
        assert not way.ended()
        theirs.close()
        assert way.ended()
        with pytest.raises(StreamClosedError):
            way.receive(memoryview(bytearray(1)))


# --- the lanes


class Ends:
    """Opens streams whose other ends `serve` gets, and hears of the end of transfers."""

    def __init__(self, serve: Callable[[socket.socket], None] = _serve) -> None:
        self.serve = serve
        self.opened = 0
        self.threads: list[threading.Thread] = []
        self.refuse = ""

    def __call__(self, left: float) -> socket.socket:
        if self.refuse:
            raise NoStreamError(self.refuse)
        ours, theirs = socket.socketpair()
        self.opened += 1
        thread = threading.Thread(target=self.serve, args=(theirs,))
        self.threads.append(thread)
        thread.start()
        return ours

    def join(self) -> None:
        for thread in self.threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


class Outcome:
    def __init__(self, transfer: Transfer) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None
        self.times = 0
        self.transfer = transfer
        transfer.path = "tcp"
        transfer.ended = self._ended

    def _ended(self, error: BaseException | None) -> None:
        self.error = error
        self.times += 1
        self._done.set()

    def wait(self) -> BaseException | None:
        assert self._done.wait(TIMEOUT)
        assert self.times == 1
        return self.error


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Lanes end at once when there is nothing to do."""
    made = Ends()
    monkeypatch.setattr(tcp, "IDLE", 0.0)
    monkeypatch.setattr(tcp, "open_stream", lambda service, purpose, left: made(left))
    tcp._lanes.clear()
    yield made
    made.join()
    tcp._lanes.clear()


def handle_of(region: RegisteredBuffer) -> BufferHandle:
    memory = region.memory
    known = {
        "owner": registry().owner,
        "number": region.number,
        "token": region.token,
        "slot": region.slot,
        "word": region.word,
        "address": memory.address,
        "size": memory.size,
        "writable": memory.writable,
    }
    return BufferHandle(**{name: known.get(name) for name in BufferHandle._fields})


def begin(
    region: RegisteredBuffer,
    local: Any,
    write: bool,
    timeout: float = TIMEOUT,
    offset: int = 0,
    by: Any = tcp.TcpStreams,
) -> Outcome:
    memory = memory_of(local)
    outcome = Outcome(Transfer(handle_of(region), memory, offset, memory.size, write, timeout))
    by().start(outcome.transfer)
    return outcome


@pytest.fixture
def parallel() -> Iterator[Callable[[int], None]]:
    yield lambda count: configure(rdma_tcp_fallback_parallelism=count, rdma_max_chunk_size_mb=1)
    configure(rdma_tcp_fallback_parallelism=1, rdma_max_chunk_size_mb=64)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("size", [1, MIB, MIB + 1, 11 * MIB + 7])
def test_every_byte_arrives(ends: Ends, register: Any, parallel: Any, count: int, size: int) -> None:
    parallel(count)
    data, local, new = bytearray(os.urandom(size + 3)), bytearray(size), os.urandom(size)
    region = register(data)
    assert begin(region, local, False, offset=3).wait() is None
    assert local == data[3:]
    assert begin(region, new, True, offset=3).wait() is None
    assert data[3:] == new
    assert 1 <= ends.opened <= 2 * min(tcp.streams_for(size), -(-size // MIB))


def test_many_transfers_share_the_streams(
    ends: Ends, register: Any, parallel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel(2)
    monkeypatch.setattr(tcp, "TURN", 1)
    monkeypatch.setattr(tcp, "IDLE", 0.2)
    data = bytearray(os.urandom(5 * MIB))
    region = register(data)
    copies = [bytearray(len(data)) for _ in range(20)]
    for outcome in [begin(region, local, False) for local in copies]:
        assert outcome.wait() is None
    assert all(local == data for local in copies)


def test_a_dropped_buffer_is_a_typed_error_and_the_stream_stays(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "IDLE", 1.0)
    gone, there = register(bytearray(5 * MIB)), register(bytearray(b"here"))
    drop(gone)
    for write in (False, True):
        error = begin(gone, bytearray(5 * MIB), write).wait()
        assert isinstance(error, BufferDroppedError)
        assert "(Tcp) buffer" in str(error)
        assert "not found" in str(error)
    local = bytearray(4)
    assert begin(there, local, False).wait() is None
    assert local == b"here"
    assert ends.opened == 1


def silent(sock: socket.socket) -> None:
    """Takes everything and says nothing."""
    with sock:
        try:
            while sock.recv(MIB):
                pass
        except ConnectionError:
            pass


@pytest.mark.parametrize("write", [False, True])
def test_an_owner_that_says_nothing_is_waited_for_until_the_timeout(ends: Ends, register: Any, write: bool) -> None:
    ends.serve = silent
    outcome = begin(register(bytearray(5 * MIB)), bytearray(5 * MIB), write, timeout=0.05)
    error = outcome.wait()
    assert isinstance(error, RDMATimeoutError)
    assert "tcp submit timed out" in str(error)


@pytest.fixture
def by_actors(monkeypatch: pytest.MonkeyPatch) -> list[Transfer]:
    """Transfers that went on through actors, which are none here."""
    taken: list[Transfer] = []

    def start(self: Any, transfer: Transfer) -> None:
        taken.append(transfer)
        transfer.finish()

    monkeypatch.setattr(through_actors.ThroughActors, "start", start)
    return taken


def test_those_that_wait_for_a_stream_have_timeouts_too(ends: Ends, register: Any, by_actors: list[Transfer]) -> None:
    over = threading.Event()

    def holds(sock: socket.socket) -> None:
        with sock:
            assert over.wait(TIMEOUT)

    ends.serve = holds
    region = register(bytearray(10))
    slow = begin(region, bytearray(10), False)
    quick = [begin(region, bytearray(10), False, timeout=0.01) for _ in range(3)]
    for outcome in quick:
        assert isinstance(outcome.wait(), RDMATimeoutError)
    assert slow.times == 0
    over.set()
    assert slow.wait() is None
    assert by_actors == [slow.transfer]


def breaks(sock: socket.socket) -> None:
    """Goes away in the middle of the first answer."""
    with sock:
        sock.recv(REQUEST.size, socket.MSG_WAITALL)
        sock.send(b"\x00abc")


def test_a_read_whose_stream_breaks_is_done_over(ends: Ends, register: Any, by_actors: list[Transfer]) -> None:
    ends.serve = breaks
    outcome = begin(register(bytearray(10)), bytearray(10), False)
    assert outcome.wait() is None
    assert by_actors == [outcome.transfer]
    assert outcome.transfer.path == "actor"


def test_a_write_whose_stream_breaks_says_so(
    ends: Ends, register: Any, by_actors: list[Transfer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_context(work: Any) -> None:
        raise RuntimeError("there is no mover here")

    monkeypatch.setattr(tcp.manager, "start", no_context)
    ends.serve = breaks
    error = begin(register(bytearray(5 * MIB)), bytearray(5 * MIB), True).wait()
    assert isinstance(error, RDMAError)
    assert "broke" in str(error)
    assert by_actors == []


class Service:
    """The owner's Manager: what its answer to a read of nothing is."""

    def __init__(self, answer: Exception | None) -> None:
        self.read = self
        self._answer = answer

    async def call_one(self, number: int, token: int, offset: int, size: int) -> bytes:
        if self._answer is not None:
            raise self._answer
        return b""


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (None, RDMAError, "part of the write may have arrived"),
        (SupervisionError("it has ended"), OwnerEndedError, "its memory is gone"),
        (BufferDroppedError("buffer 1 not found: it was dropped"), BufferDroppedError, "not found"),
    ],
    ids=["alive", "ended", "dropped"],
)
def test_why_a_stream_broke_the_owner_says(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, kind: type, text: str
) -> None:
    monkeypatch.setattr(tcp.manager, "start", lambda work: asyncio.run(work()))
    ends.serve = breaks
    region, memory = register(bytearray(MIB)), memory_of(bytearray(MIB))
    handle = handle_of(region)._replace(service=Service(answer))
    outcome = Outcome(Transfer(handle, memory, 0, MIB, True, TIMEOUT))
    tcp.TcpStreams().start(outcome.transfer)
    error = outcome.wait()
    assert type(error) is kind
    assert text in str(error)


def test_a_stream_that_ended_while_it_was_idle_is_replaced(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "IDLE", 1.0)
    ended = threading.Semaphore(0)

    def once(sock: socket.socket) -> None:
        with sock:
            request = sock.recv(REQUEST.size, socket.MSG_WAITALL)
            assert request
            sock.sendall(b"\x00x\x00")
        ended.release()

    ends.serve = once
    region = register(bytearray(1))
    for _ in range(2):
        assert begin(region, bytearray(1), False).wait() is None
        assert ended.acquire(timeout=TIMEOUT)
    assert ends.opened == 2


def test_without_streams_it_is_the_actors_turn(ends: Ends, register: Any, by_actors: list[Transfer]) -> None:
    ends.refuse = "it takes none"
    region = register(bytearray(10))
    outcomes = [begin(region, bytearray(10), write) for write in (False, True)]
    for outcome in outcomes:
        assert outcome.wait() is None
    assert by_actors == [outcome.transfer for outcome in outcomes]
    assert "it takes none" in tcp.TcpStreams().why_unavailable(handle_of(region))


def test_without_room_for_lanes_too(
    ends: Ends, register: Any, by_actors: list[Transfer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_threads", tcp._Room(0))
    outcome = begin(register(bytearray(10)), bytearray(10), True)
    assert outcome.wait() is None
    assert by_actors == [outcome.transfer]
    assert ends.opened == 0


def test_a_transfer_that_is_late_already_opens_nothing(ends: Ends, register: Any) -> None:
    assert isinstance(begin(register(bytearray(1)), bytearray(1), False, timeout=0.0).wait(), RDMATimeoutError)
    assert ends.opened == 0


def test_lanes_give_their_room_back(ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Semaphore(0)

    class Room(tcp._Room):
        def give_back(self) -> None:
            super().give_back()
            given.release()

    room = Room(3)
    monkeypatch.setattr(tcp, "_threads", room)
    assert begin(register(bytearray(1)), bytearray(1), False).wait() is None
    assert given.acquire(timeout=TIMEOUT)
    assert room._room == 3


# --- at once, by whoever asks


@pytest.fixture
def resting(ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegisteredBuffer]:
    """A buffer whose owner there is a lane to that has nothing to do. Answers are waited for as long as it takes."""
    monkeypatch.setattr(tcp, "IDLE", TIMEOUT)
    monkeypatch.setattr(tcp, "PATIENCE", TIMEOUT)
    monkeypatch.setattr(tcp, "SLOW", TIMEOUT)
    region = register(bytearray(b"0123456789"))
    assert begin(region, bytearray(1), False).wait() is None
    give_up = monotonic() + TIMEOUT
    while not tcp.lanes_to(registry().owner)._resting:
        assert monotonic() < give_up
    yield region
    ends.serve = _serve
    monkeypatch.setattr(tcp, "IDLE", 0.0)
    while left := list(tcp.lanes_to(registry().owner)._resting):  # each ends when it has had something to do once more
        for outcome in [begin(register(bytearray(tcp.AT_ONCE + 1)), bytearray(tcp.AT_ONCE + 1), False) for _ in left]:
            outcome.wait()


def test_a_small_transfer_is_done_when_it_has_begun(resting: RegisteredBuffer, ends: Ends) -> None:
    local = bytearray(4)
    for write in (True, False):
        outcome = begin(resting, b"abcd" if write else local, write, offset=3)
        assert outcome.times == 1
        assert outcome.error is None
    assert local == b"abcd"
    assert resting.memory.keep == b"012abcd789"
    assert ends.opened == 1


def test_what_the_owner_refuses_is_an_error_at_once(resting: RegisteredBuffer, ends: Ends) -> None:
    drop(resting)
    for write in (False, True, False):
        outcome = begin(resting, bytearray(4), write)
        assert outcome.times == 1
        assert isinstance(outcome.error, BufferDroppedError)
    assert ends.opened == 1


def test_a_large_transfer_is_the_lanes(resting: RegisteredBuffer, ends: Ends, register: Any) -> None:
    size = tcp.AT_ONCE + 1
    outcome = begin(register(bytearray(size)), bytearray(size), False)
    assert outcome.wait() is None
    assert ends.opened == 1


class Slow:
    """Serves a stream and lets the first answers wait: `go` lets them go."""

    def __init__(self, free: int) -> None:
        self.go = threading.Event()
        self._free = free

    def __call__(self, sock: socket.socket) -> None:
        real, slow = stream_server._StreamServer(sock), self

        def read(*args: int) -> None:
            slow._free -= 1
            if slow._free < 0:
                assert slow.go.wait(TIMEOUT)
            stream_server._StreamServer._read(real, *args)

        real._read = read  # type: ignore[method-assign]
        with sock:
            real.run()


def test_an_answer_that_takes_its_time_is_waited_for_by_the_lane(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    slow = ends.serve = Slow(free=1)
    region = request.getfixturevalue("resting")
    monkeypatch.setattr(tcp, "PATIENCE", 0.0)
    first, second = bytearray(4), bytearray(4)
    outcomes = [begin(region, first, False), begin(region, second, False, offset=4)]
    assert [outcome.times for outcome in outcomes] == [0, 0]
    slow.go.set()
    assert [outcome.wait() for outcome in outcomes] == [None, None]
    assert (first, second) == (b"0123", b"4567")
    assert ends.opened == 1


def test_an_answer_that_does_not_come_times_out_in_the_lane(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    slow = ends.serve = Slow(free=1)
    region = request.getfixturevalue("resting")
    monkeypatch.setattr(tcp, "PATIENCE", 0.0)
    assert isinstance(begin(region, bytearray(4), False, timeout=0.05).wait(), RDMATimeoutError)
    slow.go.set()
    assert begin(region, bytearray(4), False).wait() is None
    assert ends.opened == 2  # the answer that nobody waits for any more is not taken for the next


def test_after_a_slow_answer_nobody_waits_for_a_while(
    resting: RegisteredBuffer, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "SLOW", 0.0)
    monkeypatch.setattr(tcp, "SHARE", 1e9)
    assert begin(resting, bytearray(4), False).times == 1
    lanes = tcp.lanes_to(registry().owner)
    assert lanes._borrow() is None
    assert begin(resting, bytearray(4), False).wait() is None
    assert ends.opened == 1


def test_a_stream_that_breaks_at_once_is_like_any_other(
    ends: Ends, register: Any, by_actors: list[Transfer], request: pytest.FixtureRequest
) -> None:
    def once_only(sock: socket.socket) -> None:
        with sock:
            request = sock.recv(REQUEST.size, socket.MSG_WAITALL)
            sock.sendall(b"\0" + b"0" * REQUEST.unpack(request)[4] + b"\0")
            sock.recv(REQUEST.size, socket.MSG_WAITALL)
            sock.send(b"\0abc")

    ends.serve = once_only
    region = request.getfixturevalue("resting")
    outcome = begin(region, bytearray(10), False)
    assert outcome.wait() is None
    assert by_actors == [outcome.transfer]


def test_ctrl_c_while_an_answer_is_waited_for_costs_the_stream(
    resting: RegisteredBuffer, ends: Ends, by_actors: list[Transfer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tcp.Exchange, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begin(resting, bytearray(4), False)
    assert len(by_actors) == 1
    local = bytearray(4)
    assert begin(resting, local, False).wait() is None
    assert local == b"0123"
    assert ends.opened == 2


# --- many parts together


def gather(parts: list[batched_reads.ReadPart], elsewhere: Callable[[], None] = lambda: None) -> Outcome:
    gathering = batched_reads.StreamedGather(batched_reads.batches(parts), None, TIMEOUT, elsewhere)
    outcome = Outcome(gathering)
    gathering.begin()
    return outcome


def parts_of(
    regions: list[RegisteredBuffer], target: bytearray, wanted: list[tuple[int, int, int]]
) -> list[batched_reads.ReadPart]:
    """(region, offset, size) one behind the other."""
    at, result = memory_of(target).address, []
    for number, offset, size in wanted:
        result.append(batched_reads.ReadPart(handle_of(regions[number]), offset, at, size))
        at += size
    return result


@given(st.lists(st.one_of(st.integers(0, 50), st.integers(CHUNK - 2, 2 * CHUNK + 2)), max_size=2000))
def test_batches_hold_every_byte_once_and_not_too_much(sizes: list[int]) -> None:
    handle, at = BufferHandle(*[None] * len(BufferHandle._fields))._replace(number=1, token=2), 0
    parts = []
    for size in sizes:
        parts.append(batched_reads.ReadPart(handle, 10 * at, at, size))
        at += size
    made = batched_reads.batches(parts)
    assert all(0 < len(batch.parts) <= PARTS and 0 < batch.size <= CHUNK for batch in made)
    pieces = [(part.address, part.size) for batch in made for part in batch.parts]
    assert all(here + size == there for (here, size), (there, _) in pairwise(pieces))
    assert sum(size for _, size in pieces) == at
    for batch in made:
        assert len(batch.request) == REQUEST.size + len(batch.parts) * PART.size


@pytest.mark.parametrize("count", [1, 4])
def test_parts_of_many_buffers_arrive(ends: Ends, register: Any, parallel: Any, count: int) -> None:
    parallel(count)
    data = [bytearray(os.urandom(size)) for size in (10 * MIB, 1000, 1)]
    regions = [register(one) for one in data]
    wanted = [(0, 5, 9 * MIB), *((1, offset, 3) for offset in range(0, 990, 2)), (2, 0, 1), (0, 0, 4)] * 3
    target = bytearray(sum(size for _, _, size in wanted))
    assert gather(parts_of(regions, target, wanted)).wait() is None
    assert target == b"".join(data[number][offset : offset + size] for number, offset, size in wanted)
    assert 1 <= ends.opened <= 4


@pytest.mark.parametrize("bad", [0, 1, 100, 599])
def test_the_part_that_is_not_there_is_named(
    ends: Ends, register: Any, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr(tcp, "IDLE", 0.5)
    regions = [register(bytearray(b"abc")) for _ in range(600)]
    drop(regions[bad])
    target = bytearray(1800)
    wanted = [(number, 0, 3) for number in range(600)]
    error = gather(parts_of(regions, target, wanted)).wait()
    assert isinstance(error, BufferDroppedError)
    assert f"buffer {regions[bad].number} " in str(error)
    wanted[bad] = ((bad + 1) % 600, 1, 3)
    assert isinstance(gather(parts_of(regions, target, wanted)).wait(), RDMASizeError)
    wanted[bad] = ((bad + 1) % 600, 0, 3)
    assert gather(parts_of(regions, target, wanted)).wait() is None
    assert target == b"abc" * 600
    assert ends.opened <= 3  # never two at once


def test_a_part_that_is_dropped_in_the_middle_lets_nothing_more_out(stream: socket.socket, register: Any) -> None:
    regions = [register(bytearray(bytes([number + 1]) * MIB)) for number in range(3)]
    listed = b"".join(PART.pack(region.number, region.token, 0, MIB) for region in regions)
    stream.sendall(REQUEST.pack(GATHER, 3, 0, 0, 3 * MIB) + listed)
    assert take(stream, 10) == bytes([1]) * 10
    drop(regions[2])  # more than what the socket holds is still to come
    got = take(stream, 3 * MIB - 10)
    assert got[2 * MIB :].strip(b"\0") == b""
    assert ENDING.unpack(take(stream, ENDING.size)) == (DROPPED, 2)
    ask(stream, READ, regions[0], 0, 1)
    assert take(stream, 3) == b"\0\1\0"


def test_a_request_whose_sizes_do_not_agree_ends_the_stream(stream: socket.socket, register: Any) -> None:
    region = register(bytearray(10))
    stream.sendall(REQUEST.pack(GATHER, 1, 0, 0, 9) + PART.pack(region.number, region.token, 0, 10))
    assert stream.recv(1) == b""


def test_without_streams_parts_go_elsewhere(ends: Ends, register: Any) -> None:
    ends.refuse = "no way"
    gone = threading.Event()
    outcome = gather(parts_of([register(bytearray(3))], bytearray(3), [(0, 0, 3)]), gone.set)
    assert gone.wait(TIMEOUT)
    assert outcome.times == 0


def test_parts_that_are_late_are_not_asked_for(ends: Ends, register: Any) -> None:
    batches = batched_reads.batches(parts_of([register(bytearray(3))], bytearray(3), [(0, 0, 3)]))
    gathering = batched_reads.StreamedGather(batches, None, 0.0, lambda: None)
    outcome = Outcome(gathering)
    gathering.begin()
    assert isinstance(outcome.wait(), RDMATimeoutError)
    assert ends.opened == 0


# --- NIXL, whose part here a memmove plays


SHOWN = b"DRAM\0\0\0\0shown"  # where the memory is, and what NIXL says of it


class FakeAgent:
    """Moves bytes within the process, or fails as it is told to."""

    def __init__(self) -> None:
        self.fails = ""
        self.moves: list[tuple[bool, int]] = []
        self.avoided: list[str] = []

    def meet(self, token: int, shown: bytes) -> str:
        assert shown == b"shown"
        return "owner"

    def move(
        self,
        name: str,
        write: bool,
        memory: LocalMemory,
        here: int,
        there: int,
        remote: NixlSegment,
        size: int,
        pause: Any,
    ) -> None:
        assert remote == NixlSegment("DRAM", 0)
        self.moves.append((write, size))
        looks = 0
        while self.fails == "never done":
            pause(looks)
            looks += 1
        if self.fails:
            raise NixlError(self.fails)
        ctypes.memmove(*((there, here) if write else (here, there)), size)

    def avoid(self, name: str) -> None:
        self.avoided.append(name)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgent]:
    made = FakeAgent()
    monkeypatch.setattr(nixl_agent, "agent", lambda: made)
    monkeypatch.setattr(nixl_agent, "lend", lambda region: SHOWN)
    monkeypatch.setattr(nixl, "PART", MIB)
    nixl.unreachable.clear()
    yield made
    nixl.unreachable.clear()


@pytest.mark.parametrize("write", [False, True])
def test_nixl_moves_parts_of_what_is_lent(ends: Ends, register: Any, agent: FakeAgent, write: bool) -> None:
    data, local = bytearray(os.urandom(3 * MIB + 5)), bytearray(os.urandom(3 * MIB))
    region, before = register(data), bytes(data)
    assert begin(region, local, write, offset=5, by=nixl.Nixl).wait() is None
    assert data[5:] == local
    assert write or local == before[5:]
    assert agent.moves == [(write, MIB)] * 3


def test_what_is_lent_stays_until_it_is_given_back(stream: socket.socket, register: Any, agent: FakeAgent) -> None:
    region = register(bytearray(10))
    ask(stream, LEND, region, 0, 10)
    assert take(stream, 1 + 4 + len(SHOWN)) == b"\0" + b"\0\0\0\x0d" + SHOWN
    assert not registry().drop(region.number, region.token)
    stream.sendall(b"\0")
    drop(region)
    ask(stream, LEND, region, 0, 10)
    assert take(stream, 1)[0] == DROPPED


def test_what_is_lent_to_one_that_is_gone_comes_back(stream: socket.socket, register: Any, agent: FakeAgent) -> None:
    region = register(bytearray(10))
    ask(stream, LEND, region, 0, 10)
    assert take(stream, 5 + len(SHOWN))[0] == OK
    stream.shutdown(socket.SHUT_WR)
    drop(region)


def test_lending_is_checked_as_reading_is(stream: socket.socket, register: Any, agent: FakeAgent) -> None:
    region = register(b"0123456789")
    ask(stream, LEND, region, 5, 6)
    ask(stream, LEND_WRITABLE, region, 0, 1)
    assert take(stream, 2) == bytes([OUTSIDE, READ_ONLY])


def test_an_owner_without_nixl_says_so(stream: socket.socket, register: Any) -> None:
    ask(stream, LEND, register(bytearray(1)), 0, 1)
    assert take(stream, 1)[0] == UNSUPPORTED


@pytest.mark.parametrize("write", [False, True])
def test_where_nixl_fails_streams_do_it(ends: Ends, register: Any, agent: FakeAgent, write: bool) -> None:
    agent.fails = "the device is on fire"
    data, local = bytearray(os.urandom(2 * MIB)), bytearray(os.urandom(2 * MIB))
    region = register(data)
    outcome = begin(region, local, write, by=nixl.Nixl)
    assert outcome.wait() is None
    assert data == local
    assert outcome.transfer.path == "tcp"
    assert agent.avoided == ["owner"]
    assert begin(region, local, write, by=nixl.Nixl).wait() is None
    assert len(agent.moves) == 1  # it is not tried again so soon


def test_nixl_has_the_timeout_of_the_transfer(ends: Ends, register: Any, agent: FakeAgent) -> None:
    agent.fails = "never done"
    error = begin(register(bytearray(10)), bytearray(10), False, timeout=0.05, by=nixl.Nixl).wait()
    assert isinstance(error, RDMATimeoutError)


def test_a_dropped_buffer_is_not_lent(ends: Ends, register: Any, agent: FakeAgent) -> None:
    region = register(bytearray(10))
    drop(region)
    assert isinstance(begin(region, bytearray(10), False, by=nixl.Nixl).wait(), BufferDroppedError)
    assert agent.moves == []


# --- between two processes of a host


@pytest.mark.procs
def test_on_one_host(fresh: Any, tmp_path: Path) -> None:
    owner, other = fresh(Side), fresh(Side)
    call(other.reach_by, "tcp", str(tmp_path), ())
    moves(owner, other, "tcp")
    assert call(other.lanes) >= 1
