"""The behaviour of an actor with an event loop. Loaded with the first such actor of a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from monarch._mesh.actors.adverb_codes import MAP_CHUNK
from monarch._mesh.actors.behaviour import ActorBehaviour, Method
from monarch._runtime import recorder as recording
from monarch._runtime.context import Current, current
from monarch._runtime.functions import is_async
from monarch._runtime.instance import Delivery
from monarch.config import settings

_log = logging.getLogger("monarch")


class AsyncActorBehaviour(ActorBehaviour):
    """Async endpoints are awaited one after the other, concurrent ones run as tasks, plain ones with no loop visible."""

    is_async = True
    _loop: asyncio.AbstractEventLoop

    def construct(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running_tasks: set[asyncio.Task[None]] = set()
        self._unstarted = False  # whether a concurrent endpoint was given to the loop just now
        super().construct()

    async def cancel_tasks(self) -> None:
        """Cancels the concurrent endpoints that still run, and awaits them for `stop_actor_timeout`."""
        tasks = [task for task in self._running_tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            patience = settings.stop_actor_timeout()
            _, running = await asyncio.wait(tasks, timeout=patience)
            if running:
                _log.warning("%d concurrent endpoint(s) of %s did not react to being cancelled for %g s (setting "
                             "stop_actor_timeout)", len(running), self.display, patience)  # fmt: skip

    async def handle_async(self, delivery: Delivery) -> None:
        """Runs a message of an actor with a loop; concurrent endpoints only start here."""
        call = delivery.call
        instance = self.instance
        current.set(Current(instance, call.rank, call.view, call))
        method: Method | None = None
        try:
            method = self._methods.get(call.method) or self._find(call.method)
            args, kwargs = delivery.arguments()
            if call.adverb == MAP_CHUNK:
                method = self._for_chunks(method)
            if method.fetching is not None:
                args, kwargs = await method.fetching.values_later(args, kwargs)
            if method.explicit:
                args = (self._response_port(delivery), *args)
            if method.concurrent:
                self._start_concurrent(delivery, method, args, kwargs)
                return
            if self._unstarted:  # it came first, so it begins first
                self._unstarted = False
                await asyncio.sleep(0)
            if method.is_async:
                result = await method.fn(*args, **kwargs)
            else:
                asyncio._set_running_loop(None)
                try:
                    result = method.fn(*args, **kwargs)
                finally:
                    asyncio._set_running_loop(self._loop)
        except Exception as exc:
            if self.debugging is not None:
                self.debugging.returned(instance, call, exc)
            self._raised(delivery, exc, method)
        else:
            if self.debugging is not None:
                self.debugging.returned(instance, call, None)
            if call.port and not method.explicit:
                self._reply(delivery, result)

    def _start_concurrent(
        self, delivery: Delivery, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        instance = self.instance

        async def body() -> None:
            result: Any = None
            raised: BaseException | None = None
            try:
                result = await method.fn(*args, **kwargs)
            except BaseException as exc:
                raised = exc
            try:
                self._concurrent_ended(delivery, method, task, result, raised)
            finally:
                del raised  # its traceback has this frame: a circle, with the arguments

        task = self._loop.create_task(body())
        self._running_tasks.add(task)
        self._unstarted = True
        instance.concurrent[task] = delivery

    def _concurrent_ended(
        self,
        delivery: Delivery,
        method: Method,
        task: asyncio.Task[None],
        result: Any,
        raised: BaseException | None,
    ) -> None:
        instance = self.instance
        if self.debugging is not None:
            self.debugging.returned(instance, delivery.call, raised)
        self._running_tasks.discard(task)
        instance.busy += self.proc.loop.now() - delivery.started
        if recording.active is not None and task in instance.concurrent:
            recording.active.handled(instance, delivery, concurrent=True)
        if raised is not None and (method.explicit or not isinstance(raised, Exception)):
            # It stays among those that run: its caller is told with the end of the actor.
            instance.mailbox.put_control(self._fatal(raised))
        elif instance.concurrent.pop(task, None) is None:
            return  # the actor is ending, this task was cancelled, and its caller has been told
        elif raised is None:
            if delivery.call.port and not method.explicit:
                self._reply(delivery, result)
        elif delivery.call.port:
            self._reply_error(delivery, raised)
        else:
            _log.error("concurrent endpoint %s of %s raised, and nobody waits for its answer",
                       method.fn.__name__, self.display, exc_info=raised)  # fmt: skip

    def _no_loop_for(self, function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if is_async(function) else hidden_loop(self._loop)


@contextlib.contextmanager
def hidden_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Plain code on the thread of an event loop sees no running loop."""
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
