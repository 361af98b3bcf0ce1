"""The owner's side of spawning and stopping: what actors of this process spawn elsewhere, and stop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch._mesh.actors.arity import check_arguments, named
from monarch._mesh.actors.receivers import Receivers, ReceiversUnknown, encode_for, explain, warn_if_large
from monarch._mesh.failures import stacks
from monarch._mesh.failures.ledger import MeshGone, Notify
from monarch._mesh.failures.restart_policy import RestartGroup
from monarch._mesh.failures.stacks import Line
from monarch._mesh.inspection import recording
from monarch._mesh.meshes.actor_mesh import ActorMesh, check_class
from monarch._mesh.meshes.owned import Acks, ConstructorArgs, OwnedActors, OwnedProcs
from monarch._mesh.meshes.proc_mesh import ProcMesh
from monarch._mesh.meshes.specs import ActorSpec, ProcSpec
from monarch._mesh.process.context import context
from monarch._mesh.process.owned_meshes import OwnedMeshes
from monarch._mesh.process.residents import Residents
from monarch._runtime import recorder as recorders
from monarch._runtime.context import current, root, root_of
from monarch._runtime.future import Slot, Source, once
from monarch._runtime.incarnations import last_on
from monarch._runtime.instance import Instance
from monarch._runtime.log_thread import log
from monarch._runtime.proc import Proc
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import codec
from monarch._wire.address import agent_at
from monarch._wire.ids import new_id
from monarch._wire.message import Failure, ProcEnded, Spawn, SpawnProcs, StopActor
from monarch._wire.peer import PeerEnded
from monarch.config import settings

logger = logging.getLogger("monarch")
_SOON = 5.0  # seconds for a turn of the loop, which takes microseconds unless it has ended


class Spawning:
    """One a process. `tell(effects)` carries out what the ledger says of a spawn that cannot succeed."""

    def __init__(
        self,
        proc: Proc,
        owned: OwnedMeshes,
        residents: Residents,
        tell: Callable[[Sequence[Notify | MeshGone]], None],
    ) -> None:
        self._proc = proc
        self._owned = owned
        self._residents = residents
        self._tell = tell
        self._proc_sites = SpawnSites("meshes of processes")
        self._actor_sites = SpawnSites("meshes of actors")

    # --- actors

    def spawn_actors(
        self,
        proc_mesh: ProcMesh,
        name: str,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        setup: bool = False,
        key: str = "",
        group: RestartGroup | None = None,
    ) -> ActorMesh[Any]:
        """Checks, encodes, and sends one Spawn to each process. Does not wait for any of them. `group` restarts its ranks
        when they fail."""
        check_class(cls)
        check_arguments(cls, args, kwargs)
        owner = self._owner()
        known, creator = self._proc.incarnations, context().actor_instance
        extent = proc_mesh.extent
        spec = ActorSpec(key or new_id(), name, cls, proc_mesh, repr(creator))
        constructor = self.constructor_args(spec, args, kwargs, creator.as_creator())
        owned = OwnedActors(
            spec, owner.unique, constructor, setup, group, lambda reason: self.stop_actors(spec, reason)
        )
        owned.creator = creator.as_creator()
        internal = getattr(cls, "_is_system_actor", False)
        if not internal:
            self._actor_sites.spawned(spec.key)
        with self._owned.lock:
            self._owned.ledger.add(spec, owner.unique, internal=internal)
            self._owned.actors[spec.key] = owned
            if group is not None:
                group.add(spec.key, len(spec.addresses))
            for rank, address in enumerate(spec.addresses if known else ()):
                if incarnation := known.of(spec.key, rank, address):
                    self._expect(owned, rank, incarnation)
        owner.owned[spec.key] = owned
        recorder = recorders.active
        if recorder is not None and not recorder.leaves_out(internal):
            recorder.add(recording.actors_event(spec))
        effects: list[Notify | MeshGone] = []
        try:
            for rank in range(len(spec.addresses)):
                effects += self._spawn_first(owned, rank)
        finally:
            constructor.keep()
            owned.spawned.set()
        self._tell(effects)
        if owner.end is not None:  # meanwhile, in another thread
            owned.stop("its owner ended")
        return ActorMesh(spec, Shape(extent.labels, NDSlice.new_row_major(extent.sizes)), owned=True)

    def _owner(self) -> Instance:
        """The running actor. Raises RuntimeError when it stops its meshes, or has: nobody would stop another one."""
        running = current.get()
        owner = root() if running is None else running.instance
        if self._proc.closed is not None:
            raise self._proc.closed
        if owner.end is not None:
            raise RuntimeError(
                f"actor {owner.name!r} has ended and cannot spawn any more (nor can its __cleanup__ or its threads): what "
                f"it owns was stopped, and nobody would stop this. {owner.end.report}"
            )
        return owner

    def owner_of(self, owned: OwnedActors) -> Instance | None:
        """The actor that owns the mesh, if it lives."""
        return self._residents.actor(owned.owner)

    def constructor_args(
        self, spec: ActorSpec, args: tuple[Any, ...], kwargs: dict[str, Any], creator: Any
    ) -> ConstructorArgs:
        """Encodes how its actors are constructed. Raises what pickling raises, and MessageTooLargeError."""
        value = (spec.cls, args, kwargs, spec.proc_mesh, creator)
        receivers = Receivers(spec.key, f"{spec.name}.__init__", spec.addresses)
        try:
            try:
                body, buffers = codec.encode(value)
            except ReceiversUnknown:
                return ConstructorArgs(*encode_for(receivers, value), once=True)
        except Exception as exc:
            cls: Any = spec.cls
            name = cls.__qualname__
            values = {name: cls} | named(cls.__init__, 1, args, kwargs)
            explain(exc, receivers, f"{name} and its arguments, to spawn {spec.name!r}", values)
            raise
        size = self._proc.check_size(body, buffers)
        warn_if_large(size, self._proc.large_argument, f"the arguments of {spec.name!r}", len(spec.addresses))
        return ConstructorArgs(body, buffers)

    def _spawn_first(self, owned: OwnedActors, rank: int) -> list[Notify | MeshGone]:
        """The first spawn of a rank; what is to be told when its process has ended.

        Sent again when the process was replaced meanwhile: where the first went is not known, and repeats do no harm.
        """
        spec, known = owned.spec, self._proc.incarnations
        while True:
            incarnation = owned.incarnations.get(rank, 0)
            try:
                self.post_spawn(owned, rank, incarnation)
            except PeerEnded as exc:
                with self._owned.lock:
                    return self._owned.ledger.process_ended(exc.why)
            latest = known.of(spec.key, rank, spec.addresses[rank])
            if latest == incarnation:
                return []
            with self._owned.lock:
                self._expect(owned, rank, latest)

    def _expect(self, owned: OwnedActors, rank: int, incarnation: int) -> None:
        """The next actor of that rank is of that incarnation."""
        owned.incarnations[rank] = incarnation
        self._owned.ledger.restarted(owned.spec.key, rank, incarnation)

    def connection_broke(self, address: str) -> None:
        """Spawns may have been lost with it. Repeats do no harm."""
        for owned in list(self._owned.actors.values()):
            for rank, there in enumerate(owned.spec.addresses):
                if there == address:
                    self._spawn_again(owned, rank)

    def _spawn_again(self, owned: OwnedActors, rank: int) -> None:
        key, incarnation = owned.spec.key, owned.incarnations.get(rank, 0)
        if self._owned.why_ended(key, [rank]) is not None:
            return  # it has ended, or is being stopped
        try:
            if owned.args(rank).body is not None:  # else it was too large to be kept
                self.post_spawn(owned, rank, incarnation, failure=owned.replaced.get(rank))
            if self._owned.is_stopped(owned):  # meanwhile: this one may have come behind the order to stop
                self._proc.post(owned.spec.addresses[rank], StopActor(key, "its mesh was stopped", 0, rank))
        except PeerEnded:
            pass

    def post_spawn(
        self,
        owned: OwnedActors,
        rank: int,
        incarnation: int,
        port: int = 0,
        index: int = 0,
        failure: Failure | None = None,
    ) -> None:
        """Sends one Spawn. With `failure` it takes the place of one that ended so. Raises PeerEnded."""
        spec, args = owned.spec, owned.args(rank)
        if args.body is None:
            raise RuntimeError(owned.too_large([rank]))
        cls = spec.cls
        spawn = Spawn(
            spec.key,
            spec.name,
            rank,
            owned.view,
            owned.owner,
            self._proc.address,
            spec.creator,
            f"{cls.__module__}.{cls.__qualname__}",
            owned.needs_loop,
            owned.setup,
            incarnation,
            port,
            index,
            failure,
            owned.group is not None,
            *_recording(spec.name, cls, rank),
            getattr(cls, "_is_system_actor", False),
        )
        self._proc.post(spec.addresses[rank], spawn, args.body, args.buffers)

    def reference(self, proc_mesh: ProcMesh, name: str, cls: type) -> ActorMesh[Any]:
        """A reference to the actor whose key is its name (a named actor), wherever it lives."""
        return ActorMesh(ActorSpec(name, name, cls, proc_mesh, "<root>"), Shape.unity())

    def stop_actors(self, spec: ActorSpec, reason: str) -> Source:
        """Begins to stop an owned mesh; ready when every actor's cleanup has run or its process is gone."""
        with self._owned.lock:
            self._owned.ledger.mesh_stopped(spec.key, reason)
        self._forget_untold(spec.key)
        self._owned.changed()

        def ask(port: int, rank: int) -> None:
            self._proc.post(spec.addresses[rank], StopActor(spec.key, reason, port, rank))

        client = root_of(self._proc)
        of_client = client is not None and spec.key in client.owned  # no more as soon as it has stopped
        acks = Acks(spec.addresses, ask)
        self._proc.ports.add(acks)
        acks.ask(range(len(spec.addresses)))
        acks.on_ready(once(lambda: self._stopped(spec.key)))
        if recorders.active is not None and client is not None and of_client:
            recording.client_stops(client, spec, reason, acks)
        return acks

    def _stopped(self, key: str) -> None:
        """The mesh is gone; late callers learn so from its processes."""
        with self._owned.lock:
            owner = self._owned.ledger.remove(key)
        self.forget(owner, key)

    def forget(self, owner: str, key: str) -> None:
        """Forgets a mesh that is gone: the ledger knows it no more."""
        self._forget_untold(key)
        owned = self._owned.actors.pop(key, None)
        self._actor_sites.gone(key)
        if owned is not None and owned.group is not None:
            with self._owned.lock:
                owned.group.remove(key)
        self._proc.incarnations.forget_actors(key)
        instance = self._residents.actor(owner)
        if instance is not None:
            instance.owned.pop(key, None)
            instance.numbering.forget(key)

    def _forget_untold(self, key: str) -> None:
        """No failure of that mesh is told any more; those entrusted to Futures that nobody observed are at least logged."""
        with self._owned.lock:
            untold = self._owned.observed.stopped(key)
        for failure in untold:
            log(logger, logging.ERROR, "a mesh was stopped before anybody looked at the call that its failure ended: %s",
                failure.report())  # fmt: skip

    # --- processes

    def spawn_procs(self, spec: ProcSpec, launches: Sequence[bytes], per_host: int) -> OwnedProcs:
        """Asks the agent of each host to start its processes; `launches[i]` is host i's LaunchSpec. On a host that is known
        to be lost they have ended at once: it would be dialled in vain, until the time for attaching is over."""
        owner, procs = self._owner(), self._owned.procs

        def on_gone() -> None:
            procs.pop(spec.uid, None)
            self._proc_sites.gone(spec.uid)

        owned = OwnedProcs(self._proc, spec, owner, launches, per_host, on_gone, self._owned.changed)
        procs[spec.uid] = owned
        self._proc_sites.spawned(spec.uid)
        owner.owned[spec.uid] = owned
        recorder = recorders.active
        if recorder is not None:
            for event in recording.procs_events(spec):
                recorder.add(event)
        for index, (host, launch) in enumerate(zip(spec.hosts, launches, strict=True)):
            why = self._proc.mesh.attached.why_lost(host)
            if not why:
                ask = SpawnProcs(spec.uid, spec.name, index * per_host, per_host, self._proc.address, host)
                try:
                    self._proc.post(agent_at(host), ask, launch)
                except PeerEnded as exc:
                    why = str(exc)
            if why:
                owned.host_lost(host, why)
                self._never_run(spec.addresses[index * per_host : (index + 1) * per_host], host, why)
        if owner.end is not None:  # meanwhile, in another thread
            owned.stop("its owner ended")
        return owned

    def _never_run(self, addresses: Sequence[str], host: str, why: str) -> None:
        """Processes that were to run on a host which is gone have ended, for those that wait for them. Done when this
        returns: nothing more is sent there, since that would dial the host, which may be about to be replaced."""
        generation = self._proc.host_generations.get(host, 0)
        detail = (
            f"{why}; replace host {host}, with hosts.replace(failed=True), or spawn on a slice of the mesh without it"
        )

        def ended() -> None:
            for address in addresses:
                self._proc.on_process_ended(ProcEnded(address, 0, 1, False, [], detail, last_on(generation)))
            done.set(None)

        done = Slot()
        if self._proc.loop.in_loop():
            ended()
        else:
            self._proc.loop.call_soon(ended)
            done.wait(_SOON)


