"""Waits for answers: the port table of a process, and the ends that wait there.

A port is (process address, number). Numbers are never used again. An entry leaves the table when it has all it waits for,
so a late answer finds nothing and is dropped.

The ends that take answers one by one are in `queue`.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import RLock
from monarch._runtime import recorder as recording
from monarch._runtime.future import LONG_WAIT, LOOK, LOOKING, Source
from monarch._runtime.remote_errors import Raw, decode_answer, decode_failure, failure_error
from monarch._runtime.unobserved_errors import UnobservedError, source_line
from monarch._wire.address import agent_of
from monarch._wire.codec import decode
from monarch._wire.frame import Buffer
from monarch._wire.message import FAILED, MERGED, VALUE, Answers, Failure, ProcEnded

if TYPE_CHECKING:
    from types import CodeType

    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc
    from monarch._wire.transport.base import Connection

_ENDED_KEPT = 10_000
_LOOKED_AT = 1_000  # calls without an answer among which the one is looked for that keeps another from beginning
_ABANDONED_KEPT = 10_000  # unanswered calls that nobody will observe; of more than these, errors are not logged


class Target:
    """The facts a waiting end knows of those it waits for: a name for reports and the processes they run in.

    `addresses[i]` is the process of the view's rank i; `failure_of(address, ended)` what the end of one means to them.
    `key` is that of the actors whose endpoint was called, `ranks` their ranks in the mesh they were spawned as; "" and none
    when no endpoint answers but the runtime of their processes. `in_turn`: the endpoint runs alone and answers at its end.
    """

    __slots__ = ("addresses", "failure_of", "in_turn", "key", "label", "ranks")

    def __init__(self, label: str, addresses: Sequence[str], failure_of: Callable[[str, ProcEnded], Failure]) -> None:
        self.label = label
        self.addresses = addresses
        self.failure_of = failure_of
        self.key = ""
        self.ranks: Sequence[int] = ()
        self.in_turn = False


class Ports:
    """The table. `receive` is called on the I/O thread, or by a local sender.

    `watched` is False while somebody would like to know that an answer of actors is waited for: `watch` is called then.
    """

    __slots__ = ("_abandoned", "_ended", "_entries", "_numbers", "watch", "watched")

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._abandoned: dict[int, Entry] = {}  # calls whose Future was dropped before they were answered
        self._ended: OrderedDict[int, None] = OrderedDict()  # ports whose actor ended, the last few thousand
        self._numbers = itertools.count(1)
        self.watched = True
        self.watch: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def add(self, entry: Entry) -> int:
        number = next(self._numbers)
        entry.number = number
        entry.table = self._entries
        self._entries[number] = entry
        if not self.watched and entry.target is not None:
            self.watch()
        return number

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def suspected(self, address: str, why: str) -> None:
        """Notes that nothing gets through to that host agent at present; "": it does, or might."""
        for entry in self.entries():
            if entry.waits_for(address):
                entry.suspected(address, why)

    def abandon(self, entry: Entry) -> bool:
        """Nobody waits there any more; what comes is only looked at. False when there are too many of these. At any point of
        a thread's work, as `Future.__del__`: single steps on dicts, in an order in which it is always in one of them."""
        if len(self._abandoned) >= _ABANDONED_KEPT:
            return False
        self._abandoned[entry.number] = entry
        entry.table = self._abandoned
        if self._entries.pop(entry.number, None) is None:  # closed meanwhile, when that was its table
            entry.close()
        return True

    def _forget_abandoned(self, address: str) -> None:
        """No answer comes from there any more."""
        for entry in list(self._abandoned.values()):
            if entry.waits_for(address):
                entry.close()

    def used_by(self, number: int, caller: Instance) -> None:
        """The answers of a call of that actor go to this port."""
        entry = self._entries.get(number)
        if entry is not None:
            entry.caller = caller

    def receive(self, number: int, raw: Raw) -> bool:
        """False when nobody waits there (any more)."""
        entry = self._entries.get(number) or self._abandoned.get(number)
        if entry is None:
            return False
        entry.receive(raw)
        return True

    def receive_many(self, answers: Answers, body: Buffer, buffers: Sequence[Buffer]) -> None:
        """Answers that came up the tree together."""
        if buffers or len(answers.ranks) == 1:  # it is one, and what is merged into it
            self.receive(answers.port, (answers.ranks[0], answers.kinds[0], body, buffers))
            for rank in answers.ranks[1:]:
                self.receive(answers.port, (rank, MERGED, b"", ()))
            return
        view, start = memoryview(body), 0
        for rank, kind, size in zip(answers.ranks, answers.kinds, answers.sizes, strict=True):
            self.receive(answers.port, (rank, kind, bytes(view[start : start + size]), ()))
            start += size

    def actor_ended(self, instance: Instance) -> None:
        """The ports it opened are closed: who still sends there is told, and whatever of it still waits there."""
        for entry in list(self._entries.values()):
            if entry.owner is instance:
                entry.fail(instance.end or Failure(f"actor {instance.name!r} has ended", stopped=True))
                self._ended[entry.number] = None
                if len(self._ended) > _ENDED_KEPT:
                    self._ended.popitem(last=False)

    def belonged_to_ended_actor(self, number: int) -> bool:
        return number in self._ended

    def process_ended(self, ended: ProcEnded) -> None:
        """Fails whatever still waits for an answer from that process."""
        for entry in list(self._entries.values()):
            entry.process_ended(ended)
        self._forget_abandoned(ended.address)  # afterwards: entries are abandoned meanwhile

    def process_replaced(self, ended: ProcEnded) -> None:
        """Tells those who watch a process that it has ended. What others wait for comes from the one in its place."""
        for entry in list(self._entries.values()):
            entry.process_replaced(ended)

    def count(self) -> int:
        """A number above those of all ports there are, and below those to come."""
        return next(self._numbers)

    def connection_broke(
        self, address: str, ports: range, unsent: Container[int], failure: Failure, survivor: Connection | None = None
    ) -> None:
        """Tells whatever waits at these ports for an answer from that process, but for those in `unsent`. What is being sent
        just now is told by its sender, who knows which connection took it (`Entry.sent`)."""
        for entry in list(self._entries.values()):
            if entry.number in ports and entry.number not in unsent:
                if entry.sending and entry.waits_for(address):
                    entry.broken = (address, failure, survivor)
                    if entry.sending:  # looked at again now that it was said: one of the two sees what the other did
                        continue
                if entry.may_be_lost(survivor):
                    entry.connection_broke(address, failure)
        self._forget_abandoned(address)

    def not_sent(self, address: str, ports: Container[int], failure: Failure) -> None:
        """Tells every port that waits for an answer to what was to be sent to that process and will not be."""
        for entry in list(self._entries.values()):
            if entry.number in ports:
                entry.connection_broke(address, failure)

    def close_all(self, failure: Failure) -> None:
        for entry in list(self._entries.values()):
            entry.fail(failure)
        self._entries.clear()
        self._abandoned.clear()


