"""The processes of a host: who starts, runs, is suspected, stops, is replaced, and who is told. Pure: events in, effects out.

    asked ──Prepare──► prepared ──Launch──► starting ──hello──► running ──exited──► ended (remembered)
                                                                   │                  ▲    │
                                                   stop or restart └──► stopping ─────┘    └──restart──► asked, the next

Each method is an event and takes the time as `now`, in seconds; it returns what is to be done, in that order. Connections
are opaque keys. There is one process at an address at a time: a restart waits for the end of the one before it, and whoever
watches the address is told that end before it is told of the new one.

Over 600 lines because it is one state machine, drawn above: every event can meet a process in every state.
"""

from __future__ import annotations

import signal
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from monarch._mesh.agent.effects import (
    Connection,
    HostEmpty,
    Launch,
    Limits,
    MeshEnded,
    Prepare,
    Refuse,
    ReleaseProcess,
    Send,
    Signal,
    Start,
)
from monarch._mesh.agent.liveness import NEVER, Liveness
from monarch._mesh.casts.machine import Machine, event
from monarch._wire.address import CLIENT, host_of, name_of, proc_address
from monarch._wire.message import (
    VALUE,
    Answer,
    Hello,
    IncarnationAck,
    LaunchSpec,
    ListProcs,
    Ping,
    ProcEnded,
    ProcReachable,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    RestartProcs,
    SpawnProcs,
    StopProc,
    StopProcs,
    Suspected,
    Watch,
)

ENDED_KEPT = 10_000  # ends of processes remembered, with those that watch them, for those who ask late; the oldest go
DEPARTED_KEPT = 100  # of the last processes that ended what they were is remembered, for those who look
EARLY_KEPT = 1024  # exits of processes whose pid was not known yet
ABANDONED_GRACE = 0.4  # seconds that processes get for their cleanup when their owner is gone
TERM_TO_KILL = 1.0  # seconds between SIGTERM and SIGKILL
PRELOAD_PATIENCE = 120.0  # seconds more until a process must be up when its fork server imports modules first
# Seconds that a watcher gets to say that it knows of a new process. Until all have, a restart is not over: somebody might
# still mean the old process. One that says nothing must not hold it up for longer.
HEARD_PATIENCE = 1.0
# Seconds that a process gets to show that it lives, to those that ask. The kernel closes the sockets of one that dies before
# it tells us of its end, so that those at their other ends ask us about a process that is only not known to have ended.
ASKED_PATIENCE = 1.0
# Seconds between the end of a process's connection to us and its own. One that takes longer has closed its descriptors and
# runs on, where nobody can reach it: it is killed.
LOST_PATIENCE = 2.0
BEAT = ("beat",)


class _Mesh:
    def __init__(self, uid: str, owner: str, connection: Connection) -> None:
        self.uid = uid
        self.owner = owner  # address of a process, of this host or another
        self.connection = connection
        self.stopping = ""  # why; its processes are not replaced any more
        self.given_up = False  # by an owner that takes this host for lost, and may begin anew
        self.processes: dict[int, _Process] = {}
        self.stop_waiters: list[tuple[Connection, int]] = []


class _Process:
    """One that was asked for and has not ended."""

    def __init__(self, mesh: _Mesh, start: Start) -> None:
        self.mesh = mesh
        self.start = start
        self.prepared = False
        self.pid = 0
        self.said_pid = 0  # in its Hello; another one behind a wrapper
        self.connection: Connection | None = None
        self.announced = False  # its owner was told that it runs
        self.unheard: set[Connection] = set()  # were told of it and have not answered
        self.waited = False  # for them, long enough
        self.stopping = ""
        self.told = False  # by its owner, to stop
        self.deadline = float("inf")  # of SIGTERM
        self.terminated = False
        self.killed = False
        self.detail = ""
        self.lost = False  # its connection to us, and it has not ended since
        self.successor: Start | None = None
        self.life = Liveness(start.limits.suspect_after, start.limits.suspect_timeout)
        self.asking: dict[Connection, None] = {}  # want to know whether it lives
        self.asked = 0  # the Ping whose answer tells them

    def state(self) -> tuple[str, str]:
        """Returns its state in a word, and what is known of it."""
        if self.stopping:
            return "stopping", self.stopping
        if self.life.suspicion:
            return ("stopped" if self.life.suspicion.startswith("stopped") else "suspected"), self.life.suspicion
        if self.connection is None:
            return "starting", ""
        return "running", ""

    def timer(self, kind: str) -> tuple[str, str, int]:
        return kind, self.start.address, self.start.incarnation


