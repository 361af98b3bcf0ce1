"""Faults: failures that reached the root client and that no `unhandled_fault_hook` took. The main thread is told of them.

A fault is handled on a thread of its own, which asks the hook, writes the report on stderr, and sends a signal to the main
thread. The handler of that signal runs in the main thread, wherever it waits, and raises UnhandledFaultError there.

Why a signal of our own, SIGURG, and not SIGINT. Handlers of SIGINT belong to others: `asyncio.run` and trio put theirs in
place only where Python's own still stands, Jupyter sets one for each cell, and programs have their own. With SIGURG all of
them stay, Ctrl-C is what it is without us, and which fault is meant needs no guess. Go interrupts its threads by the same
signal, for the same reasons: nobody else uses it, it is ignored by default, debuggers pass it on. Where a program has taken
SIGURG, or this module was first imported in another thread than the main one (only the main one can set a handler), the
main thread gets SIGINT instead, and so a bare KeyboardInterrupt behind the report.

Why not `_thread.interrupt_main()` or PyThreadState_SetAsyncExc: neither interrupts a native wait.

What a program sees under asyncio. Raised in the middle of the event loop's own code, an exception can lose a callback that
the loop had just taken off its queue, and the task it would have woken then never ends, cancelled or not. So:

- while a task or a callback runs, blocked or not, it is raised right there: the loop is prepared for that;
- while the loop waits, the loop is asked to call what raises it. Tasks see nothing of it, `run_until_complete` and
  `run_forever` raise UnhandledFaultError, and `asyncio.run` first cancels every task and waits for it, so `finally` blocks
  and `async with` end as they do after Ctrl-C. Cancelling the main task alone, which is what `asyncio.run` does for Ctrl-C,
  would leave it to the program whether the failure is heard of at all.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from monarch._errors import UnhandledFaultError
from monarch._mesh.failures.fault_hook import fault_hook
from monarch._mesh.failures.ledger import MeshFailure
from monarch._runtime.event_loops import running_loop
from monarch._runtime.future import Slot
from monarch._runtime.loop import start_thread

if TYPE_CHECKING:
    import asyncio

WAYS_OUT = (
    "No call was there to raise it. What handles such a failure: `except SupervisionError` around the call that waits for "
    "the actor, monarch.actor.unhandled_fault_hook, `__supervise__` of the actor that owns the mesh, or a RestartPolicy at "
    "spawn; see docs/reliability.md"
)
_SIGNAL = signal.SIGURG
_AGAIN = 1.0  # seconds after which a main thread that has not heard of a fault is told again
_TOGETHER = 10.0  # seconds at most in which a further fault waits for the end of the one that was raised


class Fault:
    """A failure on its way to the main thread: its report, and the report under its heading, as stderr shows it."""

    __slots__ = ("block", "put_off", "report", "shown")

    def __init__(self, report: str, block: str) -> None:
        self.report = report
        self.block = block
        self.shown = False
        self.put_off = False


class Frontend(Protocol):
    """An interactive shell: it runs cells, shows what they raise, and must live on whatever happens."""

    cell: CodeType  # of the function that runs a cell: what it calls is the cell's
    kinds: tuple[type[BaseException], ...]  # what a fault is while it ends a cell, besides UnhandledFaultError

    def raising(self, error: UnhandledFaultError, block: str) -> None:
        """`error` is about to be raised in the cell; if the cell does not show it, `block` is to be shown."""

    def interrupt(self, error: UnhandledFaultError, block: str) -> bool:
        """Ends a cell that awaits something with `error`; False when there is none."""

    def show(self, number: int, text: str) -> None:
        """Prints under the last cell."""


class Raised:
    """The moment at which a fault last reached the main thread. Pure.

    Faults come in groups: one host dies, and each of its meshes fails. Those that come while the first is handled are
    shown and no more. Where that is over, but its exception still exists, somebody may be about to end the program
    because of it (pytest prints its summary), or may just keep it: the next fault waits a little.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._error: weakref.ref[UnhandledFaultError] | None = None

    def now(self, time: float, error: UnhandledFaultError | None) -> None:
        """`error` is raised; without one it became a SIGINT, and what comes of that nobody can see."""
        self._until = time + _TOGETHER
        self._error = None if error is None else weakref.ref(error)

    def as_interrupt(self, time: float) -> bool:
        """True if a SIGINT was sent a short while ago."""
        return time < self._until and self._error is None

    def exists(self, time: float) -> bool:
        """True if an exception was raised a short while ago and still exists."""
        return time < self._until and self._error is not None and self._error() is not None

    def over(self) -> None:
        self._until = 0.0


