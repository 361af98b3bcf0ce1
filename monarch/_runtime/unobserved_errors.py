"""Outcomes of calls that nobody has looked at yet: failures and errors that must not get lost with a Future."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


class UnobservedError:
    """Lives with what carries the outcome. `seen()` when it is raised; dropped without that, it says so.

    `over(seen)` is called once, by any thread, perhaps in the middle of anything (a garbage collection): it takes no lock.
    `about` is for its maker.
    """

    __slots__ = ("_over", "about")

    def __init__(self, over: Callable[[bool], None], about: Any = None) -> None:
        self._over: Callable[[bool], None] | None = over
        self.about = about

    def seen(self) -> None:
        self._end(True)

    def __del__(self) -> None:
        self._end(False)

    def _end(self, seen: bool) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(seen)


def source_line(code: CodeType | None, instruction: int) -> str:
    """`file:line, in function` of an instruction; "" when it is not known. Kept apart until somebody asks: to find the line
    costs more than to send a call."""
    if code is None:
        return ""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{code.co_filename}:{line}, in {code.co_qualname}"
