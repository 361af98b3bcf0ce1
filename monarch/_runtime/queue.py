"""Answers and port messages that are taken one by one, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from monarch._linux.locks import RLock
from monarch._runtime.future import Source
from monarch._runtime.remote_errors import Raw, decode_answer, decode_failure
from monarch._runtime.replies import Entry, Target
from monarch._runtime.unobserved_errors import UnobservedError
from monarch._wire import message
from monarch._wire.message import FAILED, VALUE, Failure, ProcEnded

_EXPECTED_KEPT = 10_000

FailureOf = Callable[[str, ProcEnded], Failure]  # what the end of the process at that address means


class Queue(Entry):
    """Answers in order of arrival, each for the next armed Arrival. `limit` > 0: that many answers and no more."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "_arrived",
        "_error",
        "_expected",
        "_left",
        "_lock",
        "_noted",
        "_seen",
        "unwanted",
    )

    def __init__(self, target: Target | None = None, limit: int = 0) -> None:
        super().__init__(target)
        self._lock = RLock()  # a finalizer of the program may send to a port in the midst of any step
        self._arrived: deque[Raw] = deque()
        # Of those that have arrived, errors and failures that somebody is to see.
        self._noted: dict[int, UnobservedError] = {}
        self._armed: deque[Arrival] = deque()
        self._error: BaseException | None = None
        self._left = limit
        self._seen: set[int] = set()
        # Messages sent with this port for the answer: (process, rank, what its end means). Answers are told apart by their
        # ranks only. At the bound the oldest go: their answers still come, and the end of their process is not told.
        self._expected: deque[tuple[str, int, FailureOf]] = deque(maxlen=_EXPECTED_KEPT)
        self.unwanted: Callable[[], None] | None = None  # called when it is closed before all have answered

    def expect(self, receivers: Iterable[tuple[int, int, str]], failure_of: FailureOf) -> None:
        """Messages are sent whose answers come here: should a process end before, that is said here."""
        with self._lock:
            self._expected.extend((address, rank, failure_of) for rank, _, address in receivers)

    def process_ended(self, ended: ProcEnded) -> None:
        super().process_ended(ended)
        for there, rank, failure_of in [expected for expected in self._expected if expected[0] == ended.address]:
            self.receive((rank, FAILED, message.encode(failure_of(there, ended)), ()))

    def connection_broke(self, address: str, failure: Failure) -> None:
        super().connection_broke(address, failure)
        for _, rank, _ in [expected for expected in self._expected if expected[0] == address]:
            self.receive((rank, FAILED, message.encode(failure), ()))

    def receive(self, raw: Raw) -> None:
        if self._expected:
            self._answered(raw[0])
        unobserved: UnobservedError | None = None
        if raw[1] != VALUE:
            if raw[1] == FAILED and self._left:
                self.fail(decode_failure(raw[2]))
                return
            unobserved = self._note_one(raw)
        arrival: Arrival | None = None
        try:
            with self._lock:
                if self._left:
                    if raw[0] in self._seen:
                        return  # a repeat
                    self._left -= 1
                    self._seen.add(raw[0])
                    if not self._left:
                        self.close()
                if not self._armed:
                    if unobserved is not None:
                        self._noted[id(raw)] = unobserved
                    self._arrived.append(raw)
                    return
                arrival = self._armed[0]
                del self._armed[0]
            arrival.arrive(raw, unobserved)
        except BaseException:  # of a handler of signals: nobody else knows of the arrival
            if arrival is not None:
                arrival.arrive(raw, unobserved)
            raise

    def _note_one(self, raw: Raw) -> UnobservedError | None:
        """Notes as `note` does; what it gives belongs to this answer, and another one has its own."""
        if self.unobserved is not None:
            self.note(raw)
            return None
        self.note(raw)
        unobserved, self.unobserved = self.unobserved, None
        return unobserved

    def close(self) -> None:
        super().close()
        if self.unwanted is not None and self._left:
            tell, self.unwanted = self.unwanted, None
            tell()

    def _answered(self, rank: int) -> None:
        """The oldest message to that rank has its answer."""
        with self._lock:
            for index, expected in enumerate(self._expected):
                if expected[1] == rank:
                    del self._expected[index]
                    return

    def arm(self, arrival: Arrival) -> None:
        with self._lock:
            if arrival.begun:
                return
            if not self._arrived and self._error is None:
                arrival.begun = True
                self._armed.append(arrival)
                return
            if (
                self._arrived
            ):  # no call behind `raw`: a handler of signals may raise behind one, and the message were lost
                if self._noted:
                    arrival.unobserved = self._noted.pop(id(self._arrived[0]), None)
                arrival.raw = self._arrived[0]
                arrival.begun = arrival.ready = True
                del self._arrived[0]
            else:
                arrival.error = self._error
                arrival.begun = arrival.ready = True
        arrival.set_ready()

    def give_up(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            armed, self._armed = self._armed, deque()
            self.close()
        for arrival in armed:
            arrival.give_up(error)

    def waits_for(self, address: str) -> bool:
        return self.target is not None and any(
            rank not in self._seen and there == address for rank, there in enumerate(self.target.addresses)
        )

    def has_outcome(self) -> bool:
        return self._error is not None

    def sources(self) -> Sequence[Source]:
        return list(self._armed)

    def unanswered(self) -> list[int]:
        return [rank for rank in super().unanswered() if rank not in self._seen]


class Arrival(Source):
    """The next message of a queue, claimed when first observed. `reader` closes the queue when it is dropped, and lives at
    least until this is ready or dropped itself."""

    __slots__ = ("_queue", "_ranked", "_reader", "begun", "error", "raw", "unobserved")

    def __init__(self, queue: Queue, ranked: bool = False, reader: Any = None) -> None:
        super().__init__()
        self._queue = queue
        self._reader = reader
        self._ranked = ranked
        self.begun = False
        self.raw: Raw | None = None
        self.error: BaseException | None = None
        self.unobserved: UnobservedError | None = None

    def begin(self) -> None:
        if not self.begun:
            self._queue.arm(self)

    def abandon(self) -> None:
        """A claim stays a claim; it no longer keeps the queue open."""
        self._reader = None

    def awaited(self) -> str:
        return self._queue.awaited() or " from the senders of its Port"

    def advice(self) -> str:
        return self._queue.advice()

    def of(self) -> str:
        return self._queue.of() or "a message of a Channel"

    def progress(self) -> str:
        return self._queue.progress()

    def arrive(self, raw: Raw, unobserved: UnobservedError | None = None) -> None:
        self.unobserved = unobserved
        self.raw = raw
        self.set_ready()

    def give_up(self, error: BaseException | None) -> None:
        self.error = error
        self.set_ready()

    def value(self) -> Any:
        self._queue.observed()
        unobserved = self.unobserved or self._queue.unobserved
        if unobserved is not None and (self.raw is None or self.raw[1] != VALUE):
            unobserved.seen()
        if self.raw is None:
            assert self.error is not None
            raise self.error
        target = self._queue.target
        value = decode_answer(self.raw, target.label if target else None)
        if not self._ranked:
            return value
        if self.raw[0] < 0:
            raise ValueError(
                "RankedPort receiver got a message without a rank: it was sent by Port.send, not as a reply"
            )
        return self.raw[0], value
