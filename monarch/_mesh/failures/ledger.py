"""The ledger of failures: who is told of each, and what then. Pure: events in, effects out, nothing is sent from here.

A Ledger keeps, for one process, the actor meshes that actors of this process own and what has become of their ranks.
Failures reach an owner at most once for each (mesh, rank); ordinary ends reach nobody but are remembered, so that later
calls can be answered at once. Views are healthy as long as they contain no rank that ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol

from monarch._runtime.incarnations import process_of
from monarch._text import clip, one_line, ranges, visible
from monarch._wire.message import Failure, ProcEnded

EXIT_CLEAN = "stopped: process exited cleanly"


class MeshFailure:
    """The failure that `__supervise__` and `unhandled_fault_hook` are given: which mesh failed, at which ranks, and
    why.

    `mesh_name` is the unique name of the actor mesh ("<none>" when unknown), `crashed_ranks` its ranks ([]: the whole
    mesh, or unknown). `report()` is the text for people. Stays in its process: it cannot be pickled.
    """

    def __init__(self, failure: Failure) -> None:
        self._failure = failure
        self.mesh_name = failure.mesh_name or "<none>"
        self.crashed_ranks = list(failure.ranks)

    @property
    def mesh(self) -> str:
        """Returns `mesh_name`."""
        return self.mesh_name

    @property
    def event(self) -> str:
        """Returns what happened to the actor or process, without the tree of owners that the report has."""
        return self._failure.event or self._failure.report

    def report(self) -> str:
        """The text for people: what failed, where, why, the process's last lines, and who owns it. What a rank has written
        can make a terminal do nothing."""
        return visible(self._failure.report)

    def __str__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={self.crashed_ranks}, event={self.event})"

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        """Draws what failed for a notebook: which mesh and ranks, the cause, and the report."""
        from monarch import _html  # loaded when a notebook asks

        def draw() -> str:
            kind, sentence, _, cause, text, called = _html.of_report("MeshFailure", self.report())
            facts = [("mesh", self.mesh_name), ("ranks", ranges(self.crashed_ranks, 16) or "all, or unknown")]
            return _html.failure(kind, sentence, facts, cause, text, called)

        return _html.drawn(draw)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a MeshFailure cannot be sent: it belongs to the owner that was told; send its report()")


class MeshFacts(Protocol):
    """The facts of an actor mesh that the ledger needs."""

    key: str
    addresses: Sequence[str]

    @property
    def mesh_name(self) -> str: ...

    @property
    def procs_stopped(self) -> bool: ...

    def display(self, rank: int) -> str: ...


class Notify:
    """Effect: tell `owner` (an actor's unique name) of `failure`."""

    __slots__ = ("failure", "owner")

    def __init__(self, owner: str, failure: MeshFailure) -> None:
        self.owner = owner
        self.failure = failure

    def __repr__(self) -> str:
        return f"Notify({self.owner!r}, {self.failure})"


class MeshGone:
    """Effect: every process of mesh `key` was stopped in order; `owner` need not keep it."""

    __slots__ = ("key", "owner")

    def __init__(self, owner: str, key: str) -> None:
        self.owner = owner
        self.key = key

    def __repr__(self) -> str:
        return f"MeshGone({self.owner!r}, {self.key!r})"


class RankStates:
    """The states of some ranks of a mesh: `lost`, why one of them (or the mesh) will not come back; `coming`, those
    that are restarted, and why they ended where that is known."""

    __slots__ = ("coming", "lost")

    def __init__(self, lost: Failure | None = None) -> None:
        self.lost = lost
        self.coming: dict[int, Failure | None] = {}


class _Entry:
    __slots__ = (
        "_ranks_at",
        "ended",
        "given_up",
        "incarnations",
        "internal",
        "mesh",
        "owner",
        "restarting",
        "whole",
    )

    def __init__(self, mesh: MeshFacts, owner: str, internal: bool) -> None:
        self.mesh = mesh
        self.owner = owner
        self.internal = internal
        self.ended: dict[int, Failure] = {}
        self.incarnations: dict[int, int] = {}  # of the ranks that are not the first
        self.restarting: set[int] = set()
        self.given_up: set[int] = set()  # ended, and not restarted by the policy of the mesh, if it has one
        self.whole: Failure | None = None
        self._ranks_at: dict[str, list[int]] | None = None

    def ranks_at(self, address: str) -> Sequence[int]:
        if self._ranks_at is None:  # made when a process ends: many end together, and meshes are large
            self._ranks_at = {}
            for rank, there in enumerate(self.mesh.addresses):
                self._ranks_at.setdefault(there, []).append(rank)
        return self._ranks_at.get(address, ())


class Ledger:
    """See the module. Not thread-safe: the caller holds a lock. `on_restarted(key, rank)`: another has taken its place."""

    def __init__(self, on_restarted: Callable[[str, int], None] = lambda key, rank: None) -> None:
        self._on_restarted = on_restarted
        self.troubled: set[str] = set()  # meshes that `check` may have something against; readable without the lock
        self._entries: dict[str, _Entry] = {}
        self._by_address: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def add(self, mesh: MeshFacts, owner: str, internal: bool = False) -> None:
        """`owner` has spawned `mesh`. Of one that is `internal`, the runtime's own, the end of a process is not told."""
        self._entries[mesh.key] = _Entry(mesh, owner, internal)
        for address in set(mesh.addresses):
            self._by_address.setdefault(address, set()).add(mesh.key)

    def failures(self) -> list[tuple[Failure, list[int]]]:
        """Returns what has failed and is not coming back, each with the ranks that it has ended."""
        found: dict[int, tuple[Failure, list[int]]] = {}
        for entry in self._entries.values():
            for rank, failure in entry.ended.items():
                if not (failure.stopped or entry.internal or rank in entry.restarting):
                    found.setdefault(id(failure), (failure, []))[1].append(rank)
        return list(found.values())

    def remove(self, key: str) -> str:
        """The mesh is gone and nobody need be told any more. Returns its owner ("" when unknown)."""
        entry = self._entries.pop(key, None)
        self.troubled.discard(key)
        if entry is None:
            return ""
        for address in set(entry.mesh.addresses):
            keys = self._by_address.get(address)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._by_address[address]
        return entry.owner

    def owner_of(self, key: str) -> str:
        """The owner of the mesh; "" when it is unknown here, or no failure of it is told any more."""
        entry = self._entries.get(key)
        return "" if entry is None or entry.whole is not None else entry.owner

    def actor_ended(self, failure: Failure) -> list[Notify]:
        """Ranks of an owned mesh have failed; told by their process."""
        entry = self._entries.get(failure.mesh)
        if entry is None:
            return []
        known = entry.incarnations
        fresh = [
            rank for rank in failure.ranks if rank not in entry.ended and failure.incarnation >= known.get(rank, 0)
        ]
        for rank in fresh:
            entry.ended[rank] = failure
        if fresh:
            self.troubled.add(failure.mesh)
        if failure.stopped or entry.whole is not None or entry.restarting.issuperset(fresh):
            return []
        return [Notify(entry.owner, MeshFailure(failure))]

    def process_ended(self, ended: ProcEnded) -> list[Notify | MeshGone]:
        """Every owned mesh with ranks there has lost them: one failure a mesh, none for an ordinary end.

        A mesh whose ranks have all ended in order is forgotten: its processes' agent tells late callers.
        """
        effects: list[Notify | MeshGone] = []
        for key in sorted(self._by_address.get(ended.address, ())):
            entry = self._entries[key]
            # Word of its end was lost with its host; or it has heard of the stop, and ended, before its agent did.
            if entry.mesh.procs_stopped and (not ended.pid or (ended.code == 0 and not ended.detail)):
                ended.stopped = True
            fresh = [
                rank
                for rank in entry.ranks_at(ended.address)
                if rank not in entry.ended and process_of(entry.incarnations.get(rank, 0)) <= ended.incarnation
            ]
            if fresh:
                failure = process_failure(entry.mesh, ended, fresh)
                for rank in fresh:
                    entry.ended[rank] = failure
                self.troubled.add(key)
                untold = failure.stopped or entry.internal or entry.restarting.issuperset(fresh)
                if not untold and entry.whole is None:
                    effects.append(Notify(entry.owner, MeshFailure(failure)))
            over = ended.stopped and not ended.replaced and not entry.restarting
            if over and len(entry.ended) == len(entry.mesh.addresses) and all(f.stopped for f in entry.ended.values()):
                effects.append(MeshGone(self.remove(key), key))
        return effects

    # --- restarts

    def restarting(self, key: str, ranks: Iterable[int]) -> list[int] | None:
        """These ranks are to be replaced: what becomes of them until they are is told to nobody.

        Returns those that live, as far as known; None when the mesh is not owned here, or is being stopped.
        """
        entry = self._entries.get(key)
        if entry is None or entry.whole is not None:
            return None
        entry.restarting.update(ranks)
        return [rank for rank in ranks if rank not in entry.ended]

    def restarted(self, key: str, rank: int, incarnation: int) -> bool:
        """Another has taken the place of a rank. False when the mesh was stopped meanwhile."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        self._on_restarted(key, rank)
        entry.restarting.discard(rank)
        entry.given_up.discard(rank)
        entry.ended.pop(rank, None)
        entry.incarnations[rank] = incarnation
        if not entry.ended and entry.whole is None:
            self.troubled.discard(key)
        return entry.whole is None

    def not_restarted(self, key: str, ranks: Iterable[int]) -> None:
        """Leaves these ranks as they are."""
        entry = self._entries.get(key)
        if entry is not None:
            ranks = set(ranks)
            entry.restarting.difference_update(ranks)
            entry.given_up.update(ranks.intersection(entry.ended))

    def standing(self, key: str, ranks: Iterable[int], policy: bool, asked: Container[int] = ()) -> RankStates:
        """Returns how these ranks stand. `policy`: the mesh has one, which restarts a rank that fails unless it has
        given up. `asked`: ranks that the program itself is restarting."""
        entry = self._entries.get(key)
        if entry is None:
            return RankStates(stopped_failure(key, "its mesh was stopped", key))
        found = RankStates(entry.whole)
        for rank in ranks:
            failure = entry.ended.get(rank)
            by_policy = failure is not None and policy and not failure.stopped and rank not in entry.given_up
            if rank in entry.restarting or rank in asked or by_policy:
                found.coming[rank] = failure
            elif failure is not None and found.lost is None:
                found.lost = failure
        return found

    def restarted_at(self, address: str) -> bool:
        """True if a rank that lives in that process is being restarted."""
        for key in self._by_address.get(address, ()):
            entry = self._entries[key]
            if any(entry.mesh.addresses[rank] == address for rank in entry.restarting):
                return True
        return False

    def is_coming_back(self, key: str, rank: int) -> bool | None:
        """True if that rank lives, as far as known, or is to be replaced; None when the mesh is not owned here."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        return entry.whole is None and (rank in entry.restarting or rank not in entry.ended)

    def ended_ranks(self, key: str) -> list[int]:
        """The ranks of an owned mesh that have ended, whatever way."""
        entry = self._entries.get(key)
        return [] if entry is None else sorted(entry.ended)

    def mesh_stopped(self, key: str, reason: str) -> None:
        """The owner stops the mesh: no failure of it is told any more."""
        entry = self._entries.get(key)
        if entry is not None and entry.whole is None:
            self.troubled.add(key)
            entry.whole = stopped_failure(entry.mesh.mesh_name, reason, key)

    def all_stopped(self, reason: str) -> None:
        """Everything is being stopped: what fails on the way is no failure any more."""
        for key in list(self._entries):
            self.mesh_stopped(key, reason)

    def check(self, key: str, ranks: Iterable[int]) -> Failure | None:
        """Returns why a call to these ranks cannot succeed; None when nothing is known against it."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.ended:
            for rank in ranks:
                if rank in entry.ended:
                    return entry.ended[rank]
        return entry.whole


# --- the texts ----------------------------------------------------------------------------------------------


_CRASHED = "a crash in native code (an extension module, or memory that was misused through one)"
# What users ask first; SIGKILL tells no more than its number.
_SIGNALS: dict[int, str] = {
    signal.SIGSEGV: f", SIGSEGV: {_CRASHED}",
    signal.SIGBUS: f", SIGBUS: {_CRASHED}, or shared memory that the machine did not have",
    signal.SIGFPE: f", SIGFPE: {_CRASHED}",
    signal.SIGILL: f", SIGILL: {_CRASHED}, perhaps built for another CPU",
    signal.SIGABRT: ", SIGABRT: native code gave up (abort(), a failed assertion, an exception of C++)",
    signal.SIGTERM: ", SIGTERM: something asked it to end",
}


def describe_exit(ended: ProcEnded) -> str:
    """`Killed(sig=9)`, `exited with non-zero code 7`, `exited cleanly`, or why it never ran."""
    if ended.detail:
        return ended.detail
    if ended.code < 0:
        return f"Killed(sig={-ended.code}){_SIGNALS.get(-ended.code, '')}"
    return "exited cleanly" if ended.code == 0 else f"exited with non-zero code {ended.code}"


def whereabouts(ended: ProcEnded) -> str:
    """`pid 7 on node3, at unix:...`; neither is always known."""
    pid = f"pid {ended.pid}" if ended.pid else ""
    host = f"on {ended.hostname}" if ended.hostname else ""
    return ", ".join(filter(None, (f"{pid} {host}".strip(), f"at {ended.address}")))


def process_failure(mesh: MeshFacts, ended: ProcEnded, ranks: Sequence[int]) -> Failure:
    """Returns what becomes of the ranks of `mesh` that lived in the process that ended."""
    shown = one_line(mesh.display(ranks[0]) if ranks else mesh.mesh_name)
    if ended.stopped or (ended.code == 0 and not ended.detail):
        status = EXIT_CLEAN
        if ended.stopped:
            status = f"stopped: the process {'is being restarted' if ended.replaced else 'was stopped'}"
        text = f"Supervision event: actor {shown} has status:\n  {status}"
        return Failure(text, mesh.key, mesh.mesh_name, list(ranks), text, stopped=True)
    cause = visible(f"the process this actor was running on failed: {describe_exit(ended)}")
    where = one_line(f"rank {', '.join(map(str, ranks))} of {mesh.mesh_name}, {whereabouts(ended)}")
    tail = visible("".join(f"\n      {line}" for line in ended.tail))
    last = f"\n    the last lines it wrote to stderr:{tail}" if tail else ""
    report = f"The actor {shown} and all its descendants have failed:\n    {cause}\n    {where}{last}"
    return Failure(
        report,
        mesh.key,
        mesh.mesh_name,
        list(ranks),
        f"Supervision event: actor {shown} failed: {cause} ({where})",
    )


def actor_failure(display: str, cause: str, key: str, mesh_name: str, rank: int) -> Failure:
    """An actor failed by itself: an exception nobody waited for, an abort, a constructor that raised."""
    cause, display = visible(clip(cause)), one_line(display)
    body = cause.rstrip().replace("\n", "\n    ")
    report = f"The actor {display} and all its descendants have failed:\n    {body}"
    first = cause.strip().splitlines()[-1] if cause.strip() else ""
    return Failure(report, key, mesh_name, [rank], f"Supervision event: actor {display} failed: {first}")


def escalated(child: MeshFailure, why: str) -> MeshFailure:
    """The failure of a rank that its policy does not restart any more."""
    given = child._failure
    return MeshFailure(
        Failure(f"{given.report}\n    {why}", given.mesh, given.mesh_name, given.ranks, f"{child.event} ({why})")
    )


def unhandled_child(
    display: str, child: MeshFailure, key: str, mesh_name: str, rank: int, handling: str | None = None
) -> Failure:
    """An owner fails because it did not handle a failure of its mesh (or raised while `handling`)."""
    report = clip(child.report())
    why = "failed because it did not handle a supervision event from its child"
    display = one_line(display)
    if handling is not None:
        handling = visible(handling)
        indented = report.replace("\n", "\n    ")
        report = f"{handling.rstrip()}\nThis error occurred while handling another failure:\n    {indented}"
        why = "failed while handling a failure of its child"
    event = f"Supervision event: actor {display} {why}. {child.event}"
    return Failure(report, key, mesh_name, [rank], event)


def stale_failure(display: str, key: str, mesh_name: str, rank: int, overtaken: bool = False) -> Failure:
    """Returns the failure of a message whose receiver has ended and been replaced since it was sent; `overtaken`: of one that
    was lost with a connection and came after later ones."""
    text = (
        f"this message to the actor {display} was not handled: a connection broke, and messages that were sent after it came "
        f"before it. Call again"
        if overtaken
        else f"the actor {display} was restarted after this message was sent: it was meant for the one before, which has "
        f"ended, and was not handled. Call again to reach the new one"
    )
    return Failure(text, key, mesh_name, [rank], text, stopped=True, will_restart=True)


def stopped_failure(display: str, reason: str, key: str = "", mesh_name: str = "", rank: int | None = None) -> Failure:
    text = f"Supervision event: actor {display} has status:\n  stopped: {reason}"
    return Failure(text, key, mesh_name or display, [] if rank is None else [rank], text, stopped=True)
