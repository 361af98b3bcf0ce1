"""The leader, which reads the connections of a process: its I/O thread, or a thread that waits.

A thread that waits for the I/O thread costs two wake-ups of sleeping threads a message where one would do: the kernel wakes
the I/O thread, which wakes the one that waits. So while a process is *hot* (one thread waits again and again, shortly after
what it waited for last) the I/O thread stands aside, and the thread that waits leads: it sleeps in the loop's epoll itself.

What a leader handles is small: whole frames of a few kilobytes that came over one connection (`Loop.add`, `quick`). Of
everything else it takes nothing: it gives the lead to the I/O thread, which finds it where it was, and waits as ever. So the
rest of the runtime still runs on one thread, and user code's threads run none of it.

    the I/O thread          reads | stands aside, at most 3 ms at a time                      | reads
    a thread that waits     waits | leads, 3 ms at most without a message | runs user code | leads | waits

The I/O thread comes back when 3 ms have passed and nobody has led since, so a process whose thread computes is read 3 ms
later at most; when a leader gives up; and when something is to be done on it (`Loop.call_soon`).

Signals. Python's handlers run on the main thread, between any two instructions, and may raise, wait, or take their time. So
a leader sleeps without the lead, which the I/O thread can have then, and takes it for what it handles (`Turn`). What it has
read is kept with its connection, in the same step, until it was handled, and what it handles on the main thread are answers,
which may be handled twice. A handler that raises ends the turn, one that waits takes the lead away from it, and the I/O
thread handles what is left; whoever goes on behind such a handler touches nothing more. One that takes its time while a
message is handled (some microseconds each) holds up the others of its process.

A thread that a debugger follows does not lead.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call
from sys import gettrace
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING

from monarch._runtime import event_loops
from monarch._wire.transport.base import Turn

if TYPE_CHECKING:
    import asyncio

    from monarch._runtime.loop import Loop

ASIDE = 0.003  # seconds: how long nobody may read, and how long a leader waits for a message
HOT = 0.001  # seconds between what a thread waited for and its next wait
SLICE = 1.0  # seconds for which the main thread waits before it looks whether a signal has come
_STAY = 256  # turns for which the I/O thread stays, at most, when leading did not pay again and again
_TURNS = 64  # after which a leader gives up whose own message has not come
_AT_ONCE = (False,)
_READ = select.EPOLLIN

current: list[LeaderFollower] = []  # the one of this process; none before it has one
lost: BaseException | None = None  # in a forked child, where no thread reads: why nothing comes that is waited for


class WouldBlockRuntime(RuntimeError):
    """A blocking wait was tried on the runtime's own I/O thread, which everybody would then wait for."""


def wait_for(lock: threading.Lock, timeout: float | None, messages: bool = False) -> bool:
    """`lock.acquire(timeout=...)`, None: for ever; this thread may read meanwhile. Released by way of `loop.wake`.

    `messages`: it is an actor's thread that waits for its next one, and may do so for ever; otherwise for an answer.
    ForkedClientError in a forked child, where nobody leads: nothing comes there.
    """
    for lead in current:
        return lead.wait(lock, timeout, messages)
    _check()
    return _acquire(lock, timeout)


def _acquire(lock: threading.Lock, timeout: float | None) -> bool:
    """Waits for the lock; on the main thread a second at a time. A signal that arrives between two instructions of the
    interpreter, when it has decided to wait and does not yet, is looked at behind the wait."""
    if get_ident() != threading.main_thread().ident:
        return lock.acquire(timeout=-1 if timeout is None else timeout)
    until = None if timeout is None else monotonic() + timeout
    left = timeout
    while not lock.acquire(timeout=SLICE if left is None else min(SLICE, left)):
        _check()  # a handler of signals may have forked, and have returned in the child
        if until is not None:
            left = until - monotonic()
            if left <= 0:
                return False
    return True


def watch(loop: asyncio.AbstractEventLoop, waits: Callable[[], bool]) -> None:
    """A task of this thread's event loop is about to wait, while `waits()`. ForkedClientError as of `wait_for`."""
    _check()
    for lead in current:
        if not event_loops.is_actors(loop):
            lead.watch(loop, waits)


def _check() -> None:
    if lost is not None:
        raise lost


def watched() -> None:
    """It has what it waited for."""
    for lead in current:
        lead.watched()


