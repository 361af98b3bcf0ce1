"""Answers to questions that need no file of their own: the clock, the level of loggers, output, failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._mesh.inspection import survey
from monarch._mesh.output.kept import OutputRequest
from monarch._runtime.future import Future, Then, detach, make_future
from monarch._text import sendable

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey_answers import SurveyAnswers
    from monarch._runtime.proc import Proc

LOG_LEVEL = "log.level"
_LEVEL_WITHIN = 10.0  # seconds for a process to take it


class LogLevelRequest(msgspec.Struct, frozen=True):
    """The level that "log.level" is asked to set. `logger`: "" is the root logger."""

    level: int
    logger: str = ""


def answer_log_level(proc: Proc, argument: bytes) -> bytes:
    """Question "log.level": sets the level of a logger, also while actors are busy. Returns the level before."""
    order = msgspec.msgpack.decode(argument, type=LogLevelRequest)
    logger = logging.getLogger(order.logger)
    before = logger.level
    logger.setLevel(order.level)
    if not logger.hasHandlers() and logging.lastResort is not None:  # which shows warnings only, of its own accord
        logging.lastResort.setLevel(min(order.level, logging.WARNING))
    return msgspec.msgpack.encode(before)


def set_log_level(addresses: Sequence[str], level: int | str, logger: str) -> Future[None]:
    """Sets the level of a logger in these processes. The Future raises RuntimeError when one has not taken it. ValueError for
    an invalid level."""
    order = msgspec.msgpack.encode(LogLevelRequest(level_of(level), logger))
    answers = detach(survey.ask(LOG_LEVEL, order, timeout=_LEVEL_WITHIN, only=addresses))

    def check(given: SurveyAnswers) -> None:
        for address, why in given.silent.items():
            raise RuntimeError(
                f"the log level is not set in {len(given.silent)} of {len(addresses)} processes; rank "
                f"{list(addresses).index(address)}: {why}"
            )

    return make_future(Then(answers, check))


def level_of(level: int | str) -> int:
    """Returns the level that is meant by a number from 0 to 255 or a name such as "DEBUG". ValueError for others."""
    if isinstance(level, str):
        levels = logging.getLevelNamesMapping()
        if level.upper() not in levels:
            names = ", ".join(sorted(levels, key=levels.__getitem__))
            raise ValueError(f"Invalid logging level: {level!r} (expected one of {names}, or 0..255)")
        return levels[level.upper()]
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 255:
        raise ValueError(f"Invalid logging level: {level!r} (expected 0..255)")
    return level


def answer_clock(proc: Any, argument: bytes) -> bytes:
    """Question "clock": returns what the process takes for the time, in nanoseconds since the epoch."""
    return msgspec.msgpack.encode(time.time_ns())


def answer_output(agent: Any, argument: bytes) -> bytes:
    """Question "output" of a host agent: returns what its processes have written lately, a list of Told.
    On the agent's loop."""
    wanted = msgspec.msgpack.decode(argument, type=OutputRequest)
    agent.outputs.read_now()  # what stands in the pipes belongs to it
    return msgspec.msgpack.encode(agent.outputs.kept.tell(wanted))


_FAILURES = 100
_REPORT = 2000  # characters of a report


class FailureNote(msgspec.Struct, frozen=True):
    """Ranks of a mesh that have ended, and the report of it."""

    mesh: str
    ranks: list[int]
    report: str


def answer_failures(proc: Any, argument: bytes) -> bytes:
    """Question "failures": returns what has failed of the meshes that the process owns and was not restarted."""
    owned = proc.mesh.owned
    with owned.lock:
        failures = owned.ledger.failures()
    notes = [
        FailureNote(failure.mesh_name, sorted(ranks), sendable(failure.report, _REPORT))
        for failure, ranks in failures[: -_FAILURES - 1 : -1]  # the newest meshes first
    ]
    return msgspec.msgpack.encode(notes)


decode_failures = msgspec.msgpack.Decoder(list[FailureNote]).decode
