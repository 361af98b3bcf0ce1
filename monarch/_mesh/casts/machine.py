"""The base of pure state machines: an event is a method that is told the time and returns the effects it wants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
M = TypeVar("M", bound="Machine")


class Arm(NamedTuple):
    """Call `fired(key)` in `delay` seconds; takes the place of a timer with that key."""

    key: tuple[Any, ...]
    delay: float


class Disarm(NamedTuple):
    key: tuple[Any, ...]


class Machine:
    """`_now` is the time of the event that is being handled. `_armed`: the timers that run."""

    def __init__(self) -> None:
        self._now = 0.0
        self._effects: list[Any] = []
        self._armed: set[tuple[Any, ...]] = set()

    def _arm(self, key: tuple[Any, ...], delay: float) -> None:
        self._armed.add(key)
        self._effects.append(Arm(key, delay))

    def _arm_once(self, key: tuple[Any, ...], delay: float) -> None:
        if key not in self._armed:
            self._arm(key, delay)

    def _disarm(self, key: tuple[Any, ...]) -> None:
        if key in self._armed:
            self._armed.discard(key)
            self._effects.append(Disarm(key))


def event(method: Callable[Concatenate[M, P], None]) -> Callable[Concatenate[M, float, P], list[Any]]:
    """Makes an event of a method: callers say when it happens, and get the effects. Events do not call each other."""

    @functools.wraps(method)
    def happened(self: M, now: float, /, *args: P.args, **kwargs: P.kwargs) -> list[Any]:
        self._now = now
        method(self, *args, **kwargs)
        effects, self._effects = self._effects, []
        return effects

    return happened
