"""The mesh layer of one process: spawns and stops actors, keeps the ledger of what it owns, tells owners of failures."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch._errors import ActorError, SpawnError
from monarch._mesh.actors.actor import Actor, endpoints_of, needs_loop
from monarch._mesh.actors.behaviour import ActorBehaviour, UndeliverableMessageEnvelope
from monarch._mesh.actors.endpoint import check_arguments
from monarch._mesh.actors.receivers import Receivers, ReceiversUnknown, encode_for
from monarch._mesh.casts import reduce
from monarch._mesh.casts.sender import Casting
from monarch._mesh.failures import ledger, wait_graph
from monarch._mesh.failures.ledger import Gone, Ledger, MeshFailure, Notify
from monarch._mesh.failures.restart_policy import Group
from monarch._mesh.failures.watchdog import Sweep
from monarch._mesh.meshes.actor_mesh import ActorMesh, ActorSpec
from monarch._mesh.meshes.owned import Acks, ConstructorArgs, OwnedActors, OwnedProcs
from monarch._mesh.process.context import context
from monarch._mesh.process.restarter import Restarter
from monarch._runtime.context import current, root, root_of
from monarch._runtime.driver import Supervise, abandon, run
from monarch._runtime.future import Source, once
from monarch._runtime.incarnations import first_in
from monarch._runtime.instance import Instance, Leave
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import codec, message
from monarch._wire.address import AGENT, agent_at, host_of, name_of, split_proc_name
from monarch._wire.frame import Frame
from monarch._wire.ids import new_id
from monarch._wire.message import (
    VALUE,
    ActorEnded,
    Answer,
    Bounced,
    Failure,
    LogOption,
    Probe,
    ProcEnded,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    Spawn,
    StopActor,
    Suspected,
    decode_extent,
    encode_extent,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._mesh.meshes.proc_mesh import ProcMesh, ProcSpec

logger = logging.getLogger("monarch")


class MeshLayer:
    """One a Proc, as `proc.mesh`. Its receivers run on the I/O thread."""

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.ledger = Ledger()
        self.lock = threading.Lock()
        self.procs: dict[str, OwnedProcs] = {}
        self.actors: dict[str, OwnedActors] = {}
        self.restarter = Restarter(self)
        self.casting = Casting(proc)
        self.name = ""  # of the proc mesh that this process belongs to
        self.executable = ""  # interpreter of the processes spawned from here; "" is this one's
        self.replacements: list[tuple[type, type]] = []  # see `replacements`
        self._meshes: weakref.WeakSet[ProcMesh] = weakref.WeakSet()
        self.fault: Callable[[MeshFailure], None] = _no_fault
        self._this_proc: ProcMesh | None = None
        self._gated: list[tuple[Instance, Callable[[], None]]] | None = None
        self._gate_failure: bytes = b""
        proc.mesh = self
        proc.process_ended = self._on_process_ended
        proc.process_suspected = self._on_suspected
        proc.actor_failed = self._on_actor_failed
        proc.bounced = self._on_bounced
        proc.connection_broke = self._on_connection_broke
        proc.addresses_on = self._addresses_on
        receivers: dict[type, Any] = {
            Spawn: self._on_spawn,
            StopActor: self._on_stop_actor,
            Probe: self._on_probe,
            ProcStarted: self._on_started,
            ProcsRefused: self._on_refused,
            ProcsStopped: lambda c, m, f: proc.ports.receive(m.port, (0, VALUE, c.remote.encode(), ())),
        }
        proc.receivers.update(receivers)
        wait_graph.serve(proc)
        reduce.serve(proc)
        Sweep(proc)

    # --- meshes of this process

    def this_proc(self) -> ProcMesh:
        """This process as a mesh of one; the same object each time."""
        from monarch._mesh.meshes.proc_mesh import proc_mesh_of  # a ProcMesh is spawned through this layer

        if self._this_proc is None:
            self._this_proc = proc_mesh_of(self.proc.address)
        return self._this_proc

    def remember(self, mesh: ProcMesh) -> None:
        self._meshes.add(mesh)

    def proc_meshes(self) -> list[ProcMesh]:
        """The proc meshes that this process spawned and still holds."""
        return list(self._meshes)

    def check(self, key: str, receivers: Sequence[tuple[int, int, str]]) -> Failure | None:
        """Why a call to these receivers cannot succeed, as far as this process knows."""
        if key not in self.ledger.troubled:
            return None
        with self.lock:
            return self.ledger.check(key, [rank for _, rank, _ in receivers])

    # --- spawning

    def spawn_actors(
        self,
        proc_mesh: ProcMesh,
        name: str,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        setup: bool = False,
        key: str = "",
        group: Group | None = None,
    ) -> ActorMesh[Any]:
        """Checks, encodes, and sends one Spawn to each process. Does not wait for any of them. `group` restarts its ranks
        when they fail."""
        check_class(cls)
        check_arguments(cls, args, kwargs)
        running = current.get()
        owner = root() if running is None else running.instance
        proc = self.proc
        if proc.closed is not None:
            raise proc.closed
        _check_owner(owner)
        creator = context().actor_instance
        extent = proc_mesh.extent
        spec = ActorSpec(key or new_id(), name, cls, proc_mesh, repr(creator))
        making = self.make(spec, args, kwargs, creator.as_creator())
        owned = OwnedActors(self, spec, owner.unique, making, setup, group)
        owned.creator = creator.as_creator()
        with self.lock:
            self.ledger.add(spec, owner.unique, internal=getattr(cls, "_is_system_actor", False))
            self.actors[spec.key] = owned
            if group is not None:
                group.add(spec.key, len(spec.addresses))
            for rank, address in enumerate(spec.addresses if proc.incarnations else ()):
                if incarnation := proc.incarnations.of(spec.key, rank, address):
                    self._expect(owned, rank, incarnation)
        owner.owned[spec.key] = owned
        effects: list[Notify | Gone] = []
        try:
            for rank in range(len(spec.addresses)):
                effects += self._spawn_one(owned, rank)
        finally:
            making.keep()
            owned.spawned.set()
        self._tell(effects)
        if owner.end is not None:  # meanwhile, in another thread
            owned.stop("its owner ended")
        shape = Shape(extent.labels, NDSlice.new_row_major(extent.sizes))
        return ActorMesh(spec, shape, owned=True)

    def _spawn_one(self, owned: OwnedActors, rank: int) -> list[Notify | Gone]:
        """The first spawn of a rank; what is to be told when its process has ended.

        Sent again when the process was replaced meanwhile: where the first went is not known, and repeats do no harm.
        """
        spec, known = owned.spec, self.proc.incarnations
        while True:
            incarnation = owned.incarnations.get(rank, 0)
            try:
                self.post_spawn(owned, rank, incarnation)
            except PeerEnded as exc:
                with self.lock:
                    return self.ledger.process_ended(exc.why)
            latest = known.of(spec.key, rank, spec.addresses[rank])
            if latest == incarnation:
                return []
            with self.lock:
                self._expect(owned, rank, latest)

    def _expect(self, owned: OwnedActors, rank: int, incarnation: int) -> None:
        """The next actor of that rank is of that incarnation."""
        owned.incarnations[rank] = incarnation
        self.ledger.restarted(owned.spec.key, rank, incarnation)

    def _on_connection_broke(self, address: str) -> None:
        """Spawns may have been lost with it. Repeats do no harm."""
        for owned in list(self.actors.values()):
            for rank, there in enumerate(owned.spec.addresses):
                if there == address:
                    self._spawn_again(owned, rank)

    def _spawn_again(self, owned: OwnedActors, rank: int) -> None:
        key, incarnation = owned.spec.key, owned.incarnations.get(rank, 0)
        with self.lock:
            if self.ledger.check(key, [rank]) is not None:
                return  # it has ended, or is being stopped
        try:
            if owned.making(rank).body is not None:  # else it was too large to be kept
                self.post_spawn(owned, rank, incarnation, failure=owned.replaced.get(rank))
            if self.restarter.is_stopped(owned):  # meanwhile: this one may have come behind the order to stop
                self.proc.post(owned.spec.addresses[rank], StopActor(key, "its mesh was stopped", 0, rank))
        except PeerEnded:
            pass

    def make(self, spec: ActorSpec, args: tuple[Any, ...], kwargs: dict[str, Any], creator: Any) -> ConstructorArgs:
        """Encodes how its actors are constructed. Raises what pickling raises, and MessageTooLargeError."""
        value = (spec.cls, args, kwargs, spec.proc_mesh, creator)
        try:
            body, buffers = codec.encode(value)
        except ReceiversUnknown:
            receivers = Receivers(spec.key, f"{spec.name}.__init__", spec.addresses)
            return ConstructorArgs(*encode_for(receivers, value), once=True)
        self.proc.check_size(body, buffers)
        return ConstructorArgs(body, buffers)

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
        spec, making = owned.spec, owned.making(rank)
        if making.body is None:
            raise RuntimeError(owned.too_large([rank]))
        cls, extent = spec.cls, spec.extent
        spawn = Spawn(
            spec.key,
            spec.name,
            rank,
            encode_extent(tuple(extent.labels), tuple(extent.sizes)),
            owned.owner,
            self.proc.address,
            spec.creator,
            f"{cls.__module__}.{cls.__qualname__}",
            needs_loop(cls),
            owned.setup,
            incarnation,
            port,
            index,
            failure,
            owned.group is not None,
        )
        self.proc.post(spec.addresses[rank], spawn, making.body, making.buffers)

    def reference(self, proc_mesh: ProcMesh, name: str, cls: type) -> ActorMesh[Any]:
        """A reference to the actor whose key is its name (a singleton), wherever it lives."""
        spec = ActorSpec(name, name, cls, proc_mesh, "<root>")
        return ActorMesh(spec, Shape.unity())

    async def set_logging(self, mesh: ProcMesh, stream: bool, window: float, level: int) -> None:
        """The agents' part of `logging_option`, and the level in every process."""
        for host in mesh._spec.hosts:
            self.proc.post(agent_at(host), LogOption(mesh._spec.uid, stream, window))
        await mesh._set_level(level)

    def _on_spawn(self, connection: Connection, spawn: Spawn, frame: Frame) -> None:
        rank, view = spawn.rank, spawn.view
        incarnation = max(spawn.incarnation, first_in(self.proc.incarnation))
        if spawn.incarnation and spawn.incarnation < incarnation:  # it was meant for the process before this one
            text = f"rank {rank} of {spawn.name} was not constructed: its process was replaced meanwhile"
            self._refuse_spawn(connection, spawn, Failure(text, spawn.key, spawn.name, [rank], text, stopped=True))
            return
        if self._is_repeat(connection, spawn, incarnation):
            return
        instance = Instance(
            self.proc,
            key=spawn.key,
            name=spawn.name,
            rank=rank,
            view=view,
            owner=spawn.owner,
            owner_proc=spawn.owner_proc,
            incarnation=incarnation,
            replaced=spawn.failure,
            will_restart=spawn.restarts,
        )
        point = Point(rank, Extent(*decode_extent(view)))
        shown = f"{spawn.cls} {spawn.name}" + (repr(point) if len(point) else "")
        body, buffers = frame.body, frame.buffers
        kind = ActorBehaviour
        if spawn.loop:
            from monarch._mesh.actors.async_behaviour import (
                AsyncActorBehaviour,
            )  # asyncio: loaded by the first that needs it

            kind = AsyncActorBehaviour
        instance.behaviour = kind(
            instance,
            lambda: codec.decode(body, buffers),
            f"{spawn.creator}.<{shown}>",
            f"{spawn.name}-{spawn.key}",
        )
        if spawn.setup:
            instance.ended.on_ready(once(lambda: self._setup_ended(instance)))
        label = "event-loop" if spawn.loop else "driver"

        def start() -> None:
            start_thread(run, f"monarch-actor-{label}", instance)

        self.proc.add_actor(instance)
        if spawn.port:
            self.restarter.announce(instance, spawn, connection.remote)
        if self._gate_failure and not spawn.setup:
            self._refuse_gated(instance)
        elif self._gated is not None and not spawn.setup and spawn.owner_proc != self.proc.address:
            self._gated.append((instance, start))
        else:
            start()

    def _is_repeat(self, connection: Connection, spawn: Spawn, incarnation: int) -> bool:
        """Whether that actor is here already, or was: then whoever waits for it is answered. (Those known by their name may
        come again.)"""
        if spawn.key == spawn.name:
            return False
        there, end = self.proc.actors.get(spawn.key), self.proc.end_of(spawn.key)
        last = there.incarnation if there is not None else -1 if end is None else end.incarnation
        if last < incarnation:
            return False
        if spawn.port and there is not None:
            self.restarter.announce(there, spawn, connection.remote)
            end = there.end
        if spawn.port and end is not None:
            self._refuse_spawn(connection, spawn, end)
        return True

    def _refuse_spawn(self, connection: Connection, spawn: Spawn, failure: Failure) -> None:
        if spawn.port:
            answer = Answer(spawn.port, spawn.index, message.FAILED)
            self.proc.answer(connection.remote, answer, message.encode(failure), ())

    # --- the gate: no actor before the mesh's bootstrap function has run

    def close_gate(self) -> None:
        self._gated = []

    def open_gate(self, error: BaseException | None) -> None:
        """Any thread: the bootstrap function returned, or raised."""
        failure = b""
        if error is not None:
            described = ActorError(error, "Actor call setup.setup failed.")
            try:
                failure = bytes(codec.encode(described)[0])
            except Exception:
                text = described.exception_formatted
                failure = bytes(codec.encode(ActorError(None, described.message, text))[0])

        def do() -> None:
            self._gate_failure = failure
            gated, self._gated = self._gated or [], None
            for instance, start in gated:
                if failure:
                    self._refuse_gated(instance)
                else:
                    start()

        self.proc.loop.call_soon(do)

    def _setup_ended(self, instance: Instance) -> None:
        """The setup actor is gone; if the function never returned, nothing else may start here."""
        if self._gated is not None:
            report = instance.end.report if instance.end is not None else "it ended"
            self.open_gate(RuntimeError(f"the mesh's bootstrap function did not complete: {report}"))

    def _refuse_gated(self, instance: Instance) -> None:
        text = "the bootstrap function of its proc mesh raised"
        failure = Failure(text, instance.key, instance.name, [instance.rank], text, error=self._gate_failure)
        instance.close(failure)
        self.proc.actor_ended(instance, None)
        instance.ended.set(failure)

    # --- stopping

    def stop_actors(self, spec: ActorSpec, reason: str) -> Source:
        """Begins to stop an owned mesh; ready when every actor's cleanup has run or its process is gone."""
        with self.lock:
            self.ledger.mesh_stopped(spec.key, reason)

        def ask(port: int, rank: int) -> None:
            self.proc.post(spec.addresses[rank], StopActor(spec.key, reason, port, rank))

        acks = Acks(spec.addresses, ask)
        self.proc.ports.add(acks)
        acks.ask(range(len(spec.addresses)))
        acks.on_ready(once(lambda: self._forget(spec.key)))
        return acks

    def closing(self, reason: str) -> None:
        """Everything that actors of this process own is about to be stopped; nobody is told of failures any more."""
        with self.lock:
            self.ledger.all_stopped(reason)

    def _forget(self, key: str) -> None:
        """The mesh is gone; late callers learn so from its processes."""
        with self.lock:
            owner = self.ledger.remove(key)
        self._drop(owner, key)

    def _drop(self, owner: str, key: str) -> None:
        owned = self.actors.pop(key, None)
        if owned is not None and owned.group is not None:
            with self.lock:
                owned.group.remove(key)
        self.proc.incarnations.forget_actors(key)
        instance = self.actor(owner)
        if instance is not None:
            instance.owned.pop(key, None)
            instance.numbering.forget(key)

    def actor(self, unique: str) -> Instance | None:
        """The actor of this process with that unique name (the client's root included)."""
        if unique == self.proc.root_name:
            return root_of(self.proc)
        instance = self.proc.actors.get(unique.rpartition(".")[0])
        return instance if instance is not None and instance.unique == unique else None

    def _on_stop_actor(self, connection: Connection, stop: StopActor, frame: Frame) -> None:
        instance = self.proc.actors.get(stop.key)
        back = connection.remote
        target_incarnation = stop.incarnation or first_in(self.proc.incarnation)

        def answer() -> None:
            self.proc.answer(back, Answer(stop.port, stop.rank, VALUE), b"", ())

        if instance is None:
            if stop.replaced:  # its spawn may have been lost with a connection, and be sent again behind this
                shown = f"{stop.key} (not constructed yet)"
                end = ledger.stopped_failure(shown, stop.reason, stop.key)
                end.incarnation, end.will_restart = target_incarnation, True
                self.proc.never_comes(stop.key, end)
            answer()
            return
        if (
            stop.replaced and target_incarnation < instance.incarnation
        ):  # a repeat: the one it was for made room for this one
            answer()
            return
        instance.being_replaced = stop.replaced
        self.stop_instance(instance, stop.reason).on_ready(once(answer))

    def stop_instance(self, instance: Instance, reason: str) -> Source:
        """Any thread: asks an actor to stop; given up on after `stop_actor_timeout` and its cleanup's time."""
        instance.request_stop(reason)
        if not instance.ended.ready:
            patience = settings.get("stop_actor_timeout") + settings.get("cleanup_timeout")
            late = self.proc.loop.call_later(patience, lambda: self._abandon(instance, reason))
            instance.ended.on_ready(late.cancel)
        return instance.ended

    def _abandon(self, instance: Instance, reason: str) -> None:
        """It hangs in an endpoint or in its cleanup: nobody waits for it any longer."""
        abandon(instance, Leave(f"{reason} (abandoned: it did not end in time)"))

    def _on_probe(self, connection: Connection, probe: Probe, frame: Frame) -> None:
        instance = self.proc.actors.get(probe.key)
        failure = self.proc.end_of(probe.key)
        answer = Answer(probe.port, probe.rank, VALUE)
        body = _NONE
        if instance is None and failure is not None and failure.error:
            answer = Answer(probe.port, probe.rank, message.FAILED)
            body = message.encode(failure)
        self.proc.answer(connection.remote, answer, body, ())

    # --- processes

    def spawn_procs(self, spec: ProcSpec, launches: Sequence[bytes], per_host: int) -> OwnedProcs:
        """Asks the agent of each host to start its processes; `launches[i]` is host i's LaunchSpec."""
        running = current.get()
        owner = root() if running is None else running.instance
        if self.proc.closed is not None:
            raise self.proc.closed
        _check_owner(owner)
        owned = OwnedProcs(self, spec, owner, launches, per_host)
        self.procs[spec.uid] = owned
        owner.owned[spec.uid] = owned
        view = encode_extent(tuple(spec.labels), tuple(spec.sizes))
        for index, (host, launch) in enumerate(zip(spec.hosts, launches, strict=True)):
            ask = message.SpawnProcs(spec.uid, spec.name, index * per_host, per_host, view, self.proc.address, host)
            self.proc.post(agent_at(host), ask, launch)
        if owner.end is not None:  # meanwhile, in another thread
            owned.stop("its owner ended")
        return owned

    def _on_started(self, connection: Connection, started: ProcStarted, frame: Frame) -> None:
        owned = self.procs.get(started.mesh)
        if owned is not None:
            owned.on_started(started)

    def _on_refused(self, connection: Connection, refused: ProcsRefused, frame: Frame) -> None:
        owned = self.procs.get(refused.mesh)
        if owned is not None:
            owned.started.fail(SpawnError(refused.error))

    # --- failures

    def _on_process_ended(self, ended: ProcEnded) -> None:
        name = name_of(ended.address)
        if name == AGENT:
            for procs in list(self.procs.values()):
                procs.host_lost(host_of(ended.address), ended.detail)
        split = split_proc_name(name)
        owned = self.procs.get(split[0]) if split is not None else None
        if owned is not None:
            assert split is not None
            if owned.stopping and host_of(ended.address) in owned.lost:
                ended.stopped = True  # word of its end was lost with its host
            owned.on_ended(split[1], ended)
        with self.lock:
            effects = self.ledger.process_ended(ended)
        self._tell(effects)
        for instance in list(self.proc.actors.values()):  # nobody is left whom their failures could be told
            if instance.owner_proc == ended.address:
                self.stop_instance(instance, "the process of its owner has ended")

    def _addresses_on(self, host: str) -> list[str]:
        """Processes of that host with meshes that are owned here."""
        with self.lock:
            meshes = [*(owned.spec.addresses for owned in self.procs.values())]
            meshes += [list(owned.spec.addresses) for owned in self.actors.values()]
        return [address for addresses in meshes for address in addresses if host_of(address) == host]

    def lost_process(self, key: str, ranks: Sequence[int], ended: ProcEnded) -> None:
        """The process of a rank that is being restarted has ended again, which word may not have come here."""
        with self.lock:
            self.ledger.restarting(key, ranks)
            effects = self.ledger.process_ended(ended)
        self._tell(effects)

    def _on_actor_failed(self, event: ActorEnded) -> None:
        with self.lock:
            effects = self.ledger.actor_ended(event.failure)
        self._tell(effects)

    def _tell(self, effects: Sequence[Notify | Gone]) -> None:
        for effect in effects:
            if isinstance(effect, Gone):
                self._drop(effect.owner, effect.key)
                continue
            owned = self.actors.get(effect.failure._failure.mesh)
            if owned is not None and owned.group is not None:
                if self.restarter.take(owned, effect.failure):
                    continue
                self.tell_owner(effect.owner, ledger.escalated(effect.failure, _too_often(owned.group)))
            else:
                self.tell_owner(effect.owner, effect.failure)

    def tell_owner(self, owner: str, failure: MeshFailure) -> None:
        """A failure that is the owner's to handle: an actor's `__supervise__`, or the client's fault hook."""
        if owner == self.proc.root_name:
            self.fault(failure)
            return
        instance = self.actor(owner)
        if instance is not None and not instance.stopping:
            instance.mailbox.put_control(Supervise(failure))

    def _on_suspected(self, suspected: Suspected) -> None:
        """Said once here, by the owner of the process: nothing has failed yet."""
        split = split_proc_name(name_of(suspected.address))
        owned = self.procs.get(split[0]) if split is not None else None
        if owned is None or split is None:
            return
        who = f"process {split[1]} of mesh {owned.spec.name!r} (pid {suspected.pid}, {suspected.address})"
        if not suspected.why:
            logger.warning("%s runs again", who)
        elif suspected.limit:
            logger.warning("%s is suspected: %s. It is killed and counts as failed if that lasts for %g s (setting "
                           "suspect_timeout)", who, suspected.why, suspected.limit)  # fmt: skip
        else:
            logger.warning("%s is suspected: %s", who, suspected.why)

    def _on_bounced(self, bounced: Bounced) -> None:
        if bounced.sender == self.proc.root_name:
            if not bounced.hook:
                self.fault(MeshFailure(Failure(UndeliverableMessageEnvelope(bounced).report(), mesh_name="<none>")))
            return
        instance = self.actor(bounced.sender)
        if instance is not None and not instance.stopping:
            instance.mailbox.put_control(bounced)


