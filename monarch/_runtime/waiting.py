"""Who waits for an answer: the threads and tasks of one process that are blocked on one, while they are.

A wait is noted when a thread or task really blocks, which costs half a microsecond; where in the program that is, is found
when somebody asks (see `stacks`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._runtime.context import current, home

if TYPE_CHECKING:
    from monarch._runtime.context import Current
    from monarch._runtime.future import Source
    from monarch._runtime.replies import Entry


class Wait:
    """A thread (`ident`), or a task running on it (`task`), is blocked until `source` is ready.

    `entry` is the port where the answer comes, `running` the message on whose behalf it waits (None: code that runs in no
    actor), `since` the time of the process's I/O loop; `limited`: it ends by itself, after a time limit. `number` is given by
    whoever needs one.
    """

    __slots__ = ("entry", "ident", "limited", "number", "running", "since", "source", "task")

    def __init__(
        self, source: Source, entry: Entry, running: Current | None, since: float, limited: bool, ident: int, task: Any
    ) -> None:
        self.source = source
        self.entry = entry
        self.running = running
        self.since = since
        self.limited = limited
        self.ident = ident
        self.task = task
        self.number = 0

    @property
    def stands(self) -> bool:
        """Whether it is still blocked, or about to be woken by nobody."""
        return not self.source.ready


class Waits:
    """Those of one process. `watched` is False while nobody looks at them from time to time: the next wait then calls
    `watch`, on its own thread. `actor_started` is called by the thread of each actor as it begins."""

    __slots__ = ("actor_started", "standing", "watch", "watched")

    def __init__(self) -> None:
        self.standing: set[Wait] = set()
        self.watched = True
        self.watch: Callable[[], None] = _nothing
        self.actor_started: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return len(self.standing)


def _nothing() -> None:
    return None


def begin(source: Source, entry: Entry, limited: bool, task: Any) -> tuple[set[Wait], Wait]:
    """Notes a wait of this thread; `found.discard(wait)` ends it."""
    running = current.get()
    if running is not None:
        proc = running.instance.proc
    else:
        known = home()
        if known is None:
            return set(), _NO_WAIT
        proc = known
    waits = proc.waits
    wait = Wait(source, entry, running, proc.loop.now(), limited, threading.get_ident(), task)
    standing = waits.standing
    standing.add(wait)
    if not waits.watched:
        waits.watch()
    return standing, wait


_NO_WAIT: Any = None
