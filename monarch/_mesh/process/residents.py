"""The actors that live in this process: constructed when a Spawn comes, held back until the mesh is set up, stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch._errors import ActorError, SupervisionError
from monarch._mesh import plugins
from monarch._mesh.actors import breakpoints
from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._mesh.failures import ledger
from monarch._mesh.inspection.recording import actor_event
from monarch._mesh.meshes.owned import Acks
from monarch._mesh.process.process_watch import WordOfEnds
from monarch._runtime import recorder as recording
from monarch._runtime.context import here, root_of
from monarch._runtime.driver import run
from monarch._runtime.ending import abandon
from monarch._runtime.future import All, Slot, Source, once
from monarch._runtime.incarnations import first_in
from monarch._runtime.instance import Instance, Leave
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._shape.extent import Extent, Point
from monarch._wire import codec, message
from monarch._wire.address import of_ranges
from monarch._wire.frame import Buffer, Frame
from monarch._wire.message import VALUE, Answer, Failure, Probe, Spawn, StopActor, decode_extent
from monarch._wire.transport.base import Connection
from monarch.config import settings

_NOTICE = 1.0  # seconds given to processes to take note of a restart: a silent one must not hold it up
_WORD = 10.0  # seconds within which word of a death that the owner of a mesh knows of comes here


class Residents:
    """One a process. Messages come on the I/O thread.

    No actor starts before the bootstrap function of the mesh has run: until then they wait behind the gate.
    """

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._gated: list[tuple[Instance, Callable[[], None]]] | None = None
        self._gate_failure = b""
        self._holds: set[Slot] = set()
        proc.receivers[Spawn] = self._on_spawn
        proc.receivers[StopActor] = self._on_stop_actor
        proc.receivers[Probe] = self._on_probe

    def actor(self, unique: str) -> Instance | None:
        """The actor of this process with that unique name (the client's root included)."""
        if unique == self._proc.root_name:
            return root_of(self._proc)
        instance = self._proc.actors.get(unique.rpartition(".")[0])
        return instance if instance is not None and instance.unique == unique else None

    # --- spawning

    def _on_spawn(self, connection: Connection, spawn: Spawn, frame: Frame) -> None:
        rank, view = spawn.rank, spawn.view
        incarnation = max(spawn.incarnation, first_in(self._proc.incarnation))
        if spawn.incarnation and spawn.incarnation < incarnation:  # it was meant for the process before this one
            text = f"rank {rank} of {spawn.name} was not constructed: its process was replaced meanwhile"
            self._refuse(connection, spawn, Failure(text, spawn.key, spawn.name, [rank], text, stopped=True))
            return
        if self._is_repeat(connection, spawn, incarnation):
            return
        instance = Instance(
            self._proc,
            key=spawn.key,
            name=spawn.name,
            rank=rank,
            view=view,
            owner=spawn.owner,
            owner_proc=spawn.owner_proc,
            incarnation=incarnation,
            replaced=spawn.failure,
            will_restart=spawn.restarts,
            cls=spawn.cls,
            system=spawn.system,
        )
        point = Point(rank, Extent(*decode_extent(view)))
        shown = f"{spawn.cls} {spawn.name}" + (repr(point) if len(point) else "")
        body, buffers = frame.body, frame.buffers
        kind = ActorBehaviour
        if spawn.loop:
            from monarch._mesh.actors.async_behaviour import AsyncActorBehaviour  # asyncio: loaded when first needed

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

        if not spawn.cls.startswith("monarch.") and root_of(self._proc) is not None:
            breakpoints.install()  # before it is constructed

        def start() -> None:
            if spawn.record:
                start_thread(_run_recorded, f"monarch-actor-{label}", instance, spawn, body, buffers)
            else:
                start_thread(run, f"monarch-actor-{label}", instance)

        self._proc.add_actor(instance)
        recorder = recording.active
        if recorder is not None and not recorder.leaves_out(instance.system):
            recorder.add(actor_event(instance, spawn.cls))
            recorder.status(instance, "Created")
        if spawn.port:
            self._announce(instance, spawn, connection.remote)
        if self._gate_failure and not spawn.setup:
            self._refuse_gated(instance)
        elif self._gated is not None and not spawn.setup and spawn.owner_proc != self._proc.address:
            self._gated.append((instance, start))
        else:
            start()

    def _is_repeat(self, connection: Connection, spawn: Spawn, incarnation: int) -> bool:
        """True if that actor is here already, or was: then those that wait for it are answered. (Those known by their name
        may come again.)"""
        if spawn.key == spawn.name:
            return False
        there, end = self._proc.actors.get(spawn.key), self._proc.table.end_of(spawn.key)
        last = there.incarnation if there is not None else -1 if end is None else end.incarnation
        if last < incarnation:
            return False
        if spawn.port and there is not None:
            self._announce(there, spawn, connection.remote)
            end = there.end
        if end is not None:
            self._refuse(connection, spawn, end)
        return True

    def _refuse(self, connection: Connection, spawn: Spawn, failure: Failure) -> None:
        if spawn.port:
            answer = Answer(spawn.port, spawn.index, message.FAILED)
            self._proc.answer(connection.remote, answer, message.encode(failure), ())

    def _announce(self, instance: Instance, spawn: Spawn, back: str) -> None:
        """It takes the place of another: tells every process that has sent to that one, then, once this one is ready, its
        owner."""
        proc = self._proc
        notes: list[Acks] = []
        for remote in proc.table.senders_to(instance.key):
            note = Acks([remote])
            notes.append(note)
            proc.tell_restarted(remote, instance, proc.ports.add(note))
        if notes:
            proc.loop.call_later(_NOTICE, lambda: _give_up(notes))
        waiting = (back, spawn.port, spawn.index)
        instance.open_ports.add(waiting)  # answered with its failure, should it end before it is ready

        def answer() -> None:
            proc.answer(back, Answer(spawn.port, spawn.index, VALUE), _NONE, ())

        def ready() -> None:
            if waiting in instance.open_ports:
                instance.open_ports.discard(waiting)
                All(list[Source](notes)).on_ready(once(answer))

        instance.ready.on_ready(once(ready))

    # --- the gate

    @property
    def poisoned(self) -> bool:
        """True if nothing can be spawned here: the mesh was not set up."""
        return bool(self._gate_failure)

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

        self._proc.loop.call_soon(do)

    def _setup_ended(self, instance: Instance) -> None:
        """The setup actor is gone; if the function never returned, nothing else may start here."""
        if self._gated is not None:
            report = instance.end.report if instance.end is not None else "it ended"
            self.open_gate(RuntimeError(f"the mesh's bootstrap function did not complete: {report}"))

    def _refuse_gated(self, instance: Instance) -> None:
        text = "the bootstrap function of its proc mesh raised"
        failure = Failure(text, instance.key, instance.name, [instance.rank], text, error=self._gate_failure)
        instance.close(failure)
        self._proc.actor_ended(instance, None)
        instance.ended.set(failure)

    # --- stopping

    def stop(self, instance: Instance, reason: str) -> Source:
        """Any thread: asks an actor to stop; given up on after `stop_actor_timeout` and its cleanup's time."""
        instance.request_stop(reason)
        if not instance.ended.ready:
            leave = Leave(f"{reason} (abandoned: it did not end in time)")  # it hangs in an endpoint or in its cleanup
            patience = settings.stop_actor_timeout() + settings.cleanup_timeout()
            late = self._proc.loop.call_later(patience, lambda: abandon(instance, leave))
            instance.ended.on_ready(late.cancel)
        return instance.ended

    def _on_stop_actor(self, connection: Connection, stop: StopActor, frame: Frame) -> None:
        proc, back = self._proc, connection.remote
        instance = proc.actors.get(stop.key)
        incarnation = stop.incarnation or first_in(proc.incarnation)

        def answer() -> None:
            proc.answer(back, Answer(stop.port, stop.rank, VALUE), b"", ())

        if instance is None:
            # To be replaced: its spawn may have been lost with a connection, and be sent again behind this. Stopped for good:
            # it was in the process before this one, and nobody is to wait for it.
            shown = f"{stop.key} ({'not constructed yet' if stop.replaced else 'not in this process'})"
            end = ledger.stopped_failure(shown, stop.reason, stop.key, stop.key)
            end.incarnation, end.will_restart = incarnation, stop.replaced
            proc.table.never_comes(stop.key, end)
            answer()
        elif stop.replaced and incarnation < instance.incarnation:
            answer()  # a repeat: the one it was for made room for this one
        else:
            instance.being_replaced = stop.replaced
            self.stop(instance, stop.reason).on_ready(once(answer))

    def _on_probe(self, connection: Connection, probe: Probe, frame: Frame) -> None:
        instance = self._proc.actors.get(probe.key)
        if probe.ready:
            self._answer_when_ready(connection.remote, probe, instance)
            return
        failure = self._proc.table.end_of(probe.key)
        answer = Answer(probe.port, probe.rank, VALUE)
        body = _NONE
        if instance is None and failure is None and probe.living:
            failure = Failure(f"actor {probe.key}[{probe.rank}] is not there yet", will_restart=True)
        if instance is None and failure is not None and (failure.error or probe.living):
            answer = Answer(probe.port, probe.rank, message.FAILED)
            body = message.encode(failure)
        self._proc.answer(connection.remote, answer, body, ())

    def _answer_when_ready(self, back: str, probe: Probe, instance: Instance | None) -> None:
        """Its owner learns by other ways why it is not here, or has ended."""

        def answer() -> None:
            lives = instance is not None and instance.ready.ready and instance.end is None
            how = VALUE if lives else message.FAILED
            body = _NONE if lives else message.encode(Failure(""))
            self._proc.answer(back, Answer(probe.port, probe.rank, how), body, ())

        if instance is None:
            answer()
            return
        first = once(answer)
        word = WordOfEnds(self._proc, of_ranges(probe.over), _WORD)
        word.on_ready(lambda: All([instance.ready, *list(self._holds)]).on_ready(first))
        instance.ended.on_ready(first)

    def hold_health(self, patience: float) -> Callable[[], None]:
        hold = Slot()
        self._holds.add(hold)
        late = self._proc.loop.call_later(patience, hold.set)

        def end() -> None:
            late.cancel()
            hold.set()

        hold.on_ready(lambda: self._holds.discard(hold))
        return end


def hold_health(patience: float) -> Callable[[], None]:
    """Has `healthy()` wait for the actors of this process until what is returned is called, for so many seconds at most. Any
    thread."""
    mesh: Any = here().mesh
    return mesh.residents.hold_health(patience)  # type: ignore[no-any-return]


def _give_up(notes: Sequence[Acks]) -> None:
    for note in notes:
        note.give_up(SupervisionError("it did not answer"))


def _run_recorded(instance: Instance, spawn: Spawn, body: Buffer, buffers: Sequence[Buffer]) -> None:
    plugins.outer("replay.record")(instance, spawn, body, buffers)
    run(instance)


_NONE = codec.encode_value(None)[0]
