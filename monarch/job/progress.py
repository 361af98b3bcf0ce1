"""The progress of a job that begins, for people: log lines for what changes, and one live line while something is awaited."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from typing import Any

from monarch._linux import terminal
from monarch.config import settings
from monarch.job.names import LOGGER

_QUIET = 30.0  # seconds after which a log says again that the same is awaited


class _ToStderr(logging.StreamHandler[Any]):
    """Writes to what sys.stderr is at that moment."""

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, stream: Any) -> None:
        pass


def job_logger() -> logging.Logger:
    """The logger of all jobs. It prints to stderr from INFO on, unless the program has given it a handler of its own."""
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        handler = _ToStderr()
        handler.setFormatter(terminal.VisibleFormatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger


class LiveLine:
    """One line on a terminal that says what is awaited and for how long. Where stderr is no terminal, a log line for each
    change and one in 30 s. Silent where the setting `show_progress` is off."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._begun = time.monotonic()
        self._said = ""
        self._said_at = 0.0
        self._shown = False
        self._silent = not settings.show_progress()
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def show(self, why: str) -> None:
        if self._silent:
            return
        waited = time.monotonic() - self._begun
        if self._live:
            text = f"{self._about}: {why} ({waited:.0f} s)"
            width = shutil.get_terminal_size().columns - 1
            terminal.replace_line(text, width, sys.stderr)
            self._shown = True
        elif why != self._said or waited - self._said_at >= _QUIET:
            job_logger().info("%s: %s (%.0f s)", self._about, why, waited)
            self._said, self._said_at = why, waited

    def end(self) -> None:
        """Takes the line away; what comes next is printed in its place."""
        if self._shown:
            terminal.erase_line(sys.stderr)
            self._shown = False

    @property
    def waited(self) -> float:
        """Returns the seconds since the wait began."""
        return time.monotonic() - self._begun
