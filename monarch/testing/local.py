"""Objects of a test that its simulated actors are to share: events, lists, mocks."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Local[Any]] = weakref.WeakValueDictionary()


class Local(Generic[T]):
    """A handle that can be sent to actors in the same operating-system process; `value` is the same object
    there.

        gate = Local(threading.Event())
        actor.work.broadcast(gate)          # in the actor: gate.value.wait()
        gate.value.set()

    Messages of an InProcessCluster are pickled like all others, so an argument arrives as a copy; what is
    inside a Local is not copied. Keep the handle as long as others may unpickle it. Unpickling it in another
    process, or after it was dropped, raises RuntimeError.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._number = next(_numbers)
        _known[self._number] = self

    def __repr__(self) -> str:
        return f"Local({self.value!r})"

    def __reduce__(self) -> Any:
        return _find, (os.getpid(), self._number)


def _find(pid: int, number: int) -> Local[Any]:
    known = _known.get(number) if pid == os.getpid() else None
    if known is None:
        where = "was dropped" if pid == os.getpid() else f"belongs to process {pid} and this is {os.getpid()}"
        raise RuntimeError(
            f"a Local arrived that {where}: it can only be sent within an InProcessCluster, and must be kept"
        )
    return known
