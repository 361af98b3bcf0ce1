"""Frames of the threads of this interpreter, asked for so that asking cannot stop it.

In Python 3.11 `sys._current_frames()` makes objects while it holds the lock under which threads begin and end. A garbage
collection that this sets off may run a weak reference's callback, and with it another thread, which then waits for that lock
for ever, and the asker for the interpreter (https://github.com/python/cpython/issues/106883; 3.12 collects elsewhere).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from operator import call
from types import FrameType
from typing import Any

_WITHOUT_COLLECTING: tuple[Callable[[], Any], ...] = (gc.disable, sys._current_frames, gc.enable)


def thread_frames() -> dict[int, FrameType]:
    """Returns what every thread of this interpreter runs now, by the thread's identifier."""
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    frames: dict[int, FrameType]
    try:
        # In C, at one go: no other thread runs between the three, and none finds the collector disabled.
        _, frames, _ = map(call, _WITHOUT_COLLECTING)
    except BaseException:
        gc.enable()
        raise
    return frames
