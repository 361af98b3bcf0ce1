"""The owners of what was spawned from this process: what they are told of its failures, and by what.

`__supervise__` of an actor that has one is asked. An actor that has none hears by its calls, or else by a fault:
`_mesh.failures.observed` decides, this file carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from monarch._mesh.failures import observed
from monarch._mesh.failures.dropped import DroppedErrors
from monarch._mesh.failures.ledger import MeshFailure, Notify
from monarch._mesh.failures.observed import Effect, Handled, OwnersCall, UnretrievedFailure
from monarch._mesh.meshes.owned import Acks
from monarch._mesh.process.owned_meshes import OwnedMeshes
from monarch._mesh.process.residents import Residents
from monarch._runtime.current import Current
from monarch._runtime.future import Source
from monarch._runtime.instance import Instance, Supervise
from monarch._runtime.log_thread import log
from monarch._runtime.proc import Proc
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._runtime.unobserved_errors import UnobservedError
from monarch._wire.message import Failure

logger = logging.getLogger("monarch")


class Owners:
    """One a process. Any thread, but for `lose_everything`."""

    def __init__(self, proc: Proc, owned: OwnedMeshes, residents: Residents) -> None:
        self._proc = proc
        self._owned = owned
        self._residents = residents
        self.fault: Callable[[MeshFailure], None] = _nothing  # a failure that nobody was told of has reached the root
        self.handled: Callable[[MeshFailure], None] = _nothing  # a call of the root has told it of a failure
        self._dropped = DroppedErrors()
        self._lost: list[MeshFailure] | None = None  # the root's, while everything is lost

    # --- failures

    def tell(self, owner: str, failures: Sequence[MeshFailure]) -> None:
        """Failures of one event that are the owner's to handle."""
        if self._lost is not None and owner == self._proc.root_name:
            self._lost += failures
            return
        instance = self._residents.actor(owner)
        if instance is not None and getattr(instance.behaviour, "supervises", False):
            _supervise(instance, failures)
            return
        self._entrust_to_waiting(owner, failures)
        with self._owned.lock:
            effects = self._owned.observed.failed(owner, failures, self._proc.loop.now())
        self._carry_out(effects)

    def lose_everything(self, detail: str, lose: Callable[[], None]) -> None:
        """`lose()` fails whatever there is: no process can be reached any more, and the root cannot go on. It learns so at
        once, by what it waits for right now, else by a fault: no Future that it may look at later is waited for."""
        told = self._root_waits()
        lost: list[MeshFailure] = []
        self._lost = lost
        try:
            lose()
        finally:
            self._lost = None
        for failure in lost:
            (self.handled if told else self.fault)(failure)
        if not lost and not told:
            self.fault(MeshFailure(Failure(detail, mesh_name="<none>")))

    def _root_waits(self) -> bool:
        """True if the root is blocked on something that raises when everything is lost."""
        entries = [entry for entry in self._proc.ports.entries() if not isinstance(entry, Acks)]
        sources: list[Source] = [source for entry in entries for source in entry.sources()]
        sources += [procs.started for procs in list(self._owned.procs.values())]
        return any(note[4] is None for source in sources if not source.ready for note in source.waiting())

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Carries out what becomes of failures whose owner has no `__supervise__`."""
        for effect in effects:
            if isinstance(effect, UnretrievedFailure):
                self._hold(effect)
            elif effect.owner == self._proc.root_name:
                (self.handled if isinstance(effect, Handled) else self.fault)(effect.failure)
            elif isinstance(effect, Notify):
                instance = self._residents.actor(effect.owner)
                if instance is not None:
                    _supervise(instance, [effect.failure])

    def _hold(self, held: UnretrievedFailure) -> None:
        loop = self._proc.loop
        if loop.virtual:
            return  # a test that moves the time on could not look meanwhile; the end of its cluster tells
        if not held.calls:
            loop.call_later(observed.GRACE, lambda: self._lapse(held))
        loop.call_later(observed.HELD_LONG, lambda: self._on_held_long(held))

    def _lapse(self, held: UnretrievedFailure) -> None:
        with self._owned.lock:
            effects = self._owned.observed.lapse(held)
        self._carry_out(effects)

    def _on_held_long(self, held: UnretrievedFailure) -> None:
        """Nobody has looked for long. Its owner may come to it, as long as it waits for another call; else it never may."""
        if not held.open:
            return
        if any(self._is_owner(wait.running, held.owner) for wait in self._proc.waits.standing()):
            self._proc.loop.call_later(observed.HELD_LONG, lambda: self._on_held_long(held))
            return
        calls = "; ".join(sorted({call.issued for call in held.calls}))
        log(logger, logging.ERROR, "nobody has looked within %g s at the Future of a call that has failed, called at %s",
            observed.HELD_LONG, calls or "an unknown line")  # fmt: skip
        with self._owned.lock:
            effects = self._owned.observed.give_up(held)
        self._carry_out(effects)

    def _is_owner(self, running: Current | None, owner: str) -> bool:
        return (self._proc.root_name if running is None else running.instance.unique) == owner

    def tell_unobserved(self) -> None:
        """The program ends. What is entrusted to Futures that nobody will observe now is told after all."""
        with self._owned.lock:
            effects = self._owned.observed.give_up()
        self._carry_out(effects)

    # --- calls

    def call_failed(
        self, entry: Entry, caller: Instance, key: str, awaited: Sequence[int], failed: Sequence[int]
    ) -> UnobservedError | None:
        """Does what `Hooks.call_failed` says."""
        with self._owned.lock:
            known = None if entry.unobserved is None else entry.unobserved.about
            if known is not None:
                if known.key != key:
                    return None
                known.failed = known.failed.union(failed)
                return entry.unobserved
            if self._owned.ledger.owner_of(key) != caller.unique:
                return None
            call = OwnersCall(caller.unique, key, awaited, failed, entry.issued)
            self._owned.observed.entrust(call)
        proc = self._proc

        def over(seen: bool) -> None:
            if seen:  # at once: a restart may follow, after which it would be told of another
                self._call_over(call, True)
            elif proc.closed is None:
                proc.loop.call_soon(lambda: self._call_over(call, False))

        return UnobservedError(over, call)

    def _call_over(self, call: OwnersCall, seen: bool) -> None:
        with self._owned.lock:
            effects = self._owned.observed.over(call, seen, self._proc.loop.now())
            if call.key not in self._owned.actors:
                self._owned.observed.stopped(call.key)
        self._carry_out(effects)

    def call_raised(self, entry: Entry, raw: Raw) -> UnobservedError:
        """Does what `Hooks.call_raised` says."""
        proc, code, instruction = self._proc, entry.code, entry.instruction
        label = entry.target.label if entry.target is not None else ""

        def over(seen: bool) -> None:
            if not seen and proc.closed is None:
                proc.loop.call_soon(lambda: self._dropped.log(label, code, instruction, raw))

        return UnobservedError(over)

    def _entrust_to_waiting(self, owner: str, failures: Sequence[MeshFailure]) -> None:
        """Calls of the owner that will hear of it: word from the agents may come before that of the actor's process."""
        failed: dict[str, set[int]] = {}
        for failure in failures:
            failed.setdefault(failure._failure.mesh, set()).update(failure.crashed_ranks)
        for entry in self._proc.ports.entries():
            caller, target = entry.caller, entry.target
            if caller is None or target is None or target.key not in failed or caller.unique != owner:
                continue
            if not failed[target.key].isdisjoint(entry.awaited_ranks()):
                entry.note_pending()


def _supervise(owner: Instance, failures: Sequence[MeshFailure]) -> None:
    if not owner.stopping:
        for failure in failures:
            owner.mailbox.put_control(Supervise(failure))


def _nothing(failure: MeshFailure) -> None:
    return None
