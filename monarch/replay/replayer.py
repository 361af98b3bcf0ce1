"""The watcher of a replayed actor: gives it what was given to it, and compares what it does."""

from __future__ import annotations

import bdb
import contextlib
import os
import pdb  # noqa: T100  it is what opens it
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from monarch._errors import PACKAGE
from monarch._linux.locks import RLock
from monarch._linux.thread_frames import thread_frames
from monarch._mesh.failures.ledger import MeshFailure
from monarch._runtime.instance import Delivery, Instance, Leave, Supervise
from monarch._runtime.replies import Entry
from monarch._runtime.watcher import Asking
from monarch._text import clip
from monarch._wire import codec, message
from monarch._wire.message import Bounced, Failure
from monarch.replay.events import (
    AnsweredEvent,
    AskedEvent,
    DoneEvent,
    EndedEvent,
    Event,
    GaveUpEvent,
    OpenedEvent,
    Piece,
    RecordedEvent,
    ReturnedEvent,
    SentEvent,
    StartedEvent,
    SupervisedEvent,
    summary,
)
from monarch.replay.player import Divergence, Player

_SHOWN = 5.0  # seconds for the repr of what comes next, which may be what stands still
_LOOK = 0.05  # seconds between two looks at whether an event loop that does not turn is blocked
_LOOKS = 100  # then it counts as blocked, whatever it does
_WAITING = os.path.join(PACKAGE, "_runtime") + os.sep  # where threads wait for answers


class ReplayOver(BaseException):
    """Ends the actor wherever it is: there is nothing more to give to it. No `except Exception` keeps it."""


@dataclass
class ReplayDebugging:
    """Conditions on which pdb is opened, or the replay stops: see `replay`."""

    at: int = 0
    until_failure: bool = False
    pdb: bool = False


