"""The thread of an actor: takes one message after the other until the actor leaves.

Here for actors without a loop; `async_driver` is the same for those with one. Both follow the same steps: construct,
handle..., leave. Leaving is: refuse what waits, stop the meshes the actor owns, `__cleanup__`, tell the owner.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from monarch._runtime.context import Current, current
from monarch._runtime.future import All
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._wire.message import Bounced
from monarch.config import settings

logger = logging.getLogger("monarch")


class Supervise:
    """Control item: a mesh that the actor owns has failed."""

    __slots__ = ("failure",)

    def __init__(self, failure: Any) -> None:
        self.failure = failure


class CleanupTooLong(TimeoutError):
    """An async `__cleanup__` was cancelled after `cleanup_timeout`."""


def run(instance: Instance) -> None:
    """The whole life of an actor, on the thread that calls it."""
    assert instance.behaviour is not None
    instance.thread_ident = threading.get_ident()
    instance.proc.waits.actor_started()
    if instance.behaviour.is_async:
        from monarch._runtime.async_driver import (
            AsyncDriver,
        )  # asyncio: loaded by the first actor that needs it

        AsyncDriver(instance).run()
    else:
        _run_sync(instance)


# --- actors without async endpoints ---------------------------------------------------------------------------


def _run_sync(instance: Instance) -> None:
    behaviour, mailbox, now = instance.behaviour, instance.mailbox, instance.proc.loop.now
    assert behaviour is not None
    current.set(Current(instance, instance.rank, instance.view))
    constructed = False
    try:
        behaviour.construct()
        constructed = True
        behaviour.restarted()
        instance.ready.set()
        while True:
            if instance.leaving is not None:
                raise instance.leaving
            item = mailbox.take()
            if type(item) is Delivery:
                item.started = now()
                instance.current = item
                behaviour.handle(item)
                instance.current = None
                if instance.paused_senders and len(mailbox.messages) * 2 < instance.high_water:
                    instance.resume_senders()
            elif type(item) is Supervise:
                current.set(Current(instance, instance.rank, instance.view))
                _obey(behaviour.supervise(item.failure))
            elif type(item) is Bounced:
                current.set(Current(instance, instance.rank, instance.view))
                _obey(behaviour.undeliverable(item))
            elif type(item) is Leave:
                raise item
    except Leave as leave:
        why = leave
    except BaseException as exc:
        failure = behaviour.describe_failure(exc, "" if constructed else "__init__")
        why = Leave(failure.report, failure, exc if isinstance(exc, Exception) else RuntimeError(failure.report))
    _leave_sync(instance, why, constructed)


def _leave_sync(instance: Instance, leave: Leave, constructed: bool) -> None:
    behaviour = instance.behaviour
    assert behaviour is not None
    instance.stopping = True
    instance.close(leave.failure or behaviour.describe_stop(leave.reason))
    if instance.owned:
        stop_owned(instance, leave).wait(settings.get("stop_actor_timeout"))
    if constructed:
        # __cleanup__ runs here, on the actor's own thread, and may hang: the end is told by then at the latest.
        cleanup_timeout = settings.get("cleanup_timeout")
        late = instance.proc.loop.call_later(cleanup_timeout, lambda: instance.finish(leave))
        current.set(Current(instance, instance.rank, instance.view))
        try:
            behaviour.cleanup(leave.cause)
            leave = aborted_meanwhile(instance, leave)
        except BaseException as exc:
            leave = cleanup_failed(instance, leave, exc)
        late.cancel()
    if not instance.ended.ready:
        instance.finish(leave)


def stop_owned(instance: Instance, leave: Leave) -> All:
    """Begins to stop every mesh the actor owns."""
    sources = [owned.stop(f"its owner ended: {leave.reason}") for owned in list(instance.owned.values())]
    return All(sources)


def cleanup_failed(instance: Instance, leave: Leave, exc: BaseException) -> Leave:
    """A raising `__cleanup__` is a failure of its own, unless the actor failed already."""
    assert instance.behaviour is not None
    logger.warning("__cleanup__ of actor %s did not succeed", instance.name, exc_info=exc)
    if leave.failure is not None:
        return leave
    return Leave(leave.reason, instance.behaviour.describe_failure(exc, "cleanup error"), None)


def aborted_meanwhile(instance: Instance, leave: Leave) -> Leave:
    """An `abort` within `__cleanup__` makes a failure of an ordinary stop."""
    asked = instance.leaving
    return asked if leave.failure is None and asked is not None and asked.failure is not None else leave


def abandon(instance: Instance, leave: Leave) -> None:
    """Any thread: an actor that hangs is given up on. Whoever waits for it is told, and what it owns is stopped."""
    if instance.ended.ready:
        return
    assert instance.behaviour is not None
    instance.close(leave.failure or instance.behaviour.describe_stop(leave.reason))
    stop_owned(instance, leave)
    instance.finish(leave)


def _obey(leave: Any) -> None:
    if isinstance(leave, Leave):
        raise leave
