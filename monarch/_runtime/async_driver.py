"""The thread of an actor that has an event loop.

The actor is one long-lived task, the pump, which awaits each endpoint in turn: no task is made for a message. When nothing
is to be done the loop's selector sleeps on the mailbox's lock, which costs a fraction of a self-pipe wake-up.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from monarch._runtime import recorder as recording
from monarch._runtime.actor_threads import OnThread
from monarch._runtime.context import Current, current
from monarch._runtime.ending import CleanupTooLong, abandon, aborted_meanwhile, cleanup_failed, stop_owned
from monarch._runtime.future import make_future
from monarch._runtime.instance import Instance, Leave, Supervise
from monarch._runtime.loop import TimerHandle
from monarch._runtime.mailbox import WAKE
from monarch._wire.message import Bounced
from monarch.config import settings

_TURN = 32  # messages handled in a row before other tasks of the loop get theirs

logger = logging.getLogger("monarch")

T = TypeVar("T")


class _MailboxSelector(selectors.DefaultSelector):
    """Sleeps on the mailbox while the loop has no descriptors of the program's to watch."""

    driver: AsyncDriver

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        driver = self.driver
        mailbox = driver.instance.mailbox
        events: list[tuple[selectors.SelectorKey, int]] = []
        if len(self.get_map()) > 1:  # more than the loop's self-pipe
            if timeout is not None and timeout <= 0:
                events = super().select(timeout)
            elif mailbox.arm(driver.loop.write_to_self_pipe, driver.idle is not None):
                events = super().select(timeout)
                mailbox.disarm()
        elif timeout is None or timeout > 0:
            mailbox.wait(timeout, driver.idle is not None)
        driver.woken()
        return events


class _ActorLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that is woken through its actor's mailbox."""

    def __init__(self, selector: _MailboxSelector) -> None:
        self._mailbox_wake: Callable[[], None] | None = None
        super().__init__(selector)

    def write_to_self_pipe(self) -> None:
        super()._write_to_self()  # type: ignore[misc]  # asyncio's, not in its stubs

    def _write_to_self(self) -> None:  # asyncio calls it to end a select() from another thread
        if self._mailbox_wake is not None:
            self._mailbox_wake()
        else:
            self.write_to_self_pipe()


