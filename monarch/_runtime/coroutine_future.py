"""A Future where programs written for a coroutine expect one: `asyncio.run` and `create_task` take it as well."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from monarch._runtime.future import Future

T_co = TypeVar("T_co", covariant=True)


class CoroutineFuture(Future[T_co]):
    """A Future as `collections.abc.Coroutine` asks for it, one observation of it."""

    __slots__ = ("_steps",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._steps: Generator[Any, None, T_co] | None = None

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
