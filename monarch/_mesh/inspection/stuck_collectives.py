"""Says what keeps a program from going on: in the log, which rank keeps the others of a process group waiting, when an
endpoint has been in a collective for long (`slow_handler_after`); in the error of a long wait, what the doctor has found.

Of each group two ranks ask the others, the first ones: one of them may be the rank that is missing, and the others would all
say the same. It costs nothing before that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from monarch._mesh.failures.stacks import Line
from monarch._runtime.loop import start_thread

if TYPE_CHECKING:
    from monarch._mesh.inspection.diagnosis import Finding
    from monarch._runtime.proc import Proc

_ASKING = 2  # ranks of a group that ask
_SECONDS, _SOON = 5.0, 1.0  # for processes to answer; when somebody waits for it
_AGAIN = 30.0  # seconds in which a cause is said without another look

logger = logging.getLogger("monarch")


class Explainer:
    """The explainer of one process; `slow` is called by its watchdog. Any thread."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._asking = False
        self._looked_at = float("-inf")
        self._cause = ""

    def slow(self, stacks: Iterable[list[Line]]) -> None:
        """Endpoints run long, and stand there."""
        if any("/torch/distributed/" in file for lines in stacks for file, _, _ in lines):
            self._begin(self._ask)

    def look(self) -> None:
        """Begins to look for what keeps the program from going on; not again and again while it does not."""
        if not self._proc.loop.virtual and time.monotonic() - self._looked_at > _AGAIN:
            self._cause, self._looked_at = "", time.monotonic()
            self._begin(lambda: self._examine(_SOON))

    def cause(self) -> str:
        """Returns what was found, the likeliest, as the doctor says it; "" when nothing was, or not lately."""
        return self._cause if time.monotonic() - self._looked_at <= _AGAIN else ""

    def _begin(self, ask: Callable[[], object]) -> None:
        if not self._asking:
            self._asking = True
            try:
                start_thread(self._end, "monarch-doctor", ask)
            except RuntimeError:  # no more threads
                self._asking = False

    def _end(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except Exception as exc:  # the program ends, or cannot be asked: it was only to help
            logger.debug("what keeps the program from going on could not be found out: %r", exc)
        finally:
            self._asking = False

    def _examine(self, seconds: float) -> list[Finding]:
        from monarch._mesh.inspection import doctor, mesh_stacks  # loaded when first used

        findings = doctor.examine(mesh_stacks.ask_program, seconds).findings
        self._cause, self._looked_at = findings[0].title if findings else "", time.monotonic()
        return findings

    def _ask(self) -> None:
        from monarch._mesh.inspection import collectives

        own = list(collectives.groups())
        if any(group.rank in group.ranks[:_ASKING] and group.running is not False for group in own):
            for finding in self._examine(_SECONDS):
                if finding.kind == "collective":
                    logger.warning("%s", finding.title)
