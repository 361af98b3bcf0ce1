"""An object pickled now and unpickled when somebody asks for it: inside a message that carries several."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

from monarch._wire import codec
from monarch._wire.frame import Buffer


class _Apart(threading.local):
    sealed: list[Any] | None = None  # of what this thread seals just now
    opened: Sequence[Any] = ()  # of what it opens


_apart = _Apart()


def set_apart(obj: Any) -> tuple[Any, ...] | None:
    """Returns how an object is pickled that goes beside what is being sealed now, for each who carries it; None where
    nothing is sealed that way."""
    objects = _apart.sealed
    if objects is None:
        return None
    index = next((index for index, known in enumerate(objects) if known is obj), len(objects))
    if index == len(objects):
        objects.append(obj)
    return _taken_apart, (index,)


def _taken_apart(index: int) -> Any:
    return _apart.opened[index]


class Sealed:
    """`Sealed(value)` pickles `value` at once, by the rules for messages; `open()` unpickles it, each time anew.

    A message that carries Sealed objects can be read although one of them cannot: what is wrong with it is raised by its own
    `open()`. Large buffers travel beside the message as those of other arguments do. Raises what pickling raises.
    """

    __slots__ = ("_beside", "_body", "_buffers")

    def __init__(self, value: Any, carried: bool = False, copied: bool = False) -> None:
        """`carried`: others carry it on before it is opened. What is counted for who gets it (`set_apart`) then goes beside
        the pickle, as a part of each message. `copied`: it is sent later, and large buffers are not to change meanwhile."""
        self._beside: list[Any] = []
        before, _apart.sealed = _apart.sealed, self._beside if carried else None
        try:
            self._body, self._buffers = codec.encode(value)
        finally:
            _apart.sealed = before
        if copied:
            self._buffers = [memoryview(bytearray(buffer)) for buffer in self._buffers]

    def open(self) -> Any:
        """The value; raises whatever unpickling raises. Buffers are shared by all that was opened of one Sealed."""
        before, _apart.opened = _apart.opened, self._beside
        try:
            return codec.decode(self._body, self._buffers)
        finally:
            _apart.opened = before

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a message."""
        return len(self._body) + sum(memoryview(buffer).nbytes for buffer in self._buffers)

    def __reduce__(self) -> tuple[Callable[..., Sealed], tuple[Any, ...]]:
        return _rebuild, (self._body, self._beside, *map(pickle.PickleBuffer, self._buffers))


def _rebuild(body: bytes, beside: list[Any], *buffers: Any) -> Sealed:
    sealed = Sealed.__new__(Sealed)
    sealed._body, sealed._beside = body, beside
    kept: Sequence[Buffer] = buffers
    sealed._buffers = list(kept)  # type: ignore[arg-type]  # whatever the message was read into
    return sealed
