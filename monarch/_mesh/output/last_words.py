"""What a report shows of the stderr of a process that ended: its last lines, or the stack at which it crashed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# How Python's faulthandler begins; every process of a mesh has it on.
_CRASH = "Fatal Python error: "
# A line of it that names every extension module that is loaded, hundreds with torch, and explains nothing.
_NOISE = "Extension modules: "


class LastWords:
    """Keeps the last `most` lines. From a crash on it keeps as many from the last crash on, and those before it: what native
    code said as it gave up. The innermost frame of a stack comes first, so the end of a long one would be the wrong end."""

    __slots__ = ("_before", "_crash", "_lines", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: deque[str] = deque(maxlen=most)
        self._before: list[str] = []
        self._crash: list[str] | None = None

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.startswith(_CRASH):
                self._before = list(self._lines)
                self._crash = []
            self._lines.append(line)
            if self._crash is not None and len(self._crash) < self._most and not line.startswith(_NOISE):
                self._crash.append(line)

    def shown(self, crashed: bool) -> list[str]:
        """`crashed`: a signal ended it. Otherwise a dump in its output was that of a process it had started.

        At most `most` lines. Of a crash, half of them may be those before it."""
        if not crashed or self._crash is None:
            return list(self._lines)
        earlier = min(len(self._before), max(self._most // 2, self._most - len(self._crash)))
        return self._before[len(self._before) - earlier :] + self._crash[: self._most - earlier]
