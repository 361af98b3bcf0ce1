"""Says in the log which rank keeps the others of a process group waiting, when an endpoint has been in a collective for
long (`slow_handler_after`).

Of each group two ranks ask the others, the first ones: one of them may be the rank that is missing, and the others would all
say the same. It costs nothing before that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch._mesh.failures.stacks import Line
from monarch._runtime.loop import start_thread

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_ASKING = 2  # ranks of a group that ask
_SECONDS = 5.0  # for processes to answer

logger = logging.getLogger("monarch")


class Explainer:
    """The explainer of one process; `slow` is called by its watchdog, on any thread."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._asking = False

    def slow(self, stacks: Iterable[list[Line]]) -> None:
        """Endpoints run long, and stand there."""
        if self._asking or not any("/torch/distributed/" in file for lines in stacks for file, _, _ in lines):
            return
        self._asking = True
        try:
            start_thread(self._ask, "monarch-doctor")
        except RuntimeError:  # no more threads
            self._asking = False

    def _ask(self) -> None:
        from monarch._mesh.inspection import collectives, doctor, mesh_stacks  # loaded when first used

        try:
            own = list(collectives.groups())
            if any(group.rank in group.ranks[:_ASKING] and group.running is not False for group in own):
                for finding in doctor.examine(mesh_stacks.ask_program, _SECONDS).findings:
                    if finding.kind == "collective":
                        logger.warning("%s", finding.title)
        except Exception as exc:  # the program ends, or cannot be asked: it was only to help
            logger.debug("which rank a collective waits for could not be found out: %r", exc)
        finally:
            self._asking = False
