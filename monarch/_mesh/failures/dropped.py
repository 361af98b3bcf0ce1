"""Errors of calls whose Future nobody looked at: said once, on the logger."""

from __future__ import annotations

import logging
from types import CodeType

from monarch._runtime.log_thread import log
from monarch._runtime.remote_errors import Raw, decode_remote_error
from monarch._runtime.unobserved_errors import source_line
from monarch._wire.message import ERROR

logger = logging.getLogger("monarch")

_LINES = 1_000  # calling lines that are told apart; those beyond are not counted


class DroppedErrors:
    """The errors that were dropped, by the line that called. Of one line the 1st, 10th, 100th, ... error is logged: a
    loop that never looks at its results is not to fill a disk. On the I/O thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[CodeType | None, int], int] = {}

    def log(self, label: str, code: CodeType | None, instruction: int, raw: Raw) -> None:
        count = self._count((code, instruction))
        if not _is_power_of_ten(count):
            return
        text = "an exception that it sent through its port"
        if raw[1] == ERROR:  # the text only: to unpickle it here would run the program's code on this thread
            text = decode_remote_error(raw[2]).formatted
        times = f"; {count} times by now" if count > 1 else ""
        where = source_line(code, instruction) or "an unknown line"
        log(logger, logging.ERROR, "%s() raised, and the Future of the call was dropped without a look at it (called at "
            "%s%s): %s", label, where, times, text)  # fmt: skip

    def _count(self, line: tuple[CodeType | None, int]) -> int:
        if line not in self._counts and len(self._counts) >= _LINES:
            return 1
        count = self._counts[line] = self._counts.get(line, 0) + 1
        return count


def _is_power_of_ten(number: int) -> bool:
    while number % 10 == 0:
        number //= 10
    return number == 1
