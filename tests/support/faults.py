"""Failures that the root client of the process in which pytest runs was told of."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from monarch._mesh import plugins

TIMEOUT = 30


class Faults:
    """Stands in for `unhandled_fault_hook`: keeps what reached the root client, and what its calls told it of."""

    def __init__(self) -> None:
        self._seen: deque[Any] = deque()
        self._handled: deque[Any] = deque(maxlen=1_000)
        self._came = threading.Condition()

    def __call__(self, failure: Any) -> None:
        with self._came:
            self._seen.append(failure)
            self._came.notify_all()

    def handled(self, failure: Any) -> None:
        with self._came:
            self._handled.append(failure)
            self._came.notify_all()

    def watch_client(self) -> None:
        """What calls of the client of this process tell it of, which may have to start first, is kept as well."""
        plugins.when_client_starts(lambda client: setattr(client.layer.owners, "handled", self.handled))

    def next(self) -> Any:
        """The next failure that the client was told of, by a call or as a fault; waits for it, and fails the test when none
        comes."""
        with self._came:
            if not self._came.wait_for(lambda: self._seen or self._handled, TIMEOUT):
                pytest.fail(f"the root client was told of no failure within {TIMEOUT} s")
            return (self._seen or self._handled).popleft()

    def rest(self) -> list[Any]:
        """The faults not taken yet, without waiting. What calls have told is forgotten."""
        with self._came:
            found = list(self._seen)
            self._seen.clear()
            self._handled.clear()
            return found
