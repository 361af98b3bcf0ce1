"""Restarts actors in place: asked for by the program, or by the policy they were spawned under.

A restart runs on a thread of its own, because it waits: for a living actor to end, for processes to start, for constructors.
What it does to whom is decided elsewhere (`restart_policy.RestartGroup`, `ledger.Ledger`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from monarch._linux.locks import Lock
from monarch._mesh.failures import ledger
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.failures.restart_policy import Children, RestartAttempt, RestartGroup
from monarch._mesh.meshes.actor_mesh import ActorMesh
from monarch._mesh.meshes.owned import Acks, ConstructorArgs, OwnedActors, Timeout
from monarch._mesh.process.owned_meshes import OwnedMeshes
from monarch._mesh.process.spawning import Spawning
from monarch._runtime.context import Current, current
from monarch._runtime.future import All, Slot, Source, no_value
from monarch._runtime.incarnations import process_of
from monarch._runtime.log_thread import log
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._runtime.replies import Gather, Target
from monarch._wire.address import name_of, split_proc_name
from monarch._wire.message import Failure, ProcEnded, StopActor
from monarch._wire.peer import PeerEnded

logger = logging.getLogger("monarch")

Meshes = dict[str, tuple[OwnedActors, list[int]]]  # key -> the mesh, and its ranks that are restarted


class CannotRestart(RuntimeError):
    """The reason that a restart failed; the text is for the user."""


class RestartImpossible(CannotRestart):
    """A reason that trying again does not change."""


class Restarter:
    """The restarts of what one process owns.

    `tell_owner(owner, failures)` takes what is not restarted any more; `lost_process(key, ranks, ended)` the end of a process
    that was found while a rank in it was restarted.
    """

    def __init__(
        self,
        proc: Proc,
        owned: OwnedMeshes,
        spawning: Spawning,
        tell_owner: Callable[[str, Sequence[MeshFailure]], None],
        lost_process: Callable[[str, Sequence[int], ProcEnded], None],
    ) -> None:
        self._proc = proc
        self._owned = owned
        self._spawning = spawning
        self._tell_owner = tell_owner
        self._lost_process = lost_process
        self._turns: weakref.WeakKeyDictionary[RestartGroup | OwnedActors, threading.Lock] = weakref.WeakKeyDictionary()

    def _turn(self, owned: OwnedActors) -> threading.Lock:
        """Returns the lock to be held while it is restarted: one restart of a mesh, or of the meshes of a group, at a
        time."""
        with self._owned.lock:
            return self._turns.setdefault(owned if owned.group is None else owned.group, Lock())

    # --- by policy

    def take(self, owned: OwnedActors, failure: MeshFailure) -> bool:
        """A rank of a mesh under a policy failed. False when its owner is to be told after all."""
        assert owned.group is not None
        group, loop = owned.group, self._proc.loop
        round = self._next_round(owned, failure)
        if round is None:
            return False
        meshes = self._begin(round.children)
        if owned.spec.key not in meshes:
            return True  # it is being stopped

        def run() -> None:
            start_thread(self._rounds, "monarch-restart", owned, round.children, failure)

        log(logger, logging.WARNING, "restarting %s under its %r%s, because: %s", _shown(meshes), group.policy,
            f" in {round.delay:g} s" if round.delay else "", failure.event)  # fmt: skip
        if round.delay:
            loop.call_later(round.delay, run)
        else:
            run()
        return True

    def _next_round(self, owned: OwnedActors, failure: MeshFailure) -> RestartAttempt | None:
        assert owned.group is not None
        with self._owned.lock:
            return owned.group.failed(owned.spec.key, failure.crashed_ranks, self._proc.loop.now())

    def _begin(self, children: Children) -> Meshes:
        """Begins a restart: what becomes of these from now on is told to nobody, until they are restarted. Those being
        stopped are left out."""
        meshes = {}
        with self._owned.lock:
            for key, ranks in children.items():
                owned = self._owned.actors.get(key)
                if owned is not None and self._owned.ledger.restarting(key, ranks) is not None:
                    meshes[key] = owned, ranks
        return meshes

    def _rounds(self, first: OwnedActors, children: Children, failure: MeshFailure) -> None:
        """Restarts until it succeeds or the policy has enough."""
        why = ""
        with self._turn(first):
            meshes = self._begin(children)
            # Else it was stopped, or restarted by somebody else.
            if self._owned.is_any_down(first, failure.crashed_ranks):
                meshes, why = self._try(first, meshes, failure)
            self._abandon(meshes)
        self._owned.changed()
        if why and self._proc.closed is None and not self._owned.is_stopped(first):
            self._tell_owner(first.owner, [ledger.escalated(failure, f"it was not restarted: {why}")])

    def _try(self, first: OwnedActors, meshes: Meshes, failure: MeshFailure) -> tuple[Meshes, str]:
        """Tries once. Returns what could not be restarted, and why; "" when nothing is left to do."""
        while True:
            try:
                self._round(meshes, failure._failure)
                return {}, ""
            except Exception as exc:
                why = str(exc)
                round = None if isinstance(exc, RestartImpossible) else self._next_round(first, failure)
            if round is None or self._proc.closed is not None:
                return meshes, why
            logger.warning("restarting %s did not succeed and is tried again: %s", _shown(meshes), why)
            self._pause(round.delay)
            meshes = self._begin(round.children)

    def _round(self, meshes: Meshes, failure: Failure) -> None:
        All([owned.spawned for owned, _ranks in meshes.values()]).wait(None)
        for owned, ranks in meshes.values():
            if owned.too_large(ranks):
                raise RestartImpossible(owned.too_large(ranks))
        self._stop_living(meshes)
        for owned, ranks in meshes.values():
            self._start_processes(owned, ranks)
        for owned, ranks in meshes.values():
            self._construct(owned, ranks, failure)

    def _pause(self, seconds: float) -> None:
        """Until the time is over, or this process is closed."""
        over = Timeout()
        self._proc.ports.add(over)
        self._proc.loop.call_later(seconds, over.end)
        if self._proc.closed is not None:  # just now, so that nobody will give it up
            over.end()
        over.wait(None)

    def _abandon(self, meshes: Meshes) -> None:
        with self._owned.lock:
            for key, (_owned, ranks) in meshes.items():
                self._owned.ledger.not_restarted(key, ranks)

    # --- by hand

    def restart(self, owned: OwnedActors, ranks: list[int], args: ConstructorArgs | None) -> Source:
        """Restarts ranks of an owned mesh; ready when their constructors and `__restarted__` are done."""
        slot = Slot()
        with self._owned.lock:
            owned.asked.append(ranks)
        start_thread(self._by_hand, "monarch-restart", owned, ranks, args, slot)
        return slot

    def _by_hand(self, owned: OwnedActors, ranks: list[int], args: ConstructorArgs | None, slot: Slot) -> None:
        try:
            with self._turn(owned):
                answered = self._again(owned, ranks, args)
            for answer in answered:
                answer.wait(None)
                answer.value()
        except BaseException as exc:
            self._over(owned, ranks)
            slot.fail(exc)
        else:
            self._over(owned, ranks)
            slot.set()

    def _over(self, owned: OwnedActors, ranks: list[int]) -> None:
        with self._owned.lock:
            owned.asked = [others for others in owned.asked if others is not ranks]
        self._owned.changed()

    def _again(self, owned: OwnedActors, ranks: list[int], args: ConstructorArgs | None) -> list[Source]:
        """Stops them, sends the spawns; what it returns is ready when the new actors are."""
        key = owned.spec.key
        for rank in ranks:
            ended = self._proc.processes.end_of(owned.spec.addresses[rank])
            if ended is not None:
                raise _no_process(owned, rank, ended)
        with self._owned.lock:
            whys = {rank: self._owned.ledger.check(key, [rank]) for rank in ranks}
            if self._owned.ledger.restarting(key, ranks) is None:
                raise _was_stopped(owned)
        meshes = {key: (owned, ranks)}
        try:
            if args is not None:
                owned.change_args(ranks, args)
            self._stop_living(meshes)
            return [self._construct(owned, [rank], whys[rank] or _asked(owned, rank)) for rank in ranks]
        except BaseException:
            self._abandon(meshes)
            raise

    def prepare(self, setup: OwnedActors, actors: ActorMesh[Any], rank: int) -> Source:
        """Runs the bootstrap function of a proc mesh in the new process of one rank; ready when it has returned."""
        slot = Slot()
        owner = self._spawning.owner_of(setup)

        def run() -> None:
            if owner is not None:
                current.set(Current(owner, owner.rank, owner.view))
            try:
                self._construct(setup, [rank], _asked(setup, rank))
                actors._at(rank).setup.call_one().get()
            except BaseException as exc:
                slot.fail(exc)
            else:
                slot.set()

        start_thread(run, "monarch-setup")
        return slot

    # --- steps; they wait

    def _stop_living(self, meshes: Meshes) -> None:
        """Stops those that have not ended; returns when their cleanup has run."""
        ended = {key: self._owned.ended_ranks(key) for key in meshes}
        living = [(owned, r) for key, (owned, ranks) in meshes.items() for r in ranks if r not in ended[key]]
        if not living:
            return

        def ask(port: int, index: int) -> None:
            owned, rank = living[index]
            stop = StopActor(owned.spec.key, _ASKED, port, index, True, owned.incarnations.get(rank, 0))
            self._proc.post(owned.spec.addresses[rank], stop)

        acks = Acks([owned.spec.addresses[rank] for owned, rank in living], ask)
        self._proc.ports.add(acks)
        acks.ask(range(len(living)))
        acks.wait(None)
        with self._owned.lock:
            for owned, rank in living:  # should nobody take their place after all
                self._owned.ledger.actor_ended(_asked(owned, rank))

    def _start_processes(self, owned: OwnedActors, ranks: Sequence[int]) -> None:
        """New processes in the place of those that have ended."""
        gone: dict[str, list[int]] = {}
        for rank in ranks:
            address = owned.spec.addresses[rank]
            if self._proc.processes.end_of(address) is not None:
                split = split_proc_name(name_of(address))
                if split is None or split[0] not in self._owned.procs:
                    raise RestartImpossible(
                        f"its process {address} has ended, and is not this owner's: whoever spawned the processes can "
                        f"restart them, with procs.restart(failed=True)"
                    )
                gone.setdefault(split[0], []).append(split[1])
        for mesh, proc_ranks in gone.items():
            started = self._owned.procs[mesh].restart(sorted(set(proc_ranks)))
            started.wait(None)
            started.value()

    def _construct(self, owned: OwnedActors, ranks: Sequence[int], failure: Failure) -> Source:
        """Sends the spawns; ready when the new actors are."""
        spec = owned.spec
        target = Target(f"{spec.name}.__init__", [spec.addresses[rank] for rank in ranks], spec.failure_of)
        entry = Gather(target, len(ranks), no_value)
        number = self._proc.ports.add(entry)
        for index, rank in enumerate(ranks):
            try:
                self._construct_one(owned, rank, failure, number, index)
            except BaseException:
                entry.close()
                raise
        return entry

    def _construct_one(self, owned: OwnedActors, rank: int, failure: Failure, number: int, index: int) -> None:
        proc, spec = self._proc, owned.spec
        address = spec.addresses[rank]
        incarnation = self._next_incarnation(owned, rank)
        with self._owned.lock:  # before it can fail
            goes_on = self._owned.ledger.restarted(spec.key, rank, incarnation)
        if not goes_on:
            raise _was_stopped(owned)
        owned.incarnations[rank] = incarnation
        owned.replaced[rank] = failure
        try:
            self._spawning.post_spawn(owned, rank, incarnation, number, index, failure)
        except PeerEnded as exc:
            self._lost_process(spec.key, [rank], exc.why)
            raise _no_process(owned, rank, exc.why) from None
        if process_of(proc.incarnations.of(spec.key, rank, address)) > process_of(incarnation):
            # The process was replaced just now, and the new one refuses this spawn.
            ended = ProcEnded(address, 0, 0, True, [], incarnation=process_of(incarnation), replaced=True)
            self._lost_process(spec.key, [rank], ended)
            raise _no_process(owned, rank, ended)
        proc.incarnations.actor_restarted(spec.key, rank, incarnation)  # not before: calls must not overtake the spawn
        if self._owned.is_stopped(owned):  # meanwhile: this one came behind the order to stop
            try:
                proc.post(address, StopActor(spec.key, "its mesh was stopped", 0, rank))
            except PeerEnded:
                pass
            raise _was_stopped(owned)

    def _next_incarnation(self, owned: OwnedActors, rank: int) -> int:
        spec = owned.spec
        least = self._proc.incarnations.of(spec.key, rank, spec.addresses[rank])
        last = owned.incarnations.get(rank, 0)
        return least if process_of(least) > process_of(last) else max(least, last) + 1


_ASKED = "restarted by its owner"


def _asked(owned: OwnedActors, rank: int) -> Failure:
    """Returns why a living actor was replaced."""
    spec = owned.spec
    failure = ledger.stopped_failure(spec.display(rank), _ASKED, spec.key, spec.mesh_name, rank)
    failure.incarnation = owned.incarnations.get(rank, 0)
    return failure


def _no_process(owned: OwnedActors, rank: int, ended: ProcEnded) -> CannotRestart:
    spec = owned.spec
    how = "was replaced meanwhile" if ended.replaced else f"has ended ({ledger.describe_exit(ended)})"
    advice = "try again" if ended.replaced else "restart that first, with procs.restart(failed=True)"
    return CannotRestart(
        f"rank {rank} of {spec.mesh_name} cannot be restarted, because its process {spec.addresses[rank]} {how}: {advice}"
    )


def _was_stopped(owned: OwnedActors) -> CannotRestart:
    return CannotRestart(f"the mesh {owned.spec.mesh_name} was stopped: spawn it anew")


def _shown(meshes: Meshes) -> str:
    return ", ".join(f"{owned.spec.name}{ranks}" for owned, ranks in meshes.values())
