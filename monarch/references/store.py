"""The references of one process: values that were made here, handles that it has of any, and what it tells other owners.

What each process holds is decided by `counting`; this carries it out. Every process has a `ReferenceService`, an actor with
which others speak, made by the first use or the first message. All that is told to owners is sent in its name, so it arrives
in the order in which it was sent. A handle that is dropped leaves word in a queue, from whatever the collector
interrupts; a thread tells the owner.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import os
import queue
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch._linux.locks import Condition, Lock
from monarch.actor import Actor, Future, Port, SupervisionError, endpoint
from monarch.actor.lowlevel import (
    Receivers,
    encode_for,
    explain_unsendable,
    own_process,
    process_service,
    reduce_for,
    service_of,
    start_thread,
    watch_processes,
    when_ready,
)
from monarch.references.counting import HolderTable, LocalHandles, Process, RefId, Ticket, is_ticket, is_told
from monarch.references.errors import ReferenceLost
from monarch.references.mapping import idle
from monarch.references.object_ref import ObjectRef, RefFacts, handle
from monarch.references.outcomes import (
    FetchedValue,
    Kept,
    KeptElsewhere,
    KeptError,
    KeptValue,
    failed_with,
    no_room,
)
from monarch.references.pinning import places_for_copies
from monarch.references.reader import Unmapped, ValueReader
from monarch.references.stored_value import StoredValue, inner, limit_of_bytes, memory

if TYPE_CHECKING:
    from monarch.actor import ProcMesh

T = TypeVar("T")
Answered = Callable[[bool], None]

_SERVICE = "references"
_BATCH = 1000  # dropped handles that are told to their owners at once
_EACH = 1024  # bytes that a value is counted with besides, about what it takes in tables
_PATIENCE = 30.0  # seconds until the service of this process has started

_log = logging.getLogger("monarch")


class _KeptReceivers(Receivers):
    """Stands for who gets a value that is kept: the references within it, which it keeps."""

    __slots__ = ("refs",)

    def __init__(self) -> None:
        super().__init__("", "a value that is kept", ())
        self.refs: list[ObjectRef[Any]] = []


class _Lending:
    """Tells the owner, before a message is sent, that it carries a reference."""

    __slots__ = ("_addresses", "_facts", "_store", "ticket")

    def __init__(self, store: ReferenceStore, facts: RefFacts, addresses: Sequence[str]) -> None:
        self._store, self._facts, self._addresses = store, facts, tuple(addresses)
        self.ticket = store.new_ticket()

    def __call__(self) -> None:
        self._store.lend(self._facts, self.ticket, self._addresses)


class ReferenceStore:
    """See the module. Any thread, but the I/O thread, which only leaves word in `dropped`."""

    def __init__(self) -> None:
        self.process: Process = own_process()
        # What handles leave that are no more, and what else is told on a thread of its own.
        self.dropped: queue.SimpleQueue[RefFacts | Unmapped | Callable[[], None] | None] = queue.SimpleQueue()
        self._context = contextvars.copy_context()  # of the service: the sender of all that is told
        self._numbers = itertools.count(1)
        self.lock = Lock()  # of what follows, and of the reader; nothing waits while it is held
        self._table = HolderTable()
        self.handles = LocalHandles()
        self.mappings = LocalHandles()  # of values of others: those are not to write to their memory
        self._kept: dict[RefId, Kept] = {}
        self._waiting: dict[RefId, list[Callable[[Kept], None]]] = {}
        self._bytes = 0
        self._watched: set[Process] = set()
        self.reader = ValueReader(self)
        self._sending = Lock()  # what is decided under it is sent in this order
        self._services: dict[str, Any] = {}
        self._closed = False
        start_thread(self._context.copy().run, "monarch-references", self._run)

    # --- for tests and people

    @property
    def number(self) -> int:
        """The number of references there are whose values are here, or will be."""
        with self.lock:
            return len(self._table)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept here, with 1 KiB for each value; and those of tasks that wait here, with 4 KiB for each."""
        with self.lock:
            return self._bytes

    @property
    def is_clean(self) -> bool:
        """True if nothing is kept here of any reference, and there is no handle."""
        with self.lock:
            here = self.handles or self.mappings or self.reader.fetched
            return self._table.is_clean and not (here or self._kept or self._bytes)

    # --- values of this process

    def put(self, value: Any, maker: str) -> ObjectRef[Any]:
        """Keeps a value."""
        return self._keep_here(self._encoded(value, maker), maker)

    def _keep_here(self, kept: KeptValue, maker: str) -> ObjectRef[Any]:
        facts = RefFacts(RefId(self.process[0], "", next(self._numbers), self.process[1]), self.process[0], maker)
        self._admit(kept, maker)
        with self.lock:
            self._table.create(facts.ref, self.process)
            self._table.made(facts.ref)
            self._kept[facts.ref] = kept
            self.handles.added(facts.ref)
        return handle(facts, self)

    def keep(self, ref: RefId, result: Any, error: BaseException | None, maker: str) -> None:
        """Keeps the result of a call, or its error, for who made it. Does not raise."""
        kept: Kept
        try:
            if error is not None:
                raise error
            kept = self._encoded(result, maker)
            self._admit(kept, maker)
        except BaseException as exc:  # of the endpoint, or of the value's own pickling: both may raise anything
            kept = failed_with(exc)
        self._fill(ref, kept)

    def named(self, maker: str) -> ObjectRef[Any]:
        """Makes a reference to a value that another process will make; `forward` says which."""
        facts = RefFacts(RefId(self.process[0], "", next(self._numbers), self.process[1]), self.process[0], maker)
        with self.lock:
            self._table.create(facts.ref, self.process)
            self.handles.added(facts.ref)
        return handle(facts, self)

    def is_wanted(self, ref: RefId) -> bool:
        """Returns whether anybody holds a reference that was named here."""
        with self.lock:
            return ref in self._table

    def has(self, ref: RefId) -> bool:
        """Returns whether a value was made here, or where this process says."""
        return ref in self._kept

    def owner_of(self, ref: ObjectRef[Any]) -> str:
        """Returns the address of the process that has a value, as far as this process knows."""
        while isinstance(kept := self._kept.get(ref._facts.ref), KeptElsewhere):
            ref = kept.ref
        return ref.owner

    def forward(self, ref: RefId, there: ObjectRef[Any] | Exception) -> None:
        """Says where what was named is; or what prevented it."""
        self._fill(ref, failed_with(there) if isinstance(there, Exception) else KeptElsewhere(there))

    def copied(self, ref: ObjectRef[Any]) -> ObjectRef[Any]:
        """Keeps a copy of a value of another process; waits for it."""
        here, maker = self.reader.local(ref), ref._facts.maker
        kept = KeptValue(StoredValue(here.pieces), here.refs)
        return self._keep_here(kept, maker)

    def _fill(self, ref: RefId, kept: Kept) -> None:
        with self.lock:
            wanted = ref not in self._kept and self._table.made(ref)
            if wanted:
                self._kept[ref] = kept
            waiting = self._waiting.pop(ref, []) if wanted else []
        if not wanted:
            self._let_go(kept)
            return
        self._watch_namer(ref)
        for answer in waiting:
            answer(kept)

    def _encoded(self, value: Any, maker: str) -> KeptValue:
        inside, limit = _KeptReceivers(), limit_of_bytes()
        least = len(value) if isinstance(value, (bytes, bytearray)) else getattr(value, "nbytes", 0)
        if isinstance(least, int) and least > limit:  # said before it is copied
            raise no_room(least, 0, limit, maker)
        try:
            body, buffers = encode_for(inside, value)
        except Exception as exc:
            explain_unsendable(
                exc, "a value that is to be kept", {"value": value}, lambda part: encode_for(inside, part)
            )
            raise
        size = len(body) + sum(buffer.nbytes for buffer in buffers)
        if size > limit:
            raise no_room(size, 0, limit, maker)
        return KeptValue(StoredValue([body, *buffers]), inside.refs)

    def _admit(self, kept: KeptValue, maker: str) -> None:
        size = kept.stored.size + _EACH
        self.take(size, lambda used, limit: no_room(size, used, limit, maker))

    def take(self, size: int, refused: Callable[[int, int], Exception]) -> None:
        """Counts bytes that are kept here. Raises `refused(used, limit)` where there is no room for them."""
        limit = limit_of_bytes()
        with self.lock:
            used = self._bytes
            if used + size <= limit:
                self._bytes += size
                return
        raise refused(used, limit)

    def give_back(self, size: int) -> None:
        """They are kept no more."""
        with self.lock:
            self._bytes -= size

    def _let_go(self, kept: Kept | None) -> None:
        if isinstance(kept, KeptValue):
            self.give_back(kept.stored.size + _EACH)

    def _free(self) -> None:
        """Lets go of what nobody holds any more; handles within it leave word in the queue."""
        with self.lock:
            freed, self._table.freed = self._table.freed, []
            gone = [(ref, self._kept.pop(ref, None), self._waiting.pop(ref, [])) for ref in freed]
        for ref, kept, waiting in gone:
            self._let_go(kept)
            for answer in waiting:
                answer(failed_with(ReferenceLost(f"the value of {ref} was freed: nobody held it")))
        if gone:
            self.dropped.put(lambda: None)  # memory is free now, and given back later

    # --- handles

    def created(self, facts: RefFacts) -> ObjectRef[Any]:
        """A handle of a value that its owner will make, and that this process has named."""
        with self._sending:
            with self.lock:
                self.handles.added(facts.ref)
            self._tell(facts.owner, "create", facts.ref)
        return handle(facts, self)

    def arrived(self, facts: RefFacts, ticket: Ticket) -> ObjectRef[Any]:
        """A handle that a message has brought. TypeError when its owner would refuse the claim."""
        if not is_ticket(ticket):
            raise TypeError(
                f"the reference of {facts.maker} comes with no claim on it ({ticket!r:.100}): send the ObjectRef itself"
            )
        with self._sending:
            with self.lock:
                self.handles.added(facts.ref)
            self._tell(facts.owner, "claim", facts.ref, ticket)
        return handle(facts, self)

    def new_ticket(self) -> Ticket:
        return Ticket(self.process, next(self._numbers))

    def lend(self, facts: RefFacts, ticket: Ticket, addresses: Sequence[str]) -> None:
        with self._sending:
            self._tell(facts.owner, "lend", facts.ref, ticket, addresses)

    def failed(self, facts: RefFacts, error: Exception) -> None:
        """The owner lives, and its actor will not make the value."""
        with self._sending:
            self._tell(facts.owner, "failed", facts.ref, str(error))

    def when_answered(self, facts: RefFacts, future: Future[None], answered: Answered | None) -> None:
        """Tells the owner if its actor ends before it has made the value. `answered(whether it has)` when that is known."""

        def look() -> None:
            error = future.exception()  # raised, it would have this frame, which has the Future: a circle
            lives = not isinstance(error, SupervisionError)
            if isinstance(error, SupervisionError):
                self.failed(facts, error)  # of other errors the owner knows
            if answered is not None:
                answered(lives)

        when_ready(future, lambda: self.dropped.put(look))

    def _tell(self, owner: str, what: str, *facts: Any) -> None:
        """Runs with `_sending` held."""
        if owner == self.process[0]:
            self.hear(self.process, [(what, *facts)])
        else:
            self._in_context(lambda: self._service(owner).tell.broadcast(self.process, [(what, *facts)]))

    def ask(self, owner: str, endpoint: str, *facts: Any) -> Future[Any]:
        """Calls an endpoint of another process's service, behind all that it was told before."""
        with self._sending:
            return self._in_context(lambda: getattr(self._service(owner), endpoint).call_one(*facts))

    def _in_context(self, act: Callable[[], T]) -> T:
        return self._context.copy().run(act)

    def _service(self, address: str) -> Any:
        known = self._services.get(address)
        if known is None:
            known = self._services[address] = service_of(address, _SERVICE, ReferenceService)
        return known

    # --- what others tell

    def hear(self, process: Process, batch: Sequence[tuple[Any, ...]]) -> None:
        """Another process, or this one, tells what it holds."""
        self._watch(process)
        for told in batch:
            if not is_told(told):
                _log.error(
                    "%s told of a reference what cannot be understood, and it was left out: %.200r", process[0], told
                )
                continue
            what, ref, *facts = told
            if what == "failed":
                self._fill(ref, failed_with(SupervisionError(facts[0])))
                continue
            with self.lock:
                if what == "create":
                    self._table.create(ref, process)
                elif what == "claim":
                    self._table.claim(ref, process, facts[0])
                elif what == "lend":
                    self._table.lend(ref, *facts)
                else:
                    self._table.release(ref, process)
            if what == "lend":
                for address in facts[1]:
                    self._watch((address, -1))
            elif what == "claim":
                self._watch_namer(ref)
                self._watch(facts[0].sender)  # it may end before it has told that it lent the reference
        if self._table.freed:
            self._free()

    def _watch_namer(self, ref: RefId) -> None:
        if not self._table.is_named(ref):
            self._watch((ref.process, -1))

    def _watch(self, process: Process) -> None:
        if process[0] == self.process[0] or process in self._watched:
            return
        self._watched.add(process)
        address, incarnation = process

        def ended(address: str, how: str, stopped: bool) -> None:
            self.dropped.put(lambda: self._ended(process))

        self._in_context(lambda: watch_processes({address: incarnation}, ended))

    def _ended(self, process: Process) -> None:
        with self.lock:
            self._watched.discard(process)
            if process[1] < 0:
                self._table.address_ended(process[0])
            else:
                self._table.ended(process)
        self._free()

    def pin(self, ref: ObjectRef[Any], copies: int, on: ProcMesh | None, timeout: float | None) -> ObjectRef[Any]:
        """See `ObjectRef.pin`."""
        had = ref._copies or (ref,)
        targets = places_for_copies([one.owner for one in had], copies, on, self.process[0])
        self.reader.made(ref).get(timeout)
        asked = [self._ask_for_copy(target, ref) for target in targets if target != self.process[0]]
        made = [self.copied(ref)] if self.process[0] in targets else []
        made += [future.get(timeout) for future in asked]
        return handle(ref._facts, self, (*had, *made))

    def _ask_for_copy(self, target: str, ref: ObjectRef[Any]) -> Future[ObjectRef[Any]]:
        """Sends the reference as an argument, which takes `_sending` itself."""
        return self._in_context(lambda: self._service(target).copy.call_one(ref))

    # --- values, for readers

    def when_made(self, ref: RefId, answer: Callable[[Kept], None]) -> None:
        """Calls `answer` with what is kept of a reference, as soon as it is."""
        with self.lock:
            kept = self._kept.get(ref)
            if kept is None and ref in self._table:
                self._waiting.setdefault(ref, []).append(answer)
                return
        if kept is None:
            kept = failed_with(ReferenceLost("its value is not in the process that made it any more"))
        answer(kept)

    def show(self, kept: Kept, whole: bool) -> FetchedValue | KeptElsewhere | KeptError:
        """Returns what a reader is told of a value; `whole`: it cannot map its memory."""
        if not isinstance(kept, KeptValue):
            return kept
        stored = kept.stored
        place = None if whole else stored.place
        if place is None:
            import pickle

            pieces = [pickle.PickleBuffer(piece) for piece in stored.pieces()]
        else:
            pieces = []
        return FetchedValue(place, stored.lengths, pieces, kept.refs)

    # --- the thread

    def _run(self) -> None:
        try:
            self._tell_dropped()
        except BaseException as exc:  # of a simulated process that was killed
            _log.debug("nobody is told any more of references that are dropped: %s", exc)

    def _tell_dropped(self) -> None:
        while True:
            try:
                work: list[Any] = [self.dropped.get(timeout=_trim())]
            except queue.Empty:  # time to give memory back
                continue
            while len(work) < _BATCH:
                try:
                    work.append(self.dropped.get_nowait())
                except queue.Empty:
                    break
            released: dict[str, list[tuple[str, RefId]]] = {}
            with self._sending:
                with self.lock:
                    for one in work:
                        if (facts := self._let_go_of(one)) is not None:
                            released.setdefault(facts.owner, []).append(("release", facts.ref))
                for owner, batch in released.items():
                    self._release(owner, batch)
            for one in work:
                if one is None:
                    return
                if not isinstance(one, (RefFacts, Unmapped)):
                    self._do(one)
            del work, one  # they may hold what is to be freed

    def _let_go_of(self, one: Any) -> RefFacts | None:
        """Counts a handle, or a mapping, that is no more; returns the reference that this process needs no more."""
        if isinstance(one, RefFacts):
            if self.handles.dropped(one.ref):
                self.reader.fetched.pop(one.ref, None)
                return None if one.ref in self.mappings else one
        elif isinstance(one, Unmapped) and self.mappings.dropped(one.facts.ref) and one.facts.ref not in self.handles:
            return one.facts
        return None

    def _release(self, owner: str, batch: list[tuple[str, RefId]]) -> None:
        try:
            if owner == self.process[0]:
                self.hear(self.process, batch)
            else:
                self._in_context(lambda: self._service(owner).tell.broadcast(self.process, batch))
        except Exception as exc:  # it has ended, or this process ends
            _log.debug("the owner of references, %s, was not told that they are dropped: %s", owner, exc)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:  # of telling a process that has ended; the thread goes on for the others
            if not self._closed:
                _log.debug("of references: %s", exc)

    def close(self) -> None:
        """Nothing is told any more."""
        self._closed = True
        _stores.pop(self.process, None)
        self.dropped.put(None)


