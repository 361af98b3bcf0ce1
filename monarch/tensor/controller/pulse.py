"""The thread of an engine that sends what would wait too long."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from monarch.actor import start_thread

AGE = 0.002  # seconds that a command may wait for company; a full batch or a fetch does not wait


class _Engine(Protocol):
    @property
    def ended(self) -> bool: ...

    def pulse(self) -> bool: ...


class Pulse:
    """Sleeps for good while nothing is issued."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = weakref.ref(engine)
        self._event = threading.Event()
        self._stopped = False
        self._started = False
        self.idle = True

    def wake(self) -> None:
        self.idle = False
        if not self._started:
            self._started = True
            start_thread(self._run, "tensor-pulse")
        self._event.set()

    def stop(self) -> None:
        self._stopped = True
        self._event.set()

    def _run(self) -> None:
        quiet = 0
        while True:
            self._event.wait()
            if self._stopped:
                return
            time.sleep(AGE)
            engine = self._engine()
            if engine is None or engine.ended:
                return
            try:
                busy = engine.pulse()
            except Exception:
                return  # the program's own thread meets it at its next command
            quiet = 0 if busy else quiet + 1
            if quiet > 20:
                self._event.clear()
                self.idle = True
                if engine.pulse():  # between the last look and going idle
                    self.wake()
                quiet = 0
            del engine
