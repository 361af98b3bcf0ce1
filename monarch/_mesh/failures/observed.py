"""Failures that the calls of their owner tell, so that nobody else is asked. Pure: events in, effects out.

A failure behaves like an exception. What a call of the owner raises, its owner has been told; whether it caught it is its own
affair. What no call tells goes to the owner as a fault: `__supervise__`, `unhandled_fault_hook`. In between are calls that
have failed and whose Future nobody has looked at yet: the failure is entrusted to them, and decided when they are observed
(told) or dropped (a fault then).

One event may be several failures: a process dies, and with it a rank of each mesh that the owner has there. They are told
together or not at all.

A failure that no call carries waits a moment before it is a fault: a program that kills a process, or spawns an actor whose
constructor raises, and calls at once, is to meet the same exception whichever was faster.

Only calls of the owner count. That another actor has caught a failure tells the owner nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from monarch._mesh.failures.ledger import MeshFailure, Notify

# Seconds after a call has told of a rank in which further ranks that it waited for count as told with it: what kills one
# (a host, memory, a collective) kills its neighbours a little later.
TOGETHER = 3.0

GRACE = 0.05  # seconds in which a call may still be made that tells of a failure
HELD_LONG = 10.0  # seconds after which a failure that only an unobserved Future knows of is a fault


class Handled:
    """Effect: a call has told `owner` of `failure`; nothing more is to be done."""

    __slots__ = ("failure", "owner")

    def __init__(self, owner: str, failure: MeshFailure) -> None:
        self.owner = owner
        self.failure = failure

    def __repr__(self) -> str:
        return f"Handled({self.owner!r}, {self.failure})"


class UnretrievedFailure:
    """Effect: failures of one event are entrusted to `calls`, until one is observed or the last is dropped; without any they
    are kept for `GRACE`, after which `Observed.lapse` is to be asked. `open` until that is decided."""

    __slots__ = ("calls", "failures", "open", "owner")

    def __init__(self, owner: str, failures: Sequence[MeshFailure], calls: set[OwnersCall]) -> None:
        self.owner = owner
        self.failures = failures
        self.calls = calls
        self.open = True

    def __repr__(self) -> str:
        return f"UnretrievedFailure({self.owner!r}, {list(self.failures)})"


Effect = Notify | Handled | UnretrievedFailure


class OwnersCall:
    """A call by the owner of its target that has failed, or is about to, and that nobody has observed.

    `ranks` are those of mesh `key` that had not answered it; `failed` those whose failure it raises, none while it waits.
    `issued` says where, for people.
    """

    __slots__ = ("failed", "issued", "key", "owner", "ranks")

    def __init__(
        self, owner: str, key: str, ranks: Iterable[int], failed: Iterable[int] = (), issued: str = ""
    ) -> None:
        self.owner = owner
        self.key = key
        self.ranks = frozenset(ranks)
        self.failed = frozenset(failed)
        self.issued = issued

    def covers(self, failure: MeshFailure) -> bool:
        """True if it waited for a rank that has failed. No ranks are the whole mesh."""
        given = failure._failure
        return given.mesh == self.key and (not given.ranks or not self.ranks.isdisjoint(given.ranks))


class Observed:
    """See the module. Not thread-safe: the caller holds a lock. It keeps as much as the program keeps failed Futures, and a
    number for each rank that was told of until the mesh is forgotten. Without `grace` a failure that no call carries is a
    fault at once."""

    def __init__(self, grace: bool = True) -> None:
        self._grace = grace
        self._calls: dict[OwnersCall, None] = {}
        self._held: list[UnretrievedFailure] = []
        self._told: dict[str, dict[int, float]] = {}  # of each mesh: ranks, and until when their failures count as told

    def __len__(self) -> int:
        return len(self._calls) + len(self._held)

    def entrust(self, call: OwnersCall) -> None:
        """The call raises a failure when it is observed, or may."""
        self._calls[call] = None
        for held in self._held:
            if held.owner == call.owner and any(map(call.covers, held.failures)):
                held.calls.add(call)

    def failed(self, owner: str, failures: Sequence[MeshFailure], now: float) -> list[Effect]:
        """One event: these meshes of `owner` have failed."""
        if any(self._was_told(failure, now) for failure in failures):
            return self._tell(owner, failures)
        calls = {call for call in self._calls if call.owner == owner and any(map(call.covers, failures))}
        held = UnretrievedFailure(owner, failures, calls)
        self._held.append(held)
        return [held] if calls or self._grace else self.lapse(held)

    def lapse(self, held: UnretrievedFailure) -> list[Effect]:
        """Ends the time that a failure is held."""
        if not held.open or held.calls:
            return []
        return self._close(held, [Notify(held.owner, failure) for failure in held.failures])

    def over(self, call: OwnersCall, observed: bool, now: float) -> list[Effect]:
        """The call was observed, or dropped without that. Once a call."""
        if self._calls.pop(call, call) is call:  # it is known no more: the process is closing
            return []
        effects: list[Effect] = []
        if observed and call.failed:
            told = self._told.setdefault(call.key, {})
            for rank in call.ranks - call.failed:
                told[rank] = max(told.get(rank, 0.0), now + TOGETHER)
            told.update(dict.fromkeys(call.failed, math.inf))
        for held in list(self._held):
            if call not in held.calls:
                continue
            held.calls.discard(call)
            if observed and call.failed:
                effects += self._close(held, self._tell(held.owner, held.failures))
            elif not held.calls:
                effects += self._close(held, [Notify(held.owner, failure) for failure in held.failures])
        return effects

    def restarted(self, key: str, rank: int) -> None:
        """Another has taken its place, whose failure is another."""
        self._told.get(key, {}).pop(rank, None)

    def stopped(self, key: str) -> list[MeshFailure]:
        """The owner stops the mesh, and no failure of it is told any more. Returns what was never told."""
        self._told.pop(key, None)
        untold: list[MeshFailure] = []
        for held in list(self._held):
            mine = [failure for failure in held.failures if failure._failure.mesh == key]
            if mine:
                untold += mine
                held.failures = [failure for failure in held.failures if failure not in mine]
                if not held.failures:
                    self._close(held, [])
        return untold

    def give_up(self, held: UnretrievedFailure | None = None) -> list[Effect]:
        """Tells after all what is entrusted to Futures that nobody will observe: all of it, when the program ends."""
        effects: list[Effect] = []
        for each in [held] if held is not None else list(self._held):
            if each.open:
                effects += self._close(each, [Notify(each.owner, failure) for failure in each.failures])
        if held is None:
            self._calls.clear()
        return effects

    def _close(self, held: UnretrievedFailure, effects: list[Effect]) -> list[Effect]:
        held.open = False
        self._held.remove(held)
        return effects

    def _was_told(self, failure: MeshFailure, now: float) -> bool:
        told = self._told.get(failure._failure.mesh)
        if not told:
            return False
        ranks = failure._failure.ranks
        return any(now <= told.get(rank, -math.inf) for rank in ranks) if ranks else bool(told)

    def _tell(self, owner: str, failures: Sequence[MeshFailure]) -> list[Effect]:
        for failure in failures:
            told = self._told.setdefault(failure._failure.mesh, {})
            told.update(dict.fromkeys(failure._failure.ranks, math.inf))
        return [Handled(owner, failure) for failure in failures]
