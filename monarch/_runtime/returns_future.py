"""`returns_future`: an async function whose callers may wait with `get()` or `await`."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._linux.locks import Lock
from monarch._runtime.event_loops import running_loop
from monarch._runtime.functions import is_async
from monarch._runtime.future import Future, Source, make_future
from monarch._runtime.loop import start_thread

if TYPE_CHECKING:
    import asyncio

# asyncio is imported where a body runs: programs that never use it need not load it with the public API.

P = ParamSpec("P")
T = TypeVar("T")


class _Body(Source):
    """Runs the coroutine at the first observation, and where that observation is."""

    __slots__ = ("_body", "_context", "_error", "_lock", "_result", "_started")

    def __init__(self, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        super().__init__()
        self._body = body
        self._context = contextvars.copy_context()
        self._lock = Lock()
        self._started = False
        self._result: Any = None
        self._error: BaseException | None = None

    def _claim(self) -> bool:
        with self._lock:
            first, self._started = not self._started, True
        return first

    async def _run(self) -> None:
        try:
            self._result = await self._body()
        except BaseException as exc:
            self._error = exc
            self.set_ready()
            if not isinstance(exc, Exception):
                raise
        else:
            self.set_ready()

    def start(self) -> None:
        if self._claim():
            start_thread(self._context.run, "monarch-returns-future", self._own_loop, None)

    def wait(self, timeout: float | None, since: float | None = None) -> bool:
        if self.ready or not self._claim():
            return super().wait(timeout)
        if running_loop() is None:
            self._context.run(self._own_loop, timeout)
        else:  # a loop cannot run inside another: a helper thread has its own
            thread = start_thread(self._context.run, "monarch-returns-future", self._own_loop, timeout)
            thread.join()
        return True

    def _own_loop(self, timeout: float | None) -> None:
        import asyncio

        async def bounded() -> None:
            await asyncio.wait_for(self._run(), timeout)

        try:
            asyncio.run(bounded())
        except TimeoutError as exc:
            if not self.ready or isinstance(self._error, asyncio.CancelledError):
                self._error = exc
        except BaseException as exc:
            if not self.ready:
                self._error = exc
            if not isinstance(exc, (Exception, asyncio.CancelledError)):
                self.set_ready()
                raise
        self.set_ready()

    def wait_async(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        import asyncio

        if self._claim():
            task = loop.create_task(self._run(), context=self._context)
            try:
                yield from task.__await__()
            except asyncio.CancelledError:
                if not self.ready:
                    self._error = asyncio.CancelledError()
                    self.set_ready()
                raise
            return
        yield from super().wait_async(loop)

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


def returns_future(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Future[T]]:
    """Turns an async function into one that returns a Future at once.

    The body begins when the Future is first observed: `await` runs it as a task of the awaiting loop, `get()` on a loop of
    its own in the calling thread (a helper thread when a loop runs there already). It sees a copy of the caller's context
    variables. A timeout or interrupt of that first observation cancels the body, and the Future then always raises
    TimeoutError or CancelledError. TypeError when `function` is not async.
    """
    if not is_async(function):
        raise TypeError(f"returns_future expects an async function, got {function!r}")

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return make_future(_Body(lambda: function(*args, **kwargs)))

    return wrapper
