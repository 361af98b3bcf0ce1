"""The doctor's findings as the overview shows them: those of the last look, while the next is made beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from monarch._mesh.inspection.diagnosis import Finding
from monarch._mesh.inspection.doctor import FRESH


def _on_thread(look: Callable[[], None]) -> None:
    threading.Thread(target=look, name="monarch-dashboard-doctor", daemon=True).start()


class LatestFindings:
    """The findings of a program. Nobody who reads them waits: a read begins a look when the last is older than FRESH, and
    gives what was found before. Without readers nothing is asked."""

    def __init__(
        self,
        look: Callable[[], Sequence[Finding]],
        now: Callable[[], float] = time.monotonic,
        aside: Callable[[Callable[[], None]], None] = _on_thread,
    ) -> None:
        self._look = look
        self._now = now
        self._aside = aside
        self._lock = threading.Lock()
        self._found: Sequence[Finding] = ()
        self._due = now()
        self._looking = False

    def read(self) -> Sequence[Finding]:
        with self._lock:
            begins = not self._looking and self._now() >= self._due
            self._looking = self._looking or begins
        if begins:
            try:
                self._aside(self._again)
            except RuntimeError:  # no more threads
                self._looking = False
        return self._found

    def _again(self) -> None:
        try:
            self._found = self._look()
        except (RuntimeError, OSError, ValueError):  # gone, or stuck: other parts of the page say so
            self._found = ()
        finally:
            self._due = self._now() + FRESH
            self._looking = False