def _nothing() -> None:
    return None


_NO_TABLE: dict[int, Entry] = {}  # of those that are in none
# Of what any entry carries: the I/O thread and a sender may note something at once, and a finalizer in the midst of it.
_noting = RLock()


class Entry(Source):
    """Something that waits at a port."""

    __slots__ = (
        "abandoned", "began", "broken", "caller", "code", "instruction", "number", "owner", "record", "sending", "table",
        "taken", "target", "timer", "told", "unobserved",
    )  # fmt: skip

    def __init__(self, target: Target | None) -> None:
        super().__init__()
        self.began = monotonic()  # for people who print its Future
        self.number = 0
        self.table: dict[int, Entry] = {}
        self.target = target
        self.timer: Any = None
        self.owner: Instance | None = None  # the actor that opened the port
        self.caller: Instance | None = None  # the actor that calls an endpoint
        self.code: CodeType | None = None  # where it does: see `source_line`
        self.instruction = 0
        self.unobserved: UnobservedError | None = None  # a failure or an error that its observer is to see
        self.record: recording.Sent | None = None  # of the recorder, if there is one
        self.told = 0  # how far that was reported
        self.abandoned = False  # nobody will observe it
        self.sending = False  # its message to one receiver is being sent
        self.taken: Connection | None = None  # what took it
        # (process, what became of it, the connection that survived): a connection broke.
        self.broken: tuple[str, Failure, Connection | None] | None = None

    def receive(self, raw: Raw) -> None:
        raise NotImplementedError

    def fail(self, failure: Failure) -> None:
        self.note_failure(failure)
        self.give_up(failure_error(failure, self.target.label if self.target else None))

    def note_failure(self, failure: Failure) -> None:
        """This failure is the outcome. Its observer has been told; if nobody does, its owner has to be."""
        caller, target = self.caller, self.target
        if caller is None or self.abandoned or failure.stopped or self.has_outcome():
            return
        if target is not None and target.key != failure.mesh:
            return
        with _noting:
            awaited = self.awaited_ranks() or failure.ranks
            told = caller.proc.hooks.call_failed(self, caller, failure.mesh, awaited, failure.ranks)
            if told is not None and told is not self.unobserved:
                if self.unobserved is not None:  # an error of another rank, which nobody will hear of
                    self.unobserved.seen()
                self.unobserved = told

    def note(self, raw: Raw) -> None:
        """This answer is an error or a failure, for its observer to see."""
        if raw[1] == FAILED:
            self.note_failure(decode_failure(raw[2]))
        elif self.caller is not None and self.target is not None and self.unobserved is None:
            self.unobserved = self.caller.proc.hooks.call_raised(self, raw)

    def note_pending(self) -> None:
        """A rank that it waits for has failed, of which it has not heard: it will, so the failure is its from now on."""
        caller, target = self.caller, self.target
        if caller is not None and target is not None:
            with _noting:
                if not self.has_outcome() and not self.abandoned and self.unobserved is None:
                    self.unobserved = caller.proc.hooks.call_failed(self, caller, target.key, self.awaited_ranks(), ())

    def has_outcome(self) -> bool:
        return self.ready

    def awaited_ranks(self) -> list[int]:
        """Returns those ranks of the mesh called that have not answered."""
        target = self.target
        return list(self._in_mesh(self.unanswered())) if target is not None and target.ranks else []

    @property
    def issued(self) -> str:
        """The line that called, for people."""
        return source_line(self.code, self.instruction)

    def give_up(self, error: BaseException) -> None:
        raise NotImplementedError

    def waits_for(self, address: str) -> bool:
        return self.target is not None and address in self.target.addresses

    def process_ended(self, ended: ProcEnded) -> None:
        if self.waits_for(ended.address):
            assert self.target is not None
            self.fail(self.target.failure_of(ended.address, ended))

    def process_replaced(self, ended: ProcEnded) -> None:
        """Takes note that another process is at an address; see `Ports.process_replaced`."""

    def suspected(self, address: str, why: str) -> None:
        """Notes a suspicion; see `Ports.suspected`."""

    def observed(self) -> None:
        """Its reader is about to see one of several things that came here."""

    def sources(self) -> Sequence[Source]:
        """Returns what is ready when something comes here."""
        return (self,)

    def awaited(self) -> str:
        left = self.unanswered()
        return f" from {self.of()}, rank(s) {self._called(left)}" if self.target is not None and left else ""

    def advice(self) -> str:
        if self.target is None or not self.target.key:
            return ""
        return self.hints() + self._cause() + LOOK

    def hints(self) -> str:
        """Says what is known already of why it may take long: ". The process of ...". "" for nothing."""
        suspicion = self._suspicion(self.caller.proc.suspected) if self.caller is not None else ""
        return suspicion + self._waits_behind()

    def looks(self) -> Callable[[], None] | None:
        if self.caller is None or self.target is None or not self.target.key:
            return None
        return self.caller.proc.hooks.look_for_cause

    def _cause(self) -> str:
        """Says what keeps the program from going on, where that was found a moment ago."""
        cause = self.caller.proc.hooks.cause() if self.caller is not None else ""
        return f". {cause}" if cause else ""

    def _waits_behind(self) -> str:
        """Says which endpoint has to return before this one begins: one that this caller called before, without an answer."""
        target, left = self.target, set(self.unanswered())
        if target is None:
            return ""
        addresses = {target.addresses[rank] for rank in left}
        try:
            before = list(itertools.islice(self.table.values(), _LOOKED_AT))  # oldest first
        except RuntimeError:  # another thread has changed it just now
            return ""
        for entry in before:
            other = entry.target
            if entry is self:
                break
            if other is None or not other.in_turn or other.key != target.key or entry.caller is not self.caller:
                continue
            if any(other.addresses[rank] in addresses for rank in entry.unanswered()):
                return (
                    f". {target.label}() waits because {other.label}() is an @endpoint, was called before and has not "
                    f"returned: only calls of a @concurrent_endpoint run side by side"
                )
        return ""

    def of(self) -> str:
        return f"{self.target.label}()" if self.target is not None else ""

    def progress(self) -> str:
        if self.target is None:
            return ""
        count = len(self.target.addresses)
        return f" for {monotonic() - self.began:.1f} s, {count - len(self.unanswered())} of {count} rank(s) answered"

    def missing(self) -> tuple[Sequence[int], int] | None:
        return None if self.target is None else (self._in_mesh(self.unanswered()), len(self.target.addresses))

    def _in_mesh(self, places: Sequence[int]) -> Sequence[int]:
        """Returns the ranks by which people know these places of the addressed view: those of the mesh that was spawned."""
        target = self.target
        return [target.ranks[place] for place in places] if target is not None and target.ranks else places

    def _called(self, places: Sequence[int]) -> str:
        return shown(self._in_mesh(places))

    def connection_broke(self, address: str, failure: Failure) -> None:
        """Takes note that the connection broke and the process lives: what was under way to it or from it may be
        lost."""
        if self.target is not None and self.waits_for(address):
            self.fail(failure)

    def sent(self, taken: Connection | None) -> None:
        """The message has left for its only receiver; `taken` is the connection that took it. If another one to there broke
        meanwhile, nothing is lost where that was made since."""
        self.taken = taken
        self.sending = False
        broken = self.broken
        if broken is not None and self.may_be_lost(broken[2]):
            self.connection_broke(*broken[:2])

    def may_be_lost(self, survivor: Connection | None) -> bool:
        """After a break: unless a connection took the message that was made since, and lives."""
        return self.taken is None or self.taken.lost or self.taken is survivor

    def unanswered(self) -> list[int]:
        """Ranks of the addressed view that have not answered."""
        return list(range(len(self.target.addresses))) if self.target else []

    def has_failed(self) -> bool:
        """Returns whether what came is a failure or an error."""
        return False

    def close(self) -> None:
        self.table.pop(self.number, None)
        if self.record is not None:
            self._record()
        if self.timer is not None:
            self.timer.cancel()

    def _record(self) -> None:
        sent, self.record = self.record, None
        if sent is not None and recording.active is not None:
            recording.active.answered(self, sent)

    def expire_after(self, proc: Proc, seconds: float) -> None:
        """Ends the wait with TimeoutError, naming who has not answered."""

        def expire() -> None:
            if self.ready:
                return
            label = self.target.label if self.target else "port"
            self.give_up(
                TimeoutError(
                    f"{label}() got no answer within {seconds:g} s from rank(s) {self._called(self.unanswered())}; "
                    f"the call may still be running there, its answer will be dropped{self._suspicion(proc.suspected)}"
                    f"{self._waits_behind()}{self._cause()}{LOOK}"
                )
            )

        looks = self.looks() if seconds >= LONG_WAIT else None

        def look() -> None:
            if looks is not None and not self.ready:
                looks()
                self.timer = proc.loop.call_later(LOOKING, expire)

        if looks is None:
            self.timer = proc.loop.call_later(seconds, expire)
        else:
            self.timer = proc.loop.call_later(seconds - LOOKING, look)

    def _suspicion(self, suspected: Mapping[str, str]) -> str:
        """Returns what is known against the processes of those who have not answered."""
        if not suspected or self.target is None:
            return ""
        addresses = self.target.addresses
        processes = [rank for rank in self.unanswered() if addresses[rank] in suspected]
        hosts = [rank for rank in self.unanswered() if agent_of(addresses[rank]) in suspected]
        said = ""
        if processes:
            said += (
                f". The process of rank(s) {self._called(processes)} is suspected: {suspected[addresses[processes[0]]]}"
            )
        if hosts:
            said += (
                f". The host of rank(s) {self._called(hosts)} is suspected: {suspected[agent_of(addresses[hosts[0]])]}"
            )
        return said


