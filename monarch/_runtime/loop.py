"""The one I/O thread of a process, and the only place where threads start.

An epoll loop of our own and not asyncio's: an idle wake-up costs one system call and one callback, where
`asyncio.add_reader` adds a handle, a queue and a context switch of contexts; and processes that never need asyncio do not
import it. It runs no user code and unpickles nothing, so it answers while the program is busy.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from monarch._linux.locks import Condition
from monarch._runtime import leader
from monarch._runtime.internal_errors import REPORTER, WINDOW
from monarch._runtime.log_thread import log
from monarch._wire import logs
from monarch._wire.transport.base import Turn

_ERRORS = select.EPOLLERR | select.EPOLLHUP
_CROWD = 1024  # timers from which cancelled ones are looked for


logs.log_by(partial(log, logs.logger))
io_threads: set[int] = set()  # threads that everybody would wait for, were they to wait


class _Wakes(threading.local):
    """The wakers that this thread has to call; None on threads that are no I/O loop's."""

    later: list[Callable[[], Any]] | None = None


_wakes = _Wakes()


def wake(waker: Callable[[], Any]) -> None:
    """Wakes a thread. On an I/O loop's thread: at the end of its turn, just before it sleeps and releases the interpreter
    lock. A thread woken earlier finds that lock taken and has to sleep and be woken a second time, which costs more than
    all else in a call.
    """
    later = _wakes.later
    if later is None:
        waker()
        for lead in leader.current:
            lead.nudge()
    else:
        later.append(waker)


class TimerHandle:
    """A call at a time. `cancel` may come from any thread, also after it ran."""

    __slots__ = ("cancelled", "fn", "when")

    def __init__(self, when: float, fn: Callable[[], Any]) -> None:
        self.when = when
        self.fn = fn
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.fn = _nothing


def _nothing() -> None:
    return None


