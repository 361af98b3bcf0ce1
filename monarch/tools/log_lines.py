"""Lines of a program's processes, for `monarch logs`: which, since when, in which order. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from monarch._text import coloured, one_line

if TYPE_CHECKING:
    from monarch.admin.output import Line, OutputPage

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCKS = ("%H:%M", "%H:%M:%S")
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


def since(text: str, now: float) -> float:
    """Seconds since the epoch of `10m`, `2h`, `14:05` (today, or yesterday) or `2026-01-31 14:05`. ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found:
        return now - float(found[1]) * _UNITS[found[2]]
    for form in _CLOCKS:
        try:
            clock = time.strptime(text.strip(), form)
        except ValueError:
            continue
        today = time.localtime(now)
        at = time.mktime((*today[:3], clock.tm_hour, clock.tm_min, clock.tm_sec, 0, 0, -1))
        return at if at <= now else at - 86400.0
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text.strip(), form))
        except ValueError:
            continue
    raise ValueError(f"--since {text!r}: expected a time such as 10m, 2h, 14:05 or 2026-01-31 14:05")


def ranks(texts: Sequence[str]) -> list[int] | None:
    """Returns the ranks of `--rank 3 --rank 0,2-4`; None when none was given. ValueError."""
    found: set[int] = set()
    for text in texts:
        for part in text.split(","):
            match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
            if match is None or (match[2] and not 0 <= int(match[2]) - int(match[1]) <= 1_000_000):
                raise ValueError(f"--rank {text!r}: expected ranks such as 3 or 0,2-4")
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(found) if texts else None


def expression(text: str) -> re.Pattern[str]:
    """Checks a pattern; ValueError for an invalid one."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"--grep {text!r} is no regular expression: {error}") from None


def merged(told: Iterable[OutputPage], pattern: re.Pattern[str] | None = None) -> list[tuple[OutputPage, Line]]:
    """The lines of all processes by their time; those of one process in their order."""
    pairs = [(one, line) for one in told for line in one.lines if pattern is None or pattern.search(line.text)]
    return sorted(pairs, key=lambda pair: pair[1].at)


def shown(one: OutputPage, line: Line) -> str:
    return f"[{one_line(one.mesh)} {one.rank}] {coloured(line.text)}"


def cursors(told: Iterable[OutputPage]) -> dict[str, int]:
    """Returns where to ask for what comes after these."""
    return {one.key: one.last for one in told}
