"""The mesh layer of one process: spawns and stops actors, keeps the ledger of what it owns, tells owners of failures."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch._errors import ActorError, SpawnError
from monarch._mesh import supervision
from monarch._mesh.actor import Actor, endpoints_of, needs_loop
from monarch._mesh.actor_mesh import ActorMesh, ActorSpec
from monarch._mesh.behaviour import ActorBehaviour, UndeliverableMessageEnvelope
from monarch._mesh.context import context
from monarch._mesh.endpoint import check_arguments
from monarch._mesh.supervision import Gone, Ledger, MeshFailure, Notify
from monarch._runtime.context import current, root, root_of
from monarch._runtime.driver import Supervise, run
from monarch._runtime.future import Slot, Source
from monarch._runtime.instance import Instance, Leave
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._runtime.replies import Entry, Raw
from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import codec, message
from monarch._wire.address import agent_at, name_of, split_proc_name
from monarch._wire.frame import Frame
from monarch._wire.ids import new_id
from monarch._wire.message import (
    VALUE,
    ActorEnded,
    Answer,
    Bounced,
    Failure,
    Listening,
    LogOption,
    Probe,
    ProcEnded,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    Spawn,
    StopActor,
    StopProc,
    StopProcs,
    decode_extent,
    encode_extent,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._mesh.proc_mesh import ProcMesh, ProcSpec


class Acks(Entry):
    """Ready when every address has answered or its process has ended. Never fails."""

    __slots__ = ("_left", "_lock")

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(None)
        self._lock = threading.Lock()
        self._left = dict(enumerate(addresses))
        if not addresses:
            self.settle()

    def receive(self, raw: Raw) -> None:
        self.done(raw[0])

    def done(self, rank: int) -> None:
        with self._lock:
            self._left.pop(rank, None)
            last = not self._left
        if last and not self.ready:
            self.close()
            self.settle()

    def waits_for(self, address: str) -> bool:
        with self._lock:
            ranks = [rank for rank, there in self._left.items() if there == address]
        for rank in ranks:
            self.done(rank)
        return False

    def give_up(self, error: BaseException) -> None:
        if not self.ready:
            self.close()
            self.settle()

    def value(self) -> None:
        return None


class OwnedActors:
    """An actor mesh that an actor of this process owns."""

    def __init__(self, layer: MeshLayer, spec: ActorSpec) -> None:
        self._layer = layer
        self._spec = spec

    def stop(self, reason: str) -> Source:
        return self._layer.stop_actors(self._spec, reason)


class OwnedProcs:
    """A proc mesh that an actor of this process owns, while its processes start, run and stop."""

    def __init__(self, layer: MeshLayer, spec: ProcSpec, owner: Instance) -> None:
        self.layer = layer
        self.spec = spec
        self.owner = owner
        self.pids: dict[int, int] = {}
        self.started = Slot()
        self._stopping: Source | None = None
        self._lock = threading.Lock()

    def on_started(self, rank: int, pid: int) -> None:
        self.pids[rank] = pid
        if len(self.pids) == len(self.spec.addresses):
            self.started.set(True)

    def on_ended(self, ended: ProcEnded) -> None:
        if not self.started.ready:
            why = supervision.describe_exit(ended)
            tail = "".join(f"\n    {line}" for line in ended.tail)
            self.started.fail(
                RuntimeError(
                    f"process {ended.address} of mesh {self.spec.name!r} ended before it was ready: {why}{tail}"
                )
            )

    def stop(self, reason: str) -> Source:
        """Asks the agents to stop the processes; ready when they are gone."""
        with self._lock:
            if self._stopping is not None:
                return self._stopping
            self.spec.stopped = True
            acks = Acks([agent_at(host) for host in self.spec.hosts])
            self._stopping = acks
        proc = self.layer.proc
        number = proc.ports.add(acks)
        grace = settings.get("process_exit_timeout")
        for address in self.spec.addresses:
            try:
                proc.post(address, StopProc(reason))
            except PeerEnded:
                continue
        for rank, host in enumerate(self.spec.hosts):
            try:
                proc.post(agent_at(host), StopProcs(self.spec.uid, reason, grace, number))
            except PeerEnded:
                acks.done(rank)
        self.owner.owned.pop(self.spec.uid, None)
        acks.on_ready(lambda: self.layer.procs.pop(self.spec.uid, None))
        return acks


class MeshLayer:
    """One a Proc, as `proc.mesh`. Its receivers run on the I/O thread."""

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.ledger = Ledger()
        self.lock = threading.Lock()
        self.procs: dict[str, OwnedProcs] = {}
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
        proc.actor_failed = self._on_actor_failed
        proc.bounced = self._on_bounced
        receivers: dict[type, Any] = {
            Spawn: self._on_spawn,
            StopActor: self._on_stop_actor,
            Probe: self._on_probe,
            Listening: lambda c, m, f: proc.on_listening(m.address),
            ProcStarted: self._on_started,
            ProcsRefused: self._on_refused,
            ProcsStopped: lambda c, m, f: proc.ports.receive(m.port, (0, VALUE, b"", ())),
        }
        proc.receivers.update(receivers)

    # --- meshes of this process

    def this_proc(self) -> ProcMesh:
        """This process as a mesh of one; the same object each time."""
        from monarch._mesh.proc_mesh import proc_mesh_of  # a ProcMesh is spawned through this layer

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
    ) -> ActorMesh[Any]:
        """Checks, encodes, and sends one Spawn to each process. Does not wait for any of them."""
        check_class(cls)
        check_arguments(cls, args, kwargs)
        running = current.get()
        owner = root() if running is None else running.instance
        proc = self.proc
        if proc.closed is not None:
            raise proc.closed
        creator = context().actor_instance
        extent = proc_mesh.extent
        spec = ActorSpec(key or new_id(), name, cls, proc_mesh, repr(creator))
        body, buffers = codec.encode((cls, args, kwargs, proc_mesh, creator.as_creator()))
        proc.check_size(body, buffers)
        view = encode_extent(tuple(extent.labels), tuple(extent.sizes))
        with self.lock:
            self.ledger.add(spec, owner.unique)
        owner.owned[spec.key] = OwnedActors(self, spec)
        described = f"{cls.__module__}.{cls.__qualname__}"
        loop = needs_loop(cls)
        for rank, address in enumerate(spec.addresses):
            spawn = Spawn(spec.key, name, rank, view, owner.unique, proc.address, spec.creator, described, loop, setup)
            try:
                proc.post(address, spawn, body, buffers)
            except PeerEnded as exc:
                with self.lock:
                    effects = self.ledger.process_ended(exc.why)
                self._tell(effects)
        shape = Shape(extent.labels, NDSlice.new_row_major(extent.sizes))
        return ActorMesh(spec, shape, owned=True)

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
        instance = Instance(
            self.proc,
            key=spawn.key,
            name=spawn.name,
            rank=rank,
            view=view,
            owner=spawn.owner,
            owner_proc=spawn.owner_proc,
        )
        point = Point(rank, Extent(*decode_extent(view)))
        shown = f"{spawn.cls} {spawn.name}" + (repr(point) if len(point) else "")
        body, buffers = frame.body, frame.buffers
        kind = ActorBehaviour
        if spawn.loop:
            from monarch._mesh.async_behaviour import (
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
            instance.ended.on_ready(_once(lambda: self._setup_ended(instance)))
        label = "event-loop" if spawn.loop else "driver"

        def start() -> None:
            start_thread(run, f"monarch-actor-{label}", instance)

        self.proc.add_actor(instance)
        if self._gate_failure and not spawn.setup:
            self._refuse_gated(instance)
        elif self._gated is not None and not spawn.setup and spawn.owner_proc != self.proc.address:
            self._gated.append((instance, start))
        else:
            start()

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
        acks = Acks(spec.addresses)
        number = self.proc.ports.add(acks)
        for rank, address in enumerate(spec.addresses):
            try:
                self.proc.post(address, StopActor(spec.key, reason, number, rank))
            except PeerEnded:
                acks.done(rank)
        acks.on_ready(_once(lambda: self._forget(spec.key)))
        return acks

    def _forget(self, key: str) -> None:
        """The mesh is gone; late callers learn so from its processes."""
        with self.lock:
            owner = self.ledger.remove(key)
        self._drop(owner, key)

    def _drop(self, owner: str, key: str) -> None:
        instance = self.actor(owner)
        if instance is not None:
            instance.owned.pop(key, None)
            instance.numbering.forget(key)

    def actor(self, unique: str) -> Instance | None:
        """The actor of this process with that unique name (the client's root included)."""
        if unique == self.proc.root_name:
            return root_of(self.proc)
        return self.proc.actors.get(unique.rpartition(".")[0])

    def _on_stop_actor(self, connection: Connection, stop: StopActor, frame: Frame) -> None:
        instance = self.proc.actors.get(stop.key)
        back = connection.remote

        def answer() -> None:
            self.proc.answer(back, Answer(stop.port, stop.rank, VALUE), b"", ())

        if instance is None:
            answer()
            return
        self.stop_instance(instance, stop.reason).on_ready(_once(answer))

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
        if instance.ended.ready:
            return
        assert instance.behaviour is not None
        instance.close(instance.behaviour.describe_stop(f"{reason} (abandoned: it did not end in time)"))
        instance.finish(Leave(reason))

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
        owned = OwnedProcs(self, spec, owner)
        self.procs[spec.uid] = owned
        owner.owned[spec.uid] = owned
        view = encode_extent(tuple(spec.labels), tuple(spec.sizes))
        for index, (host, launch) in enumerate(zip(spec.hosts, launches, strict=True)):
            ask = message.SpawnProcs(spec.uid, spec.name, index * per_host, per_host, view, self.proc.address)
            self.proc.post(agent_at(host), ask, launch)
        return owned

    def _on_started(self, connection: Connection, started: ProcStarted, frame: Frame) -> None:
        owned = self.procs.get(started.mesh)
        if owned is not None:
            owned.on_started(started.rank, started.pid)

    def _on_refused(self, connection: Connection, refused: ProcsRefused, frame: Frame) -> None:
        owned = self.procs.get(refused.mesh)
        if owned is not None:
            owned.started.fail(SpawnError(refused.error))

    # --- failures

    def _on_process_ended(self, ended: ProcEnded) -> None:
        split = split_proc_name(name_of(ended.address))
        owned = self.procs.get(split[0]) if split is not None else None
        if owned is not None:
            owned.on_ended(ended)
        with self.lock:
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
            if effect.owner == self.proc.root_name:
                self.fault(effect.failure)
                continue
            instance = self.actor(effect.owner)
            if instance is not None and not instance.stopping:
                instance.mailbox.put_control(Supervise(effect.failure))

    def _on_bounced(self, bounced: Bounced) -> None:
        if bounced.sender == self.proc.root_name:
            if not bounced.hook:
                self.fault(MeshFailure(Failure(UndeliverableMessageEnvelope(bounced).report(), mesh_name="<none>")))
            return
        instance = self.actor(bounced.sender)
        if instance is not None and not instance.stopping:
            instance.mailbox.put_control(bounced)


_NONE = codec.encode_value(None)[0]


def _no_fault(failure: MeshFailure) -> None:
    return None


def _once(fn: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def call() -> None:
        if lock.acquire(False):
            fn()

    return call


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
     "_mesh_name", "_name", "_target", "_gathered"]
)  # fmt: skip
