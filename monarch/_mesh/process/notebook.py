"""The client in IPython and Jupyter: what processes print comes out under the cell that was running, and a failure that
nobody handles ends the cell, never the kernel.

Settings turn on log forwarding there, so output comes through the agent to the client's printer thread. A
Jupyter kernel files each piece of output under a cell by a context variable, which a thread of ours does not
have; so the printer writes in a copy of the context of the cell that ran last. After each cell the output is
flushed, so that it is complete before the next one.

The report of a fault is shown once: by the traceback of the cell, else by itself on stderr. Without a running cell there
is nothing to interrupt: the report is shown, and that is all.

Loaded only where IPython is; imports nothing of it.
"""

from __future__ import annotations

import contextvars
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from monarch._errors import UnhandledFaultError
from monarch._mesh.failures.main_thread import current_task, faults, inside
from monarch._mesh.output.printer import Printer
from monarch._mesh.process.cell_waits import CellWatch
from monarch._runtime.event_loops import let_block, running_loop
from monarch._runtime.future import Future

if TYPE_CHECKING:
    import asyncio

    from monarch._runtime.proc import Proc

_FLUSH = 1.0  # seconds a cell's end may be held up by output; what is late comes out under the next cell


def attach(printer: Printer, proc: Proc) -> None:
    """Follows the cells of the interactive shell of this process, if it has one. `proc`: the client's."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    if shell is not None:
        faults.front = NotebookFrontend(printer, proc, shell)


class NotebookFrontend:
    """Does what is to be done around each cell, and brings faults into them."""

    def __init__(self, printer: Printer, proc: Proc, shell: Any) -> None:
        self._printer = printer
        self._proc = proc
        self._shell = shell
        self._watch = CellWatch(proc.ports.entries)
        self._print = printer.show
        printer.show = self.show
        self.cell: CodeType = shell.run_code.__code__
        self.kinds: tuple[type[BaseException], ...] = ()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled: Cancelled | None = None
        self._unshown: tuple[UnhandledFaultError, str] | None = None
        self._begins()
        shell.events.register("pre_run_cell", self._on_begin)
        shell.events.register("post_run_cell", self._on_end)

    def _on_begin(self, info: Any) -> None:
        faults.over()
        self._begins()

    def _begins(self) -> None:
        self._context = contextvars.copy_context()
        self._watch.begins(self._context.copy())
        loop = running_loop()
        self._task = None if loop is None else current_task(loop)
        let_block(loop)
        _watch_interrupts(self.cell)

    def _on_end(self, result: Any) -> None:
        self._watch.ends()
        self._show_unshown(result)
        if self._proc.closed is None:
            self._printer.flush(_FLUSH)

    def show(self, number: int, text: str) -> None:
        self._context.run(self._print, number, text)

    # --- faults

    def raising(self, error: UnhandledFaultError, block: str) -> None:
        self._unshown = error, block

    def interrupt(self, error: UnhandledFaultError, block: str) -> bool:
        """A cell that awaits something is cancelled: an exception of another kind cannot be thrown into a task, nor out of
        the event loop, which is the kernel's. What the cancelled cell then shows is `error`."""
        task = self._task
        if task is None or not _awaits_in(self.cell, task):
            return False
        self._unshown = error, block
        task.get_loop().call_soon_threadsafe(self._cancel, task, error)
        return True

    def _cancel(self, task: asyncio.Task[Any], error: UnhandledFaultError) -> None:
        if self._unshown is not None and self._unshown[0] is error and _awaits_in(self.cell, task):
            self.kinds = (sys.modules["asyncio"].CancelledError,)
            self._cancelled = Cancelled(self._shell, self.kinds, error)
            task.cancel()

    def _show_unshown(self, result: Any) -> None:
        """The cell may have caught the fault, or ended just before it."""
        unshown, self._unshown = self._unshown, None
        cancelled, self._cancelled, self.kinds = self._cancelled, None, ()
        if cancelled is not None:
            cancelled.over(result)
        if unshown is not None and not _in_chain(unshown[0], getattr(result, "error_in_exec", None)):
            self.show(2, unshown[1])


class Cancelled:
    """Makes the shell show a fault where a cell ends with CancelledError."""

    def __init__(self, shell: Any, kinds: tuple[type[BaseException], ...], error: UnhandledFaultError) -> None:
        self._shell = shell
        self._error = error
        self._shown = False
        self._before = shell.custom_exceptions, shell.CustomTB
        shell.set_custom_exc(kinds, self._show)

    def _show(
        self, shell: Any, kind: type[BaseException], exc: BaseException, trace: Any, tb_offset: Any = None
    ) -> None:
        error = self._error.with_traceback(trace)
        shell.showtraceback((type(error), error, trace), tb_offset=tb_offset)
        self._shown = True

    def over(self, result: Any) -> None:
        self._shell.custom_exceptions, self._shell.CustomTB = self._before
        if self._shown and result is not None:
            result.error_in_exec = self._error


def _awaits_in(cell: CodeType, task: asyncio.Task[Any]) -> bool:
    """True if the task is suspended, and in a cell."""
    coroutine: Any = task.get_coro()
    while coroutine is not None and getattr(coroutine, "cr_code", None) is not cell:
        coroutine = getattr(coroutine, "cr_await", None)
    return getattr(coroutine, "cr_await", None) is not None


def _in_chain(error: BaseException, exc: BaseException | None) -> bool:
    seen: set[int] = set()
    while exc is not None and exc is not error and id(exc) not in seen:
        seen.add(id(exc))
        exc = exc.__cause__ or exc.__context__
    return exc is error


def _watch_interrupts(cell: CodeType) -> None:
    """Jupyter sets a handler of SIGINT for each cell. The one for cells with `await` only tells the event loop, which hears
    nothing while `get()` blocks it, nor while it waits for events; so ours stands before it."""
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGINT)
    if callable(before) and before is not signal.default_int_handler and not isinstance(before, _Before):
        signal.signal(signal.SIGINT, _Before(before, cell))


class _Before:
    """A handler of SIGINT: interrupts a `get()` that blocks a cell, else leaves it to the handler it replaced, and wakes the
    loop."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any], cell: CodeType) -> None:
        self._handler = handler
        self._cell = cell

    def __call__(self, number: int, stack: FrameType | None) -> None:
        if inside(Future.get.__code__, stack) and inside(self._cell, stack):
            signal.default_int_handler(number, stack)
        self._handler(number, stack)
        loop = running_loop()
        if loop is not None:  # what a handler hands to the loop that it interrupts is found when the next event comes
            loop.call_soon_threadsafe(_nothing)


def _nothing() -> None:
    """Does nothing: the call wakes a loop that waits."""
