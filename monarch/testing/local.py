"""Objects of a test that its simulated actors are to share: events, lists, mocks."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Local[Any]] = weakref.WeakValueDictionary()
_sent: set[Local[Any]] = set()  # those a message under way may refer to


class Local(Generic[T]):
    """A handle that can be sent to actors in the same operating-system process; `value` is the same object
    there.

        gate = Local(threading.Event())
        actor.work.broadcast(gate)          # in the actor: gate.value.wait()
        gate.value.set()

    Messages of an InProcessCluster are pickled like all others, so an argument arrives as a copy; what is
    inside a Local is not copied. A handle that was sent lives until the last cluster is left. Unpickling it
    later, or in another process, raises RuntimeError.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._number = next(_numbers)
        _known[self._number] = self

    def __repr__(self) -> str:
        return f"Local({self.value!r})"

    def __reduce__(self) -> Any:
        _sent.add(self)
        return _find, (os.getpid(), self._number)


def _find(pid: int, number: int) -> Local[Any]:
    known = _known.get(number) if pid == os.getpid() else None
    if known is None:
        where = "is gone" if pid == os.getpid() else f"belongs to process {pid}, and this is {os.getpid()}"
        raise RuntimeError(f"a Local arrived that {where}: it can only be sent within an InProcessCluster")
    return known


def forget_sent() -> None:
    """No cluster is in use any more: nothing that was sent will be unpickled."""
    _sent.clear()
