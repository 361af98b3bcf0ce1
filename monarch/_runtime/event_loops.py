"""The event loops of a program: which one runs, and how one hears that something has come."""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import select


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop running in this thread, without importing asyncio for programs that do not use it."""
    events = sys.modules.get("asyncio.events")
    return events._get_running_loop() if events is not None else None


def is_actors(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns whether it is the event loop of an actor, which sleeps on its mailbox (see `async_driver`)."""
    return hasattr(loop, "write_to_self_pipe")


class EpollWatch:
    """A watch by which an event loop is told when the epoll has something. By a descriptor of its own: it is closed
    only when the event loop has released it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.loop = weakref.ref(loop)
        self._fd = fd

    def end(self) -> None:
        """May be called from any thread."""
        loop = self.loop()
        if loop is None or loop.is_closed():
            os.close(self._fd)
        elif running_loop() is loop:
            self._let_go(loop)
        else:
            try:
                loop.call_soon_threadsafe(self._let_go, loop)
            except RuntimeError:  # closed just now
                os.close(self._fd)

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._fd)
        os.close(self._fd)


def watch(loop: asyncio.AbstractEventLoop, epoll: select.epoll, on_readable: Callable[[], None]) -> EpollWatch | None:
    """None if it cannot be: it is an event loop without readers, or the epoll is closed."""
    try:
        fd = os.dup(epoll.fileno())
    except (OSError, ValueError):
        return None
    try:
        loop.add_reader(fd, on_readable)
    except BaseException as exc:
        os.close(fd)
        if not isinstance(exc, (NotImplementedError, OSError)):
            raise
        return None
    return EpollWatch(loop, fd)


_own_loop: Any = None


def let_block(loop: Any) -> None:
    """`get()` may block this event loop without a word: a notebook's, in which every cell runs."""
    global _own_loop
    _own_loop = loop


def warn_blocking(what: str, instead: str) -> None:
    """Says that the running loop is blocked, at the line that called the caller."""
    if running_loop() is _own_loop:
        return
    text = f"{what} from within an active event loop: the loop runs nothing until the result is there. {instead}"
    warnings.warn(text, UserWarning, stacklevel=3)
    logging.getLogger("monarch").warning(text)
