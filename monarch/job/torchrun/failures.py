"""The rank that failed first, and what is told of it. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._text import one_line, ranges

_TRACEBACK = b"Traceback (most recent call last):"
_OF_RANK = re.compile(r"^\[rank\d+\]: ")  # what torch puts before each line of a traceback
_KEPT = 32 * 1024  # bytes of a rank's stderr that are kept for the report
_LINES = 60  # shown of it
_OTHERS = 5  # ranks that failed later and are named


class RankFailure(msgspec.Struct, frozen=True):
    """A rank that did not end well. `at`: when, in seconds since the epoch; `lost`: why, when its process or host was
    lost and there is no status; `said`: the last of its stderr; `report`: what it wrote into TORCHELASTIC_ERROR_FILE;
    `stopped`: the signal by which it was stopped for `limit` seconds, which it was killed for."""

    rank: int
    local_rank: int
    host: str
    pid: int
    status: int
    signal: int
    at: float
    said: bytes = b""
    report: bytes = b""
    lost: str = ""
    file: str = ""
    stopped: int = 0
    limit: float = 0.0

    @property
    def how(self) -> str:
        if self.lost:
            return f"was lost: {self.lost}"
        if self.stopped:
            return f"was {stopped_by(self.stopped)} for {self.limit:g} s and was killed (--suspect-timeout)"
        if self.signal:
            return f"was killed by {_signal_name(self.signal)}"
        return f"ended with status {self.status}"


class Tail:
    """The last of what a rank writes to stderr."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * _KEPT:
            del self._data[:-_KEPT]

    def value(self) -> bytes:
        return bytes(self._data[-_KEPT:])


def first(failures: Sequence[RankFailure]) -> RankFailure:
    """The one to blame: the others mostly fail because it did."""
    return min(failures, key=lambda failure: failure.at)


def told(name: str, failures: Sequence[RankFailure], ended: Sequence[int], attempt: int, attempts: int) -> str:
    """Returns what people read at the end: who was first, why, what became of the others."""
    cause = first(failures)
    where = f"local rank {cause.local_rank} on {cause.host}, pid {cause.pid}"
    lines = [one_line(f"{name}: rank {cause.rank} {cause.how} ({where})")]
    lines += [f"    {line}" for line in why(cause)]
    if cause.file:
        lines.append(one_line(f"  its stderr: {cause.file} on {cause.host}"))
    others = sorted((failure for failure in failures if failure is not cause), key=lambda failure: failure.at)
    lines += [one_line(f"  later: rank {failure.rank} {failure.how}") for failure in others[:_OTHERS]]
    if len(others) > _OTHERS:
        lines.append(f"  later: {len(others) - _OTHERS} more ranks failed")
    if ended:
        lines.append(f"  ended because of it: {'rank' if len(ended) == 1 else 'ranks'} {ranges(ended)}")
    if attempts > 1:
        lines.append(f"  attempt {attempt + 1} of {attempts} (--max-restarts {attempts - 1})")
    return "\n".join(lines)


def why(failure: RankFailure) -> list[str]:
    """The traceback that the rank recorded or printed; else the last lines that it wrote."""
    text = recorded(failure.report)
    if not text:
        start = failure.said.rfind(_TRACEBACK)
        text = (failure.said[start:] if start >= 0 else failure.said).decode(errors="replace")
    lines = [_OF_RANK.sub("", line) for line in text.rstrip().splitlines()]
    if not lines:
        return [] if failure.lost or failure.file else ["it wrote nothing to stderr"]
    return lines if len(lines) <= _LINES else ["...", *lines[-_LINES:]]


def recorded(report: bytes) -> str:
    """The traceback in the file that torch's `record` writes; "" if there is none."""
    try:
        found: Any = json.loads(report)["message"]
        if isinstance(found, str):
            return found
        return str(found.get("extraInfo", {}).get("py_callstack") or found["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def stopped_by(number: int) -> str:
    """Returns what is said of a rank that this signal stopped."""
    return f"stopped by {_signal_name(number)}"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"
