"""A child that is waited for, and that counts as dead once it was stopped for too long."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable


def wait_unless_stopped(child: subprocess.Popen[bytes], limit: float, tell: Callable[[int], object]) -> int:
    """Waits until the child has ended. One that is stopped (SIGSTOP, Ctrl-Z) for `limit` seconds in one go is killed; 0 is
    for ever. What a debugger stops is not. Returns the signal that it was stopped by when that killed it, else 0.

    `tell` is called with the signal each time that it is stopped; it must not wait.
    """
    if not limit:
        child.wait()
        return 0
    killed = 0
    timer: threading.Timer | None = None

    def kill(number: int) -> None:
        nonlocal killed
        killed = number
        child.kill()

    while not _has_ended(child):
        # What it did last: it may go on again since the wait began.
        seen = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        if seen is None:
            continue
        if timer is not None:
            timer.cancel()
            timer = None
        if seen.si_code == os.CLD_STOPPED:
            timer = threading.Timer(limit, kill, (seen.si_status,))
            timer.daemon = True
            timer.start()
            tell(seen.si_status)
    if timer is not None:
        timer.cancel()
    child.wait()
    return killed


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Waits until it ends, is stopped, or goes on. Its end is left for `child.wait()`."""
    try:
        seen = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOWAIT)
    except ChildProcessError:  # another thread has asked for its end: send_signal does
        return True
    return seen is not None and seen.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