class Repeats:
    """The last failure that was reported: one cause, told by each rank of a mesh, is reported in full once. Pure."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def shortened(self, failure: MeshFailure, block: str) -> str:
        """`block`, the report as it is shown; or a line, when the one before said the same of other ranks of the mesh."""
        # The first line names the actor; of a constructor that raises, the rest is the same on each rank.
        cause = (failure.mesh_name, failure.report().partition("\n")[2])
        last, self._last = self._last, cause
        if cause != last or not failure.crashed_ranks or not cause[1]:
            return block
        return f"The same failure on rank(s) {', '.join(map(str, failure.crashed_ranks))} of {failure.mesh_name}\n"


class Faults:
    """The failures that reach the root client of this process, and what becomes of them."""

    def __init__(self) -> None:
        self.front: Frontend | None = None
        self._queue: queue.SimpleQueue[MeshFailure | Fault | Slot | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._pending: Fault | None = None  # set by our thread, taken by the main thread
        self._raised = Raised()
        self._repeats = Repeats()
        self.ending = False  # an UnhandledFaultError ends the program: nothing more is raised

    # --- any thread

    def listen(self) -> None:
        """Lets the main thread hear of faults. Does nothing on another thread, or when SIGURG has a handler."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            try:
                signal.signal(_SIGNAL, self._on_signal)
            except ValueError:  # an interpreter embedded in a program that keeps signals to itself
                pass

    def start(self) -> None:
        """Once there is a client. (Not at the first failure: Python 3.12 starts no thread at exit.)"""
        self.listen()
        self._thread = start_thread(self._run, "monarch-fault")

    def stop(self, timeout: float) -> None:
        """Ends it, when the client is closed. A thread that waits for ever would keep alive what the program's end is
        to free."""
        self._stopped = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def report(self, failure: MeshFailure) -> None:
        """A failure nobody supervised. Never blocks; each is handled after the one before it."""
        self._queue.put(failure)

    def drain(self, timeout: float) -> bool:
        """Waits until what was reported so far has been shown and is settled; False if it takes over `timeout` seconds."""
        settled = Slot()
        self._queue.put(settled)
        return settled.wait(timeout)

    def over(self) -> None:
        """A fault that was raised before is over; the next one is another matter."""
        self._raised.over()

    def is_interrupting(self) -> bool:
        """True if a KeyboardInterrupt that comes now is a fault that was handed over as a Ctrl-C."""
        return self._raised.as_interrupt(time.monotonic())

    # --- our thread

    def _run(self) -> None:
        waiting: list[Slot] = []
        while not self._stopped:
            pending = self._pending is not None
            while waiting and not pending and self._queue.empty():
                waiting.pop().set()
            try:
                item = self._queue.get(timeout=_AGAIN if pending else None)
            except queue.Empty:
                self._remind()
                continue
            if isinstance(item, Slot):
                waiting.append(item)
            elif isinstance(item, Fault):
                self._show(item)
            elif item is not None:
                self._ask(item)

    def _ask(self, failure: MeshFailure) -> None:
        """Asks `monarch.actor.unhandled_fault_hook`; what it raises makes the failure the main thread's."""
        try:
            fault_hook()(failure)
        except BaseException as exc:
            text = self._repeats.shortened(failure, _block(failure, exc))
            self._tell(Fault(f"{failure.report()}\n{WAYS_OUT}", text))

    def _tell(self, fault: Fault) -> None:
        if self.front is None:
            self._show(fault)
        if self._pending is None:
            self._pending = fault
            self._signal()
        else:  # the main thread is about to hear of another
            self._show(fault)

    def _show(self, fault: Fault) -> None:
        if fault.shown:
            return
        fault.shown = True
        try:
            if self.front is None:
                sys.stderr.write(fault.block)
                sys.stderr.flush()
            else:
                self.front.show(2, fault.block)
        except Exception:  # closed, or None under pythonw; what a program put there may raise anything
            return

    def _signal(self) -> None:
        if signal.getsignal(_SIGNAL) == self._on_signal:
            _kill_main(_SIGNAL)
        elif not self._raised.as_interrupt(time.monotonic()):
            self._interrupt()
        else:
            self._pending = None

    def _interrupt(self) -> None:
        """Hands the fault over as a Ctrl-C."""
        _watch_uncaught()
        self._took(None)
        _kill_main(signal.SIGINT)

    def _remind(self) -> None:
        """The main thread has not taken the fault: it is in native code, or was where an exception would be lost."""
        if self._pending is None:
            return
        if _in_sigwait(threading.main_thread().native_id):
            self._interrupt()
        else:
            self._signal()

    # --- the main thread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        error = self._error_for(frame)
        if error is not None:
            try:
                raise error  # from here: one line of ours at the end of the traceback is enough
            finally:
                del error  # the traceback would keep it, and it the traceback

    def _error_for(self, frame: FrameType | None) -> UnhandledFaultError | None:
        """Returns what is to be raised at `frame`. None when nothing is, or it comes in another way, or later."""
        fault, front = self._pending, self.front
        if fault is None or _in_destructor(frame):
            return None
        if not fault.put_off and _in_wire(frame):
            fault.put_off = True
            return None
        if self._disturbs(frame):
            self._put_aside(fault)
            return None
        if self._raised.exists(time.monotonic()):
            return None
        if front is None:
            return self._in_program(fault, frame)
        if inside(front.cell, frame):
            return self._in_cell(front.cell, fault, frame)
        error = UnhandledFaultError(fault.report)
        if front.interrupt(error, fault.block):
            self._took(error)
        else:  # no cell runs: there is nothing to interrupt
            self._put_aside(fault)
        return None

    def _disturbs(self, frame: FrameType | None) -> bool:
        """True if the main thread is busy with an earlier fault, or with its end."""
        kinds: tuple[type[BaseException], ...] = (UnhandledFaultError,)
        if self.front is not None:
            kinds += self.front.kinds
        if self.ending or self._raised.as_interrupt(time.monotonic()) or _has_part(sys.exc_info()[1], kinds):
            return True
        if inside(_Excepthook.__call__.__code__, frame):
            return True
        joins_threads = inside(threading._shutdown.__code__, frame)  # type: ignore[attr-defined]
        return not threading.main_thread().is_alive() and not joins_threads

    def _put_aside(self, fault: Fault) -> None:
        self._queue.put(fault)  # shown by our thread: this one may be in the middle of writing
        self._pending = None

    def _in_program(self, fault: Fault, frame: FrameType | None) -> UnhandledFaultError | None:
        if has_own_handler():
            _watch_uncaught()
            self._took(None)
            signal.raise_signal(signal.SIGINT)
            return None
        _watch_uncaught()
        if not threading.main_thread().is_alive():  # the program is over but for its threads
            self.ending = True
            atexit.register(_end_with_status_1)
        return self._beside_loop(fault, frame)

    def _in_cell(self, cell: CodeType, fault: Fault, frame: FrameType | None) -> UnhandledFaultError | None:
        for each in _outwards(frame):
            if each.f_code is cell:
                break
            if _module(each) == "asyncio.base_events":  # the cell runs a loop of its own
                return self._beside_loop(fault, frame)
        return self._error(fault)

    def _beside_loop(self, fault: Fault, frame: FrameType | None) -> UnhandledFaultError | None:
        loop = running_loop()
        if loop is None:
            return self._error(fault)
        if not _runs_program(frame, loop):
            loop.call_soon_threadsafe(self._raise_in_loop, fault)
            return None
        task = current_task(loop)
        if task is not None:  # asyncio.run does not look at it, and would report it a second time
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._error(fault)

    def _raise_in_loop(self, fault: Fault) -> None:
        if self._pending is fault:
            raise self._error(fault)

    def _error(self, fault: Fault) -> UnhandledFaultError:
        error = UnhandledFaultError(fault.report)
        if self.front is not None:
            self.front.raising(error, fault.block)
        self._took(error)
        return error

    def _took(self, error: UnhandledFaultError | None) -> None:
        self._raised.now(time.monotonic(), error)
        self._pending = None
        self._queue.put(None)  # our thread need not wait for the time of its next reminder


