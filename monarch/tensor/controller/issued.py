"""Where in the program each command was issued: kept in a compact form, told when one of them fails."""

from __future__ import annotations

import linecache
import traceback
from bisect import bisect_right
from collections import deque
from typing import Any

import torch

from monarch.tensor.frames import internal

# Commands whose stacks are kept; those of earlier ones say so. A stack costs half a microsecond and shares code objects.
KEPT = 1 << 16

_gather = torch._C._profiler.gather_traceback


class Issued:
    """The stacks of the latest commands, by ident."""

    __slots__ = ("_stacks", "note")

    def __init__(self) -> None:
        self._stacks: deque[tuple[int, Any]] = deque(maxlen=KEPT)
        self.note = self._stacks.append

    def add(self, ident: int) -> None:
        """Remembers the caller's stack as that of command `ident`; idents grow."""
        self.note((ident, _gather(True, False, False)))

    def frames(self, ident: int) -> list[traceback.FrameSummary]:
        """The program's frames, outermost first, without those of torch and of this package. Empty when no longer kept."""
        stacks = list(self._stacks)
        at = bisect_right(stacks, ident, key=lambda entry: entry[0]) - 1
        if at < 0 or stacks[at][0] != ident:
            return []
        found = torch._C._profiler.symbolize_tracebacks([stacks[at][1]])[0]
        return [
            traceback.FrameSummary(
                frame["filename"],
                frame["line"],
                frame["name"],
                lookup_line=False,
                line=linecache.getline(frame["filename"], frame["line"]).strip(),
            )
            for frame in reversed(found)
            if not internal(frame["filename"])
        ]
