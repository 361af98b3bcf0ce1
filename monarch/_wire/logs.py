"""The logger of the wire's code. That runs on the I/O thread, and handlers of logs are the program's, which may block: the
runtime, which has a thread for that, says how (`log_by`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("monarch")

_log: Callable[..., None] = logger.log


def log_by(function: Callable[..., None]) -> None:
    """`function(level, text, *args)` logs from now on; it may not block."""
    global _log
    _log = function


def warn(text: str, *args: Any) -> None:
    _log(logging.WARNING, text, *args)
