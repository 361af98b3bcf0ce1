"""The line of the program at which a blocked thread or task stands: found from outside, when somebody asks.

A line is (file, line number, function). Lines of the runtime itself and of the standard library's machinery for threads,
tasks and debuggers are left out: they are the same for everybody.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from monarch._errors import PACKAGE

Line = tuple[str, int, str]

_ASYNCIO = os.path.join(os.path.dirname(os.path.abspath(threading.__file__)), "asyncio", "")  # not imported for this
_POOLS = os.path.join(os.path.dirname(_ASYNCIO[:-1]), "concurrent", "futures", "")
_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__))
_DEBUGGER = tuple(os.path.join(_LIBRARY, name) for name in ("bdb.py", "pdb.py", "cmd.py"))  # below a breakpoint
_HIDDEN = (PACKAGE, _ASYNCIO, _POOLS, os.path.abspath(threading.__file__), *_DEBUGGER, "<frozen ")
_DEEPEST = 1000  # frames looked at; of a deeper stack the innermost


def of_thread(frame: FrameType | None) -> list[Line]:
    """The program's lines of a thread, outermost first; `frame` is what it runs now."""
    return _shown(map(line_of, frames_of_thread(frame)))


def frames_of_thread(frame: FrameType | None) -> list[FrameType]:
    """All frames of a thread, outermost first; `frame` is what it runs now."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _DEEPEST:
        found.append(frame)
        frame = frame.f_back
    found.reverse()
    return found


def caller() -> Line | None:
    """The innermost line of the program in this thread; None in a thread of the runtime."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return None if frame is None else line_of(frame)


def of_task(task: Any) -> list[Line]:
    """The program's lines of a suspended asyncio task, outermost first."""
    return _shown(map(line_of, frames_of_task(task)))


def frames_of_task(task: Any) -> list[FrameType]:
    """All frames of a suspended asyncio task, outermost first."""
    found: list[FrameType] = []
    awaiting = task.get_coro()
    while awaiting is not None and len(found) < _DEEPEST:
        frame, awaiting = _suspended(awaiting)
        if frame is not None:
            found.append(frame)
    return found


def is_running(task: Any) -> bool:
    """True if a thread executes the task at this moment: then its lines are the thread's."""
    return bool(getattr(task.get_coro(), "cr_running", False))


def _suspended(awaitable: Any) -> tuple[FrameType | None, Any]:
    """The frame of a coroutine, generator or async generator, and what that one awaits."""
    for prefix, link in (("cr_", "await"), ("gi_", "yieldfrom"), ("ag_", "await")):
        if hasattr(awaitable, prefix + "frame"):
            return getattr(awaitable, prefix + "frame"), getattr(awaitable, prefix + link)
    return None, None


def line_of(frame: FrameType) -> Line:
    """Returns file, line and function of a frame."""
    code = frame.f_code
    return code.co_filename, frame.f_lineno or 0, code.co_qualname  # between two lines it has none


def is_hidden(file: str) -> bool:
    """True if a file is the runtime's, or of the machinery for threads and tasks."""
    return file.startswith(_HIDDEN)


def of_program(files: Sequence[str]) -> list[int]:
    """Returns which of the frames of a stack, outermost first, are the program's, by their files. `<string>` above the
    runtime is the command with which a process of ours begins."""
    found = [index for index, file in enumerate(files) if not is_hidden(file)]
    if found[:1] == [0] and files[0] == "<string>" and len(files) > 1 and is_hidden(files[1]):
        del found[0]
    return found


def _shown(lines: Iterable[Line]) -> list[Line]:
    given = list(lines)
    return [given[index] for index in of_program([line[0] for line in given])]


def formatted(lines: Iterable[Line]) -> str:
    """Formats lines as in a traceback, with the text of the source lines where it can be read. Reads files."""
    import linecache

    shown = []
    for file, number, function in lines:
        shown.append(f'  File "{file}", line {number}, in {function}\n')
        text = linecache.getline(file, number).strip()
        if text:
            shown.append(f"    {text}\n")
    return "".join(shown)
