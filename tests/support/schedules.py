"""All the ways in which a few threads can take turns.

A world is made and run again and again, each time with another schedule, until there is none left. Its threads are real and
run the real code, one at a time: before each line that has to do with others, and wherever it would wait, a thread looks
whether the schedule gives the turn to another. What it waits at is `Blocking`, for locks, and `Polling`, for epolls; a time
limit may end any of these waits. Signals come on the main thread right before any such line, and where it waits.

A schedule has at most so many `switches` from a thread that could go on; those where a thread waits are free. It has so many
`signals`, and so many time limits that end (`times`) although somebody could go on. A state that was met before is not
explored again: who is where, with which variables, and what the world says of itself.
"""

from __future__ import annotations

import _thread
import ctypes
import dis
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

from monarch._linux.thread_frames import thread_frames
from monarch._wire.transport.base import Turn

_SIGNAL = signal.SIGUSR2
_STEPS = 20_000  # in one schedule; a world that goes on longer turns in a circle
# Of lines that have to do with others.
_OPCODES = ("ATTR", "METHOD", "CALL", "SUBSCR", "FOR_ITER", "CONTAINS", "GLOBAL")
_FOREVER = 1e6  # seconds: a time limit from here on ends no wait
_raise = ctypes.PyDLL(None)["raise"]  # Python itself does not look whether a signal came: it does so at its next step


class Stuck(BaseException):
    """Ends the threads of a schedule that went wrong."""


class World(Protocol):
    """A world that runs, made anew for each schedule."""

    threads: dict[str, Callable[[], object]]  # those that end by themselves; "main" is the main thread's
    daemons: dict[str, Callable[[], object]]  # those that end with `finish`

    def handle(self) -> None:
        """Runs for a signal."""

    def state(self) -> object:
        """Returns what threads share."""

    def finish(self) -> None:
        """On the main thread: the others have ended."""

    def check(self) -> None:
        """Raises if it is not as it should be. Every thread has ended."""


class Explored(NamedTuple):
    """The count of what was tried."""

    schedules: int
    states: int
    steps: int

    def __str__(self) -> str:
        return f"{self.schedules:,} schedules, {self.states:,} states, {self.steps:,} steps"


