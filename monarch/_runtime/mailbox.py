"""The queue of one actor. Putting never blocks; taking waits on a lock, which costs less than any queue class.

Control items (stop, a failure to supervise) go before messages. A taker is either the actor's thread (`take`) or its event
loop's selector (`wait`, then what is in `control` and `messages`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from monarch._runtime import leader
from monarch._runtime.leader import wait_for
from monarch._runtime.loop import wake

WAKE: Any = object()  # a control item that only wakes: something has changed that its taker looks at by itself


class Feed(Protocol):
    """Another place that an actor gets calls from, without messages (`monarch.graph`). All but `close` on the actor's
    thread."""

    def poll(self) -> None:
        """Puts a call behind the messages that wait, if one is due. Called between two messages."""

    def wait(self, mailbox: Mailbox) -> None:
        """Sleeps until something is put, or a call is due. May wake for nothing."""

    def close(self) -> None:
        """The actor takes nothing more; any thread."""


class Mailbox:
    __slots__ = ("_lock", "_wakers", "control", "feed", "messages")

    def __init__(self) -> None:
        self.feed: Feed | None = None
        self.control: deque[Any] = deque()
        self.messages: deque[Any] = deque()
        self._lock = threading.Lock()
        self._lock.acquire()
        # At most one entry: how to wake the sleeping taker. The thread that pops it wakes; popping is atomic.
        self._wakers: deque[Callable[[], Any]] = deque(maxlen=1)

    def __len__(self) -> int:
        return len(self.control) + len(self.messages)

    def put(self, item: Any) -> None:
        try:
            self.messages.append(item)
            if self._wakers:
                self.wake()
        except BaseException:
            if self._wakers:
                self.wake()
            raise

    def put_control(self, item: Any) -> None:
        self.control.append(item)
        if self._wakers:
            self.wake()

    def wake(self) -> None:
        """Wakes the taker if it sleeps, also when nothing was put."""
        waker = None
        try:
            (waker,) = map(deque.pop, (self._wakers,))  # called and kept in one step: see `wire.transport.stream`
            wake(waker)
        except IndexError:
            return
        except BaseException:  # of a handler of signals: nobody else has the waker, and waking for nothing does no harm
            if waker is not None:
                with contextlib.suppress(RuntimeError):
                    wake(waker)
            raise

    def take(self) -> Any:
        """The next item; waits for it."""
        while True:
            if self.control:
                return self.control.popleft()
            feed = self.feed
            if feed is not None:
                feed.poll()
                feed = self.feed  # it may have ended just now
            if self.messages:
                try:
                    return self.messages.popleft()
                except IndexError:  # drained just now
                    pass
            if feed is None:
                self.wait(None)
            else:
                feed.wait(self)

    def forked(self) -> None:
        """In a forked child: what is here its parent takes."""
        self.control.clear()
        self.messages.clear()

    def drain(self) -> list[Any]:
        """Any thread: takes every message away from the taker. Each message goes to one of the two."""
        taken = []
        while True:
            try:
                taken.append(self.messages.popleft())
            except IndexError:
                return taken

    def wait(self, timeout: float | None, messages: bool = True) -> None:
        """Sleeps until something is put, `wake` is called or `timeout` seconds passed. May wake for nothing.

        Without `messages` it sleeps although messages are there: only control items matter then.
        """
        if not self.arm(self._lock.release, messages):
            return
        if leader.lost is not None:
            from monarch._runtime import forks  # needed there alone

            forks.end_child()
        if not wait_for(self._lock, None if timeout is None else max(0.0, timeout), True) and not self.disarm():
            self._lock.acquire()  # somebody took the waker just now: the release follows

    def arm(self, waker: Callable[[], Any], messages: bool = True) -> bool:
        """`waker()` will be called at the next put. False, and not armed, when there is something to take."""
        self._wakers.append(waker)
        if not self.control and not (messages and self.messages):
            return True
        if not self.disarm() and waker == self._lock.release:
            self._lock.acquire()
        return False

    def disarm(self) -> bool:
        """Takes the waker back. False when it was called or is about to be."""
        try:
            self._wakers.pop()
        except IndexError:
            return False
        return True
