"""Actor classes that stand in for others when actors are spawned (monarch.testing.patch_actor).

What a program replaces itself holds for what it spawns, until it takes it back. The processes it spawns
meanwhile inherit it for their whole lives: the pairs travel as arguments of the mesh's setup actor, ahead of
every other actor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, get_origin

from monarch._linux.locks import Lock
from monarch._runtime.context import current, here, home
from monarch._runtime.functions import is_async

F = TypeVar("F", bound=Callable[..., Any])

Pair = tuple[type, type]  # (the class asked for, the class spawned in its place)

_lock = Lock()
_own: list[Pair] = []  # of this process's own program, outside its actors; the latest counts


def add(pair: Pair) -> None:
    """Adds a pair from now on, before pairs added earlier."""
    with _lock:
        _pairs().append(pair)


def remove(pair: Pair) -> None:
    """Takes the latest such pair back."""
    with _lock:
        pairs = _pairs()
        for index in range(len(pairs) - 1, -1, -1):
            if pairs[index] is pair:
                del pairs[index]
                return


def inherit(pairs: list[Pair]) -> None:
    """Takes over, in a new process: what its spawner had replaced."""
    here().mesh.replacements.extend(pairs)


def active() -> list[Pair]:
    """Returns what holds for the running code, oldest first."""
    proc = here()
    inherited: list[Pair] = proc.mesh.replacements
    return [*inherited, *_own] if proc is home() else list(inherited)


def replace(cls: Any) -> Any:
    """The class to spawn where `cls` is asked for; of `Box[int]` that is `Box`, or what stands for it."""
    cls = get_origin(cls) or cls
    for real, mock in reversed(active()):
        if real is cls:
            return mock
    return cls


def _pairs() -> list[Pair]:
    running = current.get()
    return _own if running is None else here().mesh.replacements


class Replacement:
    """A pair that holds while this is active: a context manager, sync and async, and a decorator of functions of either kind,
    active during each call."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def __enter__(self) -> Self:
        add(self._pair)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove(self._pair)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if is_async(function):

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
