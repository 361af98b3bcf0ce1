"""An error of a handler of signals, at any step of the code that it interrupts."""

from __future__ import annotations

import ctypes
import itertools
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import monarch
from monarch._runtime import leader
from tests.support.patience import TIMEOUT

_CODE = str(Path(monarch.__file__).parent)
_SIGNAL = signal.SIGUSR2
_TOOL = 4  # of sys.monitoring; debuggers, coverage and profilers have others
_raise = ctypes.PyDLL(None)["raise"]  # Python itself does not look whether a signal came: it does so at its next step


class Interrupted(KeyboardInterrupt):
    """The error that the handler raises."""


class Steps:
    """`at(n)`: a signal comes right before the n-th instruction of monarch's code in this thread, counted from 0; its handler
    raises, or calls `handle`, where Python next looks for signals. Finalizers are not interrupted. `came` says whether there
    were as many.

    Up to Python 3.11 a trace function counts. Since 3.12 it hears nothing of a first run; sys.monitoring does.
    """

    def __init__(self) -> None:
        self.came = False
        self._left = 0
        self._thread = 0

    @contextmanager
    def at(self, step: int, handle: Callable[[], object] | None = None) -> Iterator[None]:
        self.came = False
        self._left = step
        before = signal.signal(_SIGNAL, _raise_interrupted if handle is None else lambda *_: handle())
        unraisable = sys.unraisablehook
        sys.unraisablehook = _drop  # Python lets no exception out of a finalizer
        try:
            with self._monitored() if sys.version_info >= (3, 12) else self._traced():
                yield
        finally:
            sys.unraisablehook = unraisable
            signal.signal(_SIGNAL, before)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        tracing = sys.gettrace()
        leader.gettrace = _no_trace  # what we count steps with is no debugger
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(tracing)
            leader.gettrace = sys.gettrace

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._thread = threading.get_ident()
        monitoring.use_tool_id(_TOOL, "steps")
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, self._on_instruction)
        monitoring.restart_events()
        monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
        try:
            yield
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(_TOOL)

    def _on_instruction(self, code: CodeType, offset: int) -> Any:
        if not code.co_filename.startswith(_CODE):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        if self.came or threading.get_ident() != self._thread or _finalizes(sys._getframe(1)):
            return None
        if self._left:
            self._left -= 1
            return None
        self.came = True
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)  # at its next call Python would look
        (_,) = map(_raise, (_SIGNAL,))  # and nothing follows behind which Python would look for signals
        return None

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.came or not frame.f_code.co_filename.startswith(_CODE) or _finalizes(frame):
            return None
        frame.f_trace_opcodes = True
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and not self.came:
            if not self._left:
                self.came = True
                sys.settrace(None)
                (_,) = map(_raise, (_SIGNAL,))  # and nothing follows behind which Python would look for signals
                return None
            self._left -= 1
        return self._on_step


_SHORT = 30  # passes in turn in which a step has not come, until it is believed that there are no more


def each_step(steps: Steps) -> Iterator[tuple[int, int]]:
    """Yields (number of the pass, step to interrupt) for every step that there is, each until it has come. On a busy machine
    a pass may be a short one, where another thread was quicker."""
    step = short = 0
    for number in itertools.count():
        yield number, step
        if steps.came:
            step, short = step + 1, 0
        elif short == _SHORT:
            return
        else:
            short += 1


def interrupted_calls(books: Any, act: Callable[[Any, int], None], every: int) -> Iterator[tuple[int, int, list[int]]]:
    """`act(books, number + 1)` after a broadcast of `number`, interrupted at each `every`-th step until it has no more.
    Yields (step, number, what a rank has noted by then) for each rank; `books` have the endpoints `note` and `read`."""
    steps = Steps()
    step, number = 0, 0
    while steps.came or not step:
        books.note.broadcast(number)
        try:
            with steps.at(step):
                act(books, number + 1)
        except Interrupted:
            pass
        for notes in books.read.call().get(TIMEOUT).values():
            yield step, number, notes
        step, number = step + every, number + 2


def _finalizes(frame: FrameType | None) -> bool:
    """Returns whether Python would print what is raised here and go on: half a finalizer is all that has run then."""
    while frame is not None:
        if frame.f_code is weakref.finalize.__call__.__code__ or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _no_trace() -> None:
    return None


def _drop(unraisable: object) -> None:
    return None
