"""Where a blocked thread or task stands in the program: found from outside, when somebody asks.

A line is (file, line number, function). Lines of the runtime itself and of the standard library's machinery for threads and
tasks are left out: they are the same for everybody.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

Line = tuple[str, int, str]

_PACKAGE = os.path.join(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")), "")
_ASYNCIO = os.path.join(os.path.dirname(os.path.abspath(threading.__file__)), "asyncio", "")  # not imported for this
_POOLS = os.path.join(os.path.dirname(_ASYNCIO[:-1]), "concurrent", "futures", "")
_HIDDEN = (_PACKAGE, _ASYNCIO, _POOLS, os.path.abspath(threading.__file__), "<frozen ")
_DEEPEST = 1000  # frames looked at; of a deeper stack the innermost


def frames() -> dict[int, FrameType]:
    """What every thread of this interpreter runs now, for `of_thread`."""
    return sys._current_frames()


def of_thread(frame: FrameType | None) -> list[Line]:
    """The program's lines of a thread, outermost first; `frame` is what it runs now."""
    found: list[Line] = []
    while frame is not None and len(found) < _DEEPEST:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return _shown(reversed(found))


def caller() -> Line | None:
    """The innermost line of the program in this thread; None in a thread of the runtime."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def of_task(task: Any) -> list[Line]:
    """The program's lines of a suspended asyncio task, outermost first."""
    found: list[Line] = []
    awaiting = task.get_coro()
    while awaiting is not None and len(found) < _DEEPEST:
        frame, awaiting = _suspended(awaiting)
        if frame is not None:
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
    return _shown(found)


def is_running(task: Any) -> bool:
    """Whether a thread executes the task at this moment: then its lines are the thread's."""
    return bool(getattr(task.get_coro(), "cr_running", False))


def _suspended(awaitable: Any) -> tuple[FrameType | None, Any]:
    """The frame of a coroutine, generator or async generator, and what that one awaits."""
    for prefix, link in (("cr_", "await"), ("gi_", "yieldfrom"), ("ag_", "await")):
        if hasattr(awaitable, prefix + "frame"):
            return getattr(awaitable, prefix + "frame"), getattr(awaitable, prefix + link)
    return None, None


def _shown(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if not line[0].startswith(_HIDDEN)]


def formatted(lines: Iterable[Line]) -> str:
    """As in a traceback, with the text of the source lines where it can be read. Reads files."""
    import linecache

    shown = []
    for file, number, function in lines:
        shown.append(f'  File "{file}", line {number}, in {function}\n')
        text = linecache.getline(file, number).strip()
        if text:
            shown.append(f"    {text}\n")
    return "".join(shown)
