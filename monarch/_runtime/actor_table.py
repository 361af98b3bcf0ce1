"""The actors of one process: those that take messages, those that have ended, and what is sent to neither.

A message for an actor that is not here waits a while, for its spawn may be on its way (another sender was faster), or goes
back with the reason. Who has sent to whom is remembered, for when a sender, its process or a connection to it is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from monarch._linux.locks import Lock
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.loop import start_thread
from monarch._wire.frame import Buffer
from monarch._wire.message import Call, Failure, Skip
from monarch.config import settings

_TOMBSTONES = 10_000  # ended actors remembered, to answer late messages; older ones count as unknown
_MISSED = 10_000  # actors remembered that were sent messages and never came


class ActorTable:
    """`refuse` tells who sent a message that it will not be handled; `closed` whether the process has closed.

    Messages come on the I/O thread or in a local sender's, actors come and go on any. The lock guards changes of `actors`
    together with what waits, was refused or has ended; looking an actor up takes none. Senders are kept in single steps
    (dict and set operations), which need no lock.
    """

    def __init__(
        self,
        address: str,
        call_later: Callable[[float, Callable[[], Any]], Any],
        refuse: Callable[[Delivery, Failure], None],
        closed: Callable[[], bool],
        to_be_read: Callable[[Buffer, Sequence[Buffer]], Buffer] = lambda body, buffers: body,
    ) -> None:
        self.actors: dict[str, Instance] = {}
        self.absent: dict[str, Callable[[], Any]] = {}  # actors made by the first message to them
        self.waiting = 0  # messages for actors that are not here
        self._address = address
        self._call_later = call_later
        self._refuse = refuse
        self._closed = closed
        self._to_be_read = to_be_read  # returns the body of a marked message, which is read here if nobody handles it
        self._unknown: dict[str, list[Delivery]] = {}
        self._missed: OrderedDict[str, set[tuple[str, int]]] = OrderedDict()  # actor -> (sender, incarnation) refused
        self._tombstones: OrderedDict[str, Failure] = OrderedDict()
        self._senders: dict[str, dict[str, set[str]]] = {}  # process -> its actors that sent here -> to which actors
        self._ever_broke: set[str] = set()  # processes that a connection to broke although they live
        self._lock = Lock()

    def statistics(self) -> dict[str, Any]:
        """Returns how much is remembered of actors that are not here, and who of each process has sent to which actors."""
        with self._lock:
            return {
                "awaited": len(self._unknown),
                "missed": len(self._missed),
                "ended": len(self._tombstones),
                "senders": {process: sorted(senders) for process, senders in self._senders.items()},
            }

    # --- messages

    def deliver(self, call: Call, body: Buffer, buffers: Sequence[Buffer], source: str, up: bool = False) -> None:
        """A call has come from the process at `source` (`up`: and its answer goes up a tree)."""
        if len(buffers[-1]) == 1 if buffers else body and body[-1] == 1:  # it is marked: see `unpickling`
            body = self._to_be_read(body, buffers)
        delivery = Delivery(call, body, buffers, source, up)
        instance = self.actors.get(call.to)
        if instance is None:
            self._hold(delivery)
            return
        if call.seq == 1:
            self._note_sender(delivery)
        elif self._ever_broke and source in self._ever_broke:  # the first messages of its sender may be lost
            self._note_sender(delivery)
            instance.take_up(call)
        instance.deliver(delivery)

    def _note_sender(self, delivery: Delivery) -> None:
        """It is told if another takes the place of that actor."""
        call = delivery.call
        self._senders.setdefault(delivery.source, {}).setdefault(call.sender, set()).add(call.to)

    def _hold(self, delivery: Delivery) -> None:
        """Keeps messages for an actor unknown here: its spawn may be on its way, or it has ended."""
        key = delivery.call.to
        with self._lock:
            end = self._tombstones.get(key)
            instance = self.actors.get(key)  # it may have come since the caller looked
            if end is None and instance is None:
                if self.waiting < settings.undelivered_messages():
                    if key not in self._unknown:
                        self._unknown[key] = []
                        self._call_later(settings.pending_actor_delivery_timeout(), lambda: self._give_up(key))
                    self._unknown[key].append(delivery)
                    self.waiting += 1
                    make = self.absent.pop(key, None)
                    if make is not None:
                        start_thread(make, "monarch-make")
                    return
                end = Failure(f"no actor {key} is here and {self.waiting} messages already wait for others")
                self._note_missed(delivery)
        if instance is not None:
            instance.deliver(delivery)
        else:
            assert end is not None
            self._note_sender(delivery)
            self._refuse(delivery, end)

    def _give_up(self, key: str) -> None:
        if self._closed():
            return
        with self._lock:
            deliveries = self._take_waiting(key)
            for delivery in deliveries:
                self._note_missed(delivery)
        for delivery in deliveries:
            self._refuse(delivery, Failure(f"the actor {key} does not exist in the process at {self._address}"))

    def _take_waiting(self, key: str) -> list[Delivery]:
        """Runs with the lock held."""
        waiting = self._unknown.pop(key, [])
        self.waiting -= len(waiting)
        return waiting

    def _note_missed(self, delivery: Delivery) -> None:
        """An actor that comes after all is not to wait for a message that was refused. (What continues an older stream was
        meant for an actor of the process before.)"""
        call = delivery.call
        refused = self._missed.setdefault(call.to, set())
        if call.incarnation or call.seq == 1 or (call.sender, 0) in refused:
            refused.add((call.sender, call.incarnation))
            self._note_sender(delivery)
        if len(self._missed) > _MISSED:
            self._missed.popitem(last=False)

    # --- actors

    def add(self, instance: Instance) -> None:
        """The actor takes messages from now on, those that came before it included."""
        with self._lock:
            for sender, incarnation in self._missed.pop(instance.key, ()):
                instance.missed(sender, incarnation)
            self.actors[instance.key] = instance
            self._tombstones.pop(instance.key, None)
            waiting = self._take_waiting(instance.key)
        ever_broke = [delivery for delivery in waiting if delivery.source in self._ever_broke]
        for delivery in waiting:
            if delivery.call.seq == 1 or delivery in ever_broke:
                self._note_sender(delivery)
            instance.deliver(delivery)
        for delivery in ever_broke:  # what came before or after it may have been lost with a connection
            instance.path_lost(delivery.call.sender)

    def remove(self, instance: Instance, failure: Failure | None) -> None:
        """The actor has ended, or was given up on; then another may have taken its place already."""
        with self._lock:
            if self.actors.get(instance.key) is instance:
                del self.actors[instance.key]
                end = instance.end or failure or Failure("ended", stopped=True)
                end.incarnation = instance.incarnation
                self._bury(instance.key, end)

    def never_comes(self, key: str, end: Failure) -> None:
        """An actor was stopped before it came, that of incarnation `end.incarnation`: what waits for it is refused, and what
        is sent to it until another takes its place."""
        with self._lock:
            known = self._tombstones.get(key)
            if key in self.actors or (known is not None and known.incarnation >= end.incarnation):
                return
            self._bury(key, end)
            waiting = self._take_waiting(key)
        for delivery in waiting:
            self._note_sender(delivery)
            self._refuse(delivery, end)

    def _bury(self, key: str, end: Failure) -> None:
        """Runs with the lock held."""
        self._tombstones[key] = end
        if len(self._tombstones) > _TOMBSTONES:
            oldest, _ = self._tombstones.popitem(last=False)
            for senders in list(self._senders.values()):  # should one come in its place, they hear of it when they send
                for keys in list(senders.values()):
                    keys.discard(oldest)

    def end_of(self, key: str) -> Failure | None:
        """Returns why actor `key` of this process takes no more messages; None while it does, or when it was never
        here."""
        instance = self.actors.get(key)
        return instance.end if instance is not None else self._tombstones.get(key)

    # --- senders

    def senders_to(self, key: str) -> list[str]:
        """The processes with actors that have sent to actor `key` here."""
        senders = list(self._senders.items())
        return [remote for remote, actors in senders if any(key in keys for keys in list(actors.values()))]

    def connection_broke(self, remote: str) -> None:
        """Takes note that the connection to a living process broke: messages of its actors may be lost, the first ones
        of some included."""
        self._ever_broke.add(remote)

    def paths_lost(self, remote: str) -> None:
        """Takes note that what actors of that process had sent here and has not arrived will not come."""
        for sender, keys in self._senders.get(remote, {}).items():
            for instance in filter(None, map(self.actors.get, keys)):
                instance.path_lost(sender)

    def process_ended(self, remote: str) -> None:
        """Its actors send nothing any more."""
        self.paths_lost(remote)
        self._senders.pop(remote, None)
        self._ever_broke.discard(remote)

    def sender_ended(self, remote: str, sender: str) -> None:
        """An actor of that process sends nothing any more."""
        for instance in filter(None, map(self.actors.get, self._senders.get(remote, {}).pop(sender, ()))):
            instance.sender_ended(sender)

    def skip_lost(self, skip: Skip) -> None:
        """Casts of that sender to one of the actors here may be lost."""
        instance = self.actors.get(skip.to)
        if instance is not None:
            instance.skip_lost(skip.sender)
