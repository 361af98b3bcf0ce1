"""ValueStream: the answers of many actors, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from monarch._runtime.future import Future, make_future
from monarch._runtime.queue import Arrival, Queue

R_co = TypeVar("R_co", covariant=True)


class ValueStream(Generic[R_co]):
    """The answers of `stream`, in order of arrival: an iterator of Futures."""

    def __init__(self, queue: Queue, count: int) -> None:
        self._queue = queue
        self._left = count

    def __del__(self) -> None:
        queue = getattr(self, "_queue", None)  # None: a handler of signals raised in the constructor
        if queue is not None:
            queue.close()  # neither it nor a Future of it is left to read

    def __iter__(self) -> Iterator[Future[R_co]]:
        return self

    def __next__(self) -> Future[R_co]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return make_future(Arrival(self._queue, reader=self))

    def __len__(self) -> int:
        return self._left
