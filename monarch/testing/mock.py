"""Another class in place of an actor's, wherever it is spawned."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from monarch._mesh import replacements
from monarch._mesh.actor import Actor

F = TypeVar("F", bound=Callable[..., Any])


class patch_actor:
    """While active, `spawn(name, Real, ...)` creates `Mock(...)`.

        with patch_actor(Database, FakeDatabase):
            service = procs.spawn("service", Service)        # whose actors may spawn a Database themselves

    Also an async context manager, and a decorator for sync and async functions, active during each call. May
    be nested: of several for one class the innermost counts. Holds for what the patching code spawns, and for
    every spawn by actors in processes that were started (`spawn_procs`) while the patch was active, by their
    processes as well and also after the patch has ended. Actors in processes that were there before spawn
    what they say.

    The caller gets a mesh of `Mock`: its endpoints and the arguments of its `__init__` count. Other uses of
    the class than `spawn` and `get_or_spawn_controller` are untouched, and `Mock` itself is not looked up
    again. TypeError unless both are subclasses of Actor.
    """

    def __init__(self, Real: type, Mock: type) -> None:
        for cls in (Real, Mock):
            if not isinstance(cls, type) or not issubclass(cls, Actor):
                raise TypeError(f"patch_actor takes two subclasses of monarch.actor.Actor, got {cls!r}")
        self._pair = (Real, Mock)

    def __repr__(self) -> str:
        real, mock = self._pair
        return f"patch_actor({real.__qualname__}, {mock.__qualname__})"

    def __enter__(self) -> patch_actor:
        replacements.add(self._pair)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        replacements.remove(self._pair)

    async def __aenter__(self) -> patch_actor:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def patched_async(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return patched_async  # type: ignore[return-value]

        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]
