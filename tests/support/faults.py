"""Failures that reach the root client of the process in which pytest runs."""

from __future__ import annotations

import queue
from typing import Any

import pytest

TIMEOUT = 30


class Faults:
    """Stands in for `unhandled_fault_hook`: keeps what reached the root client."""

    def __init__(self) -> None:
        self._seen: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, failure: Any) -> None:
        self._seen.put(failure)

    def next(self) -> Any:
        """The next failure; waits for it, and fails the test when none comes."""
        try:
            return self._seen.get(timeout=TIMEOUT)
        except queue.Empty:
            pytest.fail(f"no failure reached the root client within {TIMEOUT} s")

    def rest(self) -> list[Any]:
        """The failures not taken yet, without waiting."""
        found = []
        while True:
            try:
                found.append(self._seen.get_nowait())
            except queue.Empty:
                return found
