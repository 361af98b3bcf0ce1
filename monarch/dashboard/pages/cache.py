"""Answers that several pages and browsers ask for at the same time are made once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

KEPT_FOR = 2.0  # seconds; pages ask every two to three
MOST_ENTRIES = 256  # beyond it the oldest goes


class Cache:
    """Values by key for `kept_for` seconds. Threads that ask for one that is being made wait for it."""

    def __init__(self, kept_for: float = KEPT_FOR, now: Callable[[], float] = time.monotonic) -> None:
        self._kept_for = kept_for
        self._now = now
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, made by `make` if there is none or it is old. What `make` raises is raised, and not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or (entry.made_at is not None and self._now() - entry.made_at >= self._kept_for):
                self._entries.pop(key, None)
                entry = self._entries[key] = _Entry()
                while len(self._entries) > MOST_ENTRIES:
                    del self._entries[next(iter(self._entries))]
        with entry.lock:
            if entry.made_at is None:
                try:
                    entry.value = make()
                except BaseException:
                    with self._lock:
                        if self._entries.get(key) is entry:
                            del self._entries[key]
                    raise
                entry.made_at = self._now()
        value: T = entry.value
        return value


class _Entry:
    __slots__ = ("lock", "made_at", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made_at: float | None = None  # None: not yet
        self.value: Any = None
