"""Telemetry's file of a program that has ended, for the tests that look into it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from monarch.telemetry.store import Store


@contextlib.contextmanager
def saved_by_ended_program(path: Path) -> Iterator[Store]:
    """Opens it as soon as the last of the program's processes has seen that it is alone."""
    deadline = time.monotonic() + 120
    while True:
        try:
            saved = Store.open(str(path))
            break
        except ValueError as exc:
            assert "is written by a program that runs" in str(exc) and time.monotonic() < deadline, exc
        threading.Event().wait(0.05)
    try:
        yield saved
    finally:
        saved.close()