class _Turns:
    """One thread of a world."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.ident = 0
        self.begin()

    def begin(self) -> None:
        self.ended = False
        self.daemon = False
        self.can: Callable[[], bool] = _at_once
        self.times_out = self.timed_out = self.signalled = False

    def __repr__(self) -> str:
        return self.name


_GO, _TIMEOUT, _SIGNALLED = "goes on", "time is up", "a signal"
Option = tuple[_Turns, str, int]


class Schedules:
    """Explores worlds. `code`: modules, or functions, where a thread may be stopped."""

    def __init__(self, *code: Any, switches: int = 1, signals: int = 0, times: int = 1) -> None:
        self._code = [found for each in code for found in _codes(each)]
        self._tracers = {id(found): self._tracer(_lines(found)) for found in self._code}  # their hash is slow
        self._switches = switches
        self._signals = signals
        self._times = times
        self._main = _Turns("main")
        self._main.ident = threading.get_ident()
        self._workers: list[_Turns] = []
        self._jobs: dict[str, Callable[[], object]] = {}
        self._trail: list[list[int]] = []  # at each point: which option was taken, and of how many
        self._seen: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._closed = False
        self.threads: list[_Turns] = []
        self.world: Any = None
        self.late: Callable[[], bool] = lambda: False  # whether nobody has to wait for a time limit in this state
        self._forked = False
        self.roles: dict[int, str] = {}
        self.explored = Explored(0, 0, 0)

    # --- from outside

    def explore(self, make: Callable[[Schedules], World], most: int = 1_000_000) -> Explored:
        """Tries every schedule, or the first so many."""
        before = signal.signal(_SIGNAL, self._on_signal)
        runs = steps = 0
        try:
            while runs < most:
                runs += 1
                self._one(make)
                steps += self._point
                self.explored = Explored(runs, len(self._seen), steps)
                if not self._next():
                    break
        finally:
            signal.signal(_SIGNAL, before)
            self._closed = True
            self._let_go()
        return self.explored

    def _let_go(self) -> None:
        for worker in self._workers:
            if worker.go.locked():
                worker.go.release()
        _yield()

    def _next(self) -> bool:
        trail = self._trail
        while trail and trail[-1][0] + 1 >= trail[-1][1]:
            trail.pop()
        if trail:
            trail[-1][0] += 1
        return bool(trail)

    def _one(self, make: Callable[[Schedules], World]) -> None:
        self._point = 0
        self._replayed = len(self._trail)
        self._left, self._signals_left, self._times_left = self._switches, self._signals, self._times
        self._coasting = False  # what follows was tried before, or is not to be
        self._failed = ""
        self._told: list[str] = []
        self._main.begin()
        self.roles = {}
        self.threads = [self._main]
        self._now = self._main
        self.world = world = make(self)
        for number, (name, job) in enumerate({**world.threads, **world.daemons}.items()):
            if name == "main":
                continue
            while len(self._workers) <= number:
                self._workers.append(self._hire())
            worker = self._workers[number]
            worker.begin()
            worker.name, worker.daemon = name, name in world.daemons
            self._jobs[name] = job
            self.threads.append(worker)
        try:
            self._main_job()
            world.check()
        except BaseException as exc:
            if not isinstance(exc, Stuck):
                self._fail("".join(traceback.format_exception(exc)))
        finally:
            self._main.ended = True
            while not all(thread.ended for thread in self.threads):  # each ends with `Stuck`
                self._let_go()
        if self._failed:
            raise AssertionError(
                f"{self._failed}\nschedule {self.explored.schedules + 1} ({self.explored.states:,} states before):\n"
                + "\n".join(self._told)
            )

    def _main_job(self) -> None:
        tracing = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            self.world.threads["main"]()
            self.wait(lambda: all(thread.ended or thread.daemon for thread in self.threads[1:]))
        finally:
            sys.settrace(tracing)
            self._coasting = True
        self.world.finish()
        self.wait(lambda: all(thread.ended for thread in self.threads[1:]))

    def _hire(self) -> _Turns:
        worker = _Turns("")
        threading.Thread(target=self._work, args=(worker,), daemon=True).start()
        while not worker.ident:
            _yield()
        return worker

    def _work(self, me: _Turns) -> None:
        me.ident = threading.get_ident()
        while True:
            me.go.acquire()
            if self._closed:
                return
            try:
                if not self._failed:
                    sys.settrace(self._on_call)
                    self._jobs[me.name]()
            except BaseException as exc:
                if not isinstance(exc, Stuck) and not self._failed:
                    self._fail("".join(traceback.format_exception(exc)))
            finally:
                sys.settrace(None)
            me.ended = True
            if self._failed:
                self._wake_main()
            else:
                self._pass_on(me, last=True)

    def _wake_main(self) -> None:
        """It ends the schedule, which has failed."""
        if self._main.go.locked():
            self._main.go.release()

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = why
            self._coasting = True

    # --- where a thread may be stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._coasting:
            sys.settrace(self._on_call)
        self.world.handle()

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        return None if self._coasting else self._tracers.get(id(frame.f_code))

    def _tracer(self, lines: set[int]) -> Callable[[FrameType, str, object], Any]:
        def on_line(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line" and frame.f_lineno in lines and not self._coasting:
                point = self._point
                if point < self._replayed and not self._trail[point][0]:  # most of them
                    self._point = point + 1
                else:
                    self._step(frame)
            return on_line

        return on_line

    def _step(self, frame: FrameType) -> None:
        me = self._now
        options: list[Option] = [(me, _GO, 0)]
        if self._left:
            others = [thread for thread in self.threads if thread is not me and not thread.ended]
            ready = [thread for thread in others if thread.can()]
            options += [(thread, _GO, 1) for thread in ready]
            if self._times_left:
                options += [(thread, _TIMEOUT, 1) for thread in others if thread.times_out and thread not in ready]
        if self._signals_left and me is self._main:
            options.append((me, _SIGNALLED, 0))
        thread, what, _ = self._choose(me, options, frame)
        if what == _SIGNALLED:
            sys.settrace(None)  # the next call of a trace function would have Python look for signals
            (_,) = map(_raise, (_SIGNAL,))
        elif thread is not me:
            me.can, me.times_out = _at_once, False
            thread.timed_out = what == _TIMEOUT
            self._switch(me, thread)

    def forked(self) -> None:
        """This is a child made by `os.fork`: its main thread goes on alone, and every time limit of its waits ends."""
        self._forked = self._coasting = True

    def wait(self, can: Callable[[], bool], times_out: bool = False, ends: bool = False) -> bool:
        """Returns once the turn is this thread's again and `can()`; False when its time was up. `ends`: its time limit ends
        in a forked child only."""
        me = self._now
        while not can():
            if self._failed:
                raise Stuck
            if self._forked:
                if times_out or ends:
                    return False
                raise Stuck
            me.can, me.times_out, me.timed_out = can, times_out, False
            if self._pass_on(me):
                (_,) = map(_raise, (_SIGNAL,))
            elif me.timed_out:
                me.can, me.times_out, me.timed_out = _at_once, False, False
                return False
        me.can, me.times_out = _at_once, False
        return True

    def _pass_on(self, me: _Turns, last: bool = False) -> bool:
        """This thread waits, or has ended (`last`). Returns whether it has the turn for a signal."""
        others = [thread for thread in self.threads if not thread.ended]
        ready = [thread for thread in others if thread.can()]
        options: list[Option] = [(thread, _GO, 0) for thread in ready]
        if self._times_left or not ready:
            options += [(thread, _TIMEOUT, 0) for thread in others if thread.times_out and thread not in ready]
        if not options or (not ready and not self._coasting and self.late()):
            why = "only a time limit" if options else "nobody"
            self._fail(f"{why} can go on: " + "; ".join(self._where(thread) for thread in others))
            self._told.append(f"  {me} waits")
            if last:
                self._wake_main()
                return False
            raise Stuck
        main = self._main
        if self._signals_left and not main.ended and main not in ready and not self._coasting:
            options.append((main, _SIGNALLED, 0))
        thread, what, _ = self._choose(me, options, None)
        thread.timed_out = what == _TIMEOUT
        thread.signalled = what == _SIGNALLED
        if last:
            self._now = thread
            thread.go.release()
            return False
        if thread is not me:
            self._switch(me, thread)
        signalled, me.signalled = me.signalled, False
        return signalled

    def _choose(self, me: _Turns, options: Sequence[Option], frame: FrameType | None) -> Option:
        """Takes the option that this schedule has here; the first where it has none."""
        if self._coasting:
            return options[0]
        point = self._point
        self._point += 1
        if point > _STEPS:
            self._fail("it turns in a circle")
            raise Stuck
        if point >= self._replayed:
            if (point == self._replayed or len(options) > 1) and self._was_met(me):
                self._coasting = True
                return options[0]
            self._trail.append([0, len(options)])
        chosen = options[self._trail[point][0]]
        thread, what, cost = chosen
        self._left -= cost
        self._signals_left -= what == _SIGNALLED
        self._times_left -= what == _TIMEOUT and self._times_left > 0
        if thread is not me or what != _GO:
            at = f" before {_place(frame)}" if frame is not None else " waits"
            self._told.append(f"  {me}{at}: {thread} {what}")
        return chosen

    def _switch(self, me: _Turns, thread: _Turns) -> None:
        self._now = thread
        thread.go.release()
        me.go.acquire()
        if self._failed:
            raise Stuck

    def on_main(self) -> bool:
        return self._now is self._main

    # --- states

    def _was_met(self, me: _Turns) -> bool:
        frames = thread_frames()
        self._names = {thread.ident: thread.name for thread in self.threads}
        norm = self._norm
        try:
            told = norm(self.world.state())
        except BaseException as exc:  # in a trace function: whatever runs there might catch it, and be traced no more
            self._fail("".join(traceback.format_exception(exc)))
            raise Stuck from None
        state: list[object] = [me.name, self._signals_left, self._times_left, told]
        for thread in self.threads:
            state += thread.name, thread.ended, thread.times_out, thread.timed_out, thread.signalled
            if not thread.ended:
                for frame in _stack(frames.get(thread.ident)):
                    state += id(frame.f_code), frame.f_lasti, norm(frame.f_locals)
        key = hash(tuple(state))
        if self._seen.get(key, -1) >= self._left:
            return True
        self._seen[key] = self._left
        return False

    def _norm(self, value: Any) -> object:
        """A value as what compares equal in every schedule where it is the same."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return self._names.get(value, value)
        role = self.roles.get(id(value))
        if role is not None:
            return role
        norm = self._norm
        if kind in (tuple, list, deque):
            return len(value), *map(norm, value)
        if kind is dict:
            return *map(norm, value), *map(norm, value.values())
        if kind in _ITERATORS:
            return tuple(map(norm, value.__reduce__()))
        if kind is partial:
            return norm(value.func), norm(value.args)
        if kind is FunctionType:
            cells = [_inside_cell(cell) for cell in value.__closure__ or ()]
            return value.__qualname__, *map(norm, cells), norm(value.__defaults__)
        if kind is MethodType:
            return value.__name__, norm(value.__self__)
        if kind in _LOCKS:
            return "lock", value.locked()
        if kind is Turn:
            return "turn", *(norm(getattr(value, name, None)) for name in Turn.__slots__)
        return kind.__name__

    def _where(self, thread: _Turns) -> str:
        frame = thread_frames().get(thread.ident)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return f"{thread} at {_place(frame)}"


