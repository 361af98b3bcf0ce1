"""Waits of one process: the threads and tasks of one process that are blocked on one.

No list is kept: what wakes a blocked thread or task carries a note of who that is (see `future.Source.wait`), and hangs at
the port where the answer comes. So a wait costs a fraction of a microsecond, and is found when somebody asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock
from monarch._runtime.future import Note, Source
from monarch._runtime.loop import Loop
from monarch._runtime.replies import Entry, Ports

if TYPE_CHECKING:
    from monarch._runtime.current import Current
    from monarch._runtime.instance import Instance


class Wait:
    """A thread (`ident`), or a task running on it (`task`), is blocked until `source` is ready.

    `entry` is the port where the answer comes, `running` the message on whose behalf it waits (None: code that runs in no
    actor), `since` the time of the process's I/O loop; `limited`: it ends by itself, after a time limit. `number` is its own
    in this process. `alone`: nothing but this source wakes it, as another of several would.
    """

    __slots__ = ("_waker", "alone", "entry", "ident", "limited", "number", "running", "since", "source", "task")

    def __init__(
        self,
        waker: Callable[[], Any],
        note: Note,
        alone: bool,
        source: Source,
        entry: Entry,
        since: float,
        number: int,
    ) -> None:
        ident, task, _since, limited, running = note
        self.alone = alone
        self._waker = waker
        self.source = source
        self.entry = entry
        self.ident: int = ident
        self.task = task
        self.since = since
        self.limited: bool = limited or entry.timer is not None
        self.running: Current | None = running
        self.number = number

    @property
    def stands(self) -> bool:
        """Returns whether it is still blocked, with nobody about to wake it."""
        return not self.source.ready and any(waker is self._waker for waker, _, _ in self.source.noted())


class Waits:
    """The waits of one process for answers of actors. `actor_started` is called by the thread of each actor as it
    begins."""

    def __init__(self, ports: Ports, loop: Loop) -> None:
        self.actor_started: Callable[[], None] = _nothing
        self._ports = ports
        self._loop = loop
        self._lock = Lock()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self.standing())

    def pending(self) -> bool:
        """Returns whether any answer of an actor is still to come, and so may be waited for."""
        return any(entry.target is not None for entry in self._ports.entries())

    def standing(self, instance: Instance | None = None) -> list[Wait]:
        """Any thread: every wait there is now, on behalf of messages to `instance` only if given."""
        found: list[Wait] = []
        for entry in self._ports.entries():
            if entry.target is not None:
                for source in entry.sources():
                    found += self._of(source, entry, instance)
        return found

    def _of(self, source: Source, entry: Entry, instance: Instance | None) -> Iterator[Wait]:
        for waker, note, alone in source.noted():
            running = note[4]
            if instance is None or (running is not None and running.instance is instance):
                yield Wait(waker, note, alone, source, entry, *self._mark(waker, note))

    def _mark(self, waker: Callable[[], Any], note: Note) -> tuple[float, int]:
        """Since when that one waits, and its number; kept where it ends with the wait."""
        with self._lock:
            marks = waker.__dict__
            if not marks:
                # Notes are on the real clock. One that stands still is asked when the wait is first seen.
                marks["mark"] = self._loop.now() if self._loop.virtual else note[2], next(self._numbers)
            mark: tuple[float, int] = marks["mark"]
            return mark


def _nothing() -> None:
    return None
