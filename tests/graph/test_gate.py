"""Two gates of a graph, joined by a pair of sockets instead of hosts."""

from __future__ import annotations

import os
import queue
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._wire.transport.tls_stream import TlsStream, make_pem
from monarch.actor.lowlevel import start_thread
from monarch.graph import gate as gates
from monarch.graph.bells import OwnBell, Spin
from monarch.graph.gate import GraphGate
from monarch.graph.hosts import GateSpec
from monarch.graph.memory import VALUE, GraphMemory
from tests.support.patience import TIMEOUT

DEPTH, SLOT = 2, 3 << 20
NAMES = ["tcp://own", "tcp://there"]


class Told:
    """A bell that notes that it was rung."""

    def __init__(self) -> None:
        self.rung: queue.Queue[None] = queue.Queue()

    def ring(self) -> None:
        self.rung.put(None)

    def close(self) -> None:
        pass


class Patient(TlsStream):
    """Reads the first byte when more has come behind it, which TLS then holds."""

    def recv(self, size: int, /) -> bytes:
        come(self._sock, 1000)
        return super().recv(size)


def come(sock: socket.socket, size: int) -> None:
    """Waits until so many bytes can be read."""
    end = time.monotonic() + TIMEOUT
    found = 0
    while found < size:
        assert time.monotonic() < end
        select.select([sock], [], [], TIMEOUT)
        found = len(sock.recv(2 * size, socket.MSG_PEEK))


class Pair:
    """The client's gate, to which ring 1 comes, and the other, to which ring 0 goes; ring 2 stays there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "take_streams", lambda purpose, handler: None)
        monkeypatch.setattr(gates, "open_stream_to", self._open)
        self.ends: list[queue.Queue[str]] = [queue.Queue(), queue.Queue()]
        self.bells: list[Any] = [Told(), Told()]
        self.gates = [
            GraphGate(
                "own", GateSpec(0, NAMES, 3, DEPTH, SLOT, SLOT, {1: [0]}, {1: [1]}, [], {1: [2]}, 0), self.ends[0].put
            ),
            GraphGate(
                "there", GateSpec(1, NAMES, 3, DEPTH, SLOT, SLOT, {0: [1]}, {0: [0]}, [2], {0: []}, 0), self.ends[1].put
            ),
        ]
        self.memories = [GraphMemory(os.dup(gate.at.fd), 3, DEPTH, SLOT, [False] * 3, SLOT) for gate in self.gates]
        self.wires: list[socket.socket] = []
        self.served: Any = None
        self.pem = b""  # with TLS

    def _open(self, address: str, purpose: str, timeout: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.wires = [ours, theirs]
        self.served = start_thread(self._serve, "serve", theirs)
        if self.pem:
            ours = Patient(ours, self.pem, server=False)  # type: ignore[assignment]
            ours.handshake()  # type: ignore[attr-defined]
        return ours

    def _serve(self, sock: Any) -> None:
        with sock:
            if self.pem:
                sock = TlsStream(sock, self.pem, server=True)
                sock.handshake()
            gates._serve(sock)

    def connect(self) -> str:
        assert self.gates[1].connect({}, {0: [self.bells[1]]}) == ""
        self.gates[0].name = self.gates[1].name  # who dials names the graph
        try:
            return self.gates[0].connect({1: "there"}, {1: [self.bells[0]]})
        finally:
            self.gates[0].name = "own"

    def write(self, host: int, ring: int, number: int, buffers: list[bytes]) -> None:
        memory = self.memories[host]
        memory.write(ring, number % DEPTH, VALUE, b"body", buffers, "it")
        memory.tell(ring, number, number % DEPTH)
        self.gates[host].streams[1 - host].ring()

    def read(self, host: int, ring: int, number: int) -> list[bytes]:
        self.bells[host].rung.get(timeout=TIMEOUT)
        value = self.memories[host].read((ring,), number)[0][ring]
        assert value.body == b"body"
        made = [bytes(buffer) for buffer in value.buffers]
        value.buffers = ()
        return made

    def close(self) -> None:
        for memory in self.memories:
            memory.close()
        for gate in self.gates:
            gate.close()
        for bell in self.bells:
            bell.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    descriptors = len(os.listdir("/proc/self/fd"))
    made = Pair(monkeypatch)
    yield made
    made.close()
    if made.served is not None:
        made.served.join(TIMEOUT)
        made.wires.clear()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not gates._gates
    with open("/proc/self/maps") as maps:
        assert "monarch-graph" not in maps.read()


def test_values_go_both_ways_and_the_client_hears_of_the_others(pair: Pair) -> None:
    assert pair.connect() == ""
    for number, size in enumerate(
        (3, 2 << 20, 70_000, 0)
    ):  # the second takes three frames, and more than a socket has room for
        pair.write(0, 0, number, [b"a" * size, b"b"])
        assert pair.read(1, 0, number) == [b"a" * size, b"b"]
        pair.write(1, 2, number, [])
        pair.write(1, 1, number, [b"c"])
        assert pair.read(0, 1, number) == [b"c"]
    heard = pair.gates[0].heard
    pair.write(1, 2, 4, [])
    pair.write(0, 0, 4, [b""])
    pair.read(1, 0, 4)
    deadline = time.monotonic() + TIMEOUT
    while heard.get(2) != 4:  # within a tenth of a second
        assert time.monotonic() < deadline
        os.sched_yield()


def test_one_that_ends_in_order_ends_the_other(pair: Pair) -> None:
    assert pair.connect() == ""
    pair.gates[0].close()
    assert pair.ends[1].get(timeout=TIMEOUT) == ""
    assert pair.memories[1].ended
    assert pair.bells[1].rung.get(timeout=TIMEOUT) is None
    assert pair.ends[0].empty()


def test_a_stream_that_breaks_ends_both_and_says_which(pair: Pair) -> None:
    assert pair.connect() == ""
    pair.wires[0].shutdown(socket.SHUT_RDWR)
    said = {end.get(timeout=TIMEOUT) for end in pair.ends}
    assert said <= {
        "the connection between tcp://own and tcp://there broke (the connection was closed)",
        "the connection between tcp://there and tcp://own broke (the connection was closed)",
    }
    assert all(memory.ended for memory in pair.memories)


def test_who_closes_the_gate_before_its_words_are_said_says_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors of a host close it, and they leave the graph as soon as the memory says so."""
    pair.connect()
    monkeypatch.setattr(pair.gates[1].memory, "end", pair.gates[1].streams[0].close)
    pair.gates[1].lost(0, "reset by peer")
    assert [end.get(timeout=TIMEOUT) for end in pair.ends] == [
        "the connection between tcp://there and tcp://own broke (reset by peer)"
    ] * 2


