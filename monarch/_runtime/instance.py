"""One running actor: its mailbox, its place in the order of messages, and how it ends.

States go one way: constructing -> running -> stopping -> ended. Messages reach `deliver` on the I/O thread or in a local
sender's; everything else of an actor happens on its own thread (see `driver`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from monarch._linux.locks import RLock
from monarch._runtime import recorder as recording
from monarch._runtime.future import Slot
from monarch._runtime.incarnations import first_in, process_of
from monarch._runtime.mailbox import WAKE, Mailbox
from monarch._runtime.ordering import Numbering, Reorder, Session
from monarch._wire import codec, message
from monarch._wire.frame import Buffer
from monarch._wire.message import FAILED, Answer, Bounced, Call, Failure
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.future import Source
    from monarch._runtime.proc import Proc
    from monarch._runtime.watcher import Watcher


class Delivery(Struct, eq=False):  # made in a third of the time of a class of Python, once a message
    """A Call as it arrived; `back` is the process its answer goes to (`up`: through the tree it came down), `source`
    the one it came from, `started` when the actor took it from its mailbox. `answered`: its endpoint has returned, and the
    answer is on its way or about to be. `arrived` and `told` are of the recorder, if there is one."""

    call: Call
    body: Buffer
    buffers: Sequence[Buffer]
    source: str
    up: bool = False
    answered: bool = False
    started: float = 0.0
    arrived: float = 0.0
    told: int = 0

    @property
    def back(self) -> str:
        return self.call.back or self.source

    def arguments(self) -> Any:
        """Decodes them, once: releases the memory they came in, which an actor that waits would keep."""
        body, buffers = self.body, self.buffers
        self.body, self.buffers = b"", ()
        return codec.decode(body, buffers)


class Fed(Delivery, eq=False):
    """A Call that came through a Feed (see `mailbox`) and not in a message: subclasses have the arguments, and take the
    answer."""

    def answer(self, kind: int, body: Buffer, buffers: Sequence[Buffer]) -> None:
        """Takes what a message would carry back. On the actor's thread; a failure on any."""
        raise NotImplementedError


