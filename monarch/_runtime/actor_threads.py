"""Settings of each actor's thread of a process, now and in future: torch has a current device for each thread, for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from monarch._linux.locks import Lock

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance


class OnThread:
    """Control item: `run()` on the actor's thread, before its next message."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class ActorThreads:
    """One a process. By name: what came later under one takes the place of what was before."""

    def __init__(self, actors: Callable[[], Iterable[Instance]]) -> None:
        self._actors = actors
        self._lock = Lock()
        self._all: dict[str, Callable[[], None]] = {}

    def add(self, name: str, run: Callable[[], None]) -> None:
        """`run()` on the thread of each actor that lives here, and of each that comes. It must not raise."""
        with self._lock:
            self._all[name] = run
        for actor in self._actors():
            actor.mailbox.put_control(OnThread(run))

    def enter(self) -> None:
        """The calling thread begins to run an actor."""
        if self._all:
            with self._lock:
                begun = list(self._all.values())
            for run in begun:
                run()
