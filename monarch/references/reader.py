"""The values of references as this process reads them: its own, and those of other processes, each brought here once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from monarch._linux.locks import Lock
from monarch.actor import Future, Promise, SupervisionError
from monarch.actor.lowlevel import follow, follow_as, in_thread
from monarch.references.counting import RefId
from monarch.references.errors import ReferenceLost
from monarch.references.object_ref import ObjectRef, RefFacts
from monarch.references.outcomes import (
    FetchedValue,
    Kept,
    KeptElsewhere,
    KeptError,
    LocalValue,
    error_of,
    lost_with,
)
from monarch.references.stored_value import MemoryPlace, mapped, unpickle

if TYPE_CHECKING:
    from monarch.references.store import ReferenceStore

T = TypeVar("T")
Answer = FetchedValue | KeptElsewhere | KeptError


class Unmapped(NamedTuple):
    """Word that a mapping of a value is no more."""

    facts: RefFacts


class ValueReader:
    """Reads the values of references for one process."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store
        self.fetched: dict[RefId, LocalValue] = {}  # what others made, as long as there are handles of it
        self._copying: dict[RefId, Any] = {}  # locks, held while bytes come from another host

    def fetch(self, ref: ObjectRef[T]) -> Future[T]:
        """The Future of the value."""
        if ref._copies:
            return in_thread(ref.get, "monarch-fetching")
        facts, store = ref._facts, self._store
        known = self.fetched.get(facts.ref)
        if known is not None:
            return _done(known, ref)
        if facts.owner == store.process[0]:
            return follow_as(facts, self._made_here(facts), lambda kept: _value(self._opened(kept, facts), ref))
        asked = store.ask(facts.owner, "fetch", facts.ref, False)
        return follow_as(
            facts,
            asked,
            lambda answer: _value(self._came(answer, facts), ref),
            rescue=lambda exc: lost_with(facts, exc),
        )

    async def fetch_later(self, ref: ObjectRef[T]) -> T:
        """Does as `fetch` while the event loop runs on, also where the bytes come from another host."""
        for copy in ref._copies[:-1]:
            try:
                return await self.fetch_later(copy)
            except ReferenceLost:
                pass
        if ref._copies:
            return await self.fetch_later(ref._copies[-1])
        facts, store = ref._facts, self._store
        if facts.ref in self.fetched:
            return await self.fetch(ref)
        if facts.owner == store.process[0]:
            kept = await self._made_here(facts)
            if isinstance(kept, KeptElsewhere):
                return await self.fetch_later(kept.ref)
            return _value(self._opened(kept, facts), ref)
        try:
            answer = await store.ask(facts.owner, "fetch", facts.ref, False)
        except SupervisionError as exc:
            raise lost_with(facts, exc) from None  # it says how the process ended
        here = None if isinstance(answer, KeptElsewhere) else self._took(answer, facts)
        if here is None:
            here = await in_thread(lambda: self._came(answer, facts), "monarch-fetching")
        return _value(here, ref)

    def is_here(self, ref: ObjectRef[Any]) -> bool:
        """Returns whether this process knows, without asking, that the value was made."""
        return bool(ref._copies) or ref._facts.ref in self.fetched or self._store.has(ref._facts.ref)

    def local(self, ref: ObjectRef[Any]) -> LocalValue:
        """Waits for the value; returns it as it is pickled."""
        for copy in ref._copies[:-1]:
            try:
                return self.local(copy)
            except ReferenceLost:
                pass
        facts, store = (ref._copies[-1] if ref._copies else ref)._facts, self._store
        known = self.fetched.get(facts.ref)
        if known is not None:
            return known
        if facts.owner == store.process[0]:
            return self._opened(self._made_here(facts).get(), facts)
        try:
            return self._came(store.ask(facts.owner, "fetch", facts.ref, False).get(), facts)
        except SupervisionError as exc:
            raise lost_with(facts, exc) from None  # it says how the process ended

    def made(self, ref: ObjectRef[Any]) -> Future[None]:
        """The Future that is done when the value, or an error in its place, is there; raises ReferenceLost."""
        facts, store = ref._facts, self._store
        if ref._copies or facts.owner == store.process[0]:
            made: Future[Any] = _ready(None) if ref._copies else self._made_here(facts)
        else:
            made = store.ask(facts.owner, "made", facts.ref)
        return follow_as(facts, made, lambda kept: None, rescue=lambda exc: lost_with(facts, exc))

    def _made_here(self, facts: RefFacts) -> Future[Kept]:
        promise: Promise[Kept] = Promise()
        self._store.when_made(facts.ref, promise.set)
        return promise.future

    def _opened(self, kept: Kept, facts: RefFacts) -> LocalValue:
        if isinstance(kept, KeptError):
            raise error_of(kept, facts)
        if isinstance(kept, KeptElsewhere):
            return self.local(kept.ref)
        return LocalValue(kept.stored.pieces(), kept.refs)

    def _came(self, answer: Answer, facts: RefFacts) -> LocalValue:
        if isinstance(answer, KeptElsewhere):
            return self._hold(facts, self.local(answer.ref))
        return self._took(answer, facts) or self._copied(facts)

    def _took(self, answer: FetchedValue | KeptError, facts: RefFacts) -> LocalValue | None:
        """Returns the value; None if it is in memory that cannot be mapped here."""
        if isinstance(answer, KeptError):
            raise error_of(answer, facts)
        pieces: Sequence[Any] | None = answer.pieces
        if answer.place is not None:
            pieces = self._mapped(answer.place, answer.lengths, facts)
            if pieces is None:
                return None
        assert pieces is not None
        return self._hold(facts, LocalValue([memoryview(piece).toreadonly() for piece in pieces], answer.refs))

    def _mapped(self, place: MemoryPlace, lengths: Sequence[int], facts: RefFacts) -> Sequence[Any] | None:
        """The owner is told that the reference is dropped when the mapping is gone as well: it uses the memory again."""
        store, told = self._store, Unmapped(facts)
        with store.lock:
            store.mappings.added(facts.ref)
        pieces = mapped(place, lengths, functools.partial(store.dropped.put, told))
        if pieces is None:
            store.dropped.put(told)
        return pieces

    def _hold(self, facts: RefFacts, here: LocalValue) -> LocalValue:
        with self._store.lock:
            return self.fetched.setdefault(facts.ref, here) if facts.ref in self._store.handles else here

    def _copied(self, facts: RefFacts) -> LocalValue:
        """Has a value that cannot be mapped sent here, once: who needs it meanwhile waits."""
        store = self._store
        with store.lock:
            turn = self._copying.setdefault(facts.ref, Lock())
        with turn:
            if (known := self.fetched.get(facts.ref)) is not None:
                return known
            try:
                here = self._took(store.ask(facts.owner, "fetch", facts.ref, True).get(), facts)
            except SupervisionError as exc:
                raise lost_with(facts, exc) from None  # it says how the process ended
            else:
                assert here is not None  # its pieces came along
                return here
            finally:
                with store.lock:
                    self._copying.pop(facts.ref, None)


def _value(here: LocalValue, ref: ObjectRef[T]) -> T:
    """Unpickles the value of a reference that lives as long."""
    return unpickle(here.pieces, here.refs)  # type: ignore[no-any-return]


def _ready(value: T) -> Future[T]:
    promise: Promise[T] = Promise()
    promise.set(value)
    return promise.future


def _done(here: LocalValue, ref: ObjectRef[T]) -> Future[T]:
    return follow(_ready(here), lambda here: _value(here, ref))