class LeaderFollower:
    """The lead of one loop. `always`: the I/O thread stands aside whenever it can, for tests."""

    def __init__(self, loop: Loop, always: bool = False) -> None:
        self.aside = False  # the I/O thread stands aside
        self._loop = loop
        self._always = always
        # The thread that holds it reads and handles. Its owner is known without a moment in which it is not.
        self._lead = threading.RLock()
        self._turn: Turn | None = None  # of the thread that led last, or leads
        self._claim = threading.Lock()  # of the thread that leads, also while it sleeps
        self._park = threading.Lock()  # where the I/O thread sleeps when it stands aside
        self._park.acquire()
        # The call that wakes it, while it does: the thread that pops it makes it.
        self._parked: deque[Callable[[], None]] = deque()
        self._leader = 0  # the thread that led last, or leads
        self._leads = 0  # grows with each lead that begins
        self._main = threading.main_thread().ident
        self._ended = 0.0  # when a thread last had what it waited for
        # A thread that waited again at once: whether it still waits.
        self._hot: Callable[[], bool] | None = None
        self._watch: event_loops.EpollWatch | None = None  # an event loop of the program that reads
        # Threads that wait for answers and do not lead: whether they still wait.
        self._answers: dict[int, Callable[[], bool]] = {}
        self._followed = False  # another thread waited while one led
        self._misses = 0  # leads that did not pay, since one did
        self._stay = 0  # turns that the I/O thread does not stand aside

    def __repr__(self) -> str:
        who = "the I/O thread stands aside" if self.aside else "the I/O thread reads"
        return f"<LeaderFollower ({who}, {self._leads} leads, {self._misses} misses)>"

    # --- threads that wait

    def wait(self, lock: threading.Lock, timeout: float | None, messages: bool = False) -> bool:
        """Waits for the lock; True if it came in time. For the rest see `wait_for`."""
        if self._lead._is_owned():  # type: ignore[attr-defined]
            self._take_away()  # also where the I/O thread is back already, and waits for it
        elif self.aside:
            if gettrace() is not None:  # a debugger: it may stop this thread anywhere
                self.recall()
            elif timeout is None:
                if self._led(lock, ASIDE, messages):
                    return True
            else:
                until = monotonic() + timeout
                if self._led(lock, min(timeout, ASIDE), messages):
                    return True
                timeout = max(0.0, until - monotonic())
        elif monotonic() - self._ended < HOT:
            self._hot = lock.locked
        ident = get_ident()
        try:
            if not messages:
                self._answers[ident] = lock.locked
            # The I/O thread looks who waits when it is aside; a thread that leads looks whether another followed it.
            if self.aside and not self._claim.locked():
                self.recall()
            taken = _acquire(lock, timeout)
        finally:
            self._answers.pop(ident, None)
        self._hot = None
        self._ended = monotonic()
        return taken

    def _led(self, lock: threading.Lock, patience: float, messages: bool) -> bool:
        """Leads until `lock` can be had. False when this thread has to wait for it after all: nothing came for so many
        seconds, or what is the I/O thread's.
        """
        ident = get_ident()
        pays = False
        # No signal is handled between the call that takes the claim and the block that ends it, nor between the end of that
        # block and the call that gives it back: see `wire.transport.stream`.
        end = map(call, (self._claim.release,))
        (mine,) = map(self._claim.acquire, _AT_ONCE)
        if not mine:
            self._followed = True
            if ident in (self._leader, self._main):
                self.recall()  # it may be this thread's, which a handler of signals has interrupted
            return False
        try:
            pays = self._read(lock, ident, patience, messages)
        finally:
            next(end, None)
            if not pays or self._followed:
                self._missed()
        return pays

    def _missed(self) -> None:
        """It did not pay that a thread led, or another waits and has nobody now who reads."""
        self._followed = False
        self._misses += 1
        self._stay = min(_STAY, 1 << min(self._misses, 8))
        self.recall()

    def _read(self, lock: threading.Lock, ident: int, patience: float, messages: bool) -> bool:
        self._leads += 1
        self._leader = ident
        soon, turns = self._loop.soon, 0
        while not lock.acquire(False):
            if soon or not self.aside or turns > _TURNS:
                return False
            events = self._poll(patience)
            if not events or not self._handle(events, ident):
                return lock.acquire(False)
            turns += 1
        if messages and turns > 1:  # some were for other actors of this process
            self._followed = True
        if not self._followed:
            self._misses = 0
        return True

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        try:
            return self._loop.epoll.poll(seconds)
        except (OSError, ValueError):
            if self._loop.intact():  # it is a handler's of signals
                raise
            return []  # and the I/O thread will meet it

    def _handle(self, events: list[tuple[int, int]], ident: int) -> bool:
        """False when some of it is for the I/O thread, or all: it reads already."""
        loop = self._loop
        quick, left = loop.quick, 0
        turn = Turn(events, self._lead.release)
        (mine,) = map(self._lead.acquire, _AT_ONCE)
        if not mine:
            return False
        self._turn = turn
        try:
            if not self.aside:  # the I/O thread is about to come back, or has ended
                return False
            loop.ident = ident
            for fd, mask in events:
                read = quick.get(fd) if mask == _READ else None
                if read is None:
                    left += 1
                elif not read(turn):
                    left += 1
                    loop.soon.append(partial(self._handle_rest, fd))
                if turn.revoked:
                    return False
        except BaseException:  # of a handler of signals: what was read and not handled is still there
            loop.soon.extend([partial(self._handle_rest, fd) for fd, _mask in events])
            raise
        finally:
            if loop.ident == ident and not turn.revoked:
                loop.ident = 0
            next(turn.end, None)
        return not left

    def _handle_rest(self, fd: int) -> None:
        """On the I/O thread: what a leader has read and not handled."""
        handler = self._loop.handlers.get(fd)
        if handler is not None:
            handler(_READ)

    def _take_away(self) -> None:
        """This thread leads, and waits: in a handler of signals, or in a finalizer."""
        turn = self._turn
        if get_ident() != self._main or turn is None:
            raise WouldBlockRuntime("a blocking wait in a finalizer that ran while a message was received")
        turn.revoked = True
        if self._loop.ident == self._main:
            self._loop.ident = 0
        self._loop.soon.extend([partial(self._handle_rest, fd) for fd, _mask in turn.events])
        next(turn.end, None)
        self.recall()

    # --- event loops of the program that wait

    def watch(self, loop: asyncio.AbstractEventLoop, waits: Callable[[], bool]) -> None:
        """This thread's event loop is about to wait, for something that wakes it by itself: it may read meanwhile. `waits`:
        whether that has not come yet."""
        if not self.aside and monotonic() - self._ended < HOT:
            self._hot = waits
        if self.aside:
            watch = self._watch
            if watch is None or watch.loop() is not loop:
                if watch is not None:
                    watch.end()
                self._watch = event_loops.watch(loop, self._loop.epoll, self._on_readable)

    def watched(self) -> None:
        """It has what it waited for."""
        self._hot = None
        self._ended = monotonic()

    def _on_readable(self) -> None:
        if not self.aside:  # the I/O thread reads
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.end()
            return
        whole = False
        try:
            self._leads += 1
            self._leader = get_ident()
            whole = self._handle(self._poll(0), self._leader) and not self._loop.soon
        finally:
            if whole:
                self._misses = 0
            else:
                self._missed()

    def nudge(self) -> None:
        """Something was released that a leader may wait for, on its own thread or another."""
        if self.aside and self._leader != get_ident():
            self._loop.wake()

    # --- any thread

    def recall(self) -> None:
        """The I/O thread comes back, if it stands aside, as soon as nobody leads."""
        try:
            # Taken and released in one step, behind which Python looks for signals: a handler that waits finds it awake.
            next(map(call, iter(self._parked.pop, None)))
        except IndexError:
            pass

    def close(self) -> None:
        """Ends leading: nobody leads any more."""
        self.aside = False
        self.recall()
        if self in current:
            current.remove(self)

    # --- the I/O thread

    def begin(self) -> None:
        """It reads from now on, until it stands aside."""
        self._lead.acquire()

    def end(self) -> None:
        self.close()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
        self._lead.release()

    def wanted(self) -> bool:
        """Behind a turn in which something came: whether it is to stand aside."""
        if self._always:
            return True
        # Who has all it waits for will be back at once; others would have nobody who reads for them.
        if self._hot is None or self._waits():
            return False
        self._hot = None
        if self._stay:
            self._stay -= 1
            return False
        return True

    def _waits(self) -> bool:
        """Returns whether a thread waits that does not lead."""
        hot = self._hot
        return (hot is not None and hot()) or any([waits() for waits in list(self._answers.values())])

    def stand_aside(self) -> None:
        """Returns when it is to go on. What is done from now on to have it do something wakes it (`Loop.wake`)."""
        loop = self._loop
        ident, loop.ident = loop.ident, 0
        self._parked.append(self._park.release)
        self.aside = True
        seen, woken = self._leads, False
        self._lead.release()
        late = self._waits()  # since it was decided
        while not loop.soon and not late:
            left = loop.time_left()
            if left is not None and left <= 0:
                break
            woken = self._park.acquire(timeout=ASIDE if left is None else min(left, ASIDE))
            if woken or self._leads == seen:
                break
            seen = self._leads
        self.aside = False
        self._lead.acquire()  # a leader has it for what it handles, no longer
        try:
            self._parked.pop()
        except IndexError:
            if not woken:  # somebody has meanwhile
                self._park.acquire(False)
        loop.ident = ident
