"""Possessions of an actor, as its process keeps them: meshes of actors and of processes, to be stopped and restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock
from monarch._mesh.actors.actor import needs_loop
from monarch._mesh.failures import ledger
from monarch._mesh.failures.restart_policy import RestartGroup
from monarch._mesh.meshes.specs import ActorSpec, ProcSpec
from monarch._mesh.start.preload import refreshed
from monarch._runtime.future import All, Done, Slot, Source, once
from monarch._runtime.incarnations import first_on
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._wire import message, os_text
from monarch._wire.address import agent_at
from monarch._wire.message import Failure, LaunchSpec, ProcEnded, ProcStarted, StopProc, StopProcs, encode_extent
from monarch._wire.peer import PeerEnded
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc


class Acks(Entry):
    """Ready when every address has answered or its process has ended. Never fails.

    `ask(port, rank)` asks the process at `addresses[rank]` for its answer, and once more when the connection to it broke; it
    may raise PeerEnded. Without it, nobody is asked again.
    """

    __slots__ = ("_ask", "_left", "_lock")

    def __init__(self, addresses: Sequence[str], ask: Callable[[int, int], None] | None = None) -> None:
        super().__init__(None)
        self._ask = ask
        self._lock = Lock()
        self._left = dict(enumerate(addresses))
        if not addresses:
            self.set_ready()

    def ask(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            try:
                assert self._ask is not None
                self._ask(self.number, rank)
            except PeerEnded:
                self.done(rank)

    def receive(self, raw: Raw) -> None:
        self.done(raw[0])

    def done(self, rank: int) -> None:
        with self._lock:
            self._left.pop(rank, None)
            last = not self._left
        if last and not self.ready:
            self.close()
            self.set_ready()

    def left(self) -> list[str]:
        """The addresses that have neither answered nor ended."""
        with self._lock:
            return list(self._left.values())

    def _ranks_at(self, address: str) -> list[int]:
        with self._lock:
            return [rank for rank, there in self._left.items() if there == address]

    def gone(self, address: str) -> None:
        """No answer comes from there any more."""
        for rank in self._ranks_at(address):
            self.done(rank)

    def process_ended(self, ended: ProcEnded) -> None:
        self.gone(ended.address)

    def connection_broke(self, address: str, failure: Failure) -> None:
        if self._ask is not None:
            self.ask(self._ranks_at(address))
        else:
            self.gone(address)

    def give_up(self, error: BaseException) -> None:
        if not self.ready:
            self.close()
            self.set_ready()

    def awaited(self) -> str:
        with self._lock:
            left = sorted(set(self._left.values()))
        return f" from {', '.join(left[:4])}" + (f" and {len(left) - 4} more" if len(left) > 4 else "")

    def value(self) -> None:
        return None


class Timeout(Entry):
    """Ready when `end()` is called, or the process is closed. Never fails."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)

    def end(self) -> None:
        if not self.ready:
            self.close()
            self.set_ready()

    def receive(self, raw: Raw) -> None:
        pass

    def give_up(self, error: BaseException) -> None:
        self.end()

    def value(self) -> None:
        return None


class HostAcks(Acks):
    """Ready when the agents of all these hosts have answered, or are gone. An answer says in its body whose it is."""

    __slots__ = ()

    def __init__(self, hosts: Iterable[str]) -> None:
        super().__init__([agent_at(host) for host in hosts])

    def receive(self, raw: Raw) -> None:
        self.gone(bytes(raw[2]).decode())


class ConstructorArgs:
    """The arguments with which the actors of a mesh are constructed: the encoded (class, args, kwargs, proc mesh,
    creator).

    Kept by the owner for restarts up to `restart_argument_bytes`, beyond that `body` is None once they were sent; so it
    is when they can be unpickled `once` (claims on distributed tensors).
    """

    __slots__ = ("body", "buffers", "once", "size")

    def __init__(self, body: bytes, buffers: Sequence[memoryview], once: bool = False) -> None:
        self.once = once
        self.body: bytes | None = body
        self.buffers: Sequence[memoryview] = buffers
        self.size = len(body) + sum(buffer.nbytes for buffer in buffers)

    def keep(self) -> None:
        """They were sent. The buffers are the program's memory, which it may change from now on."""
        if self.once or self.size > settings.restart_argument_bytes():
            self.body, self.buffers = None, ()
        elif self.buffers:
            self.buffers = [memoryview(bytes(buffer)) for buffer in self.buffers]


