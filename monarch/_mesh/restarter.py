"""Restarts actors in place: asked for by the program, or by the policy they were spawned under.

A restart runs on a thread of its own, because it waits: for a living actor to end, for processes to start, for constructors.
What it does to whom is decided elsewhere (`restarts.Group`, `supervision.Ledger`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch._errors import SupervisionError
from monarch._mesh import supervision
from monarch._mesh.owned import Acks, Making, OwnedActors
from monarch._mesh.restarts import Children, Group
from monarch._mesh.supervision import MeshFailure
from monarch._runtime.context import Current, current
from monarch._runtime.future import All, Slot, Source
from monarch._runtime.incarnations import process_of
from monarch._runtime.instance import Instance
from monarch._runtime.loop import start_thread
from monarch._runtime.replies import Gather, Target
from monarch._wire import codec
from monarch._wire.address import name_of, split_proc_name
from monarch._wire.message import VALUE, Answer, Failure, Spawn, StopActor
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._mesh.actor_mesh import ActorMesh
    from monarch._mesh.controller import MeshLayer

logger = logging.getLogger("monarch")

_NOTICE = 1.0  # seconds given to processes to take note of a restart: a silent one must not hold it up


Meshes = dict[str, tuple[OwnedActors, list[int]]]  # key -> the mesh, and its ranks that are restarted


class CannotRestart(RuntimeError):
    """Why a restart failed; the text is for the user."""


class NotOurs(CannotRestart):
    """The processes belong to another owner: trying again is no use."""


class Restarter:
    """The restarts of one process's mesh layer."""

    def __init__(self, layer: MeshLayer) -> None:
        self._layer = layer
        self._one_at_a_time: weakref.WeakKeyDictionary[Group, threading.Lock] = weakref.WeakKeyDictionary()

    # --- by policy

    def take(self, owned: OwnedActors, failure: MeshFailure) -> bool:
        """A rank of a mesh under a policy failed. False when its owner is to be told after all."""
        assert owned.group is not None
        group, loop = owned.group, self._layer.proc.loop
        round = group.failed(owned.spec.key, failure.crashed_ranks, loop.now())
        if round is None:
            return False
        meshes = self._begin(round.children)
        if owned.spec.key not in meshes:
            return True  # it is being stopped

        def run() -> None:
            start_thread(self._rounds, "monarch-restart", owned, round.children, failure)

        logger.warning("restarting %s under its %r%s, because: %s", _shown(meshes), group.policy,
                       f" in {round.delay:g} s" if round.delay else "", failure.event)  # fmt: skip
        if round.delay:
            loop.call_later(round.delay, run)
        else:
            run()
        return True

    def _begin(self, children: Children) -> Meshes:
        """What becomes of these from now on is told to nobody, until they are restarted. Those being stopped are left
        out."""
        layer = self._layer
        meshes = {}
        with layer.lock:
            for key, ranks in children.items():
                owned = layer.actors.get(key)
                if owned is not None and layer.ledger.restarting(key, ranks) is not None:
                    meshes[key] = owned, ranks
        return meshes

    def _rounds(self, first: OwnedActors, children: Children, failure: MeshFailure) -> None:
        """Restarts until it succeeds or the policy has enough. One restart of a group at a time."""
        group = first.group
        assert group is not None
        layer = self._layer
        with self._one_at_a_time.setdefault(group, threading.Lock()):
            while True:
                meshes = self._begin(children)
                try:
                    self._round(meshes, failure._failure)
                    return
                except Exception as exc:
                    why = str(exc)
                    round = None
                    if not isinstance(exc, NotOurs) and not _stopped(first) and layer.proc.closed is None:
                        round = group.failed(first.spec.key, failure.crashed_ranks, layer.proc.loop.now())
                    if round is None:
                        break
                    logger.warning("restarting %s did not succeed and is tried again: %s", _shown(meshes), why)
                    children = round.children
                    self._pause(round.delay)
        self._abandon(meshes)
        if layer.proc.closed is None and not _stopped(first):
            layer.tell_owner(first.owner, supervision.escalated(failure, f"it was not restarted: {why}"))

    def _round(self, meshes: Meshes, failure: Failure) -> None:
        All([self._stop_living(owned, ranks) for owned, ranks in meshes.values()]).wait(None)
        for owned, ranks in meshes.values():
            self._start_processes(owned, ranks)
        for owned, ranks in meshes.values():
            self._construct(owned, ranks, failure)

    def _pause(self, seconds: float) -> None:
        if seconds:
            over = Slot()
            self._layer.proc.loop.call_later(seconds, over.set)
            over.wait(None)

    def _abandon(self, meshes: Meshes) -> None:
        with self._layer.lock:
            for key, (_owned, ranks) in meshes.items():
                self._layer.ledger.not_restarted(key, ranks)

    # --- by hand

    def restart(self, owned: OwnedActors, ranks: Sequence[int], making: Making | None) -> Source:
        """Restarts ranks of an owned mesh; ready when their constructors and `__restarted__` are done."""
        slot = Slot()
        start_thread(self._by_hand, "monarch-restart", owned, list(ranks), making, slot)
        return slot

    def _by_hand(self, owned: OwnedActors, ranks: list[int], making: Making | None, slot: Slot) -> None:
        layer, key = self._layer, owned.spec.key
        try:
            with layer.lock:
                living = layer.ledger.restarting(key, ranks)
                whys = {rank: layer.ledger.check(key, [rank]) for rank in ranks}
            if living is None:
                raise CannotRestart(f"the mesh {owned.spec.mesh_name} was stopped: spawn it anew")
            try:
                if making is not None:
                    owned.remake(ranks, making)
                self._stop_living(owned, living).wait(None)
                answered = [self._construct(owned, [rank], whys[rank] or _asked(owned, rank)) for rank in ranks]
            except BaseException:
                self._abandon({key: (owned, ranks)})
                raise
            for answer in answered:
                answer.wait(None)
                answer.value()
        except BaseException as exc:
            slot.fail(exc)
        else:
            slot.set()

    def prepare(self, setup: OwnedActors, actors: ActorMesh[Any], rank: int) -> Source:
        """Runs the bootstrap function of a proc mesh in the new process of one rank; ready when it has returned."""
        slot = Slot()
        owner = self._layer.actor(setup.owner)

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

    def _stop_living(self, owned: OwnedActors, ranks: Sequence[int]) -> Source:
        """Stops those of the ranks that have not ended; ready when their cleanup has run."""
        layer, spec = self._layer, owned.spec
        with layer.lock:
            ended = set(layer.ledger.ended_ranks(spec.key))
        living = [rank for rank in ranks if rank not in ended]
        acks = Acks([spec.addresses[rank] for rank in living])
        number = layer.proc.ports.add(acks)
        for index, rank in enumerate(living):
            try:
                layer.proc.post(spec.addresses[rank], StopActor(spec.key, "restarted by its owner", number, index))
            except PeerEnded:
                acks.done(index)
        return acks

    def _start_processes(self, owned: OwnedActors, ranks: Sequence[int]) -> None:
        """New processes in the place of those that have ended."""
        layer = self._layer
        gone: dict[str, list[int]] = {}
        for rank in ranks:
            address = owned.spec.addresses[rank]
            if layer.proc.end_of_process(address) is not None:
                split = split_proc_name(name_of(address))
                if split is None or split[0] not in layer.procs:
                    raise NotOurs(
                        f"its process {address} has ended, and is not this owner's: whoever spawned the processes can "
                        f"restart them, with procs.restart(failed=True)"
                    )
                gone.setdefault(split[0], []).append(split[1])
        for mesh, proc_ranks in gone.items():
            started = layer.procs[mesh].restart(sorted(set(proc_ranks)))
            started.wait(None)
            started.value()

    def _construct(self, owned: OwnedActors, ranks: Sequence[int], failure: Failure) -> Source:
        """Sends the spawns; ready when the new actors are."""
        layer, spec = self._layer, owned.spec
        target = Target(f"restart of {spec.name}", [spec.addresses[rank] for rank in ranks], spec.failure_of)
        entry = Gather(target, len(ranks), _nothing)
        number = layer.proc.ports.add(entry)
        for index, rank in enumerate(ranks):
            try:
                self._construct_one(owned, rank, failure, number, index)
            except BaseException:
                entry.close()
                raise
        return entry

    def _construct_one(self, owned: OwnedActors, rank: int, failure: Failure, number: int, index: int) -> None:
        layer, spec = self._layer, owned.spec
        proc, address = layer.proc, spec.addresses[rank]
        incarnation = self._next_incarnation(owned, rank)
        try:
            layer.post_spawn(owned, rank, incarnation, number, index, failure)
        except PeerEnded as exc:
            raise CannotRestart(
                f"rank {rank} of {spec.mesh_name} cannot be restarted, because its process {address} has ended "
                f"({supervision.describe_exit(exc.why)}): restart that first, with procs.restart(failed=True)"
            ) from None
        owned.incarnations[rank] = incarnation
        proc.incarnations.actor_restarted(spec.key, rank, incarnation)
        with layer.lock:
            goes_on = layer.ledger.restarted(spec.key, rank, incarnation)
        if not goes_on:  # stopped meanwhile: this one came behind the order to stop
            proc.post(address, StopActor(spec.key, "its mesh was stopped", 0, rank))
            raise CannotRestart(f"the mesh {spec.mesh_name} was stopped meanwhile")

    def _next_incarnation(self, owned: OwnedActors, rank: int) -> int:
        spec = owned.spec
        least = self._layer.proc.incarnations.of(spec.key, rank, spec.addresses[rank])
        last = owned.incarnations.get(rank, 0)
        return least if process_of(least) > process_of(last) else max(least, last) + 1

    # --- in the process of the new actor

    def announce(self, instance: Instance, spawn: Spawn, back: str) -> None:
        """Tells every process that has sent to the one before, then, once this one is ready, its owner."""
        proc = self._layer.proc
        notes: list[Acks] = []
        for remote in proc.senders_to(instance.key):
            note = Acks([remote])
            notes.append(note)
            proc.tell_restarted(remote, instance, proc.ports.add(note))
        if notes:
            proc.loop.call_later(_NOTICE, lambda: _give_up(notes))
        waiting = (back, spawn.port, spawn.index)
        instance.open_ports.add(waiting)  # answered with its failure, should it end before it is ready

        def ready() -> None:
            if waiting in instance.open_ports:
                instance.open_ports.discard(waiting)
                proc.answer(back, Answer(spawn.port, spawn.index, VALUE), _NONE, ())

        All([*notes, instance.ready]).on_ready(_once(ready))


def _asked(owned: OwnedActors, rank: int) -> Failure:
    """Why a living actor was replaced."""
    return supervision.stopped_failure(
        owned.spec.display(rank), "restarted by its owner", owned.spec.key, owned.spec.mesh_name, rank
    )


def _shown(meshes: Meshes) -> str:
    return ", ".join(f"{owned.spec.name}{ranks}" for owned, ranks in meshes.values())


def _stopped(owned: OwnedActors) -> bool:
    return owned.layer.actors.get(owned.spec.key) is not owned


def _give_up(notes: Sequence[Acks]) -> None:
    for note in notes:
        note.give_up(SupervisionError("it did not answer"))


_NONE = codec.encode_value(None)[0]


def _nothing(_values: Any) -> None:
    return None


def _once(fn: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def call() -> None:
        if lock.acquire(False):
            fn()

    return call