class WasMet(Exception):
    """Ends a schedule at a state that was met before."""


class Choices:
    """Explores worlds without threads, which say themselves what may come next and `choose` among it."""

    def __init__(self) -> None:
        self._trail: list[list[int]] = []
        self._seen: set[int] = set()
        self._at = 0

    def explore(self, run: Callable[[Choices], object], most: int = 1_000_000) -> Explored:
        """Calls `run` for every schedule, or the first so many."""
        runs = steps = 0
        while runs < most:
            runs, self._at = runs + 1, 0
            try:
                run(self)
            except WasMet:
                pass
            except BaseException as exc:
                chosen = [choice for choice, _ in self._trail]
                exc.add_note(f"schedule {runs} ({len(self._seen):,} states before): {chosen}")
                raise
            steps += self._at
            while self._trail and self._trail[-1][0] + 1 >= self._trail[-1][1]:
                self._trail.pop()
            if not self._trail:
                break
            self._trail[-1][0] += 1
        return Explored(runs, len(self._seen), steps)

    def choose(self, count: int) -> int:
        """Returns one of so many."""
        at, self._at = self._at, self._at + 1
        if at > _STEPS:
            raise AssertionError("it turns in a circle")
        if at == len(self._trail):
            self._trail.append([0, count])
        return self._trail[at][0]

    @property
    def repeats(self) -> bool:
        """True while it chooses as in the schedule before: all states were met."""
        return self._at < len(self._trail)

    def met(self, state: object) -> None:
        """The world is in this state. Raises WasMet where it was before, and all that may follow was tried."""
        if not self.repeats:
            key = hash(repr(state))
            if key in self._seen:
                raise WasMet
            self._seen.add(key)


