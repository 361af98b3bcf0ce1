"""How much streamed output may be on its way to clients, and what was dropped beyond that. Pure.

Bounds: `PROCESS` characters of one process, `TOTAL` of all processes of a host, until the client says that it has printed
them. Beyond them whole lines are dropped and counted; a line in their place says how many.
"""

from __future__ import annotations

from collections.abc import Sequence

PROCESS = 1 << 18
TOTAL = 1 << 22


class Budget:
    """One a host. A source is a process, or the folded lines of a mesh, by a number of its own."""

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # on its way, of each source
        self._total = 0
        self._lost: dict[int, tuple[int, int]] = {}  # lines and characters dropped of each source

    def admit(self, source: int, lines: Sequence[str], limit: int = PROCESS) -> list[str]:
        """Those of these lines that may be sent now, in order; the others are dropped. Lines end with a newline."""
        if source in self._lost:  # in order: first it is said that some are missing
            return self._drop(source, lines)
        room = min(limit - self._sent.get(source, 0), TOTAL - self._total)
        taken = 0
        for count, line in enumerate(lines):
            if taken + len(line) > room:
                self._send(source, taken)
                self._drop(source, lines[count:])
                return list(lines[:count])
            taken += len(line)
        self._send(source, taken)
        return list(lines)

    def _send(self, source: int, size: int) -> None:
        if size:
            self._sent[source] = self._sent.get(source, 0) + size
            self._total += size

    def _drop(self, source: int, lines: Sequence[str]) -> list[str]:
        count, size = self._lost.get(source, (0, 0))
        self._lost[source] = count + len(lines), size + sum(map(len, lines))
        return []

    def printed(self, source: int, size: int) -> list[int]:
        """The client has printed so much of a source. The sources of which it is now to be said what was dropped (`lost`):
        the client has caught up with half of what may be on its way."""
        size = min(size, self._sent.get(source, 0))
        self._total -= size
        left = self._sent.pop(source, 0) - size
        if left:
            self._sent[source] = left
        if self._total > TOTAL // 2:
            return []
        return [source for source in self._lost if self._sent.get(source, 0) <= PROCESS // 2]

    def lost(self, source: int) -> str:
        """What was dropped of a source since this was asked last, for people; "" if nothing was."""
        count, size = self._lost.pop(source, (0, 0))
        if not count:
            return ""
        return f"[{count} lines, {size} characters were dropped: they came faster than the client prints them]"
