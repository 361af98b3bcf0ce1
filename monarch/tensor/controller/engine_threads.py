"""The threads of engines: one for each sends what would wait too long, one for all logs failures that nobody looked at."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock
from monarch.actor import Future, PortReceiver, SupervisionError
from monarch.actor.lowlevel import read_if_dropped, start_thread, when_ready
from monarch.tensor.failures import Failed

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine

_log = logging.getLogger("monarch")
AGE = 0.002  # seconds that a command may wait for company; a full batch or a fetch does not wait
_STOPPED = "its processes were stopped"
_LOGGED = 20  # failures of an engine that has ended; of more, the number is said

_unread: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_starting = Lock()
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
    engines reads what was dropped, and the last words of workers: what each has not told when it ends in order."""

    def __init__(self, engine: TensorEngine) -> None:
        self._engine = engine
        self._hearing = Lock()
        self._silent = 0  # workers without last words so far
        self._why = _STOPPED

    def watched(self, answers: Future[Any]) -> Future[Any]:
        """Returns the same answers, of all workers that were asked; see `read_if_dropped`."""
        _start_reader()
        return read_if_dropped(answers, lambda found: _unread.put(partial(self.read, found)))

    def listen(self, last_words: PortReceiver[list[Any]]) -> None:
        """Hears the last words of each worker from here on."""
        _start_reader()
        self._last_words = last_words
        self._silent = len(self._engine.root)
        self._await()

    def _await(self) -> None:
        self._next = self._last_words.recv()
        when_ready(self._next, partial(_unread.put, partial(_hear, weakref.ref(self))))

    def hear(self) -> None:
        """Notes the last words that are here. Those of an engine that has ended, or of which all workers have, are logged."""
        with self._hearing:
            while self._silent:
                try:
                    failures = self._next.get(0)
                except (TimeoutError, SupervisionError):  # not yet, or the client has ended first
                    return
                self._silent -= 1
                if self._silent:
                    self._await()
                self._engine.note((None, failures))
                if self._engine.ended:
                    self.say_untold(self._why)
            if not self._engine.ended:
                first = next(iter(self._engine.untold), None)
                after = f" after {first.command} had failed on rank {first.rank}: {first.text.strip()}" if first else ""
                self.say_untold(_STOPPED)
                self._engine.end(_STOPPED + after)  # to the program, whose next operation may be the first to tell it

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
        self._why = why
        untold = self._engine.untold
        for failed in untold[:_LOGGED]:
            _log.error("an operation on %s failed, and the mesh has ended (%s) before anybody fetched what depends on it. To "
                "have the error raised, fetch a result with monarch.inspect(tensor), or end the mesh with its exit(), which "
                "waits and raises it. %s", self._engine.root, why, self._engine.exception_of(failed))  # fmt: skip
        if len(untold) > _LOGGED:
            _log.error("%d more operations of %s have failed", len(untold) - _LOGGED, self._engine.root)


def _start_reader() -> None:
    if not _reader:
        with _starting:
            if not _reader:
                _reader.append(start_thread(_run, "tensor-unread"))


def _run() -> None:
    while True:
        read = _unread.get()
        try:
            read()
        except Exception as exc:
            _log.error("what workers told of their failures could not be read: %r", exc)
        del read


def _hear(about: weakref.ref[UnfetchedFailures]) -> None:
    """Reads last words, unless the engine itself is gone."""
    unfetched = about()
    if unfetched is not None:
        unfetched.hear()
