"""The recorder of a process: its actors, calls, spans, metrics and log while somebody listens (monarch.telemetry).

`active` is the Recorder, None while nobody listens: then those who could record pay one test. Otherwise it appends one tuple
for each event, of what is at hand; rows are made of them elsewhere, in another process. Times are those of `time.monotonic`.

Lossy: beyond LIMIT events that wait to be taken, or TEXTS characters of their texts, further ones are counted and dropped.
Actors of the runtime itself are left out unless `include_system`. Names have NAME_LIMIT characters at most, texts TEXT.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextvars import ContextVar
from time import monotonic
from typing import Any

from monarch._runtime.future import running
from monarch._runtime.metrics import Metrics
from monarch._text import NAME_LIMIT, sendable, text_of

# What is recorded of: an Instance, a Delivery, an Entry. Those who record import this file, and not the other way round.
Instance = Any
Delivery = Any
Entry = Any

LIMIT = 50_000  # events that wait to be taken
TEXTS = 16 << 20  # characters of those that have texts of the program
_LONG = 0.5  # seconds after which what is still under way is reported
_WAITING = 256  # messages of one mailbox that are reported before they are handled
VALUES = 64  # of a LOGGED
TEXT = 4096  # characters of a reason or a line of the log

# Kinds of events, the first field of each.
HANDLED = 0  # receiver, Call, back, arrived, started, ended, failed, instrumented, told
UNDER_WAY = 1  # receiver, Call, back, arrived, started (0.0: it waits), instrumented, told
CALLED = (
    2  # sender, key, mesh, method, adverb, port, serial, view, began, ended, failed, told, parent Call, parent span
)
CALLING = 3  # as CALLED, and `ended` 0.0
ACTOR = 4  # unique, key, name, rank, full name, display name, class, at
STATUS = 5  # unique, status, reason, status before, at
MESH = 6  # key, class, given name, full name, shape, parent key, parent view, at
SPAN = 7  # serial, name, actor, parent Call, parent span, began, ended, thread, error
LOG = 8  # logger, level, text, thread id, thread, module, file, line, actor, parent span, at
SUM = 9  # name, unit, attributes, monotonic, amount, began, at
HISTOGRAM = 10  # name, unit, attributes, count, sum, least, most, counts, began, at
GAUGE = 11  # name, unit, attributes, value, at
MACHINE = 12  # {column: value} of host_metrics
DEVICE = 13  # {column: value} of gpu_metrics
LOGGED = 14  # step, ((name, value), ...), mesh, rank, at

# How far a message or call was reported before it was over.
NOT_TOLD, TOLD_WAITING, TOLD_STARTED = range(3)

active: Recorder | None = None

# The span of the program that runs: its serial number, 0 for none.
span_now: ContextVar[int] = ContextVar("monarch_span", default=0)


# What is noted of a call when it is sent: sender, key, mesh, method, adverb, serial (unique in this process), view, parent
# Call, parent span.
Sent = tuple[str, str, str, str, int, int, tuple[str, str], Any, int]


class Recorder:
    """A bounded buffer of events: any thread records; one takes."""

    def __init__(self, *, include_system: bool = False, limit: int = LIMIT) -> None:
        self.include_system = include_system
        self.limit = limit
        self.client = ""  # the actor that stands for code which runs in none
        self.dropped = 0  # about: threads count without a lock
        self.texts = 0  # characters that wait; likewise
        self.events: deque[tuple[Any, ...]] = deque()
        self.serials = itertools.count(1)
        self.metrics = Metrics()

    def add(self, event: tuple[Any, ...]) -> None:
        events = self.events
        if len(events) < self.limit:
            events.append(event)
        else:
            self.dropped += 1

    def add_text(self, event: tuple[Any, ...]) -> None:
        """Adds an event of a kind in _OF_TEXT."""
        size = _size(event)
        if self.texts + size > TEXTS:
            self.dropped += 1
            return
        self.texts += size
        self.add(event)

    def take(self, most: int) -> list[tuple[Any, ...]]:
        events = self.events
        taken = [events.popleft() for _ in range(min(most, len(events)))]
        if self.texts:
            left = self.texts - sum(_size(event) for event in taken if event[0] in _OF_TEXT)
            self.texts = left if events else 0
        return taken

    def put_back(self, events: list[tuple[Any, ...]]) -> None:
        """Events that were taken last are the next ones again. Whoever takes."""
        if events:
            self.texts += sum(_size(event) for event in events if event[0] in _OF_TEXT)
            self.events.extendleft(reversed(events))

    def leaves_out(self, system: bool) -> bool:
        """Returns whether what concerns such an actor is not recorded."""
        return system and not self.include_system

    # --- receivers

    def handled(self, instance: Instance, delivery: Delivery, failed: bool = False, concurrent: bool = False) -> None:
        """The actor is done with that message, or will not handle it (`failed`). A concurrent endpoint goes on when the actor
        is done with its message, and says itself when it ends (`concurrent`)."""
        behaviour: Any = instance.behaviour
        if behaviour is None or (instance.system and not self.include_system):
            return
        events = self.events
        if len(events) >= self.limit:
            self.dropped += 1
            return
        call = delivery.call
        method = behaviour._methods.get(call.method)
        if method is not None and method.concurrent and not concurrent and not failed:
            return
        events.append(
            (
                HANDLED,
                instance.unique,
                call,
                delivery.back,
                delivery.arrived,
                delivery.started,
                monotonic(),
                failed,
                method is not None and method.spans,
                delivery.told,
            )
        )

    def under_way(self, instance: Instance) -> None:
        """Reports what that actor has handled, or left waiting, for long, so that it is seen while it lasts."""
        behaviour: Any = instance.behaviour
        if behaviour is None or (instance.system and not self.include_system):
            return
        since = monotonic() - _LONG
        for delivery in [instance.current, *list(instance.concurrent.values())]:
            if delivery is not None and delivery.told < TOLD_STARTED and delivery.started < since:
                method = behaviour._methods.get(delivery.call.method)
                self._tell(instance, delivery, delivery.started, method is not None and method.spans, TOLD_STARTED)
        waiting = instance.mailbox.messages
        for place in range(min(len(waiting), _WAITING)):
            try:
                delivery = waiting[place]
            except IndexError:  # taken meanwhile
                break
            if delivery.told == NOT_TOLD and 0.0 < delivery.arrived < since:
                self._tell(instance, delivery, 0.0, False, TOLD_WAITING)

    def _tell(self, instance: Instance, delivery: Delivery, started: float, spans: bool, told: int) -> None:
        before, delivery.told = delivery.told, told
        event = (UNDER_WAY, instance.unique, delivery.call, delivery.back, delivery.arrived, started, spans, before)
        self.add(event)

    # --- callers

    def sent(
        self, sender: Instance, key: str, mesh: str, cls: Any, method: str, adverb: int, view: tuple[str, str]
    ) -> Sent | None:
        """A call is about to be sent; None when it is left out."""
        if not self.include_system and (sender.system or getattr(cls, "_is_system_actor", False)):
            return None
        now = running.get()
        parent = None if now is None else now.call
        return sender.unique, key, mesh, method, adverb, next(self.serials), view, parent, span_now.get()

    def answered(self, entry: Entry, sent: Sent) -> None:
        """Takes note that the call has all its answers, or has failed."""
        self.add((CALLED, sent, entry.number, entry.began, monotonic(), entry.has_failed(), entry.told))

    def cast(self, sent: Sent, began: float, number: int) -> None:
        """A call for whose answers this process does not wait was sent."""
        self.add((CALLED, sent, number, began, monotonic(), False, NOT_TOLD))

    def waiting(self, entry: Entry) -> None:
        """Reports a call that has had no answer for long."""
        sent = entry.record
        if sent is not None and entry.told == NOT_TOLD and entry.began < monotonic() - _LONG:
            entry.told = TOLD_STARTED
            self.add((CALLING, sent, entry.number, entry.began, 0.0, False, NOT_TOLD))

    # --- actors and meshes

    def status(self, instance: Instance, status: str, reason: str = "", before: str = "") -> None:
        if not self.leaves_out(instance.system):
            self.add_text((STATUS, instance.unique, status, reason[:TEXT], before, monotonic()))

    # --- the program

    def log(self, name: str, level: str, text: str, *rest: Any) -> None:
        now = running.get()
        actor = self.client if now is None else now.instance.unique
        self.add_text((LOG, name, level, text[:TEXT], *rest, actor, span_now.get(), monotonic()))


_OF_TEXT = {STATUS: (3,), SPAN: (2, 9), LOG: (1, 3)}  # where the texts of an event are


def _size(event: tuple[Any, ...]) -> int:
    return sum(len(event[place]) for place in _OF_TEXT[event[0]])


class RecordedSpan:
    """A span of the program, from `with` to its end."""

    __slots__ = ("_began", "_name", "_parent", "_serial", "_token")

    def __init__(self, name: str) -> None:
        self._name = sendable(name if type(name) is str else str.__str__(name), NAME_LIMIT)

    def __enter__(self) -> RecordedSpan:
        recorder = active
        self._serial = 0 if recorder is None else next(recorder.serials)
        self._parent = span_now.get()
        self._token = span_now.set(self._serial)
        self._began = monotonic()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            span_now.reset(self._token)
        except ValueError:  # left in another context, as generators may be
            pass
        recorder = active
        if recorder is None or not self._serial:
            return
        now = running.get()
        call = None if now is None else now.call
        actor = recorder.client if now is None else now.instance.unique
        recorder.add_text(
            (
                SPAN,
                self._serial,
                self._name,
                actor,
                call,
                self._parent,
                self._began,
                monotonic(),
                threading.current_thread().name,
                "" if error is None else f"{type(error).__name__}: {text_of(error)}"[:TEXT],
            )
        )
