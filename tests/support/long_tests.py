"""Tests that take long: which one it is and where its threads are, and the end of a worker in which one hangs."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable

from tests.support.threads import stacks

TOLD = 60.0  # seconds of a test after which its stacks are printed
HANGS = 1200.0  # after which a worker ends; the longest test takes 150 s on a busy machine
_LOOKS = 10.0


class LongTests:
    """Prints where a test is that lasts longer than `TOLD`, to a descriptor that no test captures.

    A thread looks every ten seconds. Where one hangs, faulthandler's thread, which needs no lock of the interpreter, ends
    the worker; xdist tells of that with the name of the test. It is armed anew seldom: ending the thread that waited costs
    more than most tests where the processor is busy, so pytest's own `faulthandler_timeout`, which does so behind each
    test, is not used.
    """

    def __init__(self, file: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._running: tuple[str, float] | None = None
        self._told = ""
        self._armed = -_LOOKS
        self._over = threading.Event()

    def watch(self) -> None:
        threading.Thread(target=self._run, name="long-tests", daemon=True).start()

    def began(self, name: str, may_last: bool) -> None:
        """`may_last`: the worker is not ended on its account."""
        now = self._clock()
        self._running = name, now
        if may_last:
            faulthandler.cancel_dump_traceback_later()
            self._armed = -_LOOKS
        elif now - self._armed >= _LOOKS:
            faulthandler.dump_traceback_later(HANGS + _LOOKS, file=self._file, exit=True)
            self._armed = now

    def ended(self) -> None:
        self._running = None

    def close(self) -> None:
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def look(self) -> None:
        """Prints, once a test."""
        running = self._running
        if running is None or running[0] == self._told or self._clock() - running[1] < TOLD:
            return
        self._told = running[0]
        text = f"\n{self._told} has lasted {self._clock() - running[1]:.0f} s. Its threads are at\n{stacks()}\n"
        os.write(self._file, text.encode("utf-8", "backslashreplace"))

    def _run(self) -> None:
        while not self._over.wait(_LOOKS):
            self.look()