class Replayer:
    """The watcher of an actor that is replayed, called on the actor's thread."""

    def __init__(
        self, instance: Instance, player: Player, debugging: ReplayDebugging, say: Callable[[str], Any]
    ) -> None:
        self._instance = instance
        self._player = player
        self._debugging = debugging
        self._say = say
        self._lock = RLock()
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._handing = iter(range(1, sys.maxsize))
        self._entries: dict[int, Entry] = {}  # by the number of the port in the recording
        self._ports: dict[int, int] = {}  # and those by the id of the entry
        self._kept: list[Entry] = []  # so that ids stay theirs
        self._moved = time.monotonic()
        self._paused = False  # pdb has the word
        self.divergence: Divergence | None = None
        self.failure = ""
        self.stopped = ""
        self.stuck = False
        self._due = False  # an event loop will be given what is next in its next turn
        self.waited = ""

    # --- giving

    def begin(self) -> None:
        self._feed()

    def _feed_soon(self) -> None:
        """After what the actor has just done. An actor with an event loop gets it in a later turn of the loop, as an answer
        that comes from elsewhere; if it blocks its loop, while that is blocked."""
        behaviour: Any = self._instance.behaviour
        loop = getattr(behaviour, "_loop", None)
        if loop is None or self.stopped:
            self._feed()
            return
        self._due = True
        loop.call_soon_threadsafe(self._feed)
        self._instance.proc.loop.call_later(_LOOK, lambda: self._feed_blocked(_LOOKS))

    def _feed_blocked(self, looks: int) -> None:
        """On the I/O thread: the event loop gets no turn while its thread waits for an answer, as in `future.get()`."""
        if not self._due:
            return
        frame = thread_frames().get(self._instance.thread_ident)
        if looks == 0 or (frame is not None and frame.f_code.co_filename.startswith(_WAITING)):
            self._feed()
        else:
            self._instance.proc.loop.call_later(_LOOK, lambda: self._feed_blocked(looks - 1))

    def _feed(self) -> None:
        """Does to the actor what is next."""
        self._moved = time.monotonic()
        self._due = False
        with self._lock:
            for recorded in self._player.inputs():
                self._give(recorded)
            player = self._player
            if player.ended and not self.stopped:
                self._run_out()
                if player.done >= player.started:
                    self.stop(player.ended)

    def _run_out(self) -> None:
        """Fails what still waits for an answer: then it got none either, as far as the recording goes."""
        waiting = [entry for entry in self._entries.values() if not entry.ready]
        if waiting and not self.waited:
            asked = next((entry.of() for entry in waiting if entry.of()), "a message of a channel")
            self.waited = f", as it waited for {asked}"
        for entry in waiting:
            entry.give_up(ReplayOver(f"{self._player.ended}: no further answer was recorded"))

    def _give(self, recorded: RecordedEvent) -> None:
        event, pieces, instance = recorded.event, recorded.pieces, self._instance
        if isinstance(event, StartedEvent):
            call: Any = message.decode(event.call)
            instance.mailbox.put(Delivery(call, pieces[0], _buffers(pieces), event.source))
        elif isinstance(event, AnsweredEvent):
            entry = self._entries.get(event.port)
            if entry is not None:
                entry.receive((event.rank, event.kind, pieces[0], _buffers(pieces)))
        elif isinstance(event, GaveUpEvent):
            entry = self._entries.get(event.port)
            if entry is not None:
                try:
                    error = codec.decode(pieces[0], pieces[1:])
                except Exception:
                    error = RuntimeError(event.text)
                entry.give_up(error)
        elif isinstance(event, SupervisedEvent):
            failure = message.decode(pieces[0])
            assert isinstance(failure, Failure)
            instance.mailbox.put_control(Supervise(MeshFailure(failure)))
        elif isinstance(event, ReturnedEvent):
            instance.mailbox.put_control(message.decode(pieces[0]))
        elif isinstance(event, EndedEvent) and not event.failed:
            self.stopped = "the actor was stopped here"
            instance.mailbox.put_control(Leave(event.reason))

    def stop(self, why: str) -> None:
        if not self.stopped:
            self.stopped = why
        self._instance.mailbox.put_control(Leave(f"the replay ends: {why}"))

    # --- what the actor handles

    def constructed(self, cls: type) -> None:
        self._feed()

    def started(self, delivery: Delivery, behaviour: Any) -> None:
        self._moved = time.monotonic()
        number = self._next = self._next + 1
        self._numbers[id(delivery)] = number
        self._player.name(number, delivery.call.method)
        if number == self._debugging.at:
            self._say(f"message {number}: {delivery.call.method}()")
            self._break_at(getattr(type(behaviour.actor), delivery.call.method, None))

    def answered(self, delivery: Delivery, body: bytes, buffers: Sequence[memoryview]) -> None:
        size, check, short = summary([body, *buffers])
        self._done(delivery, "returned", "", size, check, short)

    def ended(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        if isinstance(error, ReplayOver):
            return
        if isinstance(error, bdb.BdbQuit):
            self._numbers.pop(id(delivery), None)
            self.stop("pdb was left")
            return
        text = "" if error is None else clip(f"{type(error).__name__}: {error}", 2_000)
        if error is not None and id(delivery) in self._numbers:
            self._failed(delivery, error)
        self._done(delivery, outcome, text, 0, 0, [])

    def _done(self, delivery: Delivery, outcome: str, text: str, size: int, check: int, pieces: list[Piece]) -> None:
        number = self._numbers.pop(id(delivery), 0)
        if number:
            self._compare(DoneEvent(0, number, outcome, text, size, check), pieces)

    def _failed(self, delivery: Delivery, error: BaseException) -> None:
        """Notes the failure of a message, and opens pdb if asked to."""
        number = self._numbers[id(delivery)]
        shown = "".join(traceback.format_exception(type(error), error, _of_user(error.__traceback__)))
        self.failure = f"message {number}, {delivery.call.method}(), raised:\n{shown.rstrip()}"
        if self._debugging.pdb:
            self._say(self.failure)
            with self._pause():
                pdb.post_mortem(_of_user(error.__traceback__))
        if self._debugging.until_failure or self._debugging.pdb:
            self.stop(f"message {number} failed")

    def supervised(self, failure: MeshFailure) -> None:
        self._moved = time.monotonic()

    def returned(self, bounced: Bounced) -> None:
        self._moved = time.monotonic()

    def leaving(self, cause: Exception | None) -> None:
        self._feed()

    # --- what it asks of others

    def asked(self, call: Asking) -> bool:
        size, check, short = summary([call.body, *call.buffers])
        with self._lock:
            port = self._ports.get(id(call.entry), 0) if call.entry is not None else 0
            event = AskedEvent(0, call.mesh, call.method, call.adverb, list(call.ranks), port, size, check)
            then = self._compare(event, short, call.entry)
        if then is None and call.entry is not None:
            self.waited = self.waited or f", as it called {call.mesh}.{call.method}()"
            call.entry.give_up(ReplayOver("the recording has no answer to this call"))
        return True

    def opened(self, queue: Entry) -> None:
        self._compare(OpenedEvent(0, 0), [], queue)

    def sent(self, kind: int, body: bytes, buffers: Sequence[memoryview]) -> None:
        size, check, short = summary([body, *buffers])
        self._compare(SentEvent(0, kind, size, check), short)

    def _compare(self, event: Event, pieces: list[Piece], entry: Entry | None = None) -> RecordedEvent | None:
        with self._lock:
            if self.divergence is not None:
                return None
            then, divergence = self._player.output(event, pieces)
            if (
                then is not None
                and entry is not None
                and isinstance(then.event, (AskedEvent, OpenedEvent))
                and then.event.port
            ):
                self._entries[then.event.port] = entry
                self._ports[id(entry)] = then.event.port
                self._kept.append(entry)
            if divergence is None:
                self._feed_soon()
                return then
        self._diverged(divergence, None if isinstance(event, DoneEvent) else _user_frame())
        return None

    def _diverged(self, divergence: Divergence, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            divergence.where = f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'
        self.divergence = divergence
        if self._debugging.pdb and frame is not None:
            self._say(str(divergence))
            with self._pause():
                debugger = pdb.Pdb()
                debugger.reset()
                debugger.interaction(frame, None)
        self.stop("it went another way than then")
        raise ReplayOver(str(divergence))

    # --- the debugger

    def _break_at(self, attribute: Any) -> None:
        """pdb stops in the first line of that method, which is called next."""
        function = getattr(attribute, "_method", None) or getattr(attribute, "__func__", None) or attribute
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        code = getattr(function, "__code__", None)
        if code is None:
            self._say("pdb cannot stop in it: it is no Python function")
            return
        debugger = _Debugger(self)
        debugger.reset()
        why = debugger.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)
        if why:
            self._say(f"pdb cannot stop in it: {why}")
            return
        debugger.botframe = sys._getframe()
        debugger.set_continue()
        if hasattr(debugger, "start_trace"):  # Python 3.14
            debugger.start_trace()
        else:
            sys.settrace(debugger.trace_dispatch)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self._moved = time.monotonic()

    # --- the watchdog

    @contextlib.contextmanager
    def watchdog(self, patience: float, thread: int) -> Iterator[None]:
        """Ends a replay that stands still: something that it waits for was not recorded."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(min(1.0, patience / 4)):
                if not self._paused and time.monotonic() - self._moved > patience:
                    self._give_up(patience, thread)
                    return

        watcher = threading.Thread(target=watch, name="monarch-replay-watchdog", daemon=True)
        watcher.start()
        try:
            yield
        except KeyboardInterrupt:
            if not self.stuck:
                raise
        finally:
            over.set()
            watcher.join()

    def _give_up(self, patience: float, thread: int) -> None:
        self.stuck = True
        self.stopped = f"it stood still for {patience:g} s"
        frame = thread_frames().get(thread or self._instance.thread_ident)
        frame = _user_frame(frame) if frame is not None else None
        where = ""
        if frame is not None:
            where = f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
        told: list[str] = []
        telling = threading.Thread(target=lambda: told.append(self._player.expected()), daemon=True)
        telling.start()
        telling.join(min(patience, _SHOWN))
        then = told[0] if told else "what cannot be shown: a repr() of it does not return"
        self.divergence = Divergence(
            self._next, self._player.method_of(self._next), then, f"it stands still for {patience:g} s", where
        )
        if thread and thread == threading.main_thread().ident:
            signal.pthread_kill(thread, signal.SIGINT)


class _Debugger(pdb.Pdb):
    """pdb that holds the watchdog while it has the word."""

    def __init__(self, replayer: Replayer) -> None:
        super().__init__(nosigint=True)
        self._replayer = replayer

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        with self._replayer._pause():
            super().interaction(*args, **kwargs)


def _buffers(pieces: list[bytes]) -> list[bytearray]:
    """Memory of its own for each, which the actor may change as it might then."""
    return [bytearray(piece) for piece in pieces[1:]]


def _of_user(trace: Any) -> Any:
    """A traceback without our frames at its outer end."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE) and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _user_frame(frame: FrameType | None = None) -> FrameType | None:
    frame = frame or sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is not None and os.path.basename(frame.f_code.co_filename) in (
        "threading.py",
        "contextlib.py",
        "runpy.py",
    ):
        return None
    return frame