def _recording(name: str, cls: type, rank: int) -> tuple[bytes, int]:
    """(folder, most bytes) of the recording of an actor; no folder: it is not recorded."""
    if not settings.record():
        return b"", 0
    folder = plugins.outer("replay.folder")(name, f"{cls.__module__}.{cls.__qualname__}", rank)
    return os.fsencode(folder), settings.record_bytes()


MANY = 20  # living meshes of one line that are worth a word
_TOLD = 100  # lines that are named; after that, none

logger = logging.getLogger("monarch")


class SpawnSites:
    """The lines where the meshes of this process were spawned: one that leaves many of them alive is named once. Any
    thread.

    A mesh lives until it is stopped, its owner ends or the program exits, whether or not the program still holds it:
    others may have been sent it, and what was broadcast to it may still run. So a loop that spawns and does not stop
    fills the host. There is one of these for proc meshes and one for actor meshes; `what` is for people.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()
        self._site_of: dict[str, Line] = {}  # of each living mesh
        self._living: dict[Line, int] = {}
        self._told: set[Line] = set()

    def spawned(self, key: str) -> None:
        """The program is spawning a mesh, in this thread."""
        site = stacks.caller()
        if site is None:
            return
        with self._lock:
            self._site_of[key] = site
            count = self._living[site] = self._living.get(site, 0) + 1
            if count < MANY or site in self._told or len(self._told) >= _TOLD:
                return
            self._told.add(site)
        file, line, function = site
        logger.warning(
            "%d %s that were spawned at %s:%d in %s run at the same time. A mesh lives until it is stopped, its owner ends "
            "or the program exits, also when nothing refers to it any more. If they are not all needed: mesh.stop().get(), "
            "or `async with`, for each before the next one. (Said once for this line.)",
            count, self._what, file, line, function,
        )  # fmt: skip

    def gone(self, key: str) -> None:
        with self._lock:
            site = self._site_of.pop(key, None)
            if site is not None:
                left = self._living[site] = self._living[site] - 1
                if not left:
                    del self._living[site]
