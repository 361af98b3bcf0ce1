"""The sender's part in casts over a tree of agents: one message to the agent of this host, whatever the number of receivers.

A view's receivers on other hosts are registered with the agent once and named by a number from then on. At most 256 views
of a process are registered at a time; the longest unused is forgotten, and registered anew when it is used again.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import RLock
from monarch._mesh.casts.plan import SENDER_PLANS, RemoteReceivers
from monarch._runtime.incarnations import Incarnations
from monarch._runtime.ordering import Numbering, RankKey, compress, expand
from monarch._wire.address import agent_of
from monarch._wire.frame import Frame
from monarch._wire.message import Call, CancelGather, Cast, CastPlan, ForgetPlan, PlanUnknown, Stamp
from monarch._wire.peer import PeerEnded
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_SENDERS = 10_000  # actors whose casts are remembered, to tell the receivers of their end


class Casting:
    """The casts of one process: which receivers a number means, and which casts are on their way."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._agent = agent_of(proc.address)
        self._numbers: OrderedDict[RemoteReceivers, int] = OrderedDict()
        self._meanings: weakref.WeakKeyDictionary[RemoteReceivers, tuple[int, Stamp]] = weakref.WeakKeyDictionary()
        self._last = 0
        self._lock = RLock()  # a finalizer of the program may send in the midst of any step
        self._cast: OrderedDict[str, _Casts] = OrderedDict()  # by actor
        proc.receivers[PlanUnknown] = lambda connection, unknown, frame: self._on_unknown(unknown, frame)

    def cast(
        self,
        parted: RemoteReceivers,
        cast: Cast,
        body: bytes,
        buffers: Sequence[memoryview],
        coalesce_within: float,
        wanted: Any = None,
    ) -> None:
        """Sends a Call to every receiver of the far part; `cast` lacks the plan's number. `wanted` is the Gather or Queue
        that waits for the answers, which come up the tree then."""
        proc = self._proc
        with self._lock:  # a plan is registered before the first cast that names it
            cast.plan = self._number(parted)
            cast.target_incarnation = self._meant(parted)
            self._note(cast.sender, cast.plan, parted)
            if wanted is not None:
                wanted.unwanted = lambda: self._unwanted(cast.port)
        proc.post(self._agent, cast, body, buffers, coalesce_within)

    def _meant(self, parted: RemoteReceivers) -> Stamp:
        """Returns which processes are meant, as far as known; looked up when something was learned since."""
        processes = self._proc.processes
        changes = processes.remote_changes
        known = self._meanings.get(parted)
        if known is None or known[0] != changes:
            target_incarnation = compress([processes.incarnation_at(address) for _, _, address in parted.remote])
            known = self._meanings[parted] = changes, target_incarnation
        return known[1]

    def _number(self, parted: RemoteReceivers) -> int:
        number = self._numbers.get(parted)
        if number is not None:
            self._numbers.move_to_end(parted)
            return number
        self._last += 1
        number = self._numbers[parted] = self._last
        width = settings.max_cast_fanout()
        for address in parted.addresses:
            self._proc.processes.watch(address)
        self._proc.post(self._agent, CastPlan(number, width, False, parted.hosts))
        if len(self._numbers) > SENDER_PLANS:
            self._proc.post(self._agent, ForgetPlan(self._numbers.popitem(last=False)[1]))
        return number

    def _on_unknown(self, unknown: PlanUnknown, frame: Frame) -> None:
        """Our agent lacks the plan: it is registered anew, and the cast sent once more."""
        number = unknown.cast.plan
        with self._lock:
            parted = next((known for known, given in self._numbers.items() if given == number), None)
            if parted is None:
                return  # forgotten since: nobody can say any more who was meant
            del self._numbers[parted]
        buffers = [memoryview(buffer) for buffer in frame.buffers]
        try:
            self.cast(parted, unknown.cast, bytes(frame.body), buffers, 0.0)
        except PeerEnded:
            pass

    def _note(self, sender: str, number: int, parted: RemoteReceivers) -> None:
        known = self._cast.get(sender)
        if known is None:
            known = self._cast[sender] = _Casts()
            if len(self._cast) > _SENDERS:
                self._cast.popitem(last=False)
        if known.plan != number:
            known.plan = number
            known.addresses |= parted.addresses

    def cast_to(self, sender: str) -> list[str]:
        """The processes of other hosts that casts of that actor went to; it has ended and is forgotten."""
        with self._lock:
            known = self._cast.pop(sender, None)
        return sorted(known.addresses) if known else []

    def _unwanted(self, port: int) -> None:
        """Any thread, at any point of its work: the collector may find that nobody reads the answers."""
        cancel = CancelGather(self._proc.address, port)
        self._proc.loop.call_soon(lambda: self._proc.tell(self._agent, cancel))


class _Casts:
    """The casts of an actor: to which processes, and with which plan the last."""

    __slots__ = ("addresses", "plan")

    def __init__(self) -> None:
        self.addresses: set[str] = set()
        self.plan = 0


def stamp(cast: Cast, numbering: Numbering, parted: RemoteReceivers, restarts: Incarnations | None) -> None:
    """Says which incarnations are meant, and numbers the cast."""
    receivers: Sequence[RankKey] = parted.ranks
    if restarts is not None:
        incarnations = [restarts.of(cast.to, rank, address) for _, rank, address in parted.remote]
        receivers = [
            (rank, incarnation) if incarnation else rank
            for rank, incarnation in zip(parted.ranks, incarnations, strict=True)
        ]
        cast.incarnations = compress(incarnations)
    numbering.next_many(cast, cast.to, receivers)


def fill_places(cast: Cast, proc: Proc, parted: RemoteReceivers) -> None:
    """The cast was interrupted: whatever receivers were not sent it are not to wait for it (see `Proc.fill_place`)."""
    count = len(parted.remote)
    stamps = zip(parted.remote, expand(cast.seqs, count), expand(cast.incarnations, count), strict=True)
    for (index, _, address), seq, incarnation in stamps:
        call = Call(cast.to, cast.sender, seq, cast.method, 0, "", index, cast.view, cast.adverb, incarnation)
        proc.fill_place(address, call)