def shown(ranks: Sequence[int]) -> str:
    """Ranks for people: the first few."""
    return ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")


class _Result(Entry):
    """An entry with one outcome, which may be an error that nobody sent."""

    __slots__ = ("_error",)
    _error: BaseException | None

    def give_up(self, error: BaseException) -> None:
        if not self.ready:
            self._error = error
            self.close()
            self.set_ready()

    def abandon(self) -> None:
        """Its answer, should one come, is dropped; an error is logged, for which the table keeps the entry aside."""
        caller = self.caller
        if not self.ready and caller is not None and caller.proc.ports.abandon(self):
            self.abandoned = True
            if self.timer is not None:
                self.timer.cancel()
        else:
            self.close()


class OneReply(_Result):
    """The answer of one actor."""

    __slots__ = ("_raw", "rank")

    def __init__(self, target: Target | None, rank: int = 0) -> None:
        self.ready = False  # what the bases' constructors do, without calling three for each call
        self._wakers = None
        self.began = monotonic()
        self.number = self.instruction = self.told = 0
        self.table = _NO_TABLE
        self.target = target
        self.timer = self.owner = self.broken = self.taken = self.unobserved = None
        self.caller = self.code = self.record = None
        self.sending = self.abandoned = False
        self._raw: Raw | None = None
        self._error = None
        self.rank = rank

    def receive(self, raw: Raw) -> None:
        if raw[1] != VALUE:
            self.note(raw)
        self._raw = raw
        self.close()
        self.set_ready()

    def waits_for(self, address: str) -> bool:
        return self.target is not None and self.target.addresses[self.rank] == address

    def unanswered(self) -> list[int]:
        return [self.rank]

    def has_failed(self) -> bool:
        return self._error is not None or (self._raw is not None and self._raw[1] != VALUE)

    def progress(self) -> str:
        return f" for {monotonic() - self.began:.1f} s" if self.target is not None else ""

    def value(self) -> Any:
        if self.unobserved is not None:
            self.unobserved.seen()
        if self._raw is None:
            assert self._error is not None
            raise self._error
        return decode_answer(self._raw, self.target.label if self.target else None)


