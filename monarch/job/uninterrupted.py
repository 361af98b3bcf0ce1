"""Steps that Ctrl-C must not cut in two, such as an order whose number is not known yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class InterruptedAfterwardsError(Exception):
    """Ctrl-C came during the step, which has been done."""


def run(step: Callable[[], None]) -> None:
    """Does the step as a whole: an interrupt is noted, and raised as InterruptedAfterwardsError when the step is done; so the
    step has to be bounded. What it raises itself is raised. A handler of the program's own is called after the step.

    Processes that the step starts and waits for need a session of their own: Ctrl-C goes to all of the terminal's.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        step()  # no interrupt comes here
        return
    noted: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append((number, frame)))
    try:
        step()
    finally:
        signal.signal(signal.SIGINT, handler)
    if noted and handler is signal.default_int_handler:
        raise InterruptedAfterwardsError
    if noted:
        handler(*noted[0])
