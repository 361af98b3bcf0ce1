"""The thread that reads messages which are to be read, and which everybody has dropped."""

from __future__ import annotations

import contextvars
import logging
import os
import queue
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock
from monarch._runtime.context import Current, current, home
from monarch._runtime.loop import start_thread
from monarch._wire import codec
from monarch._wire.frame import Buffer
from monarch._wire.unpickling import UnreadBody

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_log = logging.getLogger("monarch")
_starting = Lock()
_left: queue.SimpleQueue[tuple[Any, UnreadBody]] | None = None  # with the process that each came to


def to_be_read(proc: Proc, body: Buffer, buffers: Sequence[Buffer]) -> UnreadBody:
    """Returns the body of a message that is read here if nobody else does."""
    global _left
    with _starting:
        if _left is None:
            _left = queue.SimpleQueue()
            start_thread(_read_all, "monarch-unread", _left)
        left = _left
    return UnreadBody(body, buffers, lambda dropped: left.put((proc, dropped)))


def _read_all(left: queue.SimpleQueue[tuple[Any, UnreadBody]]) -> None:
    while True:
        proc, body = left.get()
        contextvars.Context().run(_read, proc, body)
        del proc, body


def _read(proc: Any, body: UnreadBody) -> None:
    if proc is not home():  # of a cluster in memory
        current.set(Current(SimpleNamespace(proc=proc), -1, b""))  # type: ignore[arg-type]  # all that is asked of it
    try:
        codec.decode(body, body.buffers)
    except Exception as exc:  # nobody wants to know; or its process has ended
        _log.debug("a message that nobody has read could not be read: %s", exc)


def _forget() -> None:
    global _left
    _left = None


os.register_at_fork(after_in_child=_forget)