class Roster(Machine):
    """See the module. `host` is the address prefix; `patience`: seconds until an address nobody has asked a process for
    counts as never started."""

    def __init__(self, host: str, patience: float) -> None:
        super().__init__()
        self._host = host
        self._patience = patience
        self._meshes: dict[str, _Mesh] = {}
        self._processes: dict[str, _Process] = {}
        self._by_pid: dict[int, _Process] = {}
        self._by_connection: dict[Connection, _Process] = {}
        self._watchers: dict[str, dict[Connection, None]] = {}
        self._waiting: dict[str, dict[Connection, int]] = {}  # for an incarnation that nobody has asked for yet
        self._ended: OrderedDict[str, tuple[ProcEnded, bool]] = OrderedDict()  # and whether none will follow
        self.departed: deque[tuple[Start, ProcEnded, float]] = deque(maxlen=DEPARTED_KEPT)  # and when
        self._unborn: set[tuple[str, int]] = set()  # launched, pid not known yet
        self._early: OrderedDict[int, tuple[int, int, str]] = OrderedDict()  # pid -> (code, stop signal, why)
        self._closing = False
        self._done = False
        self._beat_at: float | None = None
        self._pings = 0

    def __len__(self) -> int:
        return len(self._processes)

    def killing(self, pid: int) -> bool:
        """True if the process with that pid was sent SIGKILL from here."""
        process = self._by_pid.get(pid)
        return process is not None and process.killed

    # --- events: starting

    @event
    def spawn(self, connection: Connection, ask: SpawnProcs, spec: LaunchSpec, limits: Limits) -> None:
        """Its owner asks for a mesh. All of its processes start, or none."""
        if ask.mesh in self._meshes:
            self._send(connection, ProcsRefused(ask.mesh, f"the mesh {ask.mesh} runs on this host already"))
            return
        mesh = _Mesh(ask.mesh, ask.owner, connection)
        mesh.stopping = self._gone(ask.owner, connection)
        starts = [self._start(ask, rank, 0, spec, limits) for rank in range(ask.first, ask.first + ask.count)]
        for start in starts:
            self._watch(start.address, connection)
        why = self._cannot_start(mesh)
        if why:
            self._send(connection, ProcsRefused(mesh.uid, why))
        self._meshes[mesh.uid] = mesh
        self._begin(mesh, starts)
        self._end_if_empty(mesh)

    @event
    def restart(self, connection: Connection, ask: RestartProcs, spec: LaunchSpec, limits: Limits) -> None:
        """Its owner asks for new processes in the place of some; those that live are being stopped for that."""
        mesh = self._meshes.get(ask.mesh)
        if mesh is None or mesh.given_up:  # all of its processes have ended, or count as ended
            mesh = self._meshes[ask.mesh] = _Mesh(ask.mesh, ask.owner, connection)
            mesh.stopping = self._gone(ask.owner, connection)
        starts = []
        for rank, incarnation in zip(ask.ranks, ask.incarnations, strict=True):
            start = self._start(ask, rank, incarnation, spec, limits)
            process, known = self._processes.get(start.address), self._ended.get(start.address)
            if process is not None:
                del process.mesh.processes[rank]
                process.mesh = mesh
                mesh.processes[rank] = process
                self._watch(start.address, connection)
                self._replace(process, start, connection, ask.grace)
            elif known is not None and known[0].incarnation >= incarnation:
                self._send(connection, known[0])
            else:
                self._watch(start.address, connection)
                starts.append(start)
        self._begin(mesh, starts)
        self._end_if_empty(mesh)

    def _start(
        self, ask: SpawnProcs | RestartProcs, rank: int, incarnation: int, spec: LaunchSpec, limits: Limits
    ) -> Start:
        address = proc_address(ask.host or self._host, ask.mesh, rank)
        return Start(ask.mesh, ask.name, rank, rank - ask.first, address, incarnation, spec, limits)

    def _replace(self, process: _Process, start: Start, connection: Connection, grace: float) -> None:
        """One that lives makes room. Its owner has told it so, unless it has not heard yet that it runs."""
        if process.start.incarnation >= start.incarnation:
            return
        if process.successor is None or process.successor.incarnation < start.incarnation:
            process.successor = start
        self._stop(process, "restarted", grace, process.announced and connection not in process.unheard)

    def _gone(self, owner: str, connection: Connection) -> str:
        """Its last words may arrive after its end was told."""
        process = self._processes.get(owner)
        gone = owner in self._ended if process is None else process.connection != connection
        return "the process that asked for it has ended" if gone else ""

    def _cannot_start(self, mesh: _Mesh) -> str:
        if self._closing:
            return "this host is shutting down"
        return f"its mesh is being stopped ({mesh.stopping})" if mesh.stopping else ""

    def _begin(self, mesh: _Mesh, starts: Sequence[Start]) -> None:
        why = self._cannot_start(mesh)
        for start in starts:
            if why:
                detail = f"could not be started: {why}"
                ended = ProcEnded(start.address, 0, 1, bool(mesh.stopping), [], detail, start.incarnation)
                self._tell_end(mesh, ended)
            else:
                self._processes[start.address] = mesh.processes[start.rank] = _Process(mesh, start)
        if starts and not why:
            self._effects.append(Prepare(tuple(starts)))

    @event
    def prepared(self, starts: Iterable[Start]) -> None:
        """Takes the word that Prepare was done: what is sent to them now will reach them."""
        launch = []
        for start in starts:
            process = self._find(start.key)
            if process is None:
                continue
            if process.stopping:
                self._end(process, 0)
                continue
            process.prepared = True
            self._unborn.add(start.key)
            patience = start.limits.ready + (PRELOAD_PATIENCE if start.spec.preload else 0.0)
            self._arm(process.timer("ready"), patience)
            self._tell_listening(process)
            launch.append(start)
        if launch:
            self._effects.append(Launch(tuple(launch)))

    def _tell_listening(self, process: _Process) -> None:
        """Tells those who waited for it; of a later incarnation, everybody who may mean the one before."""
        address, incarnation = process.start.key
        listening = ProcReachable(address, incarnation)
        if incarnation:
            self._take_waiting(address)
            told = list(self._watchers.get(address, ()))
            process.unheard.update(told)
            if told:
                self._arm(process.timer("heard"), HEARD_PATIENCE)
        else:
            told = self._take_waiting(address)
        for watcher in told:
            self._send(watcher, listening)

    @event
    def refused(self, starts: Sequence[Start], why: str) -> None:
        """Prepare could not be done: none of these starts."""
        processes = [process for process in map(self._find, (start.key for start in starts)) if process is not None]
        for mesh in {process.mesh.uid: process.mesh for process in processes if not process.start.incarnation}.values():
            self._send(mesh.connection, ProcsRefused(mesh.uid, why))
        for process in processes:
            self._end(process, 1, f"could not be started: {why}")

    @event
    def pid_known(self, address: str, incarnation: int, pid: int) -> None:
        """A process that was launched has that pid."""
        self._unborn.discard((address, incarnation))
        early = self._early.pop(pid, None)
        process = self._find((address, incarnation))
        if process is not None:
            process.pid = pid
            self._by_pid[pid] = process
            self._born(process, early)
        elif early is None or early[1]:  # given up on before it was born
            self._effects.append(Signal(pid, signal.SIGKILL))
        if not self._unborn:
            self._early.clear()

    def _born(self, process: _Process, early: tuple[int, int, str] | None) -> None:
        if early is None:
            if process.stopping and not process.told and process.connection is None:
                self._kill(process)
        elif early[1]:
            self._job_stopped(process, early[1])
        else:
            self._exited(process, early[0], early[2])

    @event
    def not_started(self, address: str, incarnation: int, why: str) -> None:
        """A process that was launched could not be started."""
        self._unborn.discard((address, incarnation))
        process = self._find((address, incarnation))
        if process is not None:
            self._end(process, 1, why)

    @event
    def hello(self, connection: Connection, hello: Hello) -> None:
        """The process at the other end of the connection has said who it is."""
        process, known = self._processes.get(hello.address), self._ended.get(hello.address)
        if process is None:
            if known is not None and hello.incarnation <= known[0].incarnation:
                self._effects.append(Refuse(connection, "this process counts as ended"))
            return
        if hello.incarnation != process.start.incarnation:
            why = f"incarnation {hello.incarnation} of this process is not the present one, {process.start.incarnation}"
            self._effects.append(Refuse(connection, why))
            return
        if process.connection is not None:
            self._by_connection.pop(process.connection, None)
        process.connection = connection
        process.said_pid = hello.pid
        process.life.seen(self._now)
        self._by_connection[connection] = process
        process.lost = False
        self._disarm(process.timer("lost"))
        self._disarm(process.timer("ready"))
        self._announce(process)
        if process.asking:
            process.asked = self._ping(process)
        if process.stopping and not process.told:
            self._stop(process, process.stopping, ABANDONED_GRACE, False)
        self._beat_by(process.life.due())

    @event
    def heard(self, connection: Connection, heard: IncarnationAck) -> None:
        """A watcher knows of a new process."""
        process = self._find((heard.address, heard.incarnation))
        if process is not None:
            process.unheard.discard(connection)
            self._announce(process)

    def _announce(self, process: _Process) -> None:
        """Announces a process to its owner, once it runs and nobody means the one before it any more."""
        if process.announced or process.connection is None or (process.unheard and not process.waited):
            return
        process.announced = True
        self._disarm(process.timer("heard"))
        start = process.start
        self._send(
            process.mesh.connection,
            ProcStarted(start.mesh, start.rank, process.said_pid, start.incarnation, start.spec.threads),
        )

    # --- events: ending

    @event
    def exited(self, pid: int, code: int, why: str = "") -> None:
        """A child of the host has ended; `why`: what else is known, such as that the kernel killed it for memory."""
        process = self._by_pid.get(pid)
        if process is not None:
            self._exited(process, code, why)
        else:
            self._keep_early(pid, (code, 0, why))

    def _exited(self, process: _Process, code: int, why: str) -> None:
        if process.lost and process.killed and code == -signal.SIGKILL and not process.stopping:
            why = f"closed its connection to the host agent and ran on for {LOST_PATIENCE:g} s; it was killed"
        self._end(process, code, process.detail or ("" if process.stopping else why))

    def _keep_early(self, pid: int, event: tuple[int, int, str]) -> None:
        """Word of its pid is still under way, or it is an orphan of a process of ours."""
        if self._unborn:
            self._early[pid] = event
            if len(self._early) > EARLY_KEPT:
                self._early.popitem(last=False)

    @event
    def stop(self, connection: Connection, stop: StopProcs) -> None:
        """Its owner stops a mesh, and has told each process."""
        mesh = self._meshes.get(stop.mesh)
        if mesh is None:
            self._forget_watchers(stop.mesh)
            self._send(connection, ProcsStopped(stop.mesh, stop.port))
        else:
            mesh.stop_waiters.append((connection, stop.port))
            self._stop_mesh(mesh, stop.reason, stop.grace, connection)

    @event
    def shutdown(self, grace: float) -> None:
        """Ends every mesh, and the agent after the last process; `grace` is the time of each."""
        if not self._closing:
            self._closing = True
            for mesh in list(self._meshes.values()):
                self._stop_mesh(mesh, "the client has ended", grace)
            self._check_done()

    def _stop_mesh(self, mesh: _Mesh, reason: str, grace: float, teller: Connection | None = None) -> None:
        """`teller`: its owner, which has told each process that it knows of."""
        mesh.stopping = mesh.stopping or reason or "stopped"
        for process in list(mesh.processes.values()):
            self._stop(process, reason, grace, teller is not None and teller not in process.unheard)
        if not mesh.given_up:
            self._forget_watchers(mesh.uid)
        self._end_if_empty(mesh)

    def _stop(self, process: _Process, reason: str, grace: float, told: bool) -> None:
        """Asks politely (unless its owner has `told` it), then with SIGTERM, then with SIGKILL. A second request may
        shorten the time, not lengthen it."""
        process.stopping = reason or "stopped"
        process.told = told
        self._disarm(process.timer("ready"))
        if process.connection is not None and not told:
            self._send(process.connection, StopProc(process.stopping))
        if not process.terminated and self._now + grace < process.deadline:
            process.deadline = self._now + grace
            self._arm(process.timer("stop"), grace)

    def _terminate(self, process: _Process) -> None:
        if process.terminated:
            self._kill(process)
            return
        process.terminated = True
        if process.pid:
            self._effects.append(Signal(process.pid, signal.SIGTERM))
        self._arm(process.timer("stop"), TERM_TO_KILL)

    def _kill(self, process: _Process, detail: str = "", code: int = -signal.SIGKILL) -> None:
        """`code`: of one that has no pid yet, and is killed when it has."""
        process.detail = process.detail or detail
        if process.pid:
            process.killed = True
            self._effects.append(Signal(process.pid, signal.SIGKILL))
        else:
            self._end(process, code, process.detail)

    def _end(self, process: _Process, code: int, detail: str = "") -> None:
        mesh, start = process.mesh, process.start
        for kind in ("ready", "heard", "asked", "lost", "stop", "suspect"):
            self._disarm(process.timer(kind))
        del self._processes[start.address]
        del mesh.processes[start.rank]
        self._by_pid.pop(process.pid, None)
        if process.connection is not None:
            self._by_connection.pop(process.connection, None)
        stopped = bool(process.stopping) and not detail
        replaced = process.successor is not None and not self._cannot_start(mesh)
        ended = ProcEnded(start.address, process.pid, code, stopped, [], detail, start.incarnation, replaced)
        self.departed.append((start, ended, self._now))
        self._effects.append(ReleaseProcess(ended))
        self._tell_end(mesh, ended, process.successor is None)
        if process.successor is not None:
            self._begin(mesh, [process.successor])
        self._end_if_empty(mesh)
        self._orphan(start.address)
        if not self._by_connection:
            self._no_beat()
        self._check_done()

    def _orphan(self, owner: str) -> None:
        """Ends what an owner leaves: nothing outlives it."""
        for owned in [other for other in self._meshes.values() if other.owner == owner]:
            self._stop_mesh(owned, "the process that spawned it has ended", ABANDONED_GRACE)

    @event
    def owner_ended(self, address: str) -> None:
        """A process of another host has ended: what it spawned here ends too."""
        self._orphan(address)

    @event
    def host_ended(self, host: str, why: str) -> None:
        """Another host cannot be reached any more: what its processes spawned here ends, nobody would."""
        for owned in [other for other in self._meshes.values() if host_of(other.owner) == host]:
            owned.given_up = True
            self._stop_mesh(owned, f"the host of the process that spawned it is gone: {why}", ABANDONED_GRACE)

    @event
    def give_up(self, host: str) -> None:
        """Gives up what runs here by that name of this host: those that use it by that name had taken it for lost."""
        for mesh in list(self._meshes.values()):
            if any(host_of(process.start.address) == host for process in mesh.processes.values()):
                mesh.given_up = True
                self._stop_mesh(mesh, "its host was taken for lost", ABANDONED_GRACE)

    def awaited(self, address: str) -> bool:
        """True if a process is to come to that address that has not said hello yet."""
        process = self._processes.get(address)
        return process is not None and process.connection is None and not process.lost

    def _tell_end(self, mesh: _Mesh, ended: ProcEnded, last: bool = True) -> None:
        """Returns those that watch; they stay watchers for as long as another process may take its place. `last` of its
        mesh's stop, if that is being stopped."""
        address = ended.address
        self._take_waiting(address)
        for watcher in self._watchers.get(address, ()):
            self._send(watcher, ended)
        last = last and bool(mesh.stopping) and not mesh.given_up
        if last:
            self._watchers.pop(address, None)
        self._ended[address] = (ended, last)
        self._ended.move_to_end(address)
        if len(self._ended) > ENDED_KEPT:
            oldest, _ = self._ended.popitem(last=False)
            if oldest not in self._processes:
                self._watchers.pop(oldest, None)

    def _end_if_empty(self, mesh: _Mesh) -> None:
        if mesh.processes or self._meshes.get(mesh.uid) is not mesh:
            return
        del self._meshes[mesh.uid]
        self._effects.append(MeshEnded(mesh.uid))
        for connection, port in mesh.stop_waiters:
            self._send(connection, ProcsStopped(mesh.uid, port))

    def _check_done(self) -> None:
        if self._closing and not self._processes and not self._done:
            self._done = True
            self._effects.append(HostEmpty())

    # --- events: watching

    @event
    def watch(self, connection: Connection, watch: Watch) -> None:
        """Somebody wants to know how it is with the process at an address, and to be told what becomes of it."""
        address = watch.address
        process, known = self._processes.get(address), self._ended.get(address)
        if known is not None and known[0].incarnation < watch.incarnation:
            known = None  # it knows that much
        old = process is not None and watch.lost and process.start.incarnation <= watch.incarnation
        if process is not None and process.prepared and not old:
            self._watch_living(process, connection, watch.incarnation, known)
        elif known is not None:
            if not known[1]:
                self._watch(address, connection)
            self._send(connection, known[0])
        elif watch.lost and (process is None or old):
            self._watch(address, connection)
            detail = "was lost with its host, and was not restarted on the one that has taken its place"
            self._send(connection, ProcEnded(address, 0, 1, False, [], detail, watch.incarnation))
        elif process is None and name_of(address) == CLIENT:
            self._send(connection, ProcReachable(address))
        else:
            self._wait(address, connection, watch.incarnation)

    def _watch_living(
        self, process: _Process, connection: Connection, incarnation: int, known: tuple[ProcEnded, bool] | None
    ) -> None:
        start = process.start
        self._watch(start.address, connection)
        if start.incarnation <= incarnation:
            process.asking[connection] = None
            self._arm_once(process.timer("asked"), ASKED_PATIENCE)
            if process.connection is not None:
                process.asked = self._ping(process)
            return
        if known is not None:
            self._send(connection, known[0])
        if not process.announced and not process.waited:
            process.unheard.add(connection)
            self._arm_once(process.timer("heard"), HEARD_PATIENCE)
        self._tell_alive(process, [connection])

    def _tell_alive(self, process: _Process, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self._send(connection, ProcReachable(*process.start.key))
            if process.life.suspicion:
                self._send(connection, self._suspected(process))

    def _answer_asking(self, process: _Process) -> None:
        asking, process.asking = process.asking, {}
        self._disarm(process.timer("asked"))
        self._tell_alive(process, asking)

    def _watch(self, address: str, connection: Connection) -> None:
        self._watchers.setdefault(address, {})[connection] = None

    def _wait(self, address: str, connection: Connection, incarnation: int) -> None:
        self._waiting.setdefault(address, {})[connection] = incarnation
        self._arm_once(("unknown", address, connection), self._patience)

    def _take_waiting(self, address: str) -> list[Connection]:
        """Has those who waited for the process at an address watch it; returns them."""
        waiting = list(self._waiting.pop(address, ()))
        for connection in waiting:
            self._disarm(("unknown", address, connection))
            self._watch(address, connection)
        return waiting

    def _give_up(self, address: str, connection: Connection) -> None:
        incarnation = self._waiting[address].pop(connection)
        if not self._waiting[address]:
            del self._waiting[address]
        self._send(connection, ProcEnded(address, 0, 1, False, [], "was never started on this host", incarnation))

    def _forget_watchers(self, mesh: str) -> None:
        """Forgets the watchers of the mesh's processes that have ended: no others follow."""
        first = proc_address("", mesh, 0)[1:-1]
        for address in [address for address in self._watchers if name_of(address).startswith(first)]:
            if address not in self._processes:
                del self._watchers[address]
                if address in self._ended:
                    self._ended[address] = (self._ended[address][0], True)

    @event
    def connection_lost(self, connection: Connection) -> None:
        """Nothing can be sent there any more."""
        for address in [address for address, there in self._watchers.items() if connection in there]:
            del self._watchers[address][connection]
            if not self._watchers[address]:
                del self._watchers[address]
        for address in [address for address, there in self._waiting.items() if connection in there]:
            self._disarm(("unknown", address, connection))
            del self._waiting[address][connection]
            if not self._waiting[address]:
                del self._waiting[address]
        for process in self._processes.values():
            process.asking.pop(connection, None)
            if connection in process.unheard:
                process.unheard.discard(connection)
                self._announce(process)
        lost = self._by_connection.pop(connection, None)
        if lost is not None:
            lost.connection = None
            lost.lost = True
            self._arm(lost.timer("lost"), LOST_PATIENCE)
            if not self._by_connection:
                self._no_beat()

    @event
    def census(self, connection: Connection, census: ListProcs) -> None:
        """Answers with the addresses of the processes that are connected."""
        running = [process.start.address for process in self._processes.values() if process.connection is not None]
        self._effects.append(Send(connection, Answer(census.port, 0, VALUE), msgspec.msgpack.encode(running)))

    def overview(self) -> list[tuple[Start, int, str, str]]:
        """Any thread: each process that has not ended, (what was asked for, pid, state, why), for those who look."""
        return [
            (process.start, process.pid or process.said_pid, *process.state())
            for process in list(self._processes.values())
        ]

    # --- events: signs of life, and none

    @event
    def alive(self, connection: Connection) -> None:
        """A frame came: the process at the other end runs."""
        process = self._by_connection.get(connection)
        if process is None:
            return
        if process.life.seen(self._now):
            self._trust(process)

    @event
    def pong(self, connection: Connection, token: int) -> None:
        """The process at the other end has answered that Ping."""
        process = self._by_connection.get(connection)
        if process is not None and process.asking and token >= process.asked:
            self._answer_asking(process)

    @event
    def stopped(self, pid: int, number: int) -> None:
        """The kernel has stopped that child, as with SIGSTOP."""
        process = self._by_pid.get(pid)
        if process is not None:
            self._job_stopped(process, number)
        else:
            self._keep_early(pid, (0, number, ""))

    @event
    def continued(self, pid: int) -> None:
        """Notes that a stopped process runs again."""
        process = self._by_pid.get(pid)
        if process is None:
            self._early.pop(pid, None)
        elif process.life.continued(self._now):
            self._trust(process)

    def _job_stopped(self, process: _Process, number: int) -> None:
        process.life.stopped(number)
        self._suspect(process)

    def _suspect(self, process: _Process) -> None:
        self._tell_suspicion(process)
        if process.life.timeout > 0:
            self._arm(process.timer("suspect"), process.life.timeout)

    def _trust(self, process: _Process) -> None:
        self._tell_suspicion(process)
        self._disarm(process.timer("suspect"))
        if process.connection is not None:
            self._beat_by(process.life.due())

    def _suspected(self, process: _Process) -> Suspected:
        pid = process.pid or process.said_pid
        return Suspected(process.start.address, pid, process.life.suspicion, process.life.timeout)

    def _tell_suspicion(self, process: _Process) -> None:
        suspected = self._suspected(process)
        for connection in {process.mesh.connection: None, **self._watchers.get(process.start.address, {})}:
            self._send(connection, suspected)

    # --- heartbeats: one timer for all

    def _beat(self) -> None:
        """Looks at all, whether it is time or nearly so: asks some for a sign of life, suspects some."""
        late = self._now - self._beat_at if self._beat_at is not None else 0.0
        self._beat_at = None
        for process in self._by_connection.values():
            if process.life.asks(self._now, late):
                self._ping(process)
            elif process.life.falls_silent(self._now):
                self._suspect(process)
        self._beat_by(min((process.life.due() for process in self._by_connection.values()), default=NEVER))

    def _ping(self, process: _Process) -> int:
        self._pings += 1
        process.life.asked(self._now)
        self._send(process.connection, Ping(self._pings))
        return self._pings

    def _beat_by(self, when: float) -> None:
        """The timer fires at `when` at the latest."""
        if when < NEVER and (self._beat_at is None or when < self._beat_at):
            self._beat_at = when
            self._arm(BEAT, when - self._now)

    def _no_beat(self) -> None:
        self._beat_at = None
        self._disarm(BEAT)

    # --- timers

    @event
    def fired(self, key: tuple[Any, ...]) -> None:
        """A timer that was armed has run out."""
        self._armed.discard(key)
        if key == BEAT:
            self._beat()
        elif key[0] == "unknown":
            self._give_up(*key[1:])
        else:
            process = self._find(key[1:])
            if process is not None:
                self._out_of_time(key[0], process)

    def _out_of_time(self, kind: str, process: _Process) -> None:
        if kind == "stop":
            self._terminate(process)
        elif kind == "suspect":
            self._kill(process, "" if process.stopping else process.life.verdict())
        elif kind == "heard":
            process.waited = True
            self._announce(process)
        elif kind == "lost":
            if not process.stopping:  # else it has its grace
                self._kill(process)
        elif kind == "asked":
            if not process.lost:  # else its end tells them, soon
                self._answer_asking(process)
        else:
            ready = process.start.limits.ready
            self._kill(process, f"was not ready within {ready:g} s (setting host_spawn_ready_timeout)", 1)

    # --- parts

    def _find(self, key: tuple[str, int]) -> _Process | None:
        process = self._processes.get(key[0])
        return process if process is not None and process.start.incarnation == key[1] else None

    def _send(self, connection: Connection, message: Any) -> None:
        self._effects.append(Send(connection, message))
