"""Tests of actors on an event loop in every order in which their thread and others can take turns: endpoints in flight, one
after the other and beside each other, while the actor is stopped, given up, or fails.

Driver, behaviour, mailbox and asyncio are the real ones; tests/_runtime/test_call_schedules.py has actors without a loop.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from monarch._mesh.actors.async_behaviour import AsyncActorBehaviour
from monarch._runtime import async_driver, ending, future, leader, mailbox
from monarch._runtime.async_driver import AsyncDriver
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.mailbox import Mailbox
from monarch._wire import codec
from monarch._wire.message import Call, Failure
from monarch.actor import Actor, concurrent_endpoint, endpoint
from tests.support.schedules import Blocking, Schedules

pytestmark = pytest.mark.full

THERE = "unix:/h/m.0"
NOTHING = bytes(codec.encode(((), {}))[0])


class Looped(Actor):
    @endpoint
    async def step(self) -> None: ...

    @endpoint
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @concurrent_endpoint
    async def beside(self) -> None:
        await asyncio.sleep(0)

    @concurrent_endpoint
    async def hang_beside(self) -> None:
        await asyncio.Event().wait()


class LoopedWorld:
    """A process with one actor. `ends`: how others end it, each in a thread of its own, while messages come."""

    def __init__(self, schedules: Schedules, methods: tuple[str, ...], ends: tuple[str, ...]) -> None:
        self.schedules = schedules
        self.methods = methods
        self.answered: list[int] = []
        self.ended: list[Failure | None] = []
        self.address, self.mailbox_messages, self.frame_limit = THERE, 1000, 0
        self.loop = SimpleNamespace(now=lambda: 0.0, call_soon=lambda fn: fn(), call_later=self.call_later)
        self.events = SimpleNamespace(note=lambda *told: None)
        proc: Any = self
        self.instance = instance = Instance(proc, key="key", name="worker", rank=0, view=b"")
        instance._lock = Blocking(schedules, threading.RLock())  # type: ignore[assignment]
        instance.behaviour = AsyncActorBehaviour(instance, lambda: (Looped, (), {}, None, None), "worker", "workers")
        self.driver: AsyncDriver | None = None
        self.done = self.over = False
        self.threads: dict[str, Callable[[], object]] = {"main": self.deliver} | {
            end: getattr(self, end) for end in ends
        }
        self.daemons: dict[str, Callable[[], object]] = {"actor": self.act}
        schedules.roles |= {id(self): "world", id(instance): "instance", id(instance.mailbox): "mailbox"}

    # --- its threads

    def deliver(self) -> None:
        for number, method in enumerate(self.methods, 1):
            call = Call("key", "a.0", number, method, number, "", 0, b"", 0)
            self.instance.deliver(Delivery(call, NOTHING, (), THERE))
        self.schedules.wait(lambda: self.instance.ended.ready and self.done)

    def act(self) -> None:
        self.driver = AsyncDriver(self.instance)
        self.driver.run()
        self.done = True

    def stop(self) -> None:
        self.instance.request_stop("enough")

    def give_up(self) -> None:
        self.instance.request_stop("enough")  # as all do who give up an actor
        ending.abandon(self.instance, Leave("it took too long"))

    def fail(self) -> None:
        self.instance.leave_soon(Leave.failing(Failure("it has failed", "key", "worker", [0])))

    # --- what it asks its process for

    def reply(self, delivery: Delivery, *told: object) -> None:
        self.answered.append(delivery.call.port)

    refuse = reply

    def check_size(self, *told: object) -> None: ...

    def actor_ended(self, instance: Instance, failure: Failure | None) -> None:
        self.ended.append(failure)

    def call_later(self, delay: float, fn: Callable[[], object]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def handle(self) -> None: ...

    # --- for the schedules

    def state(self) -> object:
        instance, driver = self.instance, self.driver
        box = instance.mailbox
        return (
            [self.answered, len(self.ended), instance.stopping, instance.end is not None, instance._finished],
            [instance.current and instance.current.call.port, instance.leaving is None, instance.ended.ready],
            [
                sorted(each.call.port for each in instance.concurrent.values()),
                [item.call.port for item in box.messages],
            ],
            [len(box.control), len(box._wakers), box._lock, self.over, self.done],
            [] if driver is None else [driver.idle is None, driver._leave is None, driver._hooks_to_begin],
            [] if driver is None else [_tasks(driver.loop), len(driver.loop._ready)],  # type: ignore[attr-defined]
        )

    def finish(self) -> None:
        assert set(self.answered) == set(range(1, len(self.methods) + 1)), f"answered: {self.answered}"
        assert len(self.ended) == 1, "its end is told twice, or never"
        self.over = True

    def check(self) -> None:
        assert not self.instance.mailbox.messages and not self.instance.concurrent


def _tasks(loop: asyncio.AbstractEventLoop) -> list[object]:
    """Returns where each task of the loop is."""
    found: list[object] = []
    for task in asyncio.all_tasks(loop):
        at, coroutine = [], task.get_coro()
        while asyncio.iscoroutine(coroutine):
            kind = "gi" if isinstance(coroutine, GeneratorType) else "cr"  # that of sleep(0) is a generator
            frame = getattr(coroutine, f"{kind}_frame")
            at.append((coroutine.__qualname__, -2 if frame is None else frame.f_lasti))
            coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else "cr_await")
        found.append((at, task.cancelling(), task._must_cancel, task._fut_waiter is None))  # type: ignore[attr-defined]
    return sorted(found, key=repr)


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Schedules]:
    schedules = Schedules(*EXITS, switches=1, times=0)
    own: Any = SimpleNamespace(Lock=lambda: Blocking(schedules, threading.Lock()))
    monkeypatch.setattr(mailbox, "threading", own)
    monkeypatch.setattr(future, "threading", own)
    monkeypatch.setattr(async_driver._ActorLoop, "time", lambda loop: 0.0)
    monkeypatch.setattr(leader, "current", [])
    monkeypatch.setattr(leader, "SLICE", 1e9)
    for module in (leader, future):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    gc.disable()  # it would end what earlier worlds left in the midst of a later one
    yield schedules
    gc.enable()


EXITS = (
    *(AsyncDriver._pump, AsyncDriver.woken, AsyncDriver._ask_to_leave, AsyncDriver._leave_async),
    *(async_driver._MailboxSelector.select, AsyncActorBehaviour.handle_async),
    *(ending.abandon, Instance.deliver, Instance.request_stop, Instance.leaves),
    *(Instance.leave_soon, Instance.close, Instance.finish, Mailbox.put, Mailbox.put_control, Mailbox.arm),
)


@pytest.mark.parametrize(
    ("methods", "ends"),
    [
        (("hang", "step"), ("stop",)),
        (("step", "hang"), ("stop",)),
        (("hang_beside",), ("stop",)),
        (("beside",), ("stop",)),
        (("beside",), ("give_up",)),
        (("beside",), ("fail",)),
        (("hang_beside",), ("give_up",)),
        (("step",), ("give_up",)),
        (("step",), ("fail",)),
    ],
)
def test_every_call_in_flight_is_answered_once_and_the_end_told_once(
    methods: tuple[str, ...], ends: tuple[str, ...], schedules: Schedules
) -> None:
    found = schedules.explore(lambda schedules: LoopedWorld(schedules, methods, ends))
    print(f"{', '.join(methods)}; {', '.join(ends)}: {found}")