class OwnedActors:
    """An actor mesh that an actor of this process owns. `stop(reason)` stops it; `group` restarts ranks that fail."""

    def __init__(
        self,
        spec: ActorSpec,
        owner: str,
        args: ConstructorArgs,
        setup: bool,
        group: RestartGroup | None,
        stop: Callable[[str], Source],
    ) -> None:
        self.spec = spec
        self.owner = owner
        self.setup = setup
        self.group = group
        self.creator: Any = None
        self.needs_loop = needs_loop(spec.cls)
        self.view = encode_extent(tuple(spec.extent.labels), tuple(spec.extent.sizes))
        self.incarnations: dict[int, int] = {}  # of ranks that are not the first
        self.replaced: dict[int, Failure] = {}  # why those before them ended
        self.asked: list[Sequence[int]] = []  # ranks that are restarted because the program has asked for it
        self.spawned = Slot()  # every rank's first spawn was sent: what takes their place must not overtake them
        self.stop = stop
        self._args = args
        self._other_args: dict[int, ConstructorArgs] = {}  # of ranks that were restarted with others

    def args(self, rank: int) -> ConstructorArgs:
        """Returns what the actor of that rank is constructed with."""
        return self._other_args.get(rank, self._args)

    def too_large(self, ranks: Sequence[int]) -> str:
        """Returns why these ranks cannot be constructed with the arguments they had; "" when they can."""
        for args in map(self.args, ranks):
            if args.body is None and args.once:
                return (
                    f"the constructor arguments of {self.spec.mesh_name} hold distributed tensors, which cannot be kept "
                    f"for restarts: give them again, as restart(args=(...))"
                )
            if args.body is None:
                return (
                    f"the constructor arguments of {self.spec.mesh_name} ({args.size} bytes) were not kept for restarts: "
                    f"they are larger than the setting restart_argument_bytes; give them again, as restart(args=(...))"
                )
        return ""

    def change_args(self, ranks: Sequence[int], args: ConstructorArgs) -> None:
        """Gives these ranks other arguments to be constructed with, from now on."""
        for rank in ranks:
            self._other_args[rank] = args


