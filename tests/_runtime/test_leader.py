"""Tests of who reads: the I/O thread, or a thread that waits. A real loop, and a connection over a pair of sockets."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._runtime import leader
from monarch._runtime.future import make_future
from monarch._runtime.leader import LeaderFollower, WouldBlockRuntime
from monarch._runtime.loop import Loop, wake
from monarch._runtime.proc import Proc
from monarch._runtime.replies import OneReply
from monarch._wire import codec, message
from monarch._wire.frame import Frame, encode_small
from monarch._wire.message import VALUE, Answer
from monarch._wire.transport.stream import StreamConnection
from tests.support.interrupts import Interrupted, Steps, each_step
from tests.support.patience import TIMEOUT

LONG = 4.0  # seconds that the I/O thread stands aside in these tests: who waits is sure to lead meanwhile


class Wire:
    """A loop whose one connection comes from `far`. Frames with the head `small` are for whoever leads."""

    def __init__(self, when: str = "always") -> None:
        near, self.far = socket.socketpair()
        self.loop = Loop("test")
        self.loop.share_lead(when)
        assert self.loop._lead is not None
        self.lead: LeaderFollower = self.loop._lead
        self.handled: list[tuple[bytes, int]] = []  # what came, and the thread that handled it
        self.locks: dict[bytes, threading.Lock] = {}
        self.act: Callable[[bytes], None] = lambda body: None
        self.lost = threading.Event()
        self.connection = StreamConnection(near, self.loop, self, limit=1 << 20)
        self.connection.remote = "far"
        self.connection.small = self.small_received
        self.connection.start()
        self.loop.start()

    def send(self, *bodies: bytes, head: bytes = b"small") -> None:
        self.far.sendall(b"".join(encode_small(head, body) for body in bodies))

    def small_received(self, connection: StreamConnection, head: bytes, body: bytes) -> bool:
        if head != b"small":
            return False
        self._handle(body)
        return True

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        for frame in frames:
            self._handle(bytes(frame.body))

    def connection_lost(self, connection: Any, reason: str) -> None:
        self.lost.set()

    def _handle(self, body: bytes) -> None:
        self.handled.append((body, threading.get_ident()))
        self.act(body)
        lock = self.locks.get(body)
        if lock is not None:
            wake(lambda: lock.release() if lock.locked() else None)

    def wait(self, body: bytes, timeout: float = TIMEOUT, send: Callable[[], None] = lambda: None) -> bool:
        """Waits until it came. The lead is taken, if it can be, before `send` is called."""
        lock = self.locks[body] = threading.Lock()
        lock.acquire()
        send()
        if any(came == body for came, _ in self.handled):
            return True
        return self.lead.wait(lock, timeout)

    def stand_aside(self) -> None:
        """Has the I/O thread stand aside."""
        for number in itertools.count():
            if self.lead.aside:
                return
            body = b"aside %d" % number
            self.send(body, head=b"other")
            assert self.wait(body)

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.handled if not body.startswith(b"aside")]

    def by(self, body: bytes) -> int:
        return next(ident for came, ident in self.handled if came == body)

    def close(self) -> None:
        self.loop.stop()
        assert self.loop.join(TIMEOUT)
        self.connection.close("the test is over")
        self.far.close()
        self.connection._sock.close()  # type: ignore[union-attr]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(leader, "ASIDE", LONG)
    wire = Wire()
    yield wire
    wire.close()


def main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident


def test_a_thread_that_waits_reads_what_comes(wire: Wire) -> None:
    wire.stand_aside()
    for number in range(5):
        body = b"%d" % number
        assert wire.wait(body, send=lambda body=body: wire.send(body))  # type: ignore[misc]
        assert wire.by(body) == threading.get_ident()
    assert wire.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert wire.loop.ident == 0 and "stands aside" in repr(wire.lead)


def test_what_is_not_small_and_what_comes_behind_it_is_for_the_loop(wire: Wire) -> None:
    wire.stand_aside()
    wire.send(b"first")
    wire.send(b"second", head=b"other")
    wire.send(b"third")
    assert wire.wait(b"third")
    assert wire.bodies == [b"first", b"second", b"third"]
    assert wire.by(b"second") == wire.by(b"third") != threading.get_ident()


def test_half_a_frame_and_a_large_one_are_for_the_loop(wire: Wire) -> None:
    wire.stand_aside()
    data = encode_small(b"small", b"in two parts")
    wire.far.sendall(data[:20])
    threading.Timer(0.01, wire.far.sendall, (data[20:],)).start()
    assert wire.wait(b"in two parts") and wire.by(b"in two parts") != threading.get_ident()
    wire.stand_aside()
    large = b"x" * 100_000
    assert wire.wait(large, send=lambda: wire.send(large)) and wire.by(large) != threading.get_ident()
    assert wire.bodies == [b"in two parts", large]


def test_an_end_that_the_leader_meets_is_heard_on_the_loop(wire: Wire) -> None:
    wire.stand_aside()
    threading.Timer(0.01, wire.far.shutdown, (socket.SHUT_WR,)).start()
    assert not wire.wait(b"never", 0.2)
    assert wire.lost.wait(TIMEOUT)


def test_what_is_called_soon_runs_while_a_thread_leads_and_while_none_does(wire: Wire) -> None:
    ran: list[int] = []

    def run() -> None:
        ran.append(threading.get_ident())
        wire.send(b"it ran")

    for _ in range(2):
        wire.stand_aside()
        wire.handled.clear()
        threading.Timer(0.01, wire.loop.call_soon, (run,)).start()
        assert wire.wait(b"it ran")
    wire.stand_aside()
    done = threading.Event()
    wire.loop.call_soon(done.set)
    assert done.wait(TIMEOUT) and threading.get_ident() not in ran


def test_timers_run_while_a_thread_leads(wire: Wire) -> None:
    wire.loop.call_later(0.05, lambda: wire.send(b"it is time"))
    wire.stand_aside()
    assert wire.wait(b"it is time")


def test_a_leader_hears_of_what_another_thread_releases(wire: Wire) -> None:
    wire.stand_aside()
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(0.01, wake, (lock.release,)).start()
    assert wire.lead.wait(lock, TIMEOUT)


def test_two_threads_wait_and_each_gets_its_own(wire: Wire) -> None:
    wire.stand_aside()
    got: list[bool] = []
    other = threading.Thread(target=lambda: got.append(wire.wait(b"hers")))
    threading.Timer(0.01, wire.send, (b"his", b"hers")).start()
    other.start()
    assert wire.wait(b"his")
    other.join(TIMEOUT)
    assert got == [True] and sorted(wire.bodies) == [b"hers", b"his"]


def test_a_time_limit_ends_the_wait_of_a_leader(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "ASIDE", 0.01)
    wire.stand_aside()
    lock = threading.Lock()
    lock.acquire()
    assert not wire.lead.wait(lock, 0.05)


def test_the_loop_ends_while_a_thread_leads(wire: Wire) -> None:
    wire.stand_aside()
    threading.Timer(0.01, wire.loop.stop).start()
    lock = threading.Lock()
    lock.acquire()
    assert not wire.lead.wait(lock, 0.2)
    assert wire.loop.join(TIMEOUT) and wire.lead not in leader.current


def test_nobody_leads_in_a_child_of_a_fork(wire: Wire) -> None:
    wire.stand_aside()
    wire.loop.forked()
    wire.send(b"for the loop")
    wire.loop.wake()
    assert wire.wait(b"for the loop") and wire.by(b"for the loop") != threading.get_ident()


def test_a_wait_in_which_a_handler_has_forked_ends_in_the_child(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks it while the I/O thread reads, and behind a lead that was given up."""
    monkeypatch.setattr(leader, "SLICE", 0.001)
    monkeypatch.setattr(leader, "lost", None)
    lock = threading.Lock()
    lock.acquire()

    def forks() -> None:
        leader.lost = LookupError("the child has no client")

    for aside in (False, True):
        leader.lost = None
        if aside:
            wire.stand_aside()
        timer = threading.Timer(0.01, forks)
        timer.start()
        with pytest.raises(LookupError, match="the child has no client"):
            leader.wait_for(lock, 5.0)
        timer.join()


