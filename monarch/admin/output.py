"""Output of the processes of a program, and the level of their loggers, asked from outside."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._mesh.inspection.small_answers import LOG_LEVEL, LogLevelRequest, level_of
from monarch._mesh.output.kept import Line, OutputPage, OutputRequest
from monarch.admin.programs import Program

__all__ = ["Line", "OutputPage", "OutputRequest", "level_of", "read", "set_level"]

_ANSWER = 5.0  # seconds for a host, or a process, that is alive


def read(
    program: Program, wanted: OutputRequest, agents: Sequence[str] | None = None
) -> tuple[list[str], list[OutputPage]]:
    """The agents of its hosts, and what those (None: all there are) tell, by mesh and rank."""
    answers = program.ask("output", msgspec.msgpack.encode(wanted), timeout=_ANSWER, only=agents, agents=True)
    pages = answers.decoded(msgspec.msgpack.Decoder(list[OutputPage]).decode)
    told = [one for some in pages.values() for one in some]
    return list(answers.replies), sorted(told, key=lambda one: (one.mesh, one.rank))


def set_level(program: Program, addresses: Sequence[str], level: int, logger: str) -> tuple[int, dict[str, str]]:
    """Returns in how many of these processes it is set, and why not in the others."""
    order = msgspec.msgpack.encode(LogLevelRequest(level, logger))
    answers = program.ask(LOG_LEVEL, order, timeout=_ANSWER, only=list(addresses))
    return len(answers.replies), answers.silent
