"""The history of a program that ran: facts in one order, noted by the client and by its actors.

A fact is noted before what it says begins (Sent, Struck) or after it has happened (Handled, Heard), so its place in the order
is a bound on the time of the event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Actor = tuple[str, int]  # (mesh, rank)
NEVER = 2**62  # later than everything in a history


@dataclass
class Fact:
    at: int = field(default=-1, init=False)  # its place in the history


@dataclass
class Spawned(Fact):
    """`places[r]` is the process of rank r; `owner` "client" or an actor; `group` the block of a policy, "" for none."""

    mesh: str
    owner: str | Actor
    places: tuple[str, ...]
    group: str = ""
    broken: tuple[int, ...] = ()


@dataclass
class Born(Fact):
    """A constructor runs. `life` is the incarnation, 0 for the first."""

    actor: Actor
    life: int


@dataclass
class Handled(Fact):
    """An endpoint began."""

    actor: Actor
    life: int
    sender: str
    number: int
    method: str


@dataclass
class Ended(Fact):
    """`__cleanup__` runs; the actor failed, or was stopped."""

    actor: Actor
    life: int
    failed: bool


@dataclass
class Sent(Fact):
    """A message is about to be sent, by the actor or client `sender` in the process `place`, to `ranks` (to one of them)."""

    sender: str
    place: str
    number: int
    mesh: str
    ranks: tuple[int, ...]
    adverb: str
    method: str
    deadline: float | None = None
    left: int = field(default=NEVER, init=False)  # it had been sent before the fact at this place


@dataclass(frozen=True)
class Receipt:
    """The answer of an endpoint: who handled which message."""

    actor: Actor
    life: int
    number: int


@dataclass
class Heard(Fact):
    """An answer, or one of several answers: receipts, or the type and text of an exception."""

    sender: str
    number: int
    receipts: tuple[Receipt, ...] = ()
    error: str = ""
    text: str = ""


@dataclass
class Struck(Fact):
    """The client is about to do something to these processes and actors: "kill", "stop", "restart" them or "revive" those of
    them that have failed, "cut" the connection between two, "repeat" frames."""

    what: str
    actors: tuple[Actor, ...] = ()
    places: tuple[str, ...] = ()


@dataclass
class Done(Fact):
    """A note that an action was done: the process is dead, the stop or restart complete, the cut noticed at both ends."""

    struck: Struck


@dataclass
class Told(Fact):
    """`owner` was told of a failure. `mesh` is "<none>" for a message of its own that was lost."""

    owner: str
    mesh: str
    ranks: tuple[int, ...]
    text: str


@dataclass
class Refused(Fact):
    """An operation was refused on the spot, or its Future raised."""

    operation: str
    error: str
    text: str


@dataclass
class Over(Fact):
    """The program has ended, every answer is there; what is left is stopped now."""


class History:
    """Any thread may note; facts are never taken back."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []
        self._changed = threading.Condition()

    def note(self, fact: Fact) -> None:
        with self._changed:
            fact.at = len(self._facts)
            self._facts.append(fact)
            self._changed.notify_all()

    @contextmanager
    def sending(self, sent: Sent) -> Iterator[None]:
        """Around the sending of a message."""
        self.note(sent)
        yield
        sent.left = len(self._facts)

    def facts(self) -> Sequence[Fact]:
        with self._changed:
            return list(self._facts)

    def wait_for(self, done: Callable[[Sequence[Fact]], bool], timeout: float) -> bool:
        """Until `done(facts)`; False after `timeout` real seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: done(self._facts), timeout)