def test_a_thread_that_a_debugger_follows_does_not_lead(wire: Wire) -> None:
    wire.stand_aside()
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: None)
    try:
        assert wire.wait(b"while stepping", send=lambda: wire.send(b"while stepping"))
    finally:
        sys.settrace(before)
    assert wire.by(b"while stepping") != main_thread()


# --- signals


def test_an_interrupt_at_any_step_of_a_lead_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "ASIDE", 0.05)
    wire = Wire()
    steps, led = Steps(), 0
    try:
        for number, step in each_step(steps):
            body, behind = b"answer %d" % number, b"behind %d" % number
            data = encode_small(b"small", body)
            wire.stand_aside()
            try:
                with steps.at(step):
                    wire.wait(body, send=lambda data=data: wire.far.sendall(data))  # type: ignore[misc]
            except Interrupted:
                pass
            assert wire.wait(body), f"lost at step {step}"
            wire.send(behind, head=b"other")
            assert wire.wait(behind), f"the loop did not come back after step {step}"
            led += wire.by(body) == main_thread()
        assert step > 100 and led > 10
        bodies = list(dict.fromkeys(wire.bodies))  # what was interrupted may have been handled twice
        assert bodies == [b for n in range(number + 1) for b in (b"answer %d" % n, b"behind %d" % n)]
    finally:
        wire.close()


