"""Failures that the root client of the process in which pytest runs was told of."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from monarch._mesh import plugins
from monarch._mesh.failures import main_thread
from monarch._mesh.process import client as process_client
from tests.support.patience import TIMEOUT


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
        """Keeps what calls of the client of this process tell it of, which may have to start first."""
        plugins.when_client_starts(lambda client: setattr(client.layer.owners, "handled", self.handled))

    def next(self, *, handled: bool | None = False) -> Any:
        """The next failure that reached the client as a fault, or, with `handled`, that a call has told it of; None: either,
        where it is not promised which. Waits for it, and fails the test when none comes."""
        ways = {False: [self._seen], True: [self._handled], None: [self._seen, self._handled]}[handled]
        with self._came:
            if not self._came.wait_for(lambda: any(ways), TIMEOUT):
                way = {False: "by a fault", True: "by a call", None: ""}[handled]
                pytest.fail(f"the root client was told of no failure {way} within {TIMEOUT} s")
            return next(way for way in ways if way).popleft()

    def settle(self) -> None:
        """Returns when everything that has failed so far has reached the client, what is held for Futures that nobody has
        looked at included."""
        client = process_client.client()
        if client is not None and client.proc.closed is None:
            client.layer.owners.tell_unobserved()
            assert main_thread.faults.drain(TIMEOUT)

    def rest(self) -> list[Any]:
        """The faults not taken yet, without waiting. What calls have told is forgotten."""
        with self._came:
            found = list(self._seen)
            self._seen.clear()
            self._handled.clear()
            return found
