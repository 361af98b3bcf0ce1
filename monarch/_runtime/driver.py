"""The thread of an actor: takes one message after the other until the actor leaves.

Here for actors without a loop; `async_driver` is the same for those with one. Both follow the same steps: construct,
handle..., leave. Leaving is: refuse what waits, stop the meshes the actor owns, `__cleanup__`, tell the owner.
"""

from __future__ import annotations

import threading
from typing import Any

from monarch._runtime import recorder as recording
from monarch._runtime.actor_threads import OnThread
from monarch._runtime.context import Current, current
from monarch._runtime.ending import abandon, aborted_meanwhile, cleanup_failed, stop_owned
from monarch._runtime.instance import Delivery, Fed, Instance, Leave, Supervise
from monarch._wire.message import Bounced
from monarch.config import settings


def run(instance: Instance) -> None:
    """The whole life of an actor, on the thread that calls it. Whatever goes wrong, it ends and everybody is told."""
    assert instance.behaviour is not None
    instance.thread_ident = threading.get_ident()
    instance.proc.waits.actor_started()
    instance.proc.actor_threads.enter()
    try:
        if instance.behaviour.is_async:
            from monarch._runtime.async_driver import AsyncDriver  # asyncio: loaded by the first actor that needs it

            AsyncDriver(instance).run()
        else:
            _run_sync(instance)
    except (
        BaseException
    ) as exc:  # beside what the actor itself raises: of a log handler of the program, or our own mistake
        abandon(instance, Leave.failing(instance.behaviour.describe_failure(exc), exc))


# --- actors without async endpoints ---------------------------------------------------------------------------


def _run_sync(instance: Instance) -> None:
    behaviour, mailbox, now = instance.behaviour, instance.mailbox, instance.proc.loop.now
    assert behaviour is not None
    current.set(Current(instance, instance.rank, instance.view))
    constructed = False
    try:
        if recording.active is not None:
            recording.active.status(instance, "Initializing", before="Created")
        behaviour.construct()
        constructed = True
        behaviour.restarted()
        instance.ready.set()
        instance.proc.events.note("ready", instance.key)
        if recording.active is not None:
            recording.active.status(instance, "Idle", before="Initializing")
        while True:
            if instance.leaving is not None:
                raise instance.leaving
            item = mailbox.take()
            if type(item) is Delivery or isinstance(item, Fed):
                item.started = instance.last_taken = now()
                instance.last_call = item.call
                instance.current = item
                if instance.end is not None:  # given up just now, when nobody could know of this message
                    raise Leave("it was given up")
                behaviour.handle(item)
                if recording.active is not None:
                    recording.active.handled(instance, item)
                instance.current = None
                instance.processed += 1
                instance.busy += now() - item.started
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
            elif type(item) is OnThread:
                item.run()
    except Leave as leave:
        why = leave
    except BaseException as exc:
        why = Leave.failing(behaviour.describe_failure(exc), exc)
    _leave_sync(instance, why, constructed)


def _leave_sync(instance: Instance, leave: Leave, constructed: bool) -> None:
    behaviour = instance.behaviour
    assert behaviour is not None
    instance.leaves(leave)
    instance.close(leave.failure or behaviour.describe_stop(leave.reason))
    if instance.owned:
        stop_owned(instance, leave).wait(settings.stop_actor_timeout())
    if constructed:
        # __cleanup__ runs here, on the actor's own thread, and may hang: the end is told by then at the latest.
        cleanup_timeout = settings.cleanup_timeout()
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


def _obey(leave: Any) -> None:
    if isinstance(leave, Leave):
        raise leave