class OwnedProcs:
    """A proc mesh that an actor of this process owns, while its processes start, run, stop and start again.

    `on_gone()` is called when they have been stopped and are gone, `changed()` when one has started, ended or was
    restarted."""

    def __init__(
        self,
        proc: Proc,
        spec: ProcSpec,
        owner: Instance,
        launches: Sequence[bytes],
        per_host: int,
        on_gone: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._proc = proc
        self._on_gone = on_gone
        self.changed = changed
        self.spec = spec
        self.owner = owner
        self.started = Slot()
        self.prepare: Callable[[int], Source] | None = None  # runs the bootstrap function in a rank's new process
        self._launches = launches
        self._per_host = per_host
        self._incarnations: dict[int, int] = {}  # of ranks that are not the first
        self._running: set[int] = set()
        self._ended: dict[int, str] = {}  # rank -> how
        self._restarting: dict[int, Slot] = {}
        self._unprepared: dict[int, str] = {}  # rank -> why the bootstrap function did not return in its new process
        self.lost: dict[str, str] = {}  # hosts that are gone, and why
        self._stopping: Source | None = None
        self._training = False
        self._lock = Lock()

    def on_started(self, started: ProcStarted) -> None:
        with self._lock:
            if started.incarnation < self._incarnations.get(started.rank, 0):
                return
            self._running.add(started.rank)
            self._ended.pop(started.rank, None)
            slot = self._restarting.get(started.rank)
            all_run = len(self._running) == len(self.spec.addresses)
        if all_run:
            self.started.set(True)
        if slot is not None:
            self._prepare(started.rank, slot)
        self.changed()

    def _prepare(self, rank: int, slot: Slot) -> None:
        """The new process runs; its bootstrap function comes before it counts as restarted."""

        def done() -> None:
            with self._lock:
                self._restarting.pop(rank, None)
            try:
                slot.set(prepared.value())
            except BaseException as exc:
                with self._lock:
                    self._unprepared[rank] = str(exc)
                slot.fail(exc)
            self.changed()

        if self.prepare is None:
            with self._lock:
                self._restarting.pop(rank, None)
            slot.set()
            return
        prepared = self.prepare(rank)
        prepared.on_ready(done)

    def on_ended(self, rank: int, ended: ProcEnded) -> None:
        with self._lock:
            if ended.incarnation < self._incarnations.get(rank, 0):
                return
            self._running.discard(rank)
            why = self._ended[rank] = ledger.describe_exit(ended)
            slot = self._restarting.pop(rank, None)
        self.changed()
        if slot is None and self.started.ready:
            return
        tail = "".join(f"\n    {line}" for line in ended.tail)
        error = RuntimeError(
            f"process {ended.address} of mesh {self.spec.name!r} ended before it was ready: {why}{tail}"
        )
        (slot or self.started).fail(error)

    @property
    def stopping(self) -> bool:
        """True if its owner has asked for its end."""
        return self._stopping is not None

    @property
    def gone(self) -> bool:
        """True once its processes have been stopped and are gone."""
        return self._stopping is not None and self._stopping.ready

    def host_lost(self, host: str, why: str) -> None:
        """None of its processes comes back, unless another takes its place: who answers at that address one day is another
        host."""
        with self._lock:
            self.lost[host] = why

    def host_replaced(self, host: str) -> None:
        """Its processes can be started again."""
        with self._lock:
            self.lost.pop(host, None)

    def ended_ranks(self) -> list[int]:
        """Ranks whose process has ended and is not being restarted."""
        with self._lock:
            return sorted(self._ended.keys() - self._restarting.keys())

    def standing(self, ranks: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
        """Returns, of the ranks whose process does not run, those that are being started (again), and those that have
        ended; and how."""
        coming, ended = {}, {}
        with self._lock:
            for rank in ranks:
                if rank in self._restarting:
                    coming[rank] = "its process is being restarted"
                elif rank in self._ended:
                    ended[rank] = self._ended[rank]
                elif rank in self._unprepared:
                    ended[rank] = f"the bootstrap function failed in its new process: {self._unprepared[rank]}"
                elif rank not in self._running:
                    coming[rank] = "its process is being started"
        return coming, ended

    def over(self) -> dict[str, int]:
        """Returns where a process has ended, and the least incarnation that may live there."""
        with self._lock:
            least = {rank: at if rank in self._running or rank in self._ended else at - 1  # else the one before may live
                     for rank, at in self._incarnations.items()}  # fmt: skip
            for rank in self._ended.keys() - self._restarting.keys():
                least[rank] = self._incarnations.get(rank, 0) + 1
        return {self.spec.addresses[rank]: at for rank, at in least.items() if at > 0}

    def is_first(self, ranks: Iterable[int]) -> bool:
        """True if one of these processes is the first at its place."""
        with self._lock:
            return any(rank not in self._incarnations for rank in ranks)

    def replaced(self, ranks: Iterable[int]) -> frozenset[int]:
        """Returns those of these ranks whose process is not the first at its place."""
        with self._lock:
            return frozenset(rank for rank in ranks if rank in self._incarnations)

    # --- restarts

    def train(self) -> None:
        """These processes train with torch, and may be restarted: has fork servers import in the background what replacements
        will need. Once is enough."""
        with self._lock:
            if self._training or self._stopping is not None:
                return
            self._training = True
        for host, launch in zip(self.spec.hosts, self._launches, strict=True):
            try:
                self._proc.post(agent_at(host), message.Preload(), refreshed(launch, True))
            except PeerEnded:
                continue

    def preload_on(self, hosts: Sequence[str]) -> None:
        """Processes of the mesh may be started again on these hosts: fork servers there import what they will need."""
        launch = refreshed(self._launches[0], self._training)
        for host in hosts if os_text.decode(launch, LaunchSpec).preload else ():
            try:
                self._proc.post(agent_at(host), message.Preload(), launch)
            except PeerEnded:
                continue

    def restart(self, ranks: Sequence[int]) -> Source:
        """New processes for these ranks; those that run are stopped first. Ready when they run.

        A rank that is being restarted already is waited for, and so is a lost host that is being replaced. RuntimeError from
        what it returns when the mesh was stopped, and when the host of one of them is gone; then none is restarted.
        """
        coming = self._hosts_to_come(ranks)
        if not coming:
            return self._restart(ranks)
        done = Slot()

        def go_on() -> None:  # also when they were not replaced, which it finds out
            restarted = self._restart(ranks)
            restarted.on_ready(once(lambda: _forward(restarted, done)))

        All(coming).on_ready(once(go_on))
        return done

    def _hosts_to_come(self, ranks: Sequence[int]) -> list[Source]:
        """Returns, of the hosts that are gone, the ones that are being replaced."""
        with self._lock:
            hosts = {self.spec.hosts[rank // self._per_host] for rank in ranks}.intersection(self.lost)
        sources = [self._proc.mesh.attached.coming(host) for host in sorted(hosts)]
        return [source for source in sources if source is not None]

    def _restart(self, ranks: Sequence[int]) -> Source:
        slots: list[Source] = []
        asked: dict[int, list[int]] = {}
        with self._lock:
            if self._stopping is not None:
                return Done(
                    RuntimeError(f"the mesh {self.spec.name!r} was stopped: spawn new processes with spawn_procs()")
                )
            for rank in ranks:
                there = self.spec.hosts[rank // self._per_host]
                if there in self.lost:
                    return Done(
                        RuntimeError(
                            f"process {rank} of the mesh {self.spec.name!r} cannot be restarted, its host {there} is gone "
                            f"({self.lost[there]}): replace it first, with hosts.replace(failed=True)"
                        )
                    )
            for rank in ranks:
                slot = self._restarting.get(rank)
                if slot is None:
                    slot = self._restarting[rank] = Slot()
                    self._unprepared.pop(rank, None)
                    generation = self._proc.host_generations.get(self.spec.hosts[rank // self._per_host], 0)
                    self._incarnations[rank] = max(self._incarnations.get(rank, 0) + 1, first_on(generation))
                    asked.setdefault(rank // self._per_host, []).append(rank)
                slots.append(slot)
            living = [rank for ranks in asked.values() for rank in ranks if rank not in self._ended]
            self._running.difference_update(living)
            incarnations = dict(self._incarnations)
        proc = self._proc
        for host, wanted in asked.items():  # before they are told, so that their agent knows why they end
            self._ask(host, wanted, [incarnations[rank] for rank in wanted])
        for rank in living:
            try:
                proc.post(self.spec.addresses[rank], StopProc("restarted by its owner", incarnations[rank] - 1))
            except PeerEnded:
                continue
        if self._stopping is not None:  # meanwhile: these may have come behind the order to stop
            self._order_stop("its owner has stopped it", 0)
        return All(slots)

    def _ask(self, host: int, ranks: list[int], incarnations: list[int]) -> None:
        spec, proc = self.spec, self._proc
        ask = message.RestartProcs(
            spec.uid,
            spec.name,
            host * self._per_host,
            self._per_host,
            ranks,
            incarnations,
            proc.address,
            settings.process_exit_timeout(),
            spec.hosts[host],
        )
        try:
            proc.post(agent_at(spec.hosts[host]), ask, refreshed(self._launches[host], self._training))
        except PeerEnded as exc:
            for rank in ranks:
                self.on_ended(rank, ProcEnded(spec.addresses[rank], 0, 1, False, [], f"its host is gone: {exc}", 2**31))

    # --- the end

    def stop(self, reason: str) -> Source:
        """Asks the agents to stop the processes; ready when they are gone."""
        with self._lock:
            if self._stopping is not None:
                return self._stopping
            self.spec.stopped = True
            acks = HostAcks(self.spec.hosts)
            self._stopping = acks
            restarting, self._restarting = self._restarting, {}
        self.changed()
        for slot in restarting.values():
            slot.fail(RuntimeError(f"the mesh {self.spec.name!r} was stopped while it was being restarted: {reason}"))
        number = self._proc.ports.add(acks)
        for rank in self._order_stop(reason, number):
            acks.done(rank)
        self.owner.owned.pop(self.spec.uid, None)
        acks.on_ready(self._on_gone)
        return acks

    def _order_stop(self, reason: str, port: int) -> list[int]:
        """Tells the processes and their agents. Returns the agents that have ended."""
        proc, spec, gone = self._proc, self.spec, []
        for address in spec.addresses:
            try:
                proc.post(address, StopProc(reason))
            except PeerEnded:
                continue
        grace = settings.process_exit_timeout()
        for rank, host in enumerate(spec.hosts):
            if host in self.lost:
                gone.append(rank)
                continue
            try:
                proc.post(agent_at(host), StopProcs(spec.uid, reason, grace, port))
            except PeerEnded:
                gone.append(rank)
        return gone


def _forward(source: Source, to: Slot) -> None:
    try:
        to.set(source.value())
    except BaseException as exc:
        to.fail(exc)
