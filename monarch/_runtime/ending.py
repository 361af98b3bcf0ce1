"""The steps at the end of an actor that drivers with and without an event loop share."""

from __future__ import annotations

import logging

from monarch._runtime.future import All
from monarch._runtime.instance import Instance, Leave

logger = logging.getLogger("monarch")


class CleanupTooLong(TimeoutError):
    """An async `__cleanup__` was cancelled after `cleanup_timeout`."""


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
    return Leave(leave.reason, instance.behaviour.describe_failure(exc, in_cleanup=True), None)


def aborted_meanwhile(instance: Instance, leave: Leave) -> Leave:
    """An `abort` within `__cleanup__` makes a failure of an ordinary stop."""
    asked = instance.leaving
    return asked if leave.failure is None and asked is not None and asked.failure is not None else leave


def abandon(instance: Instance, leave: Leave) -> None:
    """Any thread: an actor that hangs is given up on. Those who wait for it are told, and what it owns is stopped."""
    if instance.ended.ready:
        return
    assert instance.behaviour is not None
    instance.leaves(leave)
    instance.close(leave.failure or instance.behaviour.describe_stop(leave.reason))
    stop_owned(instance, leave)
    instance.finish(leave)