def _trim() -> float | None:
    """Gives back memory and mappings that are not used; returns in how many seconds to look again, None: not at all."""
    return min((s for s in (memory.trim(), idle.trim(time.monotonic())) if s is not None), default=None)


class ReferenceService(Actor):
    """The references of its process, for other processes."""

    _is_system_actor = True
    _may_lose_broadcasts = True  # what is told to a process that has ended concerns nobody any more

    def __init__(self) -> None:
        self._store = ReferenceStore()
        with _started:
            _stores[self._store.process] = self._store
            _started.notify_all()

    @endpoint(instrument=False)
    def tell(self, process: Process, batch: Sequence[tuple[Any, ...]]) -> None:
        """Hears what a process holds."""
        self._store.hear(process, batch)

    @endpoint(explicit_response_port=True, instrument=False)
    def fetch(self, port: Port[Any], ref: RefId, whole: bool) -> None:
        """Answers with the value, or where it is, once it was made."""
        store = self._store

        def answer(kept: Kept) -> None:
            port.send(store.show(kept, whole))

        store.when_made(ref, answer)

    @endpoint(explicit_response_port=True, instrument=False)
    def made(self, port: Port[None], ref: RefId) -> None:
        """Answers once the value was made."""
        self._store.when_made(ref, lambda kept: port.send(None))

    @endpoint(explicit_response_port=True, instrument=False)
    def copy(self, port: Port[Any], ref: ObjectRef[Any]) -> None:
        """Answers with a reference to a copy of a value, which this process has then."""

        def run() -> None:
            try:
                port.send(self._store.copied(ref))
            except Exception as exc:  # for who wants the copy
                port.exception(exc)

        start_thread(contextvars.copy_context().run, "monarch-fetching", run)

    def _handle_undeliverable_message(self, message: Any) -> bool:
        return True  # a reader has ended

    def __cleanup__(self, exc: Exception | None) -> None:
        self._store.close()


