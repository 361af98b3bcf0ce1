"""The answers that gatherings have given, kept within bounds for those that ask again. Pure; see `relay`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from monarch._wire.frame import Buffer
from monarch._wire.message import Cast

ALONE = 64 * 1024  # bytes of an answer's body from which it travels alone, at once
# What is kept of finished gatherings: so many, so many bytes in all, no answer above so many bytes. Who asks for one that is
# not kept gets a Failure.
GIVEN_GATHERINGS = 1000
GIVEN_BYTES = 16 * 1024 * 1024
ANSWER_KEPT = 1024 * 1024
# Processes whose last port that is not kept is remembered, to know what was; beyond them, a process that asks again for what
# is not known gets a Failure too.
EVICTED = 10_000

Key: TypeAlias = tuple[str, int]  # of a gathering: address of the process that holds the port, port


class Record(NamedTuple):
    """One answer; of a reduction, what the answers of `span` neighbouring ranks have come to."""

    rank: int
    kind: int
    body: Buffer
    buffers: Sequence[Buffer]
    span: int = 1

    @property
    def ranks(self) -> range:
        return range(self.rank, self.rank + self.span)

    @property
    def size(self) -> int:
        return size_of(self.body, self.buffers)

    @property
    def alone(self) -> bool:
        return bool(self.buffers) or len(self.body) > ALONE


class CachedAnswers:
    """The answers that a gathering has given. `key`, `sender` and the first receiver's number tell which cast it was."""

    __slots__ = ("done", "first", "gone", "key", "lost", "records", "sender", "size")

    def __init__(self, key: Key, cast: Cast) -> None:
        self.key = key
        self.sender = cast.sender
        self.first = _first(cast)
        self.records: list[Record] = []
        self.size = 0
        self.lost: list[int] = []  # ranks whose answers are not kept
        self.gone: list[int] = []
        self.done = False

    def same(self, cast: Cast) -> bool:
        return self.sender == cast.sender and self.first == _first(cast)


class AnswerCache:
    """The answers that gatherings have given, within bounds, and what is known of those that are not kept any more."""

    def __init__(self) -> None:
        self.done: OrderedDict[Key, CachedAnswers] = OrderedDict()
        self._sized: OrderedDict[Key, CachedAnswers] = OrderedDict()  # that take memory; oldest first
        self._size = 0
        self._evicted: OrderedDict[str, int] = OrderedDict()  # process -> highest port of a finished gathering
        self._forgot = False  # some of those, too

    def add(self, given: CachedAnswers, records: Iterable[Record], gone: Iterable[int]) -> None:
        given.gone += gone
        for record in records:
            if record.size > ANSWER_KEPT:
                given.lost += record.ranks
                continue
            given.records.append(record)
            given.size += record.size
            self._size += record.size
        if given.size:
            self._sized[given.key] = given
        while self._size > GIVEN_BYTES:
            self._lose(next(iter(self._sized.values())))

    def finish(self, given: CachedAnswers) -> None:
        given.done = True
        self.done[given.key] = given
        while len(self.done) > GIVEN_GATHERINGS:
            self._evict(next(iter(self.done.values())))

    def used(self, given: CachedAnswers) -> None:
        """Marks answers as used just now; others go before it."""
        self.done.move_to_end(given.key)
        if given.key in self._sized:
            self._sized.move_to_end(given.key)

    def forget(self, given: CachedAnswers) -> None:
        if self.done.get(given.key) is given:
            del self.done[given.key]
        self._release(given)

    def may_have_answered(self, key: Key) -> bool:
        """True if a gathering that is not known may have finished here."""
        back, port = key
        highest = self._evicted.get(back)
        return self._forgot if highest is None else port <= highest

    def _lose(self, given: CachedAnswers) -> None:
        if given.done:
            self._evict(given)
            return
        given.lost += [rank for record in given.records for rank in record.ranks]
        self._release(given)

    def _evict(self, given: CachedAnswers) -> None:
        self.forget(given)
        back, port = given.key
        self._evicted[back] = max(port, self._evicted.get(back, 0))
        self._evicted.move_to_end(back)
        if len(self._evicted) > EVICTED:
            self._evicted.popitem(last=False)
            self._forgot = True

    def _release(self, given: CachedAnswers) -> None:
        if self._sized.get(given.key) is given:
            del self._sized[given.key]
            self._size -= given.size
        given.records, given.size = [], 0


def size_of(body: Buffer, buffers: Sequence[Buffer]) -> int:
    return len(body) + sum(memoryview(buffer).nbytes for buffer in buffers)


def _first(cast: Cast) -> int:
    """The number of the first receiver; another agent above may send the cast for fewer of those behind it."""
    return cast.seqs if isinstance(cast.seqs, int) else cast.seqs[0][0]
