"""Waiting for what the threads of references do beside a test."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

from monarch.references import store as stores


def until(true: Callable[[], object], timeout: float = 60.0) -> None:
    """Waits until it is true. Looks again each time this process has told all that it had to tell.

    The collector runs before: an error that was raised holds what was local there, and itself.
    """
    deadline = time.monotonic() + timeout
    while not true():
        gc.collect()
        told = threading.Event()
        stores.store().dropped.put(told.set)
        assert told.wait(timeout)
        assert time.monotonic() < deadline, "it does not become true"
