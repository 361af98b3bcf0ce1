"""One execution of a graph, as the Future has it that `execute` gave."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from typing import TYPE_CHECKING, Any

from monarch.actor._feeding import Source
from monarch.actor.lowlevel import start_thread
from monarch.graph.memory import Value

if TYPE_CHECKING:
    import asyncio

    from monarch.graph.compiled import CompiledGraph


def nothing() -> None:
    """Does nothing."""


class GraphExecution(Source):
    """One execution under way. Whoever waits for it reads the results of all that come before it as well."""

    __slots__ = ("__weakref__", "_error", "_graph", "_seen", "deadline", "number", "slot", "timeout", "values")

    def __init__(
        self, graph: CompiledGraph, number: int, slot: int, timeout: float | None, deadline: float | None
    ) -> None:
        super().__init__()
        self._graph = graph
        self.number = number
        self.slot = slot
        self.timeout = timeout
        self.deadline = deadline
        self.values: dict[int, Value] = {}
        self._error: BaseException | None = None
        self._seen: Callable[[], None] = nothing

    def fail(self, error: BaseException, seen: Callable[[], None]) -> None:
        if not self.ready:
            self._error = error
            self._seen = seen
            self.set_ready()

    def is_ready(self) -> bool:
        return self.ready

    def late(self) -> None:
        """Its deadline has passed."""
        if not self.ready:
            self.fail(
                TimeoutError(
                    f"an execution of the graph took more than {self.timeout:g} s{self.awaited()}; it goes on, and "
                    f"its result will be dropped"
                ),
                nothing,
            )

    def awaited(self) -> str:
        return self._graph._awaited(self)

    def of(self) -> str:
        return "an execution of a graph"

    def wait(self, timeout: float | None, since: float | None = None) -> bool:
        end = None if timeout is None else monotonic() + timeout
        return self._graph._wait_for(self, end)

    def start(self) -> None:
        start_thread(self._graph._wait_for, "monarch-graph", self, None)

    def wait_async(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        if self.ready:
            return
        late = None
        if self.deadline is not None:
            late = loop.call_later(max(0.0, self.deadline - monotonic()), self.late)
        stop = self._graph._watch_on(loop)
        try:
            yield from super().wait_async(loop)
        finally:
            stop()
            if late is not None:
                late.cancel()

    def value(self) -> Any:
        if self._error is not None:
            self._seen()
            raise self._error
        values, self.values = self.values, {}
        return self._graph._result(values)