def _too_often(group: Group) -> str:
    policy = group.policy
    return (
        f"its RestartPolicy does not restart it any more: {policy.max_restarts} restarts within {policy.within:g} s are its "
        f"limit (max_restarts, within)"
    )


_NONE = codec.encode_value(None)[0]


def _check_owner(owner: Instance) -> None:
    """Raises RuntimeError for an actor that stops its meshes, or has: nobody would stop another one."""
    if owner.end is not None:
        raise RuntimeError(
            f"actor {owner.name!r} has ended and cannot spawn any more (nor can its __cleanup__ or its threads): what "
            f"it owns was stopped, and nobody would stop this. {owner.end.report}"
        )


def _no_fault(failure: MeshFailure) -> None:
    return None


_RESERVED = ("slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized")


def check_class(cls: Any) -> None:
    """Raises what `spawn` promises for a class that cannot be an actor."""
    if not isinstance(cls, type) or not issubclass(cls, Actor):
        shown = cls.__qualname__ if isinstance(cls, type) else repr(cls)
        raise ValueError(f"{shown} must subclass monarch.actor.Actor to be spawned")
    names = endpoints_of(cls)
    taken = [name for name in names if name in _RESERVED or name in _PRIVATE]
    if taken:
        raise ValueError(
            f"ActorMesh has an attribute that collides with an endpoint name: {', '.join(sorted(taken))}; rename the "
            f"endpoint of {cls.__qualname__}"
        )


_PRIVATE = frozenset(
    ["_spec", "_shape", "_plan", "_owned", "_stopping", "_ndslice", "_labels", "_new_with_shape", "_class", "_proc_mesh",
     "_mesh_name", "_name", "_target", "_gathered", "_at"]
)  # fmt: skip
