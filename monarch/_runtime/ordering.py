"""First sent, first handled: per (sender actor, receiver actor), over every path a message may take. Pure.

Senders count what they send to each receiver (`Numbering`); receivers release in that order and hold what came too early
(`Reorder`). On one path nothing is ever held; the numbers make other paths (a tree of agents, a resumed link) safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from monarch._linux.locks import RLock
from monarch._runtime.incarnations import first_in, process_of
from monarch._wire.message import Stamp

T = TypeVar("T")

RankKey = int | tuple[int, int]  # a rank, or (rank, incarnation) of a restarted one


class One(Protocol):
    """A message to one receiver, with its place in the sender's order."""

    seq: int


class Many(Protocol):
    """A message to several receivers, with its place in the order to each."""

    seqs: Stamp


class Stamped(Struct):
    """The places of a message of actor `sender` that each rank of mesh `to` is sent by itself; 0 until it is numbered."""

    sender: str
    to: str
    seqs: Stamp = 0


class Numbering:
    """The sender's side: how many messages each receiver was sent.

    Receivers are (mesh, rank), and once one was restarted (mesh, (rank, incarnation)). Safe from any thread; a message may
    leave in any order once it is numbered.

    A receiver waits for every number, so none may be lost: one is written into its message in the same breath in which it is
    counted. (A handler of signals can raise in the main thread, or send; Python looks for signals behind calls and where
    functions and loops begin, and there is none of these between the two steps, nor between them and the look whether a
    handler has sent.)
    """

    __slots__ = ("_counts", "_lock", "_repeated", "_single")

    def __init__(self) -> None:
        self._counts: dict[Hashable, dict[RankKey, int]] = {}  # the last number of each
        # What was sent to a mesh since it all goes to the same receivers; such meshes are not in `_single`.
        self._repeated: dict[Hashable, _Repeated] = {}
        self._single: dict[Hashable, dict[RankKey, int]] = {}
        self._lock = RLock()  # a handler of signals that sends may have interrupted who has it

    def __len__(self) -> int:
        return len(self._counts)

    def sizes(self) -> dict[Hashable, int]:
        """Returns how many receivers of each mesh have a number."""
        with self._lock:
            return {mesh: len(counts) for mesh, counts in self._counts.items()}

    def next(self, message: One, mesh: Hashable, rank: RankKey) -> None:
        """Numbers the next message to (mesh, rank); the first is 1."""
        with self._lock:
            while True:
                try:
                    counters = self._single[mesh]
                    counters[rank] = message.seq = counters[rank] + 1
                    return
                except KeyError:
                    counters = self._counters(mesh)
                    self._last(counters, rank)
                    counters.setdefault(rank, 0)

    def _counters(self, mesh: Hashable) -> dict[RankKey, int]:
        """Returns those of a mesh, all that was sent counted. With the lock held."""
        counters = self._counts.setdefault(mesh, {})
        while mesh in self._repeated:
            repeated = self._repeated[mesh]
            state = repeated.state
            counted = {rank: counters[rank] + state[1] for rank in repeated.ranks}
            if mesh in self._repeated and self._repeated[mesh] is repeated and repeated.state is state:
                del self._repeated[mesh]
                self._single[mesh] = counters
                counters.update(counted)
                return counters
        self._single[mesh] = counters
        return counters

    def _last(self, counters: dict[RankKey, int], rank: RankKey) -> int:
        last = counters.get(rank, 0)
        if not last and isinstance(rank, tuple):
            self._forget_before(counters, *rank)
        return last

    def _forget_before(self, counters: dict[RankKey, int], rank: int, incarnation: int) -> None:
        """Nothing is sent to earlier incarnations any more, but by a thread that has not seen the change yet. Those refuse
        what it sends; only what names none, or the first in the same process, could be for this one too: that count goes
        on."""
        first = first_in(process_of(incarnation))
        for known in list(counters):
            if isinstance(known, tuple) and known[0] == rank and known[1] < incarnation and known[1] != first:
                counters.pop(known, None)

    def next_many(self, message: Many, mesh: Hashable, ranks: Sequence[RankKey]) -> None:
        """Numbers one message to many ranks, each there once: one number when all stand at the same count, else runs
        (number, length).

        The same tuple time after time, with nothing to others of the mesh in between, costs the same for any number of ranks.
        """
        with self._lock:
            while not self._number_many(message, mesh, ranks):
                pass

    def _number_many(self, message: Many, mesh: Hashable, ranks: Sequence[RankKey]) -> bool:
        """False when a handler of signals has sent to the mesh meanwhile, and nothing was done."""
        repeated = self._repeated.get(mesh)
        if repeated is not None and repeated.ranks is ranks:
            state = repeated.state
            stamp, times = state
            stamp = stamp + 1 if isinstance(stamp, int) else [(number + 1, length) for number, length in stamp]
            if mesh not in self._repeated or self._repeated[mesh] is not repeated or repeated.state is not state:
                return False
            repeated.state = stamp, times + 1
            message.seqs = stamp
            return True
        counters = self._counters(mesh)
        self._single.pop(mesh, None)  # it is there again once somebody sends to the mesh
        numbers = {rank: self._last(counters, rank) + 1 for rank in ranks}
        stamp = compress(list(numbers.values()))
        again = _Repeated(ranks, stamp) if ranks and type(ranks) is tuple else None
        if mesh in self._single or mesh in self._repeated:
            return False
        message.seqs = stamp
        counters |= numbers
        if again is None:
            self._single[mesh] = counters
        else:
            self._repeated[mesh] = again
        return True

    def forget(self, mesh: Hashable) -> None:
        """No more messages go to `mesh`: it has ended."""
        with self._lock:
            for table in (self._counts, self._single, self._repeated):
                table.pop(mesh, None)


