"""The program that an observer looks into, asked through its admin socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from monarch._mesh.inspection.survey import SurveyAnswers
from monarch.admin.programs import Program, ProgramGone, program_at


class ObservedProgram(Program):
    """The one that was here last: a job's programs follow one another, and there may be none for a while; then `ask` and
    `stream` raise ProgramGone."""

    def __init__(self) -> None:
        super().__init__("", 0, 0.0, "")
        self._lock = threading.Lock()

    def use(self, folder: str) -> None:
        """The program with that run folder is the one to look into."""
        found = program_at(folder)
        with self._lock:
            self.folder = folder
            if found is not None:
                self.pid, self.started, self.command = found.pid, found.started, found.command

    def ask(
        self,
        question: str,
        argument: bytes = b"",
        *,
        timeout: float = 5.0,
        only: Sequence[str] | None = None,
        agents: bool = False,
    ) -> SurveyAnswers:
        return self._current().ask(question, argument, timeout=timeout, only=only, agents=agents)

    def stream(self, name: str, argument: bytes = b"") -> socket.socket:
        return self._current().stream(name, argument)

    def _current(self) -> Program:
        with self._lock:
            if not self.folder:
                raise ProgramGone("no program uses this job now: the tree and stacks are of programs that run")
            return Program(self.folder, self.pid, self.started, self.command)
