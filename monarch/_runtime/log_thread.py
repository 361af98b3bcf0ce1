"""Log records of the I/O thread, on a thread of its own: handlers of logs are the program's code. They may block, raise, or
call actors, which needs the I/O thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from monarch._linux.locks import RLock
from monarch._runtime.internal_errors import REPORTER

KEPT = 1000  # records that wait for a handler that blocks; more are left out, and that is logged

_waiting: deque[Callable[[], None]] = deque()
_lock = RLock()  # a finalizer may have something to say in the midst of it
_thread: threading.Thread | None = None
_left_out = 0


def log(logger: logging.Logger, level: int, text: str, *args: object) -> None:
    """`logger.log`, soon. Any thread; never waits, never raises."""
    aside(partial(logger.log, level, text, *args))


def aside(say: Callable[[], None]) -> None:
    """Calls `say`, which logs, on the thread for logs: it is there while there is something to say."""
    global _left_out, _thread
    with _lock:
        if len(_waiting) >= KEPT:
            _left_out += 1
            return
        _waiting.append(say)
        if _thread is None:
            try:
                thread = threading.Thread(target=_run, name="monarch-log", daemon=True)
                thread.start()
                _thread = thread
            except RuntimeError as exc:  # no more threads
                _waiting.clear()
                REPORTER.report("the way to a log", exc)


def flush(timeout: float) -> bool:
    """Waits until nothing is left to be logged. False after `timeout` seconds."""
    thread = _thread
    if thread is not None:
        thread.join(timeout)
        return not thread.is_alive()
    return True


def _after_fork() -> None:
    """A forked child has none of the threads, and somebody may have held the lock."""
    global _lock, _thread, _waiting
    _lock, _thread, _waiting = RLock(), None, deque()


os.register_at_fork(after_in_child=_after_fork)


def _run() -> None:
    global _left_out, _thread
    while True:
        with _lock:
            if not _waiting:
                _thread = None
                return
            say = _waiting.popleft()
            left_out, _left_out = _left_out, 0
        try:
            if left_out:
                logging.getLogger("monarch").warning("%d log records were left out: a handler was too slow", left_out)
            say()
        except Exception as exc:
            REPORTER.report("the thread for logs", exc)
