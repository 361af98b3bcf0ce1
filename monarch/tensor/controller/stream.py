"""Streams: each an ordered queue of operations on every worker; different streams run beside each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tensor.controller.borrows import Borrow
    from monarch.tensor.controller.tensor import Tensor


class Stream:
    """One ordered queue of operations on each worker: a thread there, and a stream of the device when it has one.

    A tensor belongs to the stream it was made on; operations on another stream may use it only as a borrow. The default
    stream is called 'main'.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Stream({self.name!r})>"

    def __str__(self) -> str:
        return f"stream {self.name!r}"

    def activate(self) -> StreamActivation:
        """Lets operations run on this stream from here on; leaving the `with` block ends that."""
        return StreamActivation(self)

    def borrow(self, tensor: Tensor, mutable: bool = False) -> tuple[Tensor, Borrow]:
        """`(tensor on this stream, Borrow)`: the same memory, for use here until the Borrow is dropped.

        Immutable: both streams may read. Mutable: only this one may use it. RuntimeError for a mutable borrow of what is
        borrowed already; TypeError when the tensor may not be used as asked.
        """
        return _borrow(self, tensor, mutable)


_borrow: Callable[[Stream, Tensor, bool], tuple[Tensor, Borrow]]  # `borrows.borrow`, set by `bind`


def bind(borrow: Callable[[Stream, Tensor, bool], tuple[Tensor, Borrow]]) -> None:
    """Takes `borrow` as what streams borrow by. It needs operations, and these need streams."""
    global _borrow
    _borrow = borrow


class StreamActivation:
    """Ends with its `with` block; the stream before is active again then."""

    def __init__(self, stream: Stream) -> None:
        self._before = _active.stream
        _active.stream = stream
        self._stream = stream

    def __enter__(self) -> Stream:
        return self._stream

    def __exit__(self, *exc: object) -> None:
        _active.stream = self._before


class _ActiveStream(threading.local):
    def __init__(self) -> None:
        self.stream = MAIN


MAIN = Stream("main")
_active = _ActiveStream()


def get_active_stream() -> Stream:
    """The stream on which operations of this thread run."""
    return _active.stream
