"""Tests of who reads, in every order in which the threads of a process can take turns.

The I/O thread and threads that wait run the code of `leader`, the loop, the connection and the Future, stopped at any
line. Whoever waits gets what comes, and no thread has to be woken by a time limit for that.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._errors import ForkedClientError
from monarch._runtime import forks, future, leader
from monarch._runtime.future import Slot, Source
from monarch._runtime.leader import LeaderFollower
from monarch._runtime.loop import Loop, wake
from monarch._wire.frame import Frame, encode_small
from monarch._wire.transport.stream import StreamConnection
from tests.support.patience import TIMEOUT
from tests.support.schedules import Blocking, Polling, Schedules, Stuck

pytestmark = pytest.mark.full


class Process:
    """Its I/O thread stands aside, or is about to; its main thread, and others, wait for what is sent to them."""

    def __init__(self, schedules: Schedules, waits: dict[str, list[bytes]]) -> None:
        self.schedules = schedules
        near, self.far = socket.socketpair()
        self.loop = loop = Loop("test", clock=lambda: 0.0)
        loop.on_error = self.raised
        loop.ended_unasked = self.raised
        loop.epoll = Polling(schedules, loop.epoll)  # type: ignore[assignment]
        loop.share_lead("always")
        assert loop._lead is not None
        self.lead: Any = loop._lead
        self.lead._lead = Blocking(schedules, self.lead._lead, main=False)
        self.lead._park = Blocking(schedules, self.lead._park)
        loop._came = True  # so that it stands aside
        self.slots: dict[bytes, Slot] = {}
        self.asked: list[bytes] = []
        self.errors: list[BaseException] = []
        self.connection = connection = StreamConnection(near, loop, self, limit=1 << 20)
        connection.small = self.small
        connection.start()
        self.inner = (b"inner %d" % number for number in itertools.count())
        self.bodies = [body for bodies in waits.values() for body in bodies]
        self.threads: dict[str, Callable[[], object]] = {
            name: lambda bodies=bodies: self.get_all(bodies)  # type: ignore[misc]
            for name, bodies in waits.items()
        }
        self.daemons: dict[str, Callable[[], object]] = {"I/O": loop.run, "far": self.answer}
        self.answered = 0
        self.over = False
        schedules.late = self.late
        schedules.roles |= {
            id(loop): "loop",
            id(self.lead): "lead",
            id(connection): "connection",
            id(self): "process",
        }

    def raised(self, exc: BaseException) -> None:
        self.errors.append(exc)

    # --- its threads

    def get_all(self, bodies: list[bytes]) -> None:
        self.schedules.wait(lambda: not self.loop._came)  # then the I/O thread is about to stand aside
        for body in bodies:
            self.get(body)

    def get(self, body: bytes) -> None:
        slot = self.slots[body] = Slot()
        self.asked.append(body)
        assert slot.wait(None)
        assert slot.ready

    def answer(self) -> None:
        """The other process."""
        while True:
            self.schedules.wait(lambda: self.answered < len(self.asked) or self.over)
            if self.answered == len(self.asked):
                return
            body = self.asked[self.answered]
            self.answered += 1
            self.far.sendall(encode_small(b"other" if body.startswith(b"other") else b"small", body))

    def handle(self) -> None:
        self.get(next(self.inner))

    # --- what comes

    def small(self, connection: StreamConnection, head: bytes, body: bytes) -> bool:
        if head != b"small":
            return False
        self.slots[body].set(body)
        return True

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        for frame in frames:
            self.slots[bytes(frame.body)].set()

    def connection_lost(self, connection: Any, reason: str) -> None:
        raise AssertionError(reason)

    # --- for the schedules

    def unread(self) -> bytes:
        try:
            return self.connection._sock.recv(1 << 16, socket.MSG_PEEK)  # type: ignore[union-attr]
        except BlockingIOError:
            return b""

    def state(self) -> object:
        lead, loop, connection = self.lead, self.loop, self.connection
        unread = self.unread()
        return (
            [lead.aside, lead._turn, lead._claim, lead._lead, lead._park, lead._parked, lead._leader, lead._leads],
            [lead._answers and len(lead._answers), lead._followed, lead._misses, lead._ended],
            [loop.soon, loop.ident, loop._polling, loop._came, loop.epoll.came(), len(loop._wakes)],
            [connection._kept, connection._decoder.empty, connection.reads, unread],
            [(body, slot.ready, slot._wakers) for body, slot in self.slots.items()],
            [self.answered, self.asked, self.over],
        )

    def late(self) -> bool:
        """Returns whether something has come, which nobody reads until a time limit ends."""
        return bool(self.connection._kept or self.unread())

    def finish(self) -> None:
        self.over = True
        self.loop.stop()

    def check(self) -> None:
        self.connection.close("the test is over")
        self.far.close()
        self.connection._sock.close()  # type: ignore[union-attr]
        if self.errors:
            raise self.errors[0]
        assert all(slot.ready for slot in self.slots.values())
        assert len(self.slots) == len(self.asked)


CORE = (leader, StreamConnection._quick, Source.on_ready)
CODE = (
    *CORE,
    *(Loop._turn, Loop.call_soon, Loop.wake, Loop._drain_wake, Loop._wake_others, Loop.want_write, wake),
    *(StreamConnection._readable, StreamConnection._take_kept, StreamConnection._received),
    *(Source.wait, Source.set_ready, Source.discard),
)


@pytest.fixture
def explore(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    creating = future._creating

    def explore(
        waits: dict[str, list[bytes]], kind: type[Process] = Process, code: Sequence[Any] = CODE, **bounds: int
    ) -> None:
        schedules = Schedules(*code, **{"times": 0, **bounds})
        monkeypatch.setattr(future, "threading", SimpleNamespace(Lock=lambda: Blocking(schedules, threading.Lock())))
        monkeypatch.setattr(future, "_creating", Blocking(schedules, creating))
        print(f"{', '.join(waits)}, {bounds}: {schedules.explore(lambda schedules: kind(schedules, waits))}")

    monkeypatch.setattr(leader, "current", [])
    monkeypatch.setattr(leader, "SLICE", 1e9)
    monkeypatch.setattr(leader, "gettrace", lambda: None)
    for module in (leader, future):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    return explore


HANDLING = (
    *(LeaderFollower._handle, LeaderFollower._take_away, LeaderFollower.stand_aside, LeaderFollower.recall),
    StreamConnection._quick,
)
WAITS: list[tuple[dict[str, list[bytes]], dict[str, Any]]] = [
    ({"main": [b"a"]}, {"switches": 2, "times": 0}),
    ({"main": [b"other a", b"b"]}, {}),
    ({"main": [b"a"], "thread": [b"b"]}, {"code": CORE}),
    ({"main": [b"a"]}, {"switches": 0, "times": 2, "signals": 1}),
    ({"main": [b"a"]}, {"signals": 1, "code": HANDLING}),
    ({"main": [b"a"]}, {"switches": 0, "signals": 2, "code": HANDLING}),
]


@pytest.mark.parametrize("waits,bounds", WAITS)
def test_whoever_waits_gets_what_comes(
    waits: dict[str, list[bytes]], bounds: dict[str, Any], explore: Callable[..., None]
) -> None:
    """Handlers of signals wait for messages of their own. "other": what no leader takes."""
    explore(waits, **bounds)


class TakingTime(Process):
    """A handler goes on until the I/O thread is back, which takes its time limit, and waits then."""

    def late(self) -> bool:
        return False

    def handle(self) -> None:
        self.schedules.wait(lambda: not self.lead.aside)
        super().handle()


def test_a_handler_that_takes_its_time_and_waits_gets_what_comes(explore: Callable[..., None]) -> None:
    explore({"main": [b"a"]}, TakingTime, switches=0, signals=1)


class Forking(Process):
    """A handler forks. The child waits in the handler, and goes on where its main thread was."""

    child = main_has_all = False

    def get_all(self, bodies: list[bytes]) -> None:
        try:
            self.schedules.wait(lambda: not self.loop._came, ends=True)
            for body in bodies:
                self.get(body)
        except (ForkedClientError, Stuck) as exc:
            if not self.child:
                raise
            os._exit(1 if isinstance(exc, Stuck) else 0)
        if self.child:
            os._exit(0)
        self.main_has_all = self.main_has_all or threading.current_thread() is threading.main_thread()

    def handle(self) -> None:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert status == 0, "the child waits for what nobody releases" if status == 256 else status
            return
        try:
            self.child = True
            signal.alarm(30)
            self.schedules.forked()
            forks.close(self.loop.forked())  # as `Proc.forked` does
            leader.lost = ForkedClientError("the client belongs to the parent")
            with pytest.raises(ForkedClientError):
                self.get(b"child")
            if self.main_has_all:
                os._exit(0)
        except BaseException as exc:
            os._exit(1 if isinstance(exc, Stuck) else 2)


@pytest.mark.parametrize("waits", [{"main": [b"a"]}, {"main": [b"a"], "thread": [b"b"]}])
def test_no_forked_child_waits_for_what_nobody_releases(
    waits: dict[str, list[bytes]], explore: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """In a fresh process: a fork takes fifteen times as long in one in which thousands of tests have left their memory."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        explore(waits, Forking, switches=0, signals=1)
        return
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
    ran = subprocess.run(
        command, cwd=request.config.rootpath, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
