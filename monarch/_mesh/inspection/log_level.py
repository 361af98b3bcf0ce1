"""The level of loggers in processes that run, also while their actors are busy: question "log.level"."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from monarch._mesh.inspection import survey
from monarch._runtime.future import Future, Then, detach, make_future

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey import Answers
    from monarch._runtime.proc import Proc

QUESTION = "log.level"
_WITHIN = 10.0  # seconds for a process to take it


class Level(msgspec.Struct, frozen=True):
    """`logger`: "" is the root logger."""

    level: int
    logger: str = ""


def answer(proc: Proc, argument: bytes) -> bytes:
    """The level that was there before."""
    order = msgspec.msgpack.decode(argument, type=Level)
    logger = logging.getLogger(order.logger)
    before = logger.level
    logger.setLevel(order.level)
    if not logger.hasHandlers() and logging.lastResort is not None:  # which shows warnings only, of its own accord
        logging.lastResort.setLevel(min(order.level, logging.WARNING))
    return msgspec.msgpack.encode(before)


def set_in(addresses: Sequence[str], level: int | str, logger: str) -> Future[None]:
    """Of a logger in these processes. The Future raises RuntimeError when one has not taken it. ValueError for a level that
    is none."""
    order = msgspec.msgpack.encode(Level(level_of(level), logger))
    answers = detach(survey.ask(QUESTION, order, timeout=_WITHIN, only=addresses))

    def check(given: Answers) -> None:
        for address, why in given.silent.items():
            raise RuntimeError(
                f"the log level is not set in {len(given.silent)} of {len(addresses)} processes; rank "
                f"{list(addresses).index(address)}: {why}"
            )

    return make_future(Then(answers, check))


def level_of(level: int | str) -> int:
    """Of a number from 0 to 255 or a name such as "DEBUG". ValueError for others."""
    if isinstance(level, str):
        levels = logging.getLevelNamesMapping()
        if level.upper() not in levels:
            names = ", ".join(sorted(levels, key=levels.__getitem__))
            raise ValueError(f"Invalid logging level: {level!r} (expected one of {names}, or 0..255)")
        return levels[level.upper()]
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 255:
        raise ValueError(f"Invalid logging level: {level!r} (expected 0..255)")
    return level