_stores: dict[Process, ReferenceStore] = {}
_started = Condition()
os.register_at_fork(after_in_child=_stores.clear)


def store() -> ReferenceStore:
    """The store of this process."""
    process = own_process()
    known = _stores.get(process)
    if known is None:
        process_service(_SERVICE, ReferenceService)
        with _started:
            if not _started.wait_for(lambda: process in _stores, _PATIENCE):
                raise RuntimeError(f"the service of references did not start within {_PATIENCE:g} s in this process")
            known = _stores[process]
    return known


def _reduce(ref: ObjectRef[Any], receivers: Receivers) -> tuple[Any, ...]:
    if ref._copies:
        return _arrived_pinned, ref._copies
    if isinstance(receivers, _KeptReceivers):
        receivers.refs.append(ref)
        return inner, (len(receivers.refs) - 1,)
    key = f"reference {id(ref)}"  # two handles of one reference are unpickled, and claimed, each for itself
    lending = receivers.before.get(key)
    if not isinstance(lending, _Lending):
        receivers.counted = True
        lending = receivers.before[key] = _Lending(ref._store, ref._facts, receivers.addresses)
    return _arrived, (ref._facts, lending.ticket)


def _arrived(facts: RefFacts, ticket: Ticket) -> ObjectRef[Any]:
    return store().arrived(facts, ticket)


def _arrived_pinned(*copies: ObjectRef[Any]) -> ObjectRef[Any]:
    return handle(copies[0]._facts, store(), copies)


reduce_for(
    ObjectRef,
    _reduce,
    "a reference is counted for who gets it. It goes as an argument of an endpoint, in what an endpoint returns, in a "
    "message for a Port, and within a value that is put",
    results=True,
)
