"""Locks for `with` that an exception of a signal handler, such as Ctrl-C, does not leave locked.

Python looks for signals behind calls. Up to 3.13, `with` takes a lock by other means than a call. From 3.14 on it calls, and
what a handler raises behind that call comes before the block that would release the lock: the next thread to take it waits
for ever. The locks here are taken in a function, behind whose end Python does not look, and within it by iterating. They
are released by a call into C, as any. A `threading.Condition` is entered and left by functions in Python, in every version.
"""

from __future__ import annotations

import sys
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any

_WAITING = (True,)


class WithRLock:
    """A `threading.RLock`. Its `acquire` is as interruptible as that of any: it is for locks that are taken by `with`."""

    __slots__ = ("__exit__", "_lock")
    # Each is the lock's own, and found without a step in Python.
    acquire, release = property(attrgetter("_lock.acquire")), property(attrgetter("_lock.release"))
    locked = property(attrgetter("_lock.locked"))
    _is_owned = property(attrgetter("_lock._is_owned"))

    def __init__(self, lock: Any = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self.__exit__ = self._lock.__exit__

    def __enter__(self) -> bool:
        taken: bool
        (taken,) = map(self._lock.acquire, _WAITING)
        return taken


class WithLock(WithRLock):
    """A `threading.Lock`, in the same way."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(threading.Lock())


class Condition(threading.Condition):
    """A `threading.Condition`, in the same way. (What a handler raises as `wait` begins may end `with` with a RuntimeError:
    it is free then.)"""

    __slots__ = ("__exit__",)

    def __init__(self, lock: Any = None) -> None:
        lock = threading.RLock() if lock is None else lock
        super().__init__(lock)
        self.__exit__ = lock.__exit__  # type: ignore[method-assign]

    def __enter__(self) -> bool:
        taken: bool
        (taken,) = map(self.acquire, _WAITING)
        return taken


if TYPE_CHECKING or sys.version_info < (3, 14):
    Lock, RLock = threading.Lock, threading.RLock
else:
    Lock, RLock = WithLock, WithRLock


def is_mine(lock: Any) -> bool:
    """Returns whether this thread has that RLock: then it is in a finalizer, or a handler of signals, that has come while it
    was held."""
    return bool(lock._is_owned())
