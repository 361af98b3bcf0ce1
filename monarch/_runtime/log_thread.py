"""What the I/O thread has to log, on a thread of its own: handlers of logs are the program's code. They may block, raise, or
call actors, which needs the I/O thread.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial

from monarch._runtime.internal_errors import REPORTER
from monarch._runtime.loop import start_thread

KEPT = 1000  # records that wait for a handler that blocks; more are left out, and that is logged

_waiting: queue.Queue[Callable[[], None]] = queue.Queue(KEPT)
_lock = threading.Lock()
_thread: threading.Thread | None = None
_left_out = 0


def log(logger: logging.Logger, level: int, text: str, *args: object) -> None:
    """`logger.log`, soon. Any thread; never waits, never raises."""
    aside(partial(logger.log, level, text, *args))


def aside(say: Callable[[], None]) -> None:
    """Calls `say`, which logs, on the thread for logs."""
    global _left_out, _thread
    try:
        with _lock:
            if _thread is None or not _thread.is_alive():
                _thread = start_thread(_run, "monarch-log")
        _waiting.put_nowait(say)
    except queue.Full:
        _left_out += 1
    except RuntimeError as exc:  # no more threads
        REPORTER.report("the way to a log", exc)


def flush(timeout: float) -> bool:
    """Waits until what was said before is logged. False after `timeout` seconds."""
    done = threading.Event()
    if _thread is None or not _thread.is_alive():
        return True
    try:
        _waiting.put(done.set, timeout=timeout)
    except queue.Full:
        return False
    return done.wait(timeout)


def _after_fork() -> None:
    """A forked child has none of the threads, and somebody may have held the lock."""
    global _lock, _thread, _waiting
    _lock, _thread, _waiting = threading.Lock(), None, queue.Queue(KEPT)


os.register_at_fork(after_in_child=_after_fork)


def _run() -> None:
    global _left_out
    while True:
        say = _waiting.get()
        try:
            say()
            left_out, _left_out = _left_out, 0
            if left_out:
                logging.getLogger("monarch").warning("%d log records were left out: a handler was too slow", left_out)
        except Exception as exc:
            REPORTER.report("the thread for logs", exc)