def test_a_handler_that_waits_at_any_step_of_a_lead_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames come in one read, so that it also waits between the two."""
    monkeypatch.setattr(leader, "ASIDE", 0.05)
    wire = Wire()
    steps, led, handled = Steps(), 0, 0
    try:
        for number, step in each_step(steps):
            body, next_body, inner, behind = (
                b"%s %d" % (word, number) for word in (b"outer", b"next", b"inner", b"behind")
            )
            data = encode_small(b"small", body) + encode_small(b"small", next_body)
            got: list[bool] = []

            def handle(inner: bytes = inner, got: list[bool] = got) -> None:
                got.append(wire.wait(inner, 5, send=lambda: wire.send(inner)))

            wire.stand_aside()
            with steps.at(step, handle):
                assert wire.wait(body, 5, send=lambda data=data: wire.far.sendall(data)), f"lost at step {step}"  # type: ignore[misc]
            assert got == [True] * steps.came, f"the handler did not get what it waited for at step {step}"
            assert wire.wait(next_body, 5), f"lost behind step {step}"
            wire.send(behind, head=b"other")
            assert wire.wait(behind, 5), f"the loop did not come back after step {step}"
            led += wire.by(body) == main_thread()
            handled += steps.came
        assert step > 100 and led > 10
        assert len(set(wire.bodies)) == 3 * (number + 1) + handled
    finally:
        wire.close()


def test_an_answer_that_is_interrupted_at_any_step_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it: a call's Future, the port where its answer comes, and the connection."""
    monkeypatch.setattr(leader, "ASIDE", 0.05)
    monkeypatch.setattr(leader, "current", [])
    wire = Wire()
    proc = Proc("unix:/none/client", wire.loop)
    wire.connection.small = proc.small_received
    wire.connection._handler = Both(proc, wire)
    steps, step = Steps(), 0
    try:
        for number, step in each_step(steps):
            wire.stand_aside()
            entry = OneReply(None)
            answer = message.encode(Answer(proc.ports.add(entry), 0, VALUE))
            wire.far.sendall(encode_small(answer, codec.encode_value(number)[0]))
            future = make_future(entry)
            try:
                with steps.at(step):
                    future.get(TIMEOUT)
            except Interrupted:
                pass
            assert future.get(TIMEOUT) == number
        assert step > 200 and len(proc.ports) == 0
    finally:
        proc.disconnect(RuntimeError("the test is over"))
        wire.close()


