"""Tests of two processes whose connections break, in every order in which they can hear of it.

One asks the other for answers and asks again when it hears that a connection broke; their agent says that both live. Frames
are read, breaks are noticed and the agent's word comes in any order, and dialling may fail for a while. Every question ends
with its answer.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from monarch._mesh.meshes.owned import Acks
from monarch._runtime.proc import Proc
from monarch._runtime.replies import Entry, Ports
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.frame import Buffer, Decoder
from monarch._wire.message import VALUE, Answer, ProcReachable, StopActor, Watch
from monarch._wire.transport.base import ConnectionLost
from tests.support.schedules import Choices

pytestmark = pytest.mark.full

HOST = "unix:/h"


class Loop:
    """An I/O loop without time: what is due soon comes after each event, what is due later when it is chosen."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.later: list[Callable[[], object]] = []

    def now(self) -> float:
        return 0.0

    def in_loop(self) -> bool:
        return True

    def call_soon(self, fn: Callable[[], object]) -> None:
        self.soon.append(fn)

    def call_later(self, delay: float, fn: Callable[[], object]) -> None:
        self.later.append(fn)

    def on_error(self, exc: BaseException) -> None:
        raise exc


class End:
    """One end of a connection. What was sent before it broke is still read."""

    route = b""
    pid = 0
    queued = 0

    def __init__(self, proc: Proc, remote: str) -> None:
        self.proc, self.remote = proc, remote
        self.lost = self.broken = False
        self.inbox: deque[bytes] = deque()
        self.other: End

    def send(self, pieces: Sequence[Buffer], *how: object) -> None:
        if not self.lost and not self.broken and self.proc.transport.breaks_now():  # type: ignore[union-attr]
            self.broken = self.other.broken = True
        if self.lost or self.broken:
            raise ConnectionLost("it broke")
        self.other.inbox.append(b"".join(map(bytes, pieces)))

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        try:
            self.send([frame])
        except ConnectionLost:
            return False
        return True

    def read(self) -> None:
        data = self.inbox.popleft()
        decoder = Decoder()
        found = []
        while data:
            buffer = decoder.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count], data = data[:count], data[count:]
            found += decoder.received(count)
        self.proc.connection_received(self, found)

    def lose(self) -> None:
        if not self.lost:
            self.lost = self.broken = self.other.broken = True
            self.proc.connection_lost(self, "it broke")

    def close(self, reason: str) -> None:
        self.proc.loop.call_soon(self.lose)

    def finish(self, reason: str) -> None:
        while self.inbox and not self.lost:
            self.read()
        self.lose()


class Table(Ports):
    """Ports whose numbers depend on how many there were, and on nothing else."""

    last = 0

    def add(self, entry: Entry) -> int:
        self.last = super().add(entry)
        return self.last

    def count(self) -> int:
        return self.last + 1


class Agent(End):
    """The connection to the agent, which says of a process that was asked for that it lives."""

    def __init__(self, proc: Proc) -> None:
        super().__init__(proc, f"{HOST}/agent")
        self.other = self

    def send(self, pieces: Sequence[Buffer], *how: object) -> None:
        self.inbox.append(b"".join(map(bytes, pieces)))

    def read(self) -> None:
        watch = message.decode(frames.head_of([self.inbox.popleft()]))
        assert type(watch) is Watch
        self.proc.on_proc_reachable(ProcReachable(watch.address, 0))


