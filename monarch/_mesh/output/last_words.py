"""What a report shows of the stderr of a process that ended: its last lines, or the stack at which it crashed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# How Python's faulthandler begins; every process of a mesh has it on.
_CRASH = "Fatal Python error: "
# A line of it that names every extension module that is loaded, hundreds with torch, and explains nothing.
_NOISE = "Extension modules: "


class LastWords:
    """Keeps the last `most` lines, and as many from the last crash on: the innermost frame of its stack comes first, so the
    end of a long one would be the wrong end."""

    __slots__ = ("_crash", "_lines", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: deque[str] = deque(maxlen=most)
        self._crash: list[str] | None = None

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            if line.startswith(_CRASH):
                self._crash = []
            if self._crash is not None and len(self._crash) < self._most and not line.startswith(_NOISE):
                self._crash.append(line)

    def shown(self, crashed: bool) -> list[str]:
        """`crashed`: a signal ended it. Otherwise a dump in its output was that of a process it had started."""
        return self._crash if crashed and self._crash else list(self._lines)
