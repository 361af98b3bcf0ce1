"""Times as options of commands, in the forms of `parse_duration`: 10s, 500ms, 1m 30s."""

from __future__ import annotations

import argparse

from monarch.config.units import parse_duration

_LONGEST_WAIT = 3600.0


def duration(text: str) -> float:
    """Reads a time of more than nothing, with its unit."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise argparse.ArgumentTypeError("duration must be a positive number followed by ms, s, m, or h") from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError("duration must be greater than zero")
    return seconds


def wait(text: str) -> float:
    """Reads how long to wait: an hour at most, and a number alone is in seconds."""
    try:
        seconds = parse_duration(text, bare="s")
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"a time is a number of seconds from 0 to 3600, or as 500ms, 2m; got {text!r}")
    return seconds