def _block(failure: MeshFailure, exc: BaseException) -> str:
    import datetime
    import socket
    import traceback

    when = datetime.datetime.now().isoformat(sep=" ", timespec="milliseconds")
    text = (
        f"Unhandled monarch error on the root actor, hostname={socket.gethostname()}, PID={os.getpid()} at time {when}:\n"
        f"{failure.report()}\n"
    )
    if not isinstance(exc, SystemExit):
        text += "unhandled_fault_hook raised:\n" + "".join(traceback.format_exception(exc))
    return f"{text}{WAYS_OUT}\n"


# --- where the main thread is


def _kill_main(number: int) -> None:
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, number)


def _in_sigwait(thread: int | None) -> bool:
    """True if the thread sits in `signal.sigwait`, which no handler interrupts: such a program takes SIGINT by waiting
    for it. The kernel says where a thread sleeps, where it may be asked."""
    try:
        with open(f"/proc/self/task/{thread}/wchan") as file:
            return "sigtimedwait" in file.read()
    except OSError:
        return False


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def inside(code: CodeType, frame: FrameType | None) -> bool:
    """True if the function of `code` runs, and what it called is at `frame` now."""
    return any(each.f_code is code for each in _outwards(frame))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _of_asyncio(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] == "asyncio"


def _in_destructor(frame: FrameType | None) -> bool:
    """True if an exception raised here would be printed as "ignored", and lost."""
    finalize = weakref.finalize.__call__.__code__
    return any(each.f_code.co_name == "__del__" or each.f_code is finalize for each in _outwards(frame))