class Leave(Exception):
    """The reason why an actor's thread is to end: `failure` None is an ordinary stop with `reason`.

    `cause` goes to `__cleanup__`.
    """

    def __init__(self, reason: str, failure: Failure | None = None, cause: Exception | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.failure = failure
        self.cause = cause

    @classmethod
    def failing(cls, failure: Failure, exc: BaseException | None = None) -> Leave:
        """The actor fails, because of `exc`."""
        return cls(failure.report, failure, exc if isinstance(exc, Exception) else RuntimeError(failure.report))


class Supervise:
    """Control item: a mesh that the actor owns has failed."""

    __slots__ = ("failure",)

    def __init__(self, failure: Any) -> None:
        self.failure = failure


class Owned(Protocol):
    """A mesh that an actor owns. `stop` begins to stop it and says when it has."""

    def stop(self, reason: str) -> Source: ...


class Behaviour(Protocol):
    """The code that an instance runs; every method on the actor's own thread. Raising Leave ends the actor."""

    is_async: bool

    def construct(self) -> None: ...
    def restarted(self) -> Any: ...
    def handle(self, delivery: Delivery) -> None: ...
    async def handle_async(self, delivery: Delivery) -> None: ...
    def supervise(self, failure: Any) -> Any: ...
    def undeliverable(self, bounced: Bounced) -> Any: ...
    def cleanup(self, cause: Exception | None) -> Any: ...
    async def cancel_tasks(self) -> None: ...
    def describe_failure(self, exc: BaseException, in_cleanup: bool = False) -> Failure: ...
    def describe_stop(self, reason: str) -> Failure: ...
    def describe_stale(self, overtaken: bool = False) -> Failure: ...


class Instance:
    """`key` names the actor within its process, `unique` everywhere; `incarnation` tells it from those it took the place of
    (see `incarnations`). `replaced` is why the last of those ended; `will_restart` whether another follows if it fails."""

    def __init__(
        self,
        proc: Proc,
        *,
        key: str,
        name: str,
        rank: int,
        view: bytes,
        owner: str = "",
        owner_proc: str = "",
        incarnation: int = 0,
        replaced: Failure | None = None,
        will_restart: bool = False,
        cls: str = "",
        system: bool = False,
    ) -> None:
        self.proc = proc
        self.key = key
        self.unique = f"{key}.{rank}~{incarnation}" if incarnation else f"{key}.{rank}"
        self.incarnation = incarnation
        self.replaced = replaced
        self.will_restart = will_restart
        self.being_replaced = False  # it is being stopped because another takes its place
        self.name = name
        self.rank = rank
        self.view = view
        self.owner = owner
        self.owner_proc = owner_proc
        self.cls = cls  # module.QualName of its class; "" of the client
        self.system = system  # it belongs to the runtime and not to the program
        self.behaviour: Behaviour | None = None
        self.mailbox = Mailbox()
        self.numbering = Numbering()
        self.owned: dict[str, Owned] = {}
        self.open_ports: set[tuple[str, int, int]] = set()  # explicit response ports not used yet
        self.current: Delivery | None = None
        self.concurrent: dict[Any, Delivery] = {}
        self.leaving: Leave | None = None  # asked for by the actor itself, between two awaits
        self.end: Failure | None = None
        self.stopping = False
        self.ready = Slot()  # constructed, and its `__restarted__` done; the end when it never came to that
        self.ended = Slot()
        self.thread_ident = 0
        self.watcher: Watcher | None = None  # of one that is recorded, or replayed
        self.task: Any = None  # of an actor with an event loop: the one that handles its messages one by one
        self.paused_senders: set[str] = set()
        self.high_water = proc.mailbox_messages
        # Facts for those who look: see `_mesh.inspection.description`. Written by the actor's own thread, but for `peak`.
        self.created_at = time.time()
        self.processed = 0  # messages handled
        self.busy = 0.0  # seconds in endpoints
        self.last_call: Call | None = None
        self.last_taken = 0.0  # when it took its last message from the mailbox
        self.peak = 0  # most messages that have waited at once
        self.caused_by: tuple[str, int, str, str] | None = None  # mesh key, rank, process, name: who failed first
        self._reorder: Reorder[Delivery] = Reorder()
        self._lock = RLock()
        self._finished = False
        self._stop_failure: Failure | None = None  # said while it is stopping

    def __repr__(self) -> str:
        state = "ended" if self.end is not None else "stopping" if self.stopping else "running"
        return f"<Instance {self.name} {self.unique} ({state}, {len(self.mailbox)} waiting)>"

    # --- messages, any thread

    def deliver(self, delivery: Delivery) -> None:
        """Puts a message into the mailbox once all before it are there."""
        # As `is_mine`: a finalizer of the program sends to this actor in the midst of a delivery.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self.proc.loop.call_soon(lambda: self.deliver(delivery))
            return
        call = delivery.call
        mailbox = self.mailbox
        if recording.active is not None:
            delivery.arrived = monotonic()
        stream: Hashable = call.sender
        if call.incarnation != self.incarnation:
            stream = self._stream(call.sender, call.incarnation)
            if not self._is_meant(call, stream):
                self._refuse_stale(delivery)
                return
        overtaken = False
        with self._lock:
            ended = self.end is not None or self.stopping
            if not ended:
                accepted = self._reorder.accept(stream, call.seq, delivery)
                if accepted is None:
                    overtaken = True
                else:
                    for ready in accepted:
                        mailbox.put(ready)
                    if not accepted and stream is not call.sender:
                        self._wait_for_earlier(stream, call.seq)
                    depth = len(mailbox.messages)
                    if depth > self.peak:
                        self.peak = depth
                    if depth <= self.high_water:
                        return
        if ended:
            self.refuse(delivery)
        elif overtaken:
            self._refuse_stale(delivery, call.incarnation == self.incarnation)
        elif delivery.source != self.proc.address and delivery.source not in self.paused_senders:
            # On the I/O thread, as is every pause and its end: they leave in the order in which they were decided.
            self.paused_senders.add(delivery.source)
            self.proc.pause_sender(delivery.source, self.key, True)
            if len(mailbox.messages) * 2 < self.high_water:  # taken meanwhile, before the actor could see the pause
                self._resume_senders()

    def _is_meant(self, call: Call, stream: Hashable) -> bool:
        """Returns whether a message for another incarnation is for this one: its sender has heard of no restart, or of the
        process's only, and began with this one."""
        if call.incarnation not in self._incarnations():
            return False
        with self._lock:
            return self._reorder.continues(stream, call.seq)

    def _stream(self, sender: str, incarnation: int) -> Hashable:
        """Names what a sender sends to that incarnation; when it hears of this one, it begins another that has its name."""
        return sender if incarnation == self.incarnation else (sender, incarnation)

    def _incarnations(self) -> set[int]:
        """Returns those that a sender may name which has sent to none before this one."""
        return {0, first_in(process_of(self.incarnation)), self.incarnation}

    def streams(self) -> int:
        """Returns from how many senders messages were put in their order."""
        with self._lock:
            return len(self._reorder)

    def _wait_for_earlier(self, stream: Hashable, number: int) -> None:
        """Bounds how long a message waits for one that may have gone to the actor before this: as long as one waits for an
        actor that is not here. Runs with the lock held."""
        gap = self._reorder.gap(stream)
        if gap is not None and gap[1] == number:
            self._refuse_later(stream, gap[0])

    def _refuse_later(self, stream: Hashable, awaited: int) -> None:
        delay = settings.pending_actor_delivery_timeout()
        self.proc.loop.call_later(delay, lambda: self._refuse_waiting(stream, awaited))

    def _refuse_waiting(self, stream: Hashable, awaited: int) -> None:
        waiting: list[Delivery] = []
        with self._lock:
            gap = self._reorder.gap(stream)
            if gap is not None and gap[0] == awaited:
                waiting = self._reorder.refuse(stream)
            elif gap is not None:
                self._refuse_later(stream, gap[0])
        for delivery in waiting:
            self._refuse_stale(delivery)

    def _refuse_stale(self, delivery: Delivery, overtaken: bool = False) -> None:
        """It was meant for an actor that has ended, and nobody else may handle it; or, `overtaken`, it was given up with a
        connection, and what was sent after it has been handled."""
        assert self.behaviour is not None
        self.proc.refuse(delivery, self.behaviour.describe_stale(overtaken))
        if not overtaken:
            self.proc.tell_restarted(delivery.source, self)

    def missed(self, sender: str, incarnation: int) -> None:
        """Messages of `sender` for that incarnation were refused before this actor was here; those that follow are taken."""
        if incarnation in self._incarnations():
            with self._lock:
                self._reorder.skip(self._stream(sender, incarnation))

    def take_up(self, call: Call) -> None:
        """Takes note that what its sender sent before this message may have been lost: if none of it came, this one is
        the first."""
        if call.incarnation == self.incarnation:
            with self._lock:
                if not self._reorder.knows(call.sender):
                    for delivery in self._reorder.lost(call.sender):
                        self.mailbox.put(delivery)
                if not self._reorder.knows(call.sender):
                    self._reorder.skip(call.sender)

    def path_lost(self, sender: str) -> None:
        """The process of `sender` is gone, or the connection to it was."""
        self._release(self._reorder.lost, sender)

    def skip_lost(self, sender: str) -> None:
        """Messages of `sender` were lost on their way, perhaps the first ones: those that come are taken as they come."""
        self.path_lost(sender)
        with self._lock:
            if not self._reorder.knows(sender):
                self._reorder.skip(sender)

    def sender_ended(self, sender: str) -> None:
        """No more messages come from that actor."""
        self._release(self._reorder.forget, sender)

    def reordering(self) -> tuple[int, list[Session]]:
        """Returns how many senders have sent here, and those of which messages wait for earlier ones."""
        with self._lock:
            return self._reorder.sessions()

    def _release(self, give_up: Callable[[Hashable], list[Delivery]], sender: str) -> None:
        with self._lock:
            for incarnation in sorted(self._incarnations()):
                for delivery in give_up(self._stream(sender, incarnation)):
                    self.mailbox.put(delivery)

    def refuse(self, delivery: Delivery) -> None:
        """Answers a message that will never be handled."""
        failure = self.end or self._stop_failure
        if failure is None:
            assert self.behaviour is not None
            failure = self.behaviour.describe_stop("stopping")
        self.proc.refuse(delivery, failure)

    def resume_senders(self) -> None:
        """Runs when the mailbox has room again."""
        self.proc.loop.call_soon(self._resume_senders)

    def _resume_senders(self) -> None:
        senders, self.paused_senders = self.paused_senders, set()
        for sender in senders:
            self.proc.pause_sender(sender, self.key, False)

    # --- the end

    def request_stop(self, reason: str) -> None:
        """Any thread: end the actor after what it does now; what waits in its mailbox is refused.

        `ended` becomes ready when its cleanup has run.
        """
        with self._lock:
            if self.stopping or self.end is not None:
                return
            self.stopping = True
            waiting = self.mailbox.drain() + self._reorder.drain()
        if recording.active is not None:
            recording.active.status(self, "Stopping", reason)
            self._record_unhandled(waiting)
        assert self.behaviour is not None
        failure = self._stop_failure = self.behaviour.describe_stop(reason)
        self._answer_all(waiting, failure)
        self.mailbox.put_control(Leave(reason))

    def leaves(self, leave: Leave) -> None:
        """Any thread: the actor ends now, whether it was asked to or not."""
        with self._lock:
            told, self.stopping = self.stopping, True
        if recording.active is not None and not told:
            recording.active.status(self, "Stopping", leave.reason)

    def leave_soon(self, leave: Leave) -> None:
        """Any thread: end the actor once the message it handles has its answer; at once when it handles none.

        The first reason counts, but a failure counts more than a stop.
        """
        with self._lock:
            before = self.leaving
            if before is None or (before.failure is None and leave.failure is not None):
                self.leaving = leave
        self.mailbox.put_control(WAKE)

    def close(self, failure: Failure) -> None:
        """Refuses everything from now on, and answers those who wait for this actor."""
        with self._lock:
            first = self.end is None
            if first:
                self.end = failure
            waiting: list[Delivery] = self.mailbox.drain() + self._reorder.drain()
            waiting += self.concurrent.values()
            self.concurrent = {}
            feed, self.mailbox.feed = self.mailbox.feed, None
            current, self.current = self.current, None  # read once: its thread may be done with it just now
            if current is not None:
                self.processed += 1
                self.busy += self.proc.loop.now() - current.started
                waiting.append(current)
            ports, self.open_ports = self.open_ports, set()
        if recording.active is not None:
            self._record_unhandled(waiting)
        self._answer_all(waiting, failure)
        if feed is not None:
            feed.close()
        body = message.encode(failure)
        told = {(delivery.back, delivery.call.port, delivery.call.rank) for delivery in waiting}
        for back, number, rank in ports - told:
            self.proc.answer(back, Answer(number, rank, FAILED), body, ())
        if self.paused_senders:
            self.resume_senders()

    def _record_unhandled(self, waiting: Sequence[Delivery]) -> None:
        for delivery in waiting:
            if recording.active is not None:
                recording.active.handled(self, delivery, failed=True)

    def _answer_all(self, waiting: Sequence[Delivery], failure: Failure) -> None:
        """Tells the callers of messages that were here when the actor ended. Of a message nobody waits for, its sender
        need not hear: the owner hears of the actor's end."""
        for delivery in waiting:
            if delivery.call.port:
                self.proc.refuse(delivery, failure)

    def finish(self, leave: Leave) -> None:
        """The last step, after cleanup: tells the owner of a failure and those who wait for the end. Once only."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
        if recording.active is not None:
            recording.active.status(self, "Stopped" if leave.failure is None else "Failed", leave.reason)
        self.proc.actor_ended(self, leave.failure)
        self.ready.set(self.end)
        self.ended.set(leave.failure)