class Loop:
    """Callbacks for descriptors, for "soon" and for times, run one after the other on one thread.

    `add`, `want_write`, `remove`, `call_soon`, `call_later`, `call_rarely`, `stop` may be called from any thread. A callback
    that raises is reported to `on_error` and the loop goes on. When it cannot go on although nobody has called `stop`,
    `ended_unasked` is called, by its thread as the last thing it does or by another.
    """

    def __init__(
        self, name: str = "monarch-io", clock: Callable[[], float] = time.monotonic, virtual: bool = False
    ) -> None:
        """`virtual`: the clock stands still but for `wake` calls, so the loop never sleeps towards a timer."""
        self.name = name
        self.now = clock
        self.virtual = virtual
        self.on_error: Callable[[BaseException], None] = self._report
        self.ended_unasked: Callable[[BaseException], None] = _raise
        self.epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll.register(self._wake_fd, select.EPOLLIN)
        self._anonymous = os.fstat(self._wake_fd)  # the inode that epolls and eventfds share
        self.handlers: dict[int, Callable[[int], Any]] = {self._wake_fd: self._drain_wake}
        self.soon: deque[Callable[[], Any]] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._new_timers: deque[TimerHandle] = deque()
        self._rare_timers: list[tuple[float, int, TimerHandle]] = []
        self._rare_thread: threading.Thread | None = None
        self._rarely = Condition()
        self._crowded = _CROWD
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self.ident = 0
        self._polling = False
        self._stopped = False
        self.quick: dict[int, Callable[[Turn], bool]] = {}
        self._lead: leader.LeaderFollower | None = None
        self._came = False  # the last turn brought events
        self._told = False  # another thread has called `ended_unasked`
        self._wakes: list[Callable[[], Any]] = []
        self._counting = False  # errors that are said at the end of their window

    # --- any thread

    def in_loop(self) -> bool:
        return threading.get_ident() == self.ident

    def call_soon(self, fn: Callable[[], Any]) -> None:
        try:
            self.soon.append(fn)
            if self._polling:
                self.wake()
        except BaseException:  # a handler of signals may raise behind any call
            self.wake()
            raise

    def call_later(self, delay: float, fn: Callable[[], Any]) -> TimerHandle:
        timer = TimerHandle(self.now() + delay, fn)
        self._new_timers.append(timer)
        if self._polling:
            self.wake()
        return timer

    def call_rarely(self, delay: float, fn: Callable[[], Any]) -> TimerHandle:
        """`call_later` for what is always waited for and may come late.

        A loop that sleeps with a time limit costs each call more than a microsecond; here another thread waits.
        """
        if self.virtual:
            return self.call_later(delay, fn)
        timer = TimerHandle(self.now() + delay, fn)
        with self._rarely:
            heapq.heappush(self._rare_timers, (timer.when, next(self._order), timer))
            if self._rare_thread is None:
                self._rare_thread = start_thread(self._wait_for_rare, "monarch-alarm")
            self._rarely.notify()
        return timer

    def _wait_for_rare(self) -> None:
        """The thread of `call_rarely`; ends with the loop."""
        timers = self._rare_timers
        while True:
            with self._rarely:
                while not self._stopped and (not timers or timers[0][0] > self.now()):
                    self._rarely.wait(timers[0][0] - self.now() if timers else None)
                if self._stopped:
                    return
                timer = heapq.heappop(timers)[2]
            if not self.intact():
                self._deaf(OSError(errno.EBADF, "its descriptors were closed from outside"))
                return
            self.call_soon(lambda timer=timer: timer.fn())  # type: ignore[misc]

    def wake(self) -> None:
        try:
            os.eventfd_write(self._wake_fd, 1)
            if self._lead is not None and self._lead.aside:
                self._lead.recall()
        except BlockingIOError:  # already woken
            pass
        except OSError as exc:
            self._deaf(exc)

    def share_lead(self, when: str) -> None:
        """Before `start`: from now on threads that wait may read what this loop reads (setting `waiters_read`)."""
        if when != "never":
            self._lead = leader.LeaderFollower(self, when == "always")
            self.quick[self._wake_fd] = self._drain_quickly
            leader.current.append(self._lead)

    def forked(self) -> list[int]:
        """In a child made by `os.fork`, which has not the loop's thread: nobody leads or is woken any more. Returns the
        descriptors that are to be closed; their numbers may be used again."""
        self._polling = False
        if self._lead is not None:
            self._lead.close()
        return self.descriptors()

    def intact(self) -> bool:
        """Returns whether our descriptors are still ours: programs that make daemons of themselves close all, and open
        others."""
        try:
            return all(os.path.samestat(os.fstat(fd), self._anonymous) for fd in (self.epoll.fileno(), self._wake_fd))
        except (OSError, ValueError):
            return False

    def _deaf(self, exc: BaseException) -> None:
        """Any thread: the loop sleeps where nothing wakes it."""
        if not self._stopped:
            self._stopped = self._told = True
            start_thread(self.ended_unasked, "monarch-end", exc)

    def add(self, fd: int, on_event: Callable[[int], Any], quick: Callable[[Turn], bool] | None = None) -> None:
        """`on_event(mask)` whenever `fd` is readable (or in error); level-triggered. OSError when the kernel has no room
        for another descriptor.

        `quick`: what a thread that waits may call in its place when `fd` is readable (see `leader`). It takes what is short
        and simple; False when it has left something for `on_event`. Once its turn is revoked it touches nothing.
        """
        self.handlers[fd] = on_event
        try:
            self.epoll.register(fd, select.EPOLLIN)
        except BaseException:  # no room for another (fs.epoll.max_user_watches), no memory
            del self.handlers[fd]
            raise
        if quick is not None:
            self.quick[fd] = quick

    def want_write(self, fd: int, on: bool, read: bool = True) -> None:
        """Says whether `fd` being writable counts as an event too; without `read` being readable does not."""
        try:
            self.epoll.modify(fd, (select.EPOLLIN if read else 0) | (select.EPOLLOUT if on else 0))
            if on and self._lead is not None and self._lead.aside:
                self.wake()
        except (OSError, ValueError):  # removed just now by the loop's thread, or the loop has ended
            pass

    def pause(self, fd: int) -> None:
        """No events for `fd` until `resume`."""
        self.epoll.modify(fd, 0)

    def resume(self, fd: int) -> None:
        self.epoll.modify(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        self.quick.pop(fd, None)
        if self.handlers.pop(fd, None) is not None:
            try:
                self.epoll.unregister(fd)
            except (OSError, ValueError):  # closed before: epoll has forgotten it
                pass

    def start(self) -> None:
        """Runs the loop on a thread of its own."""
        self._thread = start_thread(self.run, self.name)

    @property
    def native_id(self) -> int:
        """The number that the system has for its thread; 0 before it runs."""
        thread = self._thread
        return 0 if thread is None else thread.native_id or 0

    def stop(self) -> None:
        """Ends the loop after the current callback. `join` waits for its thread."""
        self._stopped = True
        self.wake()
        with self._rarely:
            self._rarely.notify()

    def join(self, timeout: float) -> bool:
        """Waits for its threads to end. What one of them still refers to when the interpreter ends is never finalized: files
        of the program, too."""
        until = time.monotonic() + timeout
        for thread in (self._thread, self._rare_thread):
            if thread is not None and thread.ident != threading.get_ident():
                thread.join(max(0.0, until - time.monotonic()))
        return self._thread is None or self.in_loop() or not self._thread.is_alive()

    def statistics(self) -> dict[str, int]:
        return {"descriptors": len(self.handlers) - 1, "timers": len(self._timers), "soon": len(self.soon)}

    def descriptors(self) -> list[int]:
        """Every descriptor the loop holds, its own two included."""
        return [*self.handlers, self.epoll.fileno()]

    # --- the loop's thread

    def run(self) -> None:
        self.ident = threading.get_ident()
        io_threads.add(self.ident)
        _wakes.later = self._wakes
        if self._lead is not None:
            self._lead.begin()
        try:
            while not self._stopped:
                self._turn()
        except BaseException as exc:
            asked, self._stopped = self._stopped, True
            self._leave()
            if not asked:
                self.stop()
                self.ended_unasked(exc)
            elif not self._told:
                raise
        else:
            self._leave()

    def _leave(self) -> None:
        self._wake_others()
        if self._lead is not None:
            self._lead.end()
        _wakes.later = None
        io_threads.discard(self.ident)
        self.ident = 0
        for close in (self.epoll.close, lambda: os.close(self._wake_fd)):
            try:
                close()
            except OSError:  # a program that closes every descriptor closes these too
                pass

    def _turn(self) -> None:
        # Said before looking at the queues, so that a thread that adds after the look knows to wake us.
        self._polling = True
        timeout = self._timeout()
        if self._wakes:
            self._wake_others()
            if self.soon:
                timeout = 0
        aside = self._came and timeout != 0 and self._lead is not None and self._lead.wanted()
        try:
            events = self.epoll.poll(0 if aside else timeout)
            if aside and not events:  # all that has come was handled
                self._came = False
                self._lead.stand_aside()  # type: ignore[union-attr]
                return
        except InterruptedError:
            return
        finally:
            self._polling = False
        handlers, self._came = self.handlers, bool(events)
        for fd, mask in events:
            handler = handlers.get(fd)
            if handler is not None:
                try:
                    handler(mask)
                except Exception as exc:
                    self.on_error(exc)
        if self.soon:
            self._run_soon()
        if self._timers or self._new_timers:
            self._run_timers()

    def _wake_others(self) -> None:
        wakes = self._wakes
        for waker in wakes:  # a waker may add another
            self._call(waker)
        wakes.clear()

    def _timeout(self) -> float | None:
        left = self.time_left()  # first of all: a loop that always has something soon has timers too
        if self.soon or self._stopped:
            return 0
        if left is None:
            return None
        if self.virtual:
            return None if left > 0 else 0
        return max(0.0, left)

    def time_left(self) -> float | None:
        """On the loop's thread: seconds until the next timer is due."""
        when = self.next_timer()
        return None if when is None else when - self.now()

    def next_timer(self) -> float | None:
        """On the loop's thread: when the next timer is due."""
        while self._new_timers:
            timer = self._new_timers.popleft()
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))
            if len(self._timers) > self._crowded:
                self._drop_cancelled()
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _drop_cancelled(self) -> None:
        """Calls with a long time limit that were answered at once would otherwise stay until their time comes."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled]
        heapq.heapify(self._timers)
        self._crowded = max(_CROWD, 2 * len(self._timers))

    def _run_soon(self) -> None:
        for _ in range(len(self.soon)):
            self._call(self.soon.popleft())

    def _run_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            self._call(heapq.heappop(self._timers)[2].fn)

    def _call(self, fn: Callable[[], Any]) -> None:
        try:
            fn()
        except Exception as exc:
            self.on_error(exc)

    def _report(self, exc: BaseException) -> None:
        self._count(REPORTER.report("the I/O thread", exc))

    def _count(self, more: bool) -> None:
        """Has what was counted said when its time comes."""
        if more and not self._counting:
            self._counting = True
            self.call_later(WINDOW, self._end_window)

    def _end_window(self) -> None:
        self._counting = False
        self._count(REPORTER.end_window())

    def _drain_wake(self, _mask: int) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass

    def _drain_quickly(self, turn: Turn) -> bool:
        self._drain_wake(0)
        return True


def _raise(exc: BaseException) -> None:
    raise exc


class FirstStep:
    """A note of what each thread of ours does first, for libraries that have a state for each thread."""

    take: Callable[[], object] | None = None


def start_thread(run: Callable[..., Any], name: str, *args: Any) -> threading.Thread:
    """Starts a daemon thread: no thread of ours keeps an interpreter alive."""
    if FirstStep.take is not None:
        run, args = _after, (FirstStep.take, run, *args)
    thread = threading.Thread(target=run, name=name, args=args, daemon=True)
    thread.start()
    return thread


def _after(first: Callable[[], object], run: Callable[..., Any], *args: Any) -> None:
    first()
    run(*args)
