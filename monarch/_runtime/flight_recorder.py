"""The latest events of a process, for those who look at it later: a ring of its last events.

Noted is what is rare: actors that come, raise, fail and go, processes that end. Never a message: calls pay nothing for it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import NamedTuple

KEPT = 512  # events of one process; the oldest go
TEXT = 500  # characters of an event's text


class Event(NamedTuple):
    """`seq` counts the events of its process, `at` is seconds since the epoch, `actor` a key ("" is the process itself)."""

    seq: int
    at: float
    level: str
    actor: str
    name: str
    text: str


class FlightRecorder:
    """One a process. Any thread may note and read; neither waits."""

    __slots__ = ("_events", "_numbers")

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._numbers = itertools.count(1)

    def note(self, name: str, actor: str = "", text: str = "", level: str = "INFO") -> None:
        self._events.append(Event(next(self._numbers), time.time(), level, actor, name, text[:TEXT]))

    def events(self, actor: str | None = None) -> list[Event]:
        """Oldest first: all of them, or those of one actor."""
        return [event for event in self._events.copy() if actor is None or event.actor == actor]