class _Repeated:
    """Messages to always the same ranks. `state`: the stamp of the last, and how many are not in the counters yet."""

    __slots__ = ("ranks", "state")

    def __init__(self, ranks: tuple[RankKey, ...], stamp: Stamp) -> None:
        self.ranks = ranks
        self.state: tuple[Stamp, int] = stamp, 0


def compress(numbers: Sequence[int]) -> Stamp:
    """Numbers, one a receiver, as they travel: one when all are the same (0 of none), else runs (number, length)."""
    if not numbers or min(numbers) == max(numbers):
        return numbers[0] if numbers else 0
    return [(number, len(list(run))) for number, run in itertools.groupby(numbers)]


def expand(stamp: Stamp, count: int) -> list[int]:
    """The numbers that `compress` was given, one a receiver."""
    if isinstance(stamp, int):
        return [stamp] * count
    return [number for number, length in stamp for _ in range(length)]


def cut(stamp: Stamp, start: int, stop: int) -> Stamp:
    """The stamp of receivers `start` to `stop` (exclusive) of those the stamp is for."""
    if isinstance(stamp, int):
        return stamp if start < stop else 0
    runs: list[tuple[int, int]] = []
    position = 0
    for number, length in stamp:
        inside = min(position + length, stop) - max(position, start)
        if inside > 0:
            runs.append((number, inside))
        position += length
        if position >= stop:
            break
    return runs[0][0] if len(runs) == 1 else runs or 0


class Session(NamedTuple):
    """A sender of which messages are held: the number awaited, how many are held, the lowest and the highest of them."""

    sender: Hashable
    awaited: int
    held: int
    lowest: int
    highest: int


_REFUSED = 0  # in the place of the next number: none of that sender is taken
_GAPS = 64  # ranges of numbers given up that are remembered of a sender: the latest; what comes of others counts as a repeat


