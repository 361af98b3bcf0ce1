"""The counting of references: the owner's side (`HolderTable`) and that of every process (`LocalHandles`). Pure.

A reference lives in the process that made its value, the owner, as long as a process holds it or a message carries it.
Each process tells the owner in order: that it holds a reference (`create`, `claim`), has put it into a message (`lend`),
holds it no more (`release`). Two processes tell in any order, so a receiver may claim what the sender has lent before the
owner has heard of it. A sender says that it lends before it sends the message, and a release of its own comes behind that:
so the owner hears of somebody who holds the reference until it hears of the next.

The end of a process ends what it held, and what was on its way to it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

ENDED_KEPT = 10_000  # processes whose end is remembered, for what they sent before

Process = tuple[str, int]  # address and incarnation


class RefId(NamedTuple):
    """The name of a reference: of the process and actor that named it, with a number of theirs and the rank that made the
    value. `actor` is "" where the value was put."""

    process: str
    actor: str
    number: int
    rank: int


class Ticket(NamedTuple):
    """A claim on a reference that a message carries, for each of its receivers."""

    sender: Process
    number: int


def is_told(told: Any) -> bool:
    """Returns whether an owner can take that from another process: (what, reference, facts...)."""
    match told:
        case ("create" | "release", RefId()) | ("failed", RefId(), str()):
            return True
        case ("claim", RefId(), ticket):
            return is_ticket(ticket)
        case ("lend", RefId(), ticket, [*addresses]):
            return is_ticket(ticket) and all(isinstance(address, str) for address in addresses)
    return False


def is_ticket(ticket: Any) -> bool:
    """Returns whether it can be claimed."""
    match ticket:
        case Ticket((str(), int()), int()):
            return True
    return False


class _Held:
    """The holders of one reference, and which tickets of it were not claimed: (ticket, address of the receiver).

    `is_named`: whether the process that named it has told so, or has ended. Before that it counts as held.
    """

    __slots__ = ("holders", "is_made", "is_named", "tickets")

    def __init__(self) -> None:
        self.holders: set[Process] = set()
        self.tickets: Counter[tuple[Ticket, str]] = Counter()
        self.is_made = self.is_named = False


class HolderTable:
    """The references of one owner. Names of those that nobody holds any more are in `freed`, for who carries it out."""

    def __init__(self) -> None:
        self.freed: list[RefId] = []
        self._held: dict[RefId, _Held] = {}
        # Claimed before they were lent, by which incarnations.
        self._early: dict[tuple[RefId, Ticket, str], list[int]] = {}
        self._unwanted: dict[RefId, str] = {}  # released before they were made, by the process at that address
        self._ended: OrderedDict[Process, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, ref: RefId) -> bool:
        return ref in self._held

    @property
    def is_clean(self) -> bool:
        """True if nothing is kept of any reference."""
        return not (self._held or self._early or self._unwanted)

    def holders(self, ref: RefId) -> set[Process]:
        """Returns the processes that hold it."""
        held = self._held.get(ref)
        return set() if held is None else set(held.holders)

    def create(self, ref: RefId, holder: Process) -> None:
        """The holder has named a reference whose value is made here, or will be."""
        if holder in self._ended:
            return
        held = self._held.setdefault(ref, _Held())
        held.holders.add(holder)
        held.is_named = True

    def is_named(self, ref: RefId) -> bool:
        """Returns whether the process that named the reference has told so, or has ended."""
        held = self._held.get(ref)
        return held is None or held.is_named

    def made(self, ref: RefId) -> bool:
        """The value is there. False if nobody wants it any more."""
        if self._unwanted.pop(ref, None) is not None:
            return False
        self._held.setdefault(ref, _Held()).is_made = True  # the call may be faster than word of the reference
        return True

    def lend(self, ref: RefId, ticket: Ticket, receivers: Sequence[str]) -> None:
        """A message with the reference goes to the processes at these addresses."""
        held = self._held.get(ref)
        for receiver in receivers:
            early = (ref, ticket, receiver)
            if claimed := self._early.get(early):
                claimed.pop()
                if not claimed:
                    del self._early[early]
            elif held is not None and ticket.sender not in self._ended:
                held.tickets[ticket, receiver] += 1

    def claim(self, ref: RefId, holder: Process, ticket: Ticket) -> bool:
        """A message with the reference has arrived. False if it is not here (any more)."""
        held = self._held.get(ref)
        lost = holder in self._ended
        if held is None:
            if lost or ticket.sender in self._ended or not ref.actor:
                return False
            held = self._held[ref] = _Held()  # the process that named it has told of it, and that is on its way
        if not lost:
            held.holders.add(holder)
        if held.tickets[ticket, holder[0]]:
            _take(held.tickets, (ticket, holder[0]))
        elif not lost and ticket.sender not in self._ended:
            self._early.setdefault((ref, ticket, holder[0]), []).append(holder[1])
        self._look(ref, held)
        return True

    def release(self, ref: RefId, holder: Process) -> None:
        """The process holds the reference no more."""
        held = self._held.get(ref)
        if held is not None:
            held.holders.discard(holder)
            self._look(ref, held)

    def ended(self, process: Process) -> None:
        """The process has ended: it holds nothing, and nothing that it sent is new."""
        self._ended[process] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        for early, claimed in list(self._early.items()):
            if early[2] == process[0]:  # what was lent to it is forgotten, or will be
                claimed[:] = [incarnation for incarnation in claimed if incarnation != process[1]]
            if early[1].sender == process or not claimed:
                del self._early[early]
        for ref, held in list(self._held.items()):
            held.holders.discard(process)
            self._look(ref, held)

    def address_ended(self, address: str) -> None:
        """The process that was at that address has ended: nothing that was on its way to it arrives."""
        for early in [early for early in self._early if early[2] == address]:
            del self._early[early]
        for ref in [ref for ref, maker in self._unwanted.items() if maker == address]:
            del self._unwanted[ref]
        for ref, held in list(self._held.items()):
            for key in [key for key in held.tickets if key[1] == address]:
                del held.tickets[key]
            held.is_named = held.is_named or ref.process == address
            self._look(ref, held)

    def _look(self, ref: RefId, held: _Held) -> None:
        if held.holders or held.tickets or not held.is_named:
            return
        del self._held[ref]
        self.freed.append(ref)
        if not held.is_made:
            self._unwanted[ref] = ref.process


def _take(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class LocalHandles:
    """The handles of one process: how many there are of each reference. What is returned is to be told to its owner."""

    def __init__(self) -> None:
        self._counts: Counter[RefId] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, ref: RefId) -> bool:
        return ref in self._counts

    def added(self, ref: RefId) -> None:
        """There is one more."""
        self._counts[ref] += 1

    def dropped(self, ref: RefId) -> bool:
        """There is one less. True if it was the last."""
        _take(self._counts, ref)
        return ref not in self._counts
