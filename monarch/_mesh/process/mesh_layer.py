"""The mesh layer of one process: what it owns elsewhere (`spawning`, `restarter`), what lives in it (`residents`), and who is
told when something fails (`owners`)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from monarch._errors import NotSendableError, SpawnError
from monarch._mesh.actors.receivers import OneReceiver, ReceiversUnknown, encode_for
from monarch._mesh.casts import reduce
from monarch._mesh.casts.sender import Casting
from monarch._mesh.failures import ledger
from monarch._mesh.failures.ledger import MeshFailure, MeshGone, Notify
from monarch._mesh.failures.restart_policy import RestartGroup
from monarch._mesh.failures.undeliverable import UndeliverableMessageEnvelope
from monarch._mesh.failures.watchdog import Watchdog
from monarch._mesh.inspection import questions, recording, thread_stacks, wait_graph  # noqa: F401  what is asked of the stuck
from monarch._mesh.inspection.stuck_collectives import Explainer
from monarch._mesh.meshes.actor_mesh import ActorMesh
from monarch._mesh.meshes.host_mesh import HostMesh, host_mesh_of
from monarch._mesh.meshes.owned import OwnedProcs
from monarch._mesh.meshes.proc_mesh import ProcMesh, proc_mesh_of
from monarch._mesh.meshes.replacer import AttachedMeshes
from monarch._mesh.output import rank_files
from monarch._mesh.process.health import Health
from monarch._mesh.process.named_actors import serve_references
from monarch._mesh.process.owned_meshes import OwnedMeshes
from monarch._mesh.process.owners import Owners
from monarch._mesh.process.residents import Residents
from monarch._mesh.process.restarter import Restarter
from monarch._mesh.process.spawning import Spawning
from monarch._mesh.start import threads
from monarch._runtime.hooks import Hooks
from monarch._runtime.instance import Instance
from monarch._runtime.log_thread import log
from monarch._runtime.proc import Proc
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._runtime.unobserved_errors import UnobservedError
from monarch._wire.address import AGENT, host_of, name_of, split_proc_name
from monarch._wire.message import (
    VALUE,
    ActorEnded,
    Bounced,
    Failure,
    ProcEnded,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    Suspected,
)
from monarch.config import settings

logger = logging.getLogger("monarch")


class MeshLayer(Hooks):
    """One a Proc, as `proc.mesh`. Its receivers run on the I/O thread."""

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.owned = OwnedMeshes(grace=not proc.loop.virtual)  # on a clock that stands still it would never be over
        self.residents = Residents(proc)
        self.spawning = Spawning(proc, self.owned, self.residents, self._tell)
        self.owners = Owners(proc, self.owned, self.residents)
        self.restarter = Restarter(proc, self.owned, self.spawning, self.owners.tell, self._lost_process)
        self.health = Health(proc, self.owned)
        self.casting = Casting(proc)
        self.attached = AttachedMeshes()
        self.name = ""  # of the proc mesh that this process belongs to
        self.executable = ""  # interpreter of the processes spawned from here; "" is this one's
        self.controllers: ActorMesh[Any] | None = None  # see `named_actors`
        self.replacements: list[tuple[type, type]] = []  # see `replacements`
        self._meshes: weakref.WeakSet[ProcMesh] = weakref.WeakSet()
        self._this_proc: ProcMesh | None = None
        self._threads_told = False
        self._files_told = False
        self.when_agent_lost: Callable[[str], None] = lambda reason: None
        proc.hooks = self
        receivers: dict[type, Any] = {
            ProcStarted: lambda c, started, f: self._on_started(started),
            ProcsRefused: lambda c, refused, f: self._on_refused(refused),
            ProcsStopped: lambda c, m, f: proc.ports.receive(m.port, (0, VALUE, c.remote.encode(), ())),
        }
        proc.receivers.update(receivers)
        questions.serve(proc)
        serve_references(proc)
        reduce.serve(proc)
        self._explainer = Explainer(proc)
        Watchdog(proc, self._explainer.slow)

    # --- meshes as programs see them

    def this_proc(self) -> ProcMesh:
        """This process as a mesh of one; the same object each time."""
        if self._this_proc is None:
            self._this_proc = proc_mesh_of(self.proc.address)
        return self._this_proc

    def host_of(self, address: str, executable: str) -> HostMesh:
        """The host of the process at `address`."""
        return host_mesh_of(host_of(address), executable)

    def encode_for(self, address: str, value: Any, error: NotSendableError) -> tuple[bytes, Sequence[memoryview]]:
        """Encodes what is counted for who gets it."""
        if not isinstance(error, ReceiversUnknown):
            raise error
        return encode_for(OneReceiver(address), value)

    def remember(self, mesh: ProcMesh) -> None:
        self._meshes.add(mesh)

    def proc_meshes(self) -> list[ProcMesh]:
        """The proc meshes that this process spawned and still holds."""
        return list(self._meshes)

    def closing(self, reason: str) -> None:
        """Everything that actors of this process own is about to be stopped; nobody is told of failures any more."""
        self.attached.closing()
        with self.owned.lock:
            self.owned.ledger.all_stopped(reason)

    # --- hooks of the process

    def check(self, key: str, receivers: Sequence[tuple[int, int, str]]) -> Failure | None:
        if key not in self.owned.ledger.troubled:
            return None
        return self.owned.why_ended(key, [rank for _, rank, _ in receivers])

    def is_coming_back(self, key: str, rank: int) -> bool | None:
        """True if a rank that does not answer will: see `Ledger.is_coming_back`."""
        return self.owned.is_coming_back(key, rank)

    def connection_broke(self, address: str) -> None:
        self.spawning.connection_broke(address)

    def look_for_cause(self) -> None:
        self._explainer.look()

    def cause(self) -> str:
        return self._explainer.cause()

    def agent_lost(self, reason: str) -> None:
        self.when_agent_lost(reason)

    def cast_to(self, sender: str) -> list[str]:
        return self.casting.cast_to(sender)

    def addresses_on(self, host: str) -> list[str]:
        return self.owned.addresses_on(host)

    # --- processes that start and end

    def _procs_of(self, address: str) -> tuple[OwnedProcs | None, int]:
        """(the owned mesh, the rank in it) of the process at `address`; (None, 0) when it is not owned here."""
        split = split_proc_name(name_of(address))
        return (None, 0) if split is None else (self.owned.procs.get(split[0]), split[1])

    def _on_started(self, started: ProcStarted) -> None:
        procs = self.owned.procs.get(started.mesh)
        if procs is not None:
            procs.on_started(started)
            if started.threads and not started.rank and not self._threads_told:  # once a mesh until it is told
                self._threads_told = threads.say(started.threads, len(procs.spec.addresses) // len(procs.spec.hosts))
            if not self._files_told and settings.enable_file_capture():
                self._files_told = True
                rank_files.say(procs.spec.name, procs.spec.uid, settings.log_dir())

    def _on_refused(self, refused: ProcsRefused) -> None:
        procs = self.owned.procs.get(refused.mesh)
        if procs is not None:
            procs.started.fail(SpawnError(refused.error))
            procs.changed()

    def process_ended(self, ended: ProcEnded) -> None:
        self.proc.events.note(
            "process ended", "", f"{ended.address} {ended.detail}", "INFO" if ended.stopped else "ERROR"
        )
        recording.process_ended(self.proc, ended)
        if name_of(ended.address) == AGENT:
            host = host_of(ended.address)
            self.attached.host_lost(host, ended.detail)  # first: what is lost with it asks whether it will come back
            for mesh in list(self.owned.procs.values()):
                mesh.host_lost(host, ended.detail)
        with self.owned.lock:
            effects = self.owned.ledger.process_ended(ended)
        procs, rank = self._procs_of(ended.address)
        if procs is not None:
            procs.on_ended(rank, ended)
        self._tell(effects)
        for instance in list(self.proc.actors.values()):  # nobody is left whom their failures could be told
            if instance.owner_proc == ended.address:
                self.residents.stop(instance, "the process of its owner has ended")

    def host_replaced(self, host: str) -> None:
        for mesh in list(self.owned.procs.values()):
            mesh.host_replaced(host)
        self.owned.changed()

    def _lost_process(self, key: str, ranks: Sequence[int], ended: ProcEnded) -> None:
        """The process of a rank that is being restarted has ended again, which word may not have come here."""
        with self.owned.lock:
            self.owned.ledger.restarting(key, ranks)
            effects = self.owned.ledger.process_ended(ended)
        self._tell(effects)

    def process_suspected(self, suspected: Suspected) -> None:
        """Said once here, by the owner of the process: nothing has failed yet."""
        procs, rank = self._procs_of(suspected.address)
        if procs is None:
            return
        who = f"process {rank} of mesh {procs.spec.name!r} (pid {suspected.pid}, {suspected.address})"
        self.proc.events.note("suspected", "", f"{who}: {suspected.why or 'runs again'}", "WARNING")
        if not suspected.why:
            log(logger, logging.WARNING, "%s runs again", who)
        elif suspected.limit:
            log(logger, logging.WARNING, "%s is suspected: %s. It is killed and counts as failed if that lasts for %g s "
                "(setting suspect_timeout)", who, suspected.why, suspected.limit)  # fmt: skip
        else:
            log(logger, logging.WARNING, "%s is suspected: %s", who, suspected.why)

    # --- who is told of a failure

    def actor_failed(self, event: ActorEnded) -> None:
        with self.owned.lock:
            effects = self.owned.ledger.actor_ended(event.failure)
        self._tell(effects)

    def _tell(self, effects: Sequence[Notify | MeshGone]) -> None:
        """Carries out what the ledger makes of one event."""
        failures: dict[str, list[MeshFailure]] = {}  # by owner
        for effect in effects:
            if isinstance(effect, MeshGone):
                self.spawning.forget(effect.owner, effect.key)
                continue
            failure = effect.failure
            owned = self.owned.actors.get(failure._failure.mesh)
            if owned is not None and owned.group is not None:
                if self.restarter.take(owned, failure):
                    continue
                with self.owned.lock:
                    self.owned.ledger.not_restarted(owned.spec.key, failure.crashed_ranks)
                failure = ledger.escalated(failure, _too_often(owned.group))
            failures.setdefault(effect.owner, []).append(failure)
        for owner, its in failures.items():
            self.owners.tell(owner, its)
        self.owned.changed()

    # --- calls that have failed

    def call_failed(
        self, entry: Entry, caller: Instance, key: str, awaited: Sequence[int], failed: Sequence[int]
    ) -> UnobservedError | None:
        return self.owners.call_failed(entry, caller, key, awaited, failed)

    def call_raised(self, entry: Entry, raw: Raw) -> UnobservedError | None:
        return self.owners.call_raised(entry, raw)

    def bounced(self, bounced: Bounced) -> None:
        if bounced.sender == self.proc.root_name:
            if not bounced.hook:
                self.owners.fault(
                    MeshFailure(Failure(UndeliverableMessageEnvelope(bounced).report(), mesh_name="<none>"))
                )
            return
        instance = self.residents.actor(bounced.sender)
        if instance is not None and not instance.stopping:
            instance.mailbox.put_control(bounced)


def _too_often(group: RestartGroup) -> str:
    policy = group.policy
    return (
        f"its RestartPolicy does not restart it any more: {policy.max_restarts} restarts within {policy.within:g} s are its "
        f"limit (max_restarts, within)"
    )