class Both:
    """Answers are for the Proc, all else for the test."""

    def __init__(self, proc: Proc, wire: Wire) -> None:
        self.proc = proc
        self.wire = wire
        self.connection_lost = wire.connection_lost

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        for frame in frames:
            if bytes(frame.head) == b"other":
                self.wire.connection_received(connection, [frame])
            else:
                self.proc.connection_received(connection, [frame])


def test_a_handler_of_signals_waits_while_its_thread_leads(wire: Wire) -> None:
    got: list[bool] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append(wire.wait(b"inner", send=lambda: wire.send(b"inner"))))
    try:
        wire.stand_aside()
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        threading.Timer(0.2, lambda: wire.send(b"outer")).start()
        assert wire.wait(b"outer") and got == [True]
        assert wire.bodies == [b"inner", b"outer"]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("joined", ["a thread", "an event loop"])
def test_a_handler_takes_its_time_while_its_thread_leads(joined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for another that waits, which the runtime cannot know: somebody has to read meanwhile."""

    def handle(*_: object) -> None:
        def wait() -> None:
            got.append(wire.wait(b"inner", 5, send=lambda: wire.send(b"inner")))

        if joined == "a thread":
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(10)
        else:
            asyncio.run(asyncio.wait_for(asyncio.to_thread(wait), 10))

    got: list[bool] = []
    monkeypatch.setattr(leader, "ASIDE", 0.5)
    wire = Wire()
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        wire.stand_aside()
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        waiting = threading.Timer(10, lambda: wire.send(b"outer"))
        waiting.start()

        def act(body: bytes) -> None:
            if body == b"inner":
                waiting.cancel()
                wire.send(b"outer")

        wire.act = act
        assert wire.wait(b"outer") and got == [True]
        assert wire.bodies == [b"inner", b"outer"]
    finally:
        signal.signal(signal.SIGUSR1, before)
        wire.close()


def test_a_handler_waits_in_the_midst_of_what_its_thread_handles(wire: Wire) -> None:
    def act(body: bytes) -> None:
        if body == b"outer" and threading.get_ident() == main_thread():
            got.append(wire.wait(b"inner", send=lambda: wire.send(b"inner")))

    got: list[bool] = []
    wire.stand_aside()
    wire.act = act
    assert wire.wait(b"outer", send=lambda: wire.send(b"outer")) and got == [True]
    wire.stand_aside()
    assert wire.wait(b"later", send=lambda: wire.send(b"later"))
    assert list(dict.fromkeys(wire.bodies)) == [b"outer", b"inner", b"later"]


def test_a_handler_that_has_taken_its_time_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread has come back meanwhile, and waits for the lead that the handler's thread has."""

    def act(body: bytes) -> None:
        if body == b"outer" and threading.get_ident() == main_thread():
            while wire.lead.aside:
                os.sched_yield()
            got.append(wire.wait(b"inner", send=lambda: wire.send(b"inner")))

    got: list[bool] = []
    monkeypatch.setattr(leader, "ASIDE", 0.05)
    wire = Wire()
    try:
        for _ in range(1000):  # who leads it falls to
            wire.stand_aside()
            wire.act = act
            assert wire.wait(b"outer", send=lambda: wire.send(b"outer"))
            if got:
                break
            wire.handled.clear()
        assert got == [True]
    finally:
        wire.close()


@pytest.mark.parametrize("timeout", [None, 2.5])
def test_the_main_thread_looks_for_signals_while_it_waits(timeout: float | None) -> None:
    class Lock:
        def acquire(self, timeout: float) -> bool:
            asked.append(timeout)
            return len(asked) > 2

        def locked(self) -> bool:
            return True

    asked: list[float] = []
    lock: Any = Lock()
    assert leader.wait_for(lock, timeout)
    assert asked == [1.0, 1.0, 1.0]  # the lock does not wait: all of the time is left


def test_a_finalizer_in_the_midst_of_what_a_thread_handles_cannot_wait(wire: Wire) -> None:
    def act(body: bytes) -> None:
        if body == b"outer" and threading.get_ident() == waiting.ident:
            with pytest.raises(WouldBlockRuntime):
                wire.wait(b"inner")
            refused.append(True)

    refused: list[bool] = []
    wire.stand_aside()
    wire.act = act
    waiting = threading.Thread(target=lambda: wire.wait(b"outer", send=lambda: wire.send(b"outer")))
    waiting.start()
    waiting.join(TIMEOUT)
    assert refused == [True] and not waiting.is_alive()


# --- event loops of the program


class Answers:
    """Futures of an event loop, set by whoever handles what comes."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.loop = asyncio.get_running_loop()
        self.futures: dict[bytes, asyncio.Future[int]] = {}
        wire.act = self._act

    def _act(self, body: bytes) -> None:
        future = self.futures.get(body)
        if future is not None:
            ident = threading.get_ident()
            if ident == main_thread():
                future.set_result(ident)
            else:
                self.loop.call_soon_threadsafe(future.set_result, ident)

    async def wait(self, body: bytes, head: bytes = b"small") -> int:
        """The thread that handled it."""
        self.futures[body] = self.loop.create_future()
        self.wire.lead.watch(self.loop, lambda: True)
        self.wire.send(body, head=head)
        ident = await asyncio.wait_for(self.futures[body], TIMEOUT)
        self.wire.lead.watched()
        return ident


def test_an_event_loop_reads_while_its_tasks_wait(wire: Wire) -> None:
    async def program() -> None:
        answers = Answers(wire)
        wire.stand_aside()
        assert [await answers.wait(b"%d" % n) for n in range(3)] == [main_thread()] * 3
        assert await answers.wait(b"for the loop", b"other") != main_thread()
        wire.stand_aside()
        assert await answers.wait(b"again") == main_thread()

    asyncio.run(program())
    wire.stand_aside()
    asyncio.run(program_again(wire))


async def program_again(wire: Wire) -> None:
    answers = Answers(wire)
    assert await answers.wait(b"in another event loop") == main_thread()


def test_the_loop_comes_back_while_an_event_loop_is_busy(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        answers = Answers(wire)
        wire.stand_aside()
        assert await answers.wait(b"small") == main_thread()
        monkeypatch.setattr(leader, "ASIDE", 0.003)
        came = threading.Event()
        wire.act = lambda body: came.set()
        wire.loop.wake()  # it stands aside for a long time
        wire.send(b"while the event loop stands still")
        assert came.wait(TIMEOUT)

    asyncio.run(program())


# --- when it pays


def test_the_loop_stands_aside_for_who_waits_again_at_once() -> None:
    wire = Wire("auto")
    try:
        lead = wire.lead
        lead._ended = float("inf")  # somebody had what it waited for just now
        asked: list[bool] = []

        class Answer:
            """A lock as `wait` takes it; asks what the I/O thread would, while its thread waits."""

            def locked(self) -> bool:
                return True

            def acquire(self, timeout: float) -> bool:
                asked.append(lead._hot is not None)
                asked.append(lead.wanted())
                return True

        assert lead.wait(Answer(), TIMEOUT)  # type: ignore[arg-type]
        assert asked == [True, False]  # it still waits: for the rest of what it called, perhaps
        lead._hot = lambda: False
        assert lead.wanted() and not lead.wanted()
        for misses in range(1, 12):
            lead._missed()
            turns = 0
            while not hot_and_wanted(lead):
                turns += 1
            assert turns == min(256, 2**misses)
    finally:
        wire.close()


def hot_and_wanted(lead: LeaderFollower) -> bool:
    lead._hot = lambda: False
    return lead.wanted()
