"""The event loops of a program: which one runs, and how one hears that something has come."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._errors import PACKAGE

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


_here = threading.local()


class Blocking:
    """A function that waits for several things in turn. What within its `with` block blocks a running loop is said once, as
    of the function: `what` was done ("wait() was called"), and what to do `instead` ("Use ... here"). Since 0.2.0."""

    __slots__ = ("_outer", "_said", "instead", "what")

    def __init__(self, what: str, instead: str) -> None:
        self.what, self.instead = what, instead
        self._said = False
        self._outer: Blocking | None = None

    def __enter__(self) -> None:
        self._outer = getattr(_here, "blocking", None)
        if self._outer is None:
            _here.blocking = self

    def __exit__(self, *exc: object) -> None:
        if self._outer is None:
            _here.blocking = None

    def say(self) -> bool:
        """Returns whether it was not said yet."""
        said, self._said = self._said, True
        return not said


def warn_blocking(what: str, instead: str) -> None:
    """Says that the running loop is blocked, at the line of the program from which it came."""
    if running_loop() is _own_loop:
        return
    if (outer := getattr(_here, "blocking", None)) is not None:
        if not outer.say():
            return
        what, instead = outer.what, outer.instead
    text = f"{what} from within an active event loop: the loop runs nothing until the result is there. {instead}"
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
    logging.getLogger("monarch").warning(text)
