"""Ctrl-C and other signals, told from what the code that they interrupt raises itself.

A signal handler runs in the main thread, between any two steps of the code there, and may raise: KeyboardInterrupt,
SystemExit, or any other. Code that runs code of others and must not end with it (unpickling) lets those pass, and only those.
"""

from __future__ import annotations

import functools
import opcode
import signal
import threading
from types import CodeType, TracebackType
from typing import Any

_RAISES = frozenset(opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


def is_interrupt(exc: BaseException) -> bool:
    """Returns whether a handler of signals raised `exc` in this thread. False for what is raised by a statement of the
    code that ran; True where it cannot be told."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers, unknown = _handlers()
    trace: TracebackType | None = exc.__traceback__
    last = trace
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        last, trace = trace, trace.tb_next
    if last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISES:
        return False
    return unknown or type(exc) is KeyboardInterrupt  # default_int_handler leaves no frame


def named(exc: KeyboardInterrupt, awaited: str) -> KeyboardInterrupt:
    """Returns the Ctrl-C that ended a wait, with what was waited for, and without the frames of the wait."""
    if type(exc) is not KeyboardInterrupt or exc.args:  # a handler's own
        return exc
    if awaited:
        exc.args = (f"while it waited for a result{awaited}",)
    return exc.with_traceback(None)


def _handlers() -> tuple[set[CodeType], bool]:
    """The code of the handlers that are set now, and whether there is one that has none to be known by."""
    found: set[CodeType] = set()
    unknown = False
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if handler is None or isinstance(handler, int) or handler is signal.default_int_handler:
            continue  # not Python's, default, ignored
        while isinstance(handler, functools.partial):
            handler = handler.func
        function: Any = handler if hasattr(handler, "__code__") else type(handler).__call__
        code = getattr(function, "__code__", None)
        if code is None:
            unknown = True
        else:
            found.add(code)
    return found, unknown
