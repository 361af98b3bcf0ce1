"""The doctor's findings as the pages show them: those of the last look, while the next is made beside, and what was found
before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from monarch._linux.locks import Lock
from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.doctor import FRESH
from monarch._text import counted

KEPT = 100  # findings of the history, the newest


def _on_thread(look: Callable[[], None]) -> None:
    threading.Thread(target=look, name="monarch-dashboard-doctor", daemon=True).start()


class PastFinding(NamedTuple):
    """A finding as it was seen last, from `since` on; `until` it was gone, None while it lasts. Seconds since the epoch."""

    finding: Finding
    since: float
    until: float | None


class FindingHistory:
    """The findings of all looks: KEPT of them, those that last and the newest others. Pure."""

    def __init__(self) -> None:
        self._past: list[PastFinding] = []  # the oldest first

    def note(self, now: float, findings: Sequence[Finding]) -> None:
        """Takes what a look has found. A finding is the one of before if it is of the same kind, mesh and ranks."""
        left = {_key(finding): finding for finding in findings}
        for place, past in enumerate(self._past):
            if past.until is None:
                again = left.pop(_key(past.finding), None)
                self._past[place] = past._replace(until=now) if again is None else past._replace(finding=again)
        self._past += [PastFinding(finding, now, None) for finding in left.values()]
        while len(self._past) > KEPT:
            ended = next((past for past in self._past if past.until is not None), self._past[0])
            self._past.remove(ended)

    def newest_first(self) -> list[PastFinding]:
        return self._past[::-1]


def _key(finding: Finding) -> tuple[str, str, tuple[int, ...]]:
    return finding.kind, finding.mesh, tuple(finding.ranks)


class LatestFindings:
    """The findings of a program. Nobody who reads them waits: a read begins a look when the last is older than FRESH, and
    gives what was found before. Without readers nothing is asked."""

    def __init__(
        self,
        look: Callable[[], Diagnosis],
        now: Callable[[], float] = time.monotonic,
        aside: Callable[[Callable[[], None]], None] = _on_thread,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._look = look
        self._now = now
        self._aside = aside
        self._clock = clock
        self._lock = Lock()
        self._found: Diagnosis | None = None
        self._at: float | None = None  # when that was found, since the epoch
        self._problem = ""
        self._history = FindingHistory()
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
        found = self._found
        return () if found is None else found.findings

    @property
    def looked(self) -> bool:
        """True if the last look has come to an end, and well."""
        return self._found is not None

    def told(self) -> dict[str, Any]:
        """GET /api/doctor, but for the time: what was found, in a `sentence` and as a whole, and before."""
        self.read()
        found, problem = self._found, self._problem
        findings = [] if found is None else found.findings
        with self._lock:
            past = self._history.newest_first()
        return {
            "state": "unknown" if found is None else "wrong" if findings else "well",
            "sentence": sentence(found, problem),
            "findings": msgspec.to_builtins(findings),
            "notes": [] if found is None else found.notes,
            "looked_at": None if found is None else found.looked_at,
            "at_us": None if self._at is None else round(self._at * 1e6),
            "history": [
                {
                    **msgspec.to_builtins(one.finding),
                    "since_us": round(one.since * 1e6),
                    "until_us": None if one.until is None else round(one.until * 1e6),
                }
                for one in past
            ],
        }

    def _again(self) -> None:
        try:
            found = self._look()
        except (RuntimeError, OSError, ValueError) as exc:  # gone, or stuck
            self._found, self._problem = None, str(exc)
        else:
            self._found, self._at, self._problem = found, self._clock(), ""
            with self._lock:
                self._history.note(self._at, found.findings)
        finally:
            self._due = self._now() + FRESH
            self._looking = False


def sentence(found: Diagnosis | None, problem: str = "") -> str:
    """Returns what the doctor says, in one line."""
    if problem:
        return f"The doctor cannot ask the program: {problem}"
    if found is None:
        return "The doctor looks for the first time."
    if not found.findings:
        count = counted(found.looked_at, "process") if found.looked_at == 1 else f"{found.looked_at:,} processes"
        return f"Nothing is wrong that can be seen from outside: {count} looked at."
    more = len(found.findings) - 1
    return found.findings[0].title + (f" (and {counted(more, 'more finding')})" if more else "")


def without_program() -> dict[str, Any]:
    """GET /api/doctor, of a program that has ended."""
    return {
        "state": "unknown",
        "sentence": "The program does not run: this is what it recorded, and the doctor looks at programs that run.",
        "findings": [], "notes": [], "looked_at": None, "at_us": None, "history": [],
    }  # fmt: skip
