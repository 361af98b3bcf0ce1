"""The threads of engines: one for each sends what would wait too long, one for all logs failures that nobody looked at."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from monarch.actor import Future
from monarch.actor.lowlevel import read_if_dropped, start_thread
from monarch.tensor.failures import Failed

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine

_log = logging.getLogger("monarch")
AGE = 0.002  # seconds that a command may wait for company; a full batch or a fetch does not wait
_LOGGED = 20  # failures of an engine that has ended; of more, the number is said

_dropped: queue.SimpleQueue[tuple[UnfetchedFailures, Future[Any]]] = queue.SimpleQueue()
_starting = threading.Lock()
_reader: list[threading.Thread] = []


class FlushTimer:
    """The thread of an engine that sends what would wait too long. It sleeps for good while nothing is issued."""

    def __init__(self, engine: TensorEngine) -> None:
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


class UnfetchedFailures:
    """Failures of workers of one engine that nobody looked at: they are logged, for they must not get lost. A thread for all
    engines reads what was dropped."""

    def __init__(self, engine: TensorEngine) -> None:
        self._engine = engine

    def watched(self, answers: Future[Any]) -> Future[Any]:
        """Returns the same answers, of all workers that were asked; see `read_if_dropped`."""
        if not _reader:
            with _starting:
                if not _reader:
                    _reader.append(start_thread(_run, "tensor-unread"))
        return read_if_dropped(answers, lambda found: _dropped.put((self, found)))

    def read(self, answers: Future[Any]) -> None:
        """Logs their failures: their Future was dropped unseen."""
        try:
            values = answers.get(0)
        except Exception:  # a worker has ended: the engine hears of that by itself
            return
        failed: list[Failed] = []
        for answer in values.values():
            self._engine.note(answer)
            if answer is not None and isinstance(answer[0], Failed):
                failed.append(answer[0])
        worst = min(failed, key=lambda one: one.order, default=None)
        if worst is not None and not self._engine.is_told(worst):
            _log.error("a call failed in a worker, and its Future was dropped without a look at it: keep the Future and call "
                "get(). %s", self._engine.exception_of(worst))  # fmt: skip

    def say_untold(self, why: str) -> None:
        """Logs what no fetch tells of any more: the engine has ended."""
        untold = self._engine.untold
        for failed in untold[:_LOGGED]:
            _log.error("an operation on %s failed, and the mesh has ended (%s) before anybody fetched what depends on it. To "
                "have the error raised, fetch a result with monarch.inspect(tensor), or end the mesh with its exit(), which "
                "waits and raises it. %s", self._engine.root, why, self._engine.exception_of(failed))  # fmt: skip
        if len(untold) > _LOGGED:
            _log.error("%d more operations of %s have failed", len(untold) - _LOGGED, self._engine.root)


def _run() -> None:
    while True:
        unread, answers = _dropped.get()
        try:
            unread.read(answers)
        except Exception as exc:
            _log.error("the answers of workers whose Future was dropped could not be read: %r", exc)
        del unread, answers
