"""Threads that wait until something has changed.

As `threading.Condition`, with two differences. A thread that tells takes no lock, so nobody holds the I/O thread up. And
a waiter may be interrupted at any step by what a handler of signals raises: nothing stays locked behind it. (Condition can
be left locked by that, for it enters its lock in Python code.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic


class Waiters:
    """Any thread. `tell` after each change that somebody may wait for."""

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep: deque[threading.Lock] = deque()

    def __repr__(self) -> str:
        return f"<Waiters ({len(self._asleep)})>"

    def wait_for(self, changed: Callable[[], bool], timeout: float) -> bool:
        """Blocks until `changed()`, which is asked first and after each `tell`. False after `timeout` seconds."""
        end = monotonic() + timeout
        while not changed():
            lock = threading.Lock()
            lock.acquire()
            self._asleep.append(lock)
            try:
                if changed():  # asked again: a thread that tells looks at those asleep once it has changed something
                    return True
                left = end - monotonic()
                if left <= 0 or not lock.acquire(timeout=left):
                    return changed()
            finally:
                self._forget(lock)
        return True

    def _forget(self, lock: threading.Lock) -> None:
        try:
            self._asleep.remove(lock)
        except ValueError:  # it was told
            pass

    def tell(self) -> None:
        while self._asleep:
            try:
                lock = self._asleep.popleft()
            except IndexError:  # its thread waits no more, or another tells it
                return
            lock.release()
