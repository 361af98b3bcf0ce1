"""An actor's behaviour that tells its watcher what it handles: the same when it is recorded and when it is replayed."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._mesh.failures.ledger import MeshFailure
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._wire.message import Bounced


class FullWatcher(Protocol):
    """A watcher with what is needed beside `Watcher` of the runtime."""

    def constructed(self, cls: type) -> None: ...
    def started(self, delivery: Delivery, behaviour: Any) -> None: ...
    def ended(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None: ...
    def supervised(self, failure: MeshFailure) -> None: ...
    def returned(self, bounced: Bounced) -> None: ...
    def leaving(self, cause: Exception | None) -> None: ...


class _Watched:
    """A class in front of ActorBehaviour or its twin with an event loop."""

    instance: Instance

    @property
    def _watcher(self) -> FullWatcher:
        watcher: Any = self.instance.watcher
        return watcher  # type: ignore[no-any-return]

    def construct(self: Any) -> None:
        super().construct()  # type: ignore[misc]
        self._watcher.constructed(self.cls)

    def handle(self: Any, delivery: Delivery) -> None:
        watcher = self._watcher
        watcher.started(delivery, self)
        try:
            super().handle(delivery)  # type: ignore[misc]
        except Leave as leave:
            watcher.ended(delivery, "raised", leave.cause)
            raise
        watcher.ended(delivery, "nothing", None)

    async def handle_async(self: Any, delivery: Delivery) -> None:
        watcher = self._watcher
        watcher.started(delivery, self)
        try:
            await super().handle_async(delivery)  # type: ignore[misc]
        except Leave as leave:
            watcher.ended(delivery, "raised", leave.cause)
            raise
        for task, running in list(self.instance.concurrent.items()):
            if running is delivery:
                task.add_done_callback(functools.partial(_task_ended, watcher, delivery))
                return
        watcher.ended(delivery, "nothing", None)

    def _reply_error(self: Any, delivery: Delivery, exc: BaseException) -> None:
        self._watcher.ended(delivery, "raised", exc)
        super()._reply_error(delivery, exc)  # type: ignore[misc]

    def supervise(self: Any, failure: MeshFailure) -> Any:
        self._watcher.supervised(failure)
        return super().supervise(failure)  # type: ignore[misc]

    def undeliverable(self: Any, bounced: Bounced) -> Any:
        self._watcher.returned(bounced)
        return super().undeliverable(bounced)  # type: ignore[misc]

    def cleanup(self: Any, cause: Exception | None) -> Any:
        self._watcher.leaving(cause)
        return super().cleanup(cause)  # type: ignore[misc]


def _task_ended(watcher: FullWatcher, delivery: Delivery, task: Any) -> None:
    error = None if task.cancelled() else task.exception()
    watcher.ended(delivery, "nothing" if error is None else "raised", error)


@functools.cache
def _watched_class(kind: Any) -> Any:
    return type(f"Watched{kind.__name__}", (_Watched, kind), {})


def watch(behaviour: ActorBehaviour) -> None:
    """Lets a behaviour tell `instance.watcher` from now on, before it has handled anything."""
    kind: Any = type(behaviour)
    behaviour.__class__ = _watched_class(kind)