class Gather(_Result):
    """One answer from each of `count` ranks; `finish` makes the result of the values in rank order.

    The exception of the lowest rank is raised once all have answered; a failure of any target at once.
    """

    __slots__ = ("_answers", "_arrived", "_finish", "unwanted")

    def __init__(self, target: Target | None, count: int, finish: Callable[[list[Any]], Any]) -> None:
        super().__init__(target)
        self.unwanted: Callable[[], None] | None = None  # called when it is closed before all have answered
        self._answers: list[Raw | None] = [None] * count
        self._arrived: list[int] = []  # appending is atomic: answers come from the I/O thread and from local actors
        self._error = None
        self._finish = finish

    def receive(self, raw: Raw) -> None:
        rank = raw[0]
        if self.ready or not 0 <= rank < len(self._answers) or self._answers[rank] is not None:
            return
        kind = raw[1]
        if kind == FAILED:
            self.fail(decode_failure(raw[2]))
            return
        if kind != VALUE and kind != MERGED:
            self.note(raw)
        if self._answers[rank] is None:  # else its thread was interrupted as it took it
            self._answers[rank] = raw if not self.abandoned else (rank, kind, b"", ())
            self._arrived.append(rank)
        if len(self._arrived) == len(self._answers):
            self.close()
            self.set_ready()

    def close(self) -> None:
        super().close()
        if self.unwanted is not None and len(self._arrived) < len(self._answers):
            tell, self.unwanted = self.unwanted, None
            tell()

    def waits_for(self, address: str) -> bool:
        return self.target is not None and any(
            answer is None and there == address
            for answer, there in zip(self._answers, self.target.addresses, strict=False)
        )

    def unanswered(self) -> list[int]:
        return [rank for rank, answer in enumerate(self._answers) if answer is None]

    def has_failed(self) -> bool:
        return self._error is not None or any(
            answer is not None and answer[1] not in (VALUE, MERGED) for answer in self._answers
        )

    def value(self) -> Any:
        if self.unobserved is not None:
            self.unobserved.seen()
        if self._error is not None:
            raise self._error
        label = self.target.label if self.target else None
        raised = [raw for raw in self._answers if raw is not None and raw[1] not in (VALUE, MERGED)]
        if raised:
            decode_answer(raised[0], label, len(raised), len(self._answers))
        return self._finish([decode(raw[2], raw[3]) for raw in self._answers if raw is not None and raw[1] != MERGED])
