"""Tests of calls in every order in which the threads of their two processes can take turns: ports, and the ends of actors.

A caller sends, waits for its answer or drops its Future, while the I/O thread takes answers, loses connections and hears of
deaths; an actor handles what comes while others stop it or give it up. Every call has an outcome, and nothing stays behind.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._runtime import driver, ending, future, leader, mailbox, replies
from monarch._runtime.future import Source, make_future
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.replies import Entry, Gather, OneReply, Ports, Target
from monarch._wire import codec
from monarch._wire.message import VALUE, Call, Failure, ProcEnded
from tests.support.schedules import Blocking, Schedules

pytestmark = pytest.mark.full

THERE = "unix:/h/m.0"
BODY = codec.encode(1)[0]
GONE = Failure("it has ended", "key", "worker", [0])
BROKE = Failure("its connection broke", "key", "worker", [0])


class Telling:
    """The mesh layer of a caller, whom nothing is told."""

    def call_failed(self, *told: object) -> None: ...

    def call_raised(self, *told: object) -> None: ...


class Caller:
    """A process whose main thread calls an actor of another; `ends`: what the I/O thread meets meanwhile."""

    def __init__(self, schedules: Schedules, waits: bool, kind: type[Entry], ends: tuple[str, ...]) -> None:
        self.schedules = schedules
        self.waits, self.ends = waits, ends
        self.ports = Ports()
        self.caller: Any = SimpleNamespace(proc=SimpleNamespace(ports=self.ports, hooks=Telling(), suspected={}))
        self.connection: Any = SimpleNamespace(lost=False)
        self.sent: Any = None  # the connection that has the call
        self.answered = self.dead = False
        target = Target("worker.step", [THERE], lambda address, ended: GONE)
        target.key, target.ranks = "key", [0]
        entry: Any = OneReply(target) if kind is OneReply else Gather(target, 1, list)
        entry.caller = self.caller
        self.entry = entry
        self.threads: dict[str, Callable[[], object]] = {"main": self.call}
        self.daemons: dict[str, Callable[[], object]] = {"I/O": self.read}
        self.over = False
        schedules.roles |= {id(self): "world", id(entry): "entry", id(self.ports): "ports"}

    # --- its threads

    def call(self) -> None:
        entry = self.entry
        entry.sending = True
        self.ports.add(entry)
        if self.dead:  # as `Proc.post` finds
            entry.fail(GONE)
            return
        taken = self.connection
        if not taken.lost:
            self.sent = taken
        else:
            taken = self.sent = self.connection
        entry.sent(taken)
        result = make_future(entry)
        if self.waits:
            assert entry.wait(None)
        del result

    def read(self) -> None:
        for end in self.ends:
            self.schedules.wait(lambda: self.sent is not None or self.over)
            if end == "breaks":
                broken, self.connection = self.connection, SimpleNamespace(lost=False)
                broken.lost = True
                self.ports.connection_broke(THERE, range(1, 100), (), BROKE)
            elif end == "dies":
                self.dead = True
                self.ports.process_ended(ProcEnded(THERE, 0, 1, False, [], "killed"))
            elif self.sent is not None and not self.sent.lost:
                self.ports.receive(1, (0, VALUE, BODY, ()))

    def handle(self) -> None: ...

    # --- for the schedules

    def state(self) -> object:
        entry, ports = self.entry, self.ports
        return (
            [list(ports._entries), list(ports._abandoned), entry.table is ports._abandoned, entry.abandoned],
            [entry.ready, entry.sending, entry.broken is None, entry.taken is None, entry.has_outcome()],
            [entry._wakers and len(entry._wakers), self.connection.lost, self.sent is None, self.dead, self.over],
        )

    def finish(self) -> None:
        self.over = True

    def check(self) -> None:
        assert self.entry.ready or not self.waits, "nobody has answered"
        assert not self.ports._entries and not self.ports._abandoned, "it is still in a table"


@pytest.fixture
def schedules_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Schedules]]:
    def made(*code: Any, **bounds: int) -> Schedules:
        schedules = Schedules(*code, **{"times": 0, **bounds})
        own: Any = SimpleNamespace(Lock=lambda: Blocking(schedules, threading.Lock()))
        monkeypatch.setattr(future, "threading", own)
        monkeypatch.setattr(mailbox, "threading", own)
        monkeypatch.setattr(future, "_creating", Blocking(schedules, threading.RLock()))
        monkeypatch.setattr(replies, "_noting", Blocking(schedules, threading.RLock()))
        return schedules

    monkeypatch.setattr(leader, "current", [])
    monkeypatch.setattr(leader, "SLICE", 1e9)
    for module in (leader, future, replies):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    gc.disable()  # it would end Futures of earlier worlds in the midst of a later one
    yield made
    gc.enable()


PORTS = (
    *(Ports.add, Ports.abandon, Ports._forget_abandoned, Ports.receive, Ports.process_ended, Ports.connection_broke),
    *(Entry.note_failure, Entry.fail, Entry.process_ended, Entry.connection_broke, Entry.sent, Entry.may_be_lost),
    *(Entry.close, replies._Result.give_up, replies._Result.abandon, OneReply.receive, Gather.receive, Gather.close),
    *(Source.on_ready, Source.set_ready, Source.discard, Caller.call, Caller.read),
)


@pytest.mark.parametrize("ends", [("answer",), ("breaks", "answer", "dies"), ("answer", "dies"), ("dies",)])
@pytest.mark.parametrize("kind", [OneReply, Gather])
@pytest.mark.parametrize("waits", [True, False])
def test_every_call_has_an_outcome_and_leaves_its_table(
    ends: tuple[str, ...], kind: type[Entry], waits: bool, schedules_of: Callable[..., Schedules]
) -> None:
    schedules = schedules_of(*PORTS, switches=2)
    found = schedules.explore(lambda schedules: Caller(schedules, waits, kind, ends))
    print(f"{kind.__name__}, {'waits' if waits else 'drops'}, {', '.join(ends)}: {found}")


# --- the end of an actor


class Behaviour:
    """An actor that answers; the one message it hangs in is never answered by it."""

    is_async = False

    def __init__(self, world: Actor) -> None:
        self.world = world

    def construct(self) -> None: ...

    def restarted(self) -> None: ...

    def cleanup(self, cause: Exception | None) -> None: ...

    def handle(self, delivery: Delivery) -> None:
        if delivery.call.method == "hang":
            self.world.hangs = True
            self.world.schedules.wait(lambda: self.world.over)
        self.world.answered.append(delivery.call.port)

    def describe_failure(self, exc: BaseException, in_cleanup: bool = False) -> Failure:
        return Failure(f"it failed: {exc!r}", "key", "worker", [0])

    def describe_stop(self, reason: str) -> Failure:
        return Failure(f"stopped: {reason}", "key", "worker", [0], stopped=True)

    def describe_stale(self, overtaken: bool = False) -> Failure:
        raise AssertionError("no message is stale here")


class Actor:
    """A process with one actor. `ends`: how others end it, each in a thread of its own, while messages come."""

    def __init__(self, schedules: Schedules, methods: tuple[str, ...], ends: tuple[str, ...]) -> None:
        self.schedules = schedules
        self.methods = methods
        self.answered: list[int] = []
        self.ended: list[Failure | None] = []
        self.address = THERE
        self.mailbox_messages = 1000
        self.loop = SimpleNamespace(now=lambda: 0.0, call_soon=lambda fn: fn(), call_later=self.call_later)
        self.events = SimpleNamespace(note=lambda *told: None)
        proc: Any = self
        self.instance = Instance(proc, key="key", name="worker", rank=0, view=b"")
        self.instance._lock = Blocking(schedules, threading.RLock())  # type: ignore[assignment]
        self.instance.behaviour = Behaviour(self)  # type: ignore[assignment]
        self.over = False
        self.threads: dict[str, Callable[[], object]] = {"main": self.deliver} | {
            end: getattr(self, end) for end in ends
        }
        self.daemons: dict[str, Callable[[], object]] = {"actor": self.act}
        self.hangs = self.done = False
        schedules.roles |= {id(self): "world", id(self.instance): "instance", id(self.instance.mailbox): "mailbox"}

    # --- its threads

    def deliver(self) -> None:
        for number, method in enumerate(self.methods, 1):
            call = Call("key", "a.0", number, method, number, "", 0, b"", 0)
            self.instance.deliver(Delivery(call, b"", (), THERE))
        self.schedules.wait(lambda: self.instance.ended.ready and (self.hangs or self.done))

    def act(self) -> None:
        driver._run_sync(self.instance)
        self.done = True

    def stop(self) -> None:
        self.instance.request_stop("enough")

    def give_up(self) -> None:
        self.instance.request_stop("enough")  # as all do who give up an actor
        ending.abandon(self.instance, Leave("it took too long"))

    def fail(self) -> None:
        self.instance.leave_soon(Leave.failing(GONE))

    # --- what it asks its process for

    def refuse(self, delivery: Delivery, failure: Failure) -> None:
        self.answered.append(delivery.call.port)

    def actor_ended(self, instance: Instance, failure: Failure | None) -> None:
        self.ended.append(failure)

    def call_later(self, delay: float, fn: Callable[[], object]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def handle(self) -> None: ...

    # --- for the schedules

    def state(self) -> object:
        instance = self.instance
        box = instance.mailbox
        return (
            [self.answered, len(self.ended), instance.stopping, instance.end is not None, instance._finished],
            [instance.current and instance.current.call.port, instance.leaving is None, instance.ended.ready],
            [
                [item.call.port for item in box.messages],
                len(box.control),
                len(box._wakers),
                box._lock,
                self.over,
                self.hangs,
                self.done,
            ],
        )

    def finish(self) -> None:
        assert set(self.answered) == set(range(1, len(self.methods) + 1)), f"answered: {self.answered}"
        assert len(self.ended) <= 1, "its end is told twice"
        self.over = True
        self.instance.mailbox.put_control(Leave("the test is over"))

    def check(self) -> None:
        assert len(self.ended) == 1
        assert not self.instance.mailbox.messages


EXITS = (
    *(driver._run_sync, driver._leave_sync, ending.abandon, Instance.deliver, Instance.request_stop, Instance.leaves),
    *(Instance.leave_soon, Instance.close, Instance.finish),
)


@pytest.mark.parametrize(
    ("methods", "ends"),
    [
        (("step",), ("stop",)),
        (("step", "hang"), ("give_up",)),
        (("step",), ("give_up",)),
        (("step",), ("fail",)),
    ],
)
def test_every_call_to_an_actor_that_ends_is_answered_and_its_end_told_once(
    methods: tuple[str, ...], ends: tuple[str, ...], schedules_of: Callable[..., Schedules]
) -> None:
    schedules = schedules_of(*EXITS, switches=2)
    found = schedules.explore(lambda schedules: Actor(schedules, methods, ends))
    print(f"{', '.join(methods)}; {', '.join(ends)}: {found}")
