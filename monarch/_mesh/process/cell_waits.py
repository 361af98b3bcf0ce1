"""The calls that a cell of a notebook waits for, shown below it while that takes long: who has not answered.

A thread looks, for the cell's own is what waits. It reads what this process knows; nobody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context

from monarch import _html
from monarch._linux.locks import Condition
from monarch._runtime.loop import start_thread
from monarch._runtime.progress import NotebookOutput, notebook_output
from monarch._runtime.replies import Entry
from monarch._text import duration, ranges

PATIENCE = 2.0  # seconds of a wait of which nothing is said
AGAIN = 0.5  # seconds between two looks
_NAMED = 3  # calls that are named when the wait is over
_RANKS = 8  # ranges of ranks that are named of a call

Waits = list[tuple[str, str]]  # what is called, and what is said of it


class CellWaits:
    """The waits of one cell, which began at `now`, and what is shown of them. Pure."""

    def __init__(self, now: float) -> None:
        self.began = now
        self._since: float | None = None  # the beginning of what stands there
        self._called: list[str] = []

    def look(self, waits: Waits, now: float) -> str | None:
        """Returns what is to be shown now; None to leave it as it is."""
        if not waits:
            return self.over(now)
        if self._since is None:
            self._since = now - PATIENCE
        self._called = [called for called, _ in waits]
        return _html.waiting([said for _, said in waits])

    def over(self, now: float) -> str | None:
        """Returns what takes the place of what stands there, as nothing is waited for any more."""
        if self._since is None:
            return None
        waited, self._since = duration(now - self._since), None
        more = f" and {len(self._called) - _NAMED} more" if len(self._called) > _NAMED else ""
        return _html.waited(f"waited {waited} for {', '.join(self._called[:_NAMED])}{more}")


def waits_of(entries: Iterable[Entry], began: float, now: float) -> Waits:
    """Returns the calls for which somebody waits for so long that it is shown, and has done so since `began` at the earliest:
    what an earlier cell left behind is not of this one."""
    found: Waits = []
    for entry in entries:
        target, missing = entry.target, entry.missing()
        if entry.ready or target is None or not target.key or missing is None:
            continue
        if any(began <= since <= now - PATIENCE for _, _, since, _, _ in entry.waiting()):
            late, count = missing
            some = f", {count - len(late)} of {count} rank(s) answered; not yet: rank(s) {ranges(late, _RANKS)}"
            pending = f"pending for {now - entry.began:.1f} s{some if count > 1 else ''}"
            found.append((entry.of(), f"{entry.of()}: {pending}{entry.hints()}"))
    return found


class CellWatch:
    """Looks at the waits of the running cell. `entries`: the calls of this process that are not answered."""

    def __init__(self, entries: Callable[[], Sequence[Entry]]) -> None:
        self._entries = entries
        self._changed = Condition()
        self._cell: CellWaits | None = None
        self._output: NotebookOutput | None = None
        self._context = Context()
        self._runs = False

    def begins(self, context: Context) -> None:
        """A cell begins; what it shows belongs to it in that context, which nobody else enters."""
        output = notebook_output()
        with self._changed:
            self._cell, self._output, self._context = CellWaits(time.monotonic()), output, context
            if output is not None and not self._runs:
                start_thread(self._run, "monarch-cell-waits")
                self._runs = True
            self._changed.notify()

    def ends(self) -> None:
        """The cell is over: what stands below it says how long was waited."""
        with self._changed:
            cell, self._cell = self._cell, None
            if cell is not None:
                self._show(cell.over(time.monotonic()))

    def _run(self) -> None:
        with self._changed:
            while True:
                cell = self._cell
                self._changed.wait(AGAIN if cell is not None and self._output is not None else None)
                now = time.monotonic()
                if cell is not None and cell is self._cell and now - cell.began >= PATIENCE:
                    self._show(cell.look(waits_of(self._entries(), cell.began, now), now))

    def _show(self, page: str | None) -> None:
        """Shows it. Where that fails once, nothing more is shown below this cell."""
        if page is not None and self._output is not None:
            try:
                self._context.run(self._output.show, page)
            except Exception:  # of the front end, which may be gone
                self._output = None
