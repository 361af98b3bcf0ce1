"""Durations as people type them: 10s, 500ms, 2m, 1h."""

from __future__ import annotations

import argparse
import re

_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Reads seconds, for argparse."""
    found = _FORM.match(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError("duration must be a positive number followed by ms, s, m, or h")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds <= 0:
        raise argparse.ArgumentTypeError("duration must be greater than zero")
    return seconds