def _in_wire(frame: FrameType | None) -> bool:
    """True if a message is just being written: half of one on a connection would spoil the rest. It takes no time,
    unless the other side takes nothing; so this is a reason to come back once."""
    return any(_module(each).startswith("monarch._wire.") for each in _outwards(frame))


def _has_part(exc: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """True if this is one of `kinds`, or was raised while one was handled."""
    seen: set[int] = set()
    found = [exc]
    while found:
        each = found.pop()
        if isinstance(each, kinds):
            return True
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            found += [each.__cause__, each.__context__]
    return False


def current_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    """The task whose step runs in the loop of this thread; None while the loop itself does."""
    task: asyncio.Task[Any] | None = sys.modules["asyncio.tasks"].current_task(loop)
    return task


def _runs_program(frame: FrameType | None, loop: asyncio.AbstractEventLoop) -> bool:
    """True if a task or a callback runs in this thread's loop, and is not itself in asyncio's code."""
    if frame is None or _of_asyncio(frame):
        return False
    if current_task(loop) is not None:
        return True
    caller = next((each for each in _outwards(frame) if _of_asyncio(each)), None)
    return caller is not None and caller.f_code is sys.modules["asyncio.events"].Handle._run.__code__


def has_own_handler() -> bool:
    """True if the program says itself what SIGINT does. Ignoring it, or leaving it to the system, says nothing."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    of_asyncio = isinstance(handler, partial) and getattr(handler.func, "__module__", "") == "asyncio.runners"
    return not of_asyncio


# --- the end of the program


class _Excepthook:
    """Lets an UnhandledFaultError that nobody caught be the last word of a program, and its status 1: that of an exception,
    never that of Ctrl-C. The interpreter would end by SIGINT (status 130 in a shell): for the bare KeyboardInterrupt that a
    fault becomes where SIGURG cannot be used, and from Python 3.14 on for a subclass as well."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        interactive = hasattr(sys, "ps1") or sys.flags.interactive or sys.flags.inspect
        interrupted = isinstance(exc, KeyboardInterrupt) and faults.is_interrupting()
        ends = (isinstance(exc, UnhandledFaultError) or interrupted) and not interactive
        faults.ending = faults.ending or ends
        self._before(kind, exc, trace)
        if sys.version_info >= (3, 14):
            if ends and sys.exc_info()[1] is not exc:  # it is the interpreter that asks, not a program that caught it
                _flush_files()
                raise SystemExit(1)
        elif ends and interrupted:
            _forget_interrupt()


def _watch_uncaught() -> None:
    if not isinstance(sys.excepthook, _Excepthook):
        sys.excepthook = _Excepthook(sys.excepthook)


def _flush_files() -> None:
    """Writes what files hold back that the program has not closed: an end by SystemExit from a hook leaves its variables as
    they are."""
    for each in gc.get_objects():
        if isinstance(each, io.TextIOWrapper):
            try:
                each.flush()
            except Exception:  # closed, or its disk is full: the end goes on
                pass


def _forget_interrupt() -> None:
    """The interpreter would end by SIGINT (status 130 in a shell), because the last code it ran from the outside raised
    KeyboardInterrupt. So code is run that does not; the status is 1 then."""
    import ctypes

    ctypes.pythonapi.PyRun_SimpleString(b"0")


def _end_with_status_1() -> None:
    """At exit, for a fault after the program's last line: no exception can change its status any more. What else is to run
    at exit runs first."""
    atexit.unregister(_end_with_status_1)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or None
            pass
    os._exit(1)


faults = Faults()