class Blocking:
    """A lock, at which a thread that would wait lets others go on. `main`: the main thread may wait for it; otherwise it has
    the lock's own `acquire`, with nothing in it behind which Python would look for signals."""

    def __init__(self, schedules: Schedules, lock: Any, main: bool = True) -> None:
        self._schedules = schedules
        self._lock = lock
        self._main = main
        self.release = lock.release
        if hasattr(lock, "_is_owned"):
            self._is_owned = lock._is_owned

    def locked(self) -> bool:
        return self._lock.locked() if hasattr(self._lock, "locked") else not repr(self._lock).startswith("<unlocked")

    def _free(self) -> bool:
        return not self.locked()

    @property
    def acquire(self) -> Callable[..., bool]:
        if not self._main and self._schedules.on_main():
            return self._lock.acquire  # type: ignore[no-any-return]
        return self._acquire

    def _acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while not self._lock.acquire(False):
            if not blocking or not self._schedules.wait(self._free, 0 <= timeout < _FOREVER, timeout >= 0):
                return False
        return True

    def __enter__(self) -> bool:
        return self._acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class Polling:
    """An epoll, at which a thread that would wait lets others go on."""

    def __init__(self, schedules: Schedules, epoll: Any) -> None:
        self._schedules = schedules
        self._poll = epoll.poll
        for name in ("register", "modify", "unregister", "close", "fileno"):
            setattr(self, name, getattr(epoll, name))

    def came(self) -> bool:
        return bool(self._poll(0))

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if timeout is None or timeout > 0:
            self._schedules.wait(self.came, timeout is not None)
        return self._poll(0)  # type: ignore[no-any-return]


def _inside_cell(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # its variable has no value yet
        return None


def _at_once() -> bool:
    return True


def _yield() -> None:
    os.sched_yield()


def _place(frame: FrameType | None) -> str:
    return "its end" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _codes(code: Any) -> Iterable[CodeType]:
    """Returns those of a module, a class or a function."""
    if isinstance(code, ModuleType):
        for value in vars(code).values():
            if getattr(value, "__module__", "") == code.__name__:
                yield from _codes(value)
    elif isinstance(code, type):
        for value in vars(code).values():
            if isinstance(value, FunctionType):
                yield from _inside(value.__code__)
    elif hasattr(code, "__code__"):
        yield from _inside(code.__code__)


def _inside(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)


def _lines(code: CodeType) -> set[int]:
    """Returns those that have to do with more than the thread's own variables."""
    lines: set[int] = set()
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno or line if instruction.positions is not None else line
        if any(part in instruction.opname for part in _OPCODES):
            lines.add(line)
    return lines


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a world's thread."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__:
            yield frame
        elif code.co_name in ("_main_job", "_work"):
            return
        frame = frame.f_back


_PLAIN = frozenset((type(None), bool, str, bytes, float))
_ITERATORS = frozenset((map, type(iter(()))))
_LOCKS = frozenset((_thread.LockType, Blocking))
