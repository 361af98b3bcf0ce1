"""Hears of every log record that is made in this process, without a handler: one on the root logger would change what the
program's own logging does (`logging.basicConfig`, and what Python prints where there are no handlers)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from monarch import _text
from monarch._linux.locks import Lock
from monarch._text import sendable

Tap = Callable[[logging.LogRecord], None]

_taps: tuple[Tap, ...] = ()
_lock = Lock()
_installed = False


def add(tap: Tap) -> None:
    """`tap(record)` for each record from now on, in the thread that logs; it must not log, and what it raises is not told."""
    global _taps, _installed
    with _lock:
        _taps = (*_taps, tap)
        if not _installed:
            _installed = True
            logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))


def remove(tap: Tap) -> None:
    global _taps
    with _lock:
        _taps = tuple(known for known in _taps if known is not tap)


class _Factory:
    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        if (
            type(record.levelno) is int
        ):  # else it is made from fields that are filled in later, and is no event by itself
            for tap in _taps:
                try:
                    tap(record)
                except Exception:  # the program logs on, whatever its records hold
                    pass
        return record


def text_of(record: logging.LogRecord) -> str:
    """Returns the message, without the prefix that names the actor, and what was raised; TEXT_LIMIT characters of each at
    most."""
    try:
        text = sendable(str.__str__(record.getMessage()))
    except Exception:  # which the program's handlers report
        text = _text.text_of(record.msg)
    text = text.removeprefix(getattr(record, "actor_prefix", ""))
    if record.exc_info and record.exc_info[1] is not None:
        text += f"\n{type(record.exc_info[1]).__name__}: {_text.text_of(record.exc_info[1])}"
    return text
