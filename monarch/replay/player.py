"""The player of a recording: pure. Events of a recording in, those that are done to the actor out, and what the actor does
is compared with what it did then.

What was done to the actor is given to it once it has done all that it had done before. So a message begins, and an answer
comes, no sooner than then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from monarch._mesh.actors.adverb_codes import CHOOSE
from monarch.replay.events import (
    OUTPUTS,
    AskedEvent,
    DoneEvent,
    Event,
    Piece,
    RecordedEvent,
    SentEvent,
    StartedEvent,
    StoppedEvent,
)

_AHEAD = 1_000  # events looked at for what an actor with an event loop did in another order

Same = Callable[[list[Piece], list[Piece]], bool]  # whether two payloads mean the same
Show = Callable[[Event, list[Piece]], str]  # "it called db.get(3)"


@dataclass
class Divergence:
    """The point where a replay has left its recording: the message (its number and method; 0 before the first), what the
    actor did then and what it does now, and the line that does it."""

    message: int
    method: str
    then: str
    now: str
    where: str = ""

    def __str__(self) -> str:
        at = f"at message {self.message} ({self.method})" if self.message else "before its first message"
        line = f"\n  {self.where}" if self.where else ""
        return f"replay has left the recording {at}: then {self.then}, now {self.now}{line}"


@dataclass
class Player:
    """`strict`: all is done in the order in which it was done, as by an actor without an event loop."""

    recorded: Iterator[RecordedEvent]
    strict: bool
    same: Same
    show: Show
    notes: list[str] = field(default_factory=list)
    ended: str = ""  # why nothing comes any more
    started: int = 0  # messages given to the actor
    done: int = 0  # messages it has handled

    def __post_init__(self) -> None:
        self._window: deque[RecordedEvent | None] = deque()  # None: an output that came before its turn
        self._methods: dict[int, str] = {}
        self._last = 0

    def _fill(self, count: int) -> None:
        while len(self._window) < count:
            recorded = next(self.recorded, None)
            if recorded is None:
                return
            self._window.append(recorded)

    def name(self, number: int, method: str) -> None:
        """The method of a message that has begun."""
        self._methods[number] = method
        self._last = number

    def inputs(self) -> list[RecordedEvent]:
        """Returns what is to be done to the actor now; when there is nothing more, `ended` says why."""
        found: list[RecordedEvent] = []
        while True:
            self._fill(1)
            if not self._window:
                self.ended = self.ended or "the recording ends here"
                return found
            first = self._window[0]
            if first is not None and isinstance(first.event, OUTPUTS):
                return found
            self._window.popleft()
            if first is None:
                continue
            if isinstance(first.event, StoppedEvent):
                self.ended = f"the recording ends here: {first.event.why}"
                return found
            if isinstance(first.event, StartedEvent):
                self.started += 1
            found.append(first)

    def output(self, event: Event, pieces: list[Piece]) -> tuple[RecordedEvent | None, Divergence | None]:
        """The actor has done this: what it was in the recording, or why it was not."""
        if isinstance(event, DoneEvent):
            self.done += 1
        self._fill(1)
        if self.ended or not self._window:
            return None, None  # beyond the recording
        index = self._index(event, pieces)
        if index is not None:
            found = self._window[index]
            if index == 0:
                self._window.popleft()
            else:
                self._window[index] = None
                self._note("an actor with an event loop did some things in another order than then")
            return found, None
        number = event.number if isinstance(event, DoneEvent) else self._last
        return None, Divergence(number, self.method_of(number), self.expected(), self.show(event, pieces))

    def method_of(self, number: int) -> str:
        return self._methods.get(number, "")

    def expected(self) -> str:
        """Returns what the actor did next then."""
        self._fill(1)
        first = next((entry for entry in self._window if entry is not None), None)
        return "nothing more" if first is None else self.show(first.event, list(first.pieces))

    def _index(self, event: Event, pieces: list[Piece]) -> int | None:
        if self.strict:
            first = self._window[0]
            return 0 if first is not None and self._is(first, event, pieces) else None
        self._fill(_AHEAD)
        for index, entry in enumerate(self._window):
            if entry is not None and self._is(entry, event, pieces):
                return index
        return None

    def _is(self, recorded: RecordedEvent, event: Event, pieces: list[Piece]) -> bool:
        then = recorded.event
        if type(then) is not type(event):
            return False
        if isinstance(then, AskedEvent) and isinstance(event, AskedEvent):
            alike = (then.mesh, then.method, then.adverb) == (event.mesh, event.method, event.adverb)
            if then.adverb != CHOOSE:
                alike = alike and then.ranks == event.ranks
            return alike and self._payload(recorded, then.size, then.check, event.size, event.check, pieces)
        if isinstance(then, DoneEvent) and isinstance(event, DoneEvent):
            if (then.number, then.outcome) != (event.number, event.outcome):
                return False
            if then.outcome == "raised":
                return normalise(then.text) == normalise(event.text)
            return self._payload(recorded, then.size, then.check, event.size, event.check, pieces)
        if isinstance(then, SentEvent) and isinstance(event, SentEvent):
            return then.kind == event.kind and self._payload(
                recorded, then.size, then.check, event.size, event.check, pieces
            )
        return True

    def _payload(
        self, recorded: RecordedEvent, size: int, check: int, size_now: int, check_now: int, pieces: list[Piece]
    ) -> bool:
        if (size, check) == (size_now, check_now):
            return True
        if recorded.pieces and pieces:
            return self.same(list(recorded.pieces), pieces)
        if size and size_now and not recorded.pieces and not pieces:
            self._note("something large that it sent has other bytes than then: of these only a checksum was recorded")
            return True
        return False

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def normalise(text: str) -> str:
    """Without what differs from run to run: addresses of objects, numbers of ports, names of temporary files."""
    import re

    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    return re.sub(r"<Port \d+ ", "<Port ", text)
