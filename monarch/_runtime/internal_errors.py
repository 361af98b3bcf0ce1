"""Errors that the runtime itself did not expect: said on stderr, within bounds, and never at the cost of another error.

The reporter is in trouble already, and often it is the I/O thread: nothing here raises or waits for a reader of stderr.
What stderr has no room for is not said.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

from monarch._linux.locks import Lock
from monarch._runtime.standard_streams import write_stderr

WINDOW = 10.0  # seconds in which an error is said once, and counted when it comes again
KINDS = 20  # different errors said in a window; others are counted together
SIZE = 8 * 1024  # characters of one report; a longer one lacks its middle
LOOP_ENDED = 4  # exit status of a process whose I/O thread has ended unasked
_LAST_WORDS = 0.2  # seconds that a full stderr gets to take the reason why a process ends


class Throttle:
    """Decides what is said of errors that come again and again. Pure: each method returns the text to write now."""

    def __init__(self) -> None:
        self._again: dict[str, int] = {}  # how often each kind came again in this window
        self._others = 0
        self._ends = 0.0

    def offer(self, kind: str, text: str, now: float) -> str:
        """An error of a kind has come; `text` tells it in full."""
        said = self.end_window(now)
        if not self._again:
            self._ends = now + WINDOW
        if kind in self._again:
            self._again[kind] += 1
        elif len(self._again) < KINDS:
            self._again[kind] = 0
            said += text
        else:
            self._others += 1
        return said

    @property
    def counts(self) -> bool:
        """Returns whether there will be something to say at the end of this window."""
        return bool(self._others) or any(self._again.values())

    def end_window(self, now: float) -> str:
        """Returns what the window that is over has counted; "" while it goes on."""
        if now < self._ends:
            return ""
        counts = [f"monarch: {count} more of: {kind}\n" for kind, count in self._again.items() if count]
        if self._others:
            counts.append(f"monarch: {self._others} more internal errors, of other kinds\n")
        self._again, self._others = {}, 0
        return "".join(counts)


class Reporter:
    """Says errors on stderr. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, write: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._write = write or write_stderr
        self._throttle = Throttle()
        self._lock = Lock()

    def report(self, where: str, exc: BaseException) -> bool:
        """Says the error. Returns whether `end_window` should be called after `WINDOW` seconds: without that, what was
        counted is said with the next error only."""
        try:
            kind, text = _told(where, exc)
            return self._say(lambda now: self._throttle.offer(kind, text, now))
        except Exception:  # out of memory, or too deep in calls: there is nobody left to tell
            return False

    def end_window(self) -> bool:
        """Says what was counted, if the window is over. Returns as `report`."""
        try:
            return self._say(self._throttle.end_window)
        except Exception:
            return False

    def _say(self, event: Callable[[float], str]) -> bool:
        with self._lock:
            said, counts = event(self._clock()), self._throttle.counts
        if said:
            self._write(said)
        return counts


def _told(where: str, exc: BaseException) -> tuple[str, str]:
    """(what makes two errors equal, the report)."""
    frames = traceback.extract_tb(exc.__traceback__)
    line = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = "".join(traceback.format_exception(exc))
    return (
        f"{type(exc).__name__}{line}, on {where}",
        shortened(f"monarch: an internal error on {where}; please report it:\n{text}"),
    )


def shortened(text: str) -> str:
    """At most `SIZE` characters of it: the beginning and the end."""
    if len(text) <= SIZE:
        return text
    half = SIZE // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def end_process(exc: BaseException) -> None:
    """The end of a process that cannot go on, because its I/O thread has ended unasked: at once, without cleanups, which
    would wait for that thread."""
    try:
        write_stderr(shortened(f"monarch: {_why(exc)}\n{''.join(traceback.format_exception(exc))}"), _LAST_WORDS)
        write_stderr(f"monarch: this process ends: {_why(exc)}\n", _LAST_WORDS)
    finally:
        os._exit(LOOP_ENDED)


def _why(exc: BaseException) -> str:
    return f"its I/O thread has ended, unasked: {shortened(traceback.format_exception_only(exc)[-1].strip())}"


REPORTER = Reporter()