class World:
    """Two processes. `asks`: how many questions each asks; `breaks` and `refusals`: how many connections may break, and
    attempts to dial fail."""

    def __init__(self, choices: Choices, asks: tuple[int, int], breaks: int, refusals: int) -> None:
        self.choices = choices
        self.breaks, self.refusals = breaks, refusals
        self.ends: list[End] = []
        self.procs = [Proc(f"{HOST}/{name}", Loop()) for name in ("a", "b")]  # type: ignore[arg-type]
        self.asks = list(asks)
        self.acks: list[Acks] = []
        self.questions: list[list[tuple[str, StopActor]]] = [[], []]
        for at, proc in enumerate(self.procs):
            proc.transport = self  # type: ignore[assignment]
            proc.ports = Table()
            agent: Any = Agent(proc)
            self.ends.append(agent)
            proc.processes.use_agent(agent)
            proc.receivers[StopActor] = lambda connection, stop, frame, at=at: self.questions[at].append(  # type: ignore[misc]
                (connection.remote, stop)
            )
        breaks, self.breaks = self.breaks, 0
        for proc, other in zip(self.procs, reversed(self.procs), strict=True):  # each has dialled the other
            proc.processes.peer(other.address).connect()
        while unread := [end for end in self.ends if end.inbox]:
            unread[0].read()
        self.breaks = breaks

    def dial(self, address: str) -> End:
        near = next(proc for proc in self.procs if proc.address != address)
        far = next(proc for proc in self.procs if proc.address == address)
        if self.refusals and self.choices.choose(2):
            self.refusals -= 1
            raise OSError(errno.EAGAIN, "the listener is busy")
        here, there = End(near, address), End(far, "")
        here.other, there.other = there, here
        self.ends += here, there
        return here

    def close(self) -> None: ...

    # --- what may happen

    def events(self) -> list[Callable[[], object]]:
        found: list[Callable[[], object]] = []
        for at, proc in enumerate(self.procs):
            if self.asks[at]:
                found.append(lambda at=at: self.ask(at))  # type: ignore[misc]
            if self.questions[at]:
                found.append(lambda at=at: self.answer(at))  # type: ignore[misc]
            found += [lambda later=later, proc=proc: self.run(proc, later) for later in proc.loop.later]  # type: ignore[attr-defined, misc]
        for end in self.ends:
            if end.inbox and not end.lost:
                found.append(end.read)
            elif end.broken and not end.lost:
                found.append(end.lose)
        return found

    def run(self, proc: Any, later: Callable[[], object]) -> None:
        proc.loop.later.remove(later)
        later()

    def breaks_now(self) -> bool:
        """A frame is about to be sent: whether its connection breaks in place of that."""
        breaks = bool(self.breaks and self.choices.choose(2))
        self.breaks -= breaks
        return breaks

    def ask(self, at: int) -> None:
        self.asks[at] -= 1
        proc, other = self.procs[at], self.procs[1 - at]
        acks = Acks(
            [other.address], lambda port, rank: void(proc.post(other.address, StopActor("key", "enough", port, rank)))
        )
        self.acks.append(acks)
        proc.ports.add(acks)
        acks.ask([0])

    def answer(self, at: int) -> None:
        back, stop = self.questions[at].pop(0)
        self.procs[at].answer(back, Answer(stop.port, stop.rank, VALUE), b"", ())

    def state(self) -> object:
        alive = [end for end in self.ends if not (end.lost and end.other.lost)]
        return (
            self.asks,
            self.breaks,
            self.refusals,
            [acks.ready for acks in self.acks],
            [[(back, stop.port) for back, stop in questions] for questions in self.questions],
            [(end.remote, end.lost, end.broken, tuple(end.inbox)) for end in alive],
            [self._of(proc, alive) for proc in self.procs],
        )

    def _of(self, proc: Any, alive: list[End]) -> object:
        found = []
        for address, peer in proc.processes.peers.items():
            at = [
                alive.index(end) if end in alive else end is None
                for end in (peer.connection, peer.survivor, peer._lost)
            ]
            found.append((address, at, peer.asking, peer.broken, sorted(peer.unsent), peer.ever_broke, len(peer._kept)))
        return found, sorted(proc.processes._broken.items()), len(proc.loop.later), sorted(proc.processes._accepted)

    def go_on(self) -> None:
        while True:
            for proc in self.procs:
                while proc.loop.soon:
                    proc.loop.soon.popleft()()
            events = self.events()
            if not events:
                break
            self.choices.met(self.state())
            events[self.choices.choose(len(events))]()
        assert all(acks.ready for acks in self.acks), "a question has no answer"


def void(value: object) -> None: ...


@pytest.mark.parametrize(("asks", "breaks", "refusals"), [((1, 1), 1, 0), ((2, 0), 1, 0), ((1, 0), 1, 1)])
def test_every_question_is_answered_though_connections_break(asks: tuple[int, int], breaks: int, refusals: int) -> None:
    found = Choices().explore(lambda choices: World(choices, asks, breaks, refusals).go_on())
    print(f"{asks} questions, {breaks} breaks, {refusals} refusals: {found}")
