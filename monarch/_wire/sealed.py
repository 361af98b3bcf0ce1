"""An object pickled now and unpickled when somebody asks for it: inside a message that carries several."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from monarch._wire import codec
from monarch._wire.frame import Buffer


class Sealed:
    """`Sealed(value)` pickles `value` at once, by the rules for messages; `open()` unpickles it, each time anew.

    A message that carries Sealed objects can be read although one of them cannot: what is wrong with it is raised by its own
    `open()`. Large buffers travel beside the message as those of other arguments do. Raises what pickling raises.
    """

    __slots__ = ("_body", "_buffers")

    def __init__(self, value: Any) -> None:
        self._body, self._buffers = codec.encode(value)

    def open(self) -> Any:
        """The value; raises whatever unpickling raises. Buffers are shared by all that was opened of one Sealed."""
        return codec.decode(self._body, self._buffers)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a message."""
        return len(self._body) + sum(memoryview(buffer).nbytes for buffer in self._buffers)

    def __reduce__(self) -> tuple[Callable[..., Sealed], tuple[Any, ...]]:
        return _rebuild, (self._body, *map(pickle.PickleBuffer, self._buffers))


def _rebuild(body: bytes, *buffers: Any) -> Sealed:
    sealed = Sealed.__new__(Sealed)
    sealed._body = body
    kept: Sequence[Buffer] = buffers
    sealed._buffers = list(kept)  # type: ignore[arg-type]  # whatever the message was read into
    return sealed
