"""Durations as people write them: "30s", "1h 30m", "500ms", to and from float seconds.

Reading is generous (spaces, long unit names, fractions), writing is normalised: the largest units first, none
twice. A month is 30.44 days and a year 365.25 days.
"""

from __future__ import annotations

import re

NS_PER_SECOND = 10**9
LONGEST_SECONDS = 100 * 31_557_600.0  # a century: more than this no operating system call can wait for

_NS_PER_UNIT = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "h": 3600 * NS_PER_SECOND,
    "day": 86_400 * NS_PER_SECOND,
    "week": 7 * 86_400 * NS_PER_SECOND,
    "month": 2_630_016 * NS_PER_SECOND,
    "year": 31_557_600 * NS_PER_SECOND,
}

_SPELLINGS = {
    "ns": "nsec nanos",
    "us": "usec micros µs μs",
    "ms": "msec millis",
    "s": "sec secs second seconds",
    "m": "min mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "d days",
    "week": "w wk wks weeks",
    "month": "M mo months",
    "year": "y yr yrs years",
}

_UNITS = {spelling: _NS_PER_UNIT[unit] for unit, others in _SPELLINGS.items() for spelling in [unit, *others.split()]}

_WRITTEN = (
    ("year", "s"),
    ("month", "s"),
    ("day", "s"),
    ("h", ""),
    ("m", ""),
    ("s", ""),
    ("ms", ""),
    ("us", ""),
    ("ns", ""),
)

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TERM = re.compile(r"\s*([0-9]+)(?:\.([0-9]+))?\s*([^\W\d_]*)\s*")

# Up to here (26 days) float seconds tell nanoseconds apart; longer ones are shown in whole milliseconds.
_EXACT_NS = 2**51


def parse_duration(text: str, bare: str = "") -> float:
    """Reads `text` as seconds: "30s", "1h 30m", "1.5s", "2 days"; "0" needs no unit, nor does any number that is all of
    the text if `bare` names its unit.

    ValueError, beginning "Invalid duration format", for anything else, and for more than 100 years.
    """
    stripped = text.strip()
    if not stripped:
        raise _invalid(text, "it is empty")
    if stripped == "0":
        return 0.0
    if bare and _NUMBER.fullmatch(stripped):
        stripped += bare
    total, position = 0, 0
    while position < len(stripped):
        term = _TERM.match(stripped, position)
        if term is None:
            raise _invalid(text, f"expected a number at {stripped[position:]!r}")
        total += _term_ns(text, *term.groups())
        position = term.end()
    seconds = min(total, 2**80) / NS_PER_SECOND
    if seconds > LONGEST_SECONDS:
        raise _invalid(text, "it is longer than 100 years")
    return seconds


def format_duration(seconds: float) -> str:
    """`seconds` (not negative) as text that `parse_duration` reads back: 300.0 -> "5m", 90.0 -> "1m 30s"."""
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"a duration must be between 0 and {LONGEST_SECONDS:.0f} seconds (100 years), got {seconds!r}")
    left = round(seconds * NS_PER_SECOND)
    if left > _EXACT_NS:
        left = round(seconds * 1000) * 10**6
    if left == 0:
        return "0s"
    terms = []
    for unit, plural in _WRITTEN:
        count, left = divmod(left, _NS_PER_UNIT[unit])
        if count:
            terms.append(f"{count}{unit}{plural if count > 1 else ''}")
    return " ".join(terms)


def _term_ns(text: str, whole: str, fraction: str | None, unit: str) -> int:
    if not unit:
        raise _invalid(text, f"{whole} has no unit, write for example {whole}s or {whole}ms")
    if unit not in _UNITS:
        raise _invalid(text, f"unknown unit {unit!r} (known units: {', '.join(_NS_PER_UNIT)})")
    if len(whole) + len(fraction or "") > 40:  # digits beyond any use, and int() has a limit of its own
        raise _invalid(text, "a number in it has more than 40 digits")
    scale = _UNITS[unit]
    nanoseconds = int(whole) * scale
    if fraction:
        nanoseconds += int(fraction) * scale // 10 ** len(fraction)
    return nanoseconds


def _invalid(text: str, why: str) -> ValueError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return ValueError(f'Invalid duration format {shown!r}: {why}. Examples: "30s", "1m 30s", "500ms"')