def test_what_tls_holds_of_a_stream_is_taken_although_its_descriptor_is_silent(pair: Pair) -> None:
    pytest.importorskip("cryptography")
    pair.pem = make_pem()
    small, large = b"first" * 300, b"second" * 20_000
    pair.write(1, 1, 0, [small])  # is there with the welcome
    assert pair.connect() == ""
    assert pair.read(0, 1, 0) == [small]
    stream = pair.gates[0].streams[1]
    with stream._reading:
        pair.write(1, 1, 1, [large])
        come(pair.wires[0], len(large))
        assert stream._take_in(None)  # once
        assert pair.read(0, 1, 1) == [large]


def test_what_is_no_frame_ends_the_graph(pair: Pair) -> None:
    assert pair.connect() == ""
    pair.wires[0].sendall(b"\xff" * 40)
    assert "it carried a frame of kind 255" in pair.ends[1].get(timeout=TIMEOUT)
    assert "it carried a frame of kind 255" in pair.ends[0].get(timeout=TIMEOUT)  # it was told


def test_an_interrupt_in_the_middle_of_a_value_ends_the_graph(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pair.connect() == ""
    stream = pair.gates[0].streams[1]

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream._sender, "sent", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pair.write(0, 0, 0, [b"x"])
    assert "interrupted while it sent a value" in pair.ends[0].get(timeout=TIMEOUT)
    assert not stream._lock.locked()


def test_who_names_no_graph_of_the_process_gets_nothing(pair: Pair) -> None:
    pair.gates[1].close()
    assert pair.connect() == "tcp://own cannot connect to tcp://there: the graph has ended there meanwhile"


@pytest.fixture
def visited(pair: Pair) -> tuple[Pair, OwnBell]:
    """The client is the only reader of its gate, and sleeps at it."""
    bell = OwnBell()
    pair.bells[0] = bell
    assert pair.connect() == ""
    return pair, bell


def never() -> bool:
    return False


@pytest.mark.parametrize("spin", [0.0, TIMEOUT])
def test_a_reader_that_waits_reads_the_stream_itself(visited: tuple[Pair, OwnBell], spin: float) -> None:
    pair, bell = visited
    gate, stream = pair.gates[0], pair.gates[0].streams[1]
    written = pair.memories[0].written
    visits: list[bool] = []
    take_in = stream._take_in

    def noted(visitor: OwnBell | None) -> bool:
        taken = take_in(visitor)
        if taken:
            visits.append(visitor is bell)
        return taken

    stream._take_in = noted  # type: ignore[method-assign]
    for number in range(20):
        gate.sleep(bell, 0.0, Spin(0.0), never)  # a visit: the stream's own thread stands aside for a while
        pair.write(1, 1, number, [b"x" * 100])
        while not written(1, number):
            gate.sleep(bell, TIMEOUT, Spin(spin), never)
    assert sum(visits) >= 10  # the others came when that thread was about to read
    pair.write(1, 1, 20, [])  # with nobody there
    bell.sleep(TIMEOUT)
    while not written(1, 20):
        bell.sleep(TIMEOUT)


def test_the_end_wakes_a_reader_that_waits(visited: tuple[Pair, OwnBell]) -> None:
    pair, bell = visited

    def wait() -> None:
        for _ in range(2):
            pair.gates[0].sleep(bell, None, Spin(0.0), never)

    waiting = start_thread(wait, "reader")
    pair.gates[1].close()
    assert pair.ends[0].get(timeout=TIMEOUT) == ""
    bell.ring()
    bell.ring()
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()