class Reorder(Generic[T]):
    """The receiver's side. `accept` returns what may be handled now, in order; None for a message that will never be, so that
    it can be answered.

    Holds only messages that overtook another; `held` counts them. A number seen before is a repeat and is dropped. One that
    was given up and comes after all is not: later ones were handled.
    """

    # _expected: the next number of a sender; -n where any from n on will do, because those before may never come.
    # _gaps: ranges (first, last) of numbers that were given up.

    __slots__ = ("_expected", "_gaps", "_held", "held")

    def __init__(self) -> None:
        self._expected: dict[Hashable, int] = {}
        self._gaps: dict[Hashable, list[tuple[int, int]]] = {}
        self._held: dict[Hashable, dict[int, T]] = {}
        self.held = 0

    def __len__(self) -> int:
        return len(self._expected)

    def accept(self, sender: Hashable, number: int, item: T) -> Sequence[T] | None:
        expected = self._expected.get(sender, 1)
        if number == expected or 0 < -expected <= number:
            if expected < 0:
                self._give_up(sender, -expected, number - 1)
            self._expected[sender] = number + 1
            if sender not in self._held:
                return (item,)
            return self._release(sender, number + 1, [item])
        if 0 < expected < number:
            waiting = self._held.setdefault(sender, {})
            if number not in waiting:
                waiting[number] = item
                self.held += 1
        elif expected == _REFUSED or (sender in self._gaps and self._was_given_up(sender, number)):
            return None
        return ()

    def continues(self, sender: Hashable, number: int) -> bool:
        """Returns whether messages may be for this receiver that would as well be for one before it: when the first of them
        came here. Once one was not, `accept` takes none of that sender: it would wait for those that went elsewhere."""
        if number != 1 and sender not in self._expected:
            self._expected[sender] = _REFUSED
        return self._expected.get(sender) != _REFUSED

    def _give_up(self, sender: Hashable, first: int, last: int) -> None:
        if first <= last:
            gaps = self._gaps.setdefault(sender, [])
            gaps.append((first, last))
            del gaps[:-_GAPS]

    def _was_given_up(self, sender: Hashable, number: int) -> bool:
        """Returns whether that number was; from now on it is a repeat."""
        for index, (first, last) in enumerate(self._gaps[sender]):
            if first <= number <= last:
                rest = [(first, number - 1), (number + 1, last)]
                self._gaps[sender][index : index + 1] = [(start, stop) for start, stop in rest if start <= stop]
                return True
        return False

    def _release(self, sender: Hashable, number: int, ready: list[T]) -> list[T]:
        waiting = self._held[sender]
        while number in waiting:
            ready.append(waiting.pop(number))
            self.held -= 1
            number += 1
        self._expected[sender] = number
        if not waiting:
            del self._held[sender]
        return ready

    def drain(self) -> list[T]:
        """Takes out what is held, each sender's in order: nothing more will be handled."""
        drained = [waiting[number] for waiting in self._held.values() for number in sorted(waiting)]
        self._held.clear()
        self.held = 0
        return drained

    def knows(self, sender: Hashable) -> bool:
        return sender in self._expected

    def sessions(self) -> tuple[int, list[Session]]:
        """Returns how many senders are known, and those of which messages are held, most first."""
        held = [
            Session(sender, abs(self._expected.get(sender, 1)), len(waiting), min(waiting), max(waiting))
            for sender, waiting in self._held.items()
        ]
        return len(self._expected), sorted(held, key=lambda session: -session.held)

    def gap(self, sender: Hashable) -> tuple[int, int] | None:
        """(number awaited, lowest number held) when messages of `sender` are held; None when nothing is."""
        waiting = self._held.get(sender)
        return (self._expected.get(sender, 1), min(waiting)) if waiting else None

    def lost(self, sender: Hashable) -> list[T]:
        """The path to `sender` broke: what it had sent and we lack will not come.

        Returns what was held, in order, and takes the next number as it comes.
        """
        waiting = self._held.pop(sender, {})
        self.held -= len(waiting)
        expected = abs(self._expected.get(sender, 1))
        if expected != _REFUSED and (sender in self._expected or waiting):
            for number in sorted(waiting):
                self._give_up(sender, expected, number - 1)
                expected = number + 1
            self._expected[sender] = -expected
        return [waiting[number] for number in sorted(waiting)]

    def skip(self, sender: Hashable) -> None:
        """The first messages of `sender` will not come: takes the next number as it comes. For a sender not known yet."""
        self._expected[sender] = -1

    def refuse(self, sender: Hashable) -> list[T]:
        """Takes nothing of `sender` any more. Returns what was held."""
        held = self.forget(sender)
        self._expected[sender] = _REFUSED
        return held

    def forget(self, sender: Hashable) -> list[T]:
        """`sender` has ended; its state is dropped. Returns what was held."""
        waiting = self._held.pop(sender, {})
        self.held -= len(waiting)
        self._expected.pop(sender, None)
        self._gaps.pop(sender, None)
        return [waiting[number] for number in sorted(waiting)]
