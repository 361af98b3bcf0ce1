"""What a handler of signals raises, at any step of the code that it interrupts."""

from __future__ import annotations

import ctypes
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import monarch
from monarch._runtime import leader

_CODE = str(Path(monarch.__file__).parent)
_SIGNAL = signal.SIGUSR2
TIMEOUT = 20
_raise = ctypes.PyDLL(None)["raise"]  # Python itself does not look whether a signal came: it does so at its next step


class Interrupted(KeyboardInterrupt):
    """What the handler raises."""


class Steps:
    """`at(n)`: a signal comes right before the n-th instruction of monarch's code in this thread, counted from 0; its handler
    raises where Python next looks for signals. Finalizers are not interrupted. `came` says whether there were as many."""

    def __init__(self) -> None:
        self.came = False
        self._left = 0

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        self.came = False
        self._left = step
        before = signal.signal(_SIGNAL, _raise_interrupted)
        tracing, unraisable = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = _drop  # Python lets no exception out of a finalizer
        leader.gettrace = _no_trace  # what we count steps with is no debugger
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(tracing)
            leader.gettrace = sys.gettrace
            sys.unraisablehook = unraisable
            signal.signal(_SIGNAL, before)

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
    """Whether Python would print what is raised here and go on: half a finalizer is all that has run then."""
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