class AsyncDriver:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.idle: asyncio.Future[None] | None = None
        selector = _MailboxSelector()
        selector.driver = self
        self.loop = _ActorLoop(selector)
        self.loop._mailbox_wake = lambda: instance.mailbox.put_control(WAKE)
        self._pump_task: asyncio.Task[Leave] | None = None
        self._leave: Leave | None = None
        self._supervisor: asyncio.Task[None] | None = None  # the last, which waits for those before it
        self._hooks: set[asyncio.Task[None]] = set()  # `__supervise__` and such under way
        self._hooks_to_begin = False
        self._late: TimerHandle | None = None
        self._constructed = False

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            instance = self.instance
            current.set(Current(instance, instance.rank, instance.view))
            context = contextvars.copy_context()
            self._pump_task = instance.task = self.loop.create_task(self._pump(), context=context)
            try:
                leave = self._run(self._pump_task)
            except BaseException as exc:  # the program has stopped the loop
                leave = self._failed(exc)
            self._run(self.loop.create_task(self._leave_async(leave)))
        except BaseException as exc:
            abandon(self.instance, self._failed(exc))
        finally:
            self._close_loop()

    def _run(self, task: asyncio.Task[T]) -> T:
        """Runs the loop until the task is done. SystemExit and KeyboardInterrupt, with which tasks of the program break out
        of it, end nothing but those tasks."""
        while True:
            try:
                return self.loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as exc:
                if task.done():
                    return task.result()
                logger.error("a task of actor %s raised, and nobody waits for it", self.instance.name, exc_info=exc)

    def _close_loop(self) -> None:
        loop = self.loop
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException as exc:
            logger.warning("the event loop of actor %s did not close cleanly: %r", self.instance.name, exc)
        finally:
            loop._mailbox_wake = None
            asyncio.set_event_loop(None)
            loop.close()

    def _failed(self, exc: BaseException) -> Leave:
        behaviour = self.instance.behaviour
        assert behaviour is not None
        return Leave.failing(behaviour.describe_failure(exc), exc)

    # --- the pump

    async def _pump(self) -> Leave:
        instance = self.instance
        behaviour, mailbox, now = instance.behaviour, instance.mailbox, instance.proc.loop.now
        assert behaviour is not None
        try:
            if recording.active is not None:
                recording.active.status(instance, "Initializing", before="Created")
            behaviour.construct()
            self._constructed = True
            await _result(behaviour.restarted())
            instance.ready.set()
            instance.proc.events.note("ready", instance.key)
            if recording.active is not None:
                recording.active.status(instance, "Idle", before="Initializing")
            turn = 0
            while True:
                if instance.leaving is not None:
                    return instance.leaving
                if self._leave is not None:
                    return self._leave
                if mailbox.control or self._hooks_to_begin or turn >= _TURN:
                    turn = 0
                    self._hooks_to_begin = False
                    await asyncio.sleep(0)  # the selector looks at the control items; other tasks get their turn
                    continue
                if mailbox.feed is not None:
                    mailbox.feed.poll()
                if not mailbox.messages:
                    turn = 0
                    self.idle = self.loop.create_future()
                    try:
                        await self.idle
                    finally:
                        self.idle = None
                    continue
                turn += 1
                try:
                    item = mailbox.messages.popleft()
                except IndexError:  # drained by a request to stop just now
                    continue
                item.started = instance.last_taken = now()
                instance.last_call = item.call
                instance.current = item
                if instance.end is not None:  # given up just now, when nobody could know of this message
                    return Leave("it was given up")
                await behaviour.handle_async(item)
                if recording.active is not None:
                    recording.active.handled(instance, item)
                instance.current = None
                instance.processed += 1
                instance.busy += now() - item.started
                if instance.paused_senders and len(mailbox.messages) * 2 < instance.high_water:
                    instance.resume_senders()
        except Leave as leave:
            return leave
        except asyncio.CancelledError as exc:
            return self._leave or self._failed(exc)
        except BaseException as exc:
            return self._failed(exc)

    def woken(self) -> None:
        """Called by the selector, on the loop's thread, between two rounds of callbacks."""
        control = self.instance.mailbox.control
        while control:
            item = control.popleft()
            if type(item) is Leave:
                self._ask_to_leave(item)
            elif type(item) is Supervise:
                self._supervise(item)
            elif type(item) is Bounced:
                self._begin_hook(self._undeliverable(item))
            elif type(item) is OnThread:
                item.run()
        idle, instance = self.idle, self.instance
        if idle is not None and instance.mailbox.feed is not None:
            instance.mailbox.feed.poll()
        if idle is not None and (instance.mailbox.messages or instance.leaving is not None) and not idle.done():
            idle.set_result(None)

    def _ask_to_leave(self, leave: Leave) -> None:
        if self._leave is None:
            self._leave = leave
            if self._pump_task is not None and self._constructed:
                self._pump_task.cancel()
                if leave.failure is not None:  # the one who asks for a stop has a limit of its own
                    instance, patience = self.instance, settings.stop_actor_timeout()
                    self._late = instance.proc.loop.call_later(patience, lambda: abandon(instance, leave))

    def _begin_hook(self, hook: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Before the next message; called by the selector, and so in the context of none."""
        task = self.loop.create_task(hook)
        self._hooks.add(task)
        task.add_done_callback(self._hooks.discard)
        self._hooks_to_begin = True
        return task

    def _supervise(self, item: Supervise) -> None:
        before = self._supervisor

        async def supervise() -> None:
            if before is not None:
                await asyncio.wait([before])  # one failure at a time
            if self._leave is not None or self.instance.leaving is not None:
                return
            assert self.instance.behaviour is not None
            leave = await _result(self.instance.behaviour.supervise(item.failure))
            if isinstance(leave, Leave):
                self._ask_to_leave(leave)

        self._supervisor = self._begin_hook(supervise())

    async def _undeliverable(self, bounced: Bounced) -> None:
        assert self.instance.behaviour is not None
        leave = await _result(self.instance.behaviour.undeliverable(bounced))
        if isinstance(leave, Leave):
            self._ask_to_leave(leave)

    # --- leaving

    async def _leave_async(self, leave: Leave) -> None:
        instance = self.instance
        behaviour = instance.behaviour
        assert behaviour is not None
        instance.leaves(leave)
        self._pump_task = None
        if self._late is not None:
            self._late.cancel()
        instance.close(leave.failure or behaviour.describe_stop(leave.reason))
        await self._cancel_hooks()
        await behaviour.cancel_tasks()
        if instance.owned:
            try:
                await asyncio.wait_for(make_future(stop_owned(instance, leave)), settings.stop_actor_timeout())
            except (Exception, asyncio.CancelledError) as exc:
                logger.warning("stopping what actor %s owns did not succeed: %r", instance.name, exc)
        if self._constructed:
            current.set(Current(instance, instance.rank, instance.view))
            cleanup_timeout = settings.cleanup_timeout()
            late = instance.proc.loop.call_later(cleanup_timeout + 1.0, lambda: instance.finish(leave))
            try:
                async with asyncio.timeout(cleanup_timeout) as limit:
                    await _result(behaviour.cleanup(leave.cause))
                leave = aborted_meanwhile(instance, leave)
            except BaseException as exc:
                cut = isinstance(exc, TimeoutError) and limit.expired()
                leave = cleanup_failed(instance, leave, CleanupTooLong("deadline has elapsed") if cut else exc)
            late.cancel()
        if not instance.ended.ready:
            instance.finish(leave)

    async def _cancel_hooks(self) -> None:
        hooks = [task for task in self._hooks if not task.done()]
        for task in hooks:
            task.cancel()
        if hooks:
            await asyncio.wait(hooks, timeout=settings.stop_actor_timeout())


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
