"""What an InProcessCluster puts in place of operating-system processes and of the agent that reaps them.

A SimulatedProc is a Proc whose end can be staged; the SimulatedAgent speaks the host agent's part of the
protocol. Both work on the cluster's I/O loop, and every method here is called there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._mesh.controller import MeshLayer
from monarch._runtime.future import All
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.loop import Loop, Timer
from monarch._runtime.proc import Proc
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import agent_at, agent_of, proc_address
from monarch._wire.frame import Frame
from monarch._wire.message import (
    VERSION,
    Bounced,
    Failure,
    Flush,
    Flushed,
    Hello,
    LaunchSpec,
    Listening,
    ProcEnded,
    ProcsRefused,
    ProcsStopped,
    ProcStarted,
    Shutdown,
    SpawnProcs,
    StopProc,
    StopProcs,
    Watch,
)
from monarch._wire.peer import Peer, PeerEnded
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch._wire.transport.inproc import InprocTransport, Network
from monarch.config import settings

_SIGTERM = 15
_ABANDONED_GRACE = 0.4  # seconds that processes get for their cleanup when their owner is gone


class ProcKilled(SystemExit):
    """Raised in the threads of a simulated process that was killed, wherever they use the runtime next.

    Derived from SystemExit so that `except Exception` does not keep them alive and no traceback is printed.
    """


class SimulatedProc(Proc):
    """A process of the cluster. Calls `on_exit(code)` once it has stopped in the ordinary way."""

    def __init__(self, network: Network, address: str, loop: Loop, pid: int) -> None:
        super().__init__(address, loop)
        self.pid = pid
        self.instances: list[Instance] = []  # every actor that ever was here
        self.on_exit: Callable[[int], None] = lambda code: None
        self.killed: ProcEnded | None = None
        self._stopping = False
        self.inproc = InprocTransport(network, address, loop, self, self.limits)
        self.transport = self.inproc
        MeshLayer(self)
        self.receivers[StopProc] = lambda connection, stop, frame: self.stop(stop.reason)
        self.inproc.listen()
        agent = self.inproc.dial(agent_of(address))
        agent.send(frames.encode(message.encode(Hello(VERSION, address, pid))))
        self.use_agent(agent)

    def add_actor(self, instance: Instance) -> None:
        self.instances.append(instance)
        super().add_actor(instance)

    def peer(self, address: str) -> Peer:
        if self.killed is not None:
            raise PeerEnded(address, self.killed)
        return super().peer(address)

    # --- ordinary ends

    def stop(self, reason: str) -> None:
        """Stops the actors, then ends with code 0; what hangs is left behind after its timeouts."""
        if self._stopping or self.killed is not None:
            return
        self._stopping = True
        ends = [self.mesh.stop_instance(actor, reason) for actor in list(self.actors.values())]
        patience = settings.get("stop_actor_timeout") + settings.get("cleanup_timeout")
        late = self.loop.call_later(patience, self._exit)

        def stopped() -> None:
            late.cancel()
            self.loop.call_soon(self._exit)

        All(ends).on_ready(stopped)
        if not ends:
            stopped()

    def _exit(self) -> None:
        if self.closed is not None:
            return
        self.leave(RuntimeError("this process is ending"))
        if any(not instance.ended.ready for instance in self.instances):
            # Those that hang, and those whose spawn came too late: they end with their process.
            self.kill(ProcEnded(self.address, self.pid, 0, True, []))
        self.on_exit(0)

    def leave(self, error: BaseException) -> None:
        """Closes every connection and answers whoever waits here; `error` is for later users."""
        self.disconnect(error)
        self.inproc.sever("this process is closing")

    # --- death

    def kill(self, ended: ProcEnded) -> None:
        """Nothing is sent or received any more; the threads of its actors end without cleanup, at the latest
        when they next use the runtime."""
        self.killed = ended
        self.closed = ProcKilled(f"the simulated process {self.address} was killed")
        self.inproc.close()
        self.inproc.sever("the process was killed")
        for peer in list(self._peers.values()):
            peer.end(ended)
        for instance in self.instances:
            if not instance.ended.ready:
                _abandon(instance)
        for entry in list(self.ports._entries.values()):
            entry.give_up(self.closed)
        with self._resumed:  # senders that wait for room
            self._paused.clear()
            self._resumed.notify_all()


def _abandon(instance: Instance) -> None:
    instance.owned.clear()
    instance.behaviour = _Abandoned(instance.behaviour)
    with instance._lock:
        instance.stopping = True
        instance.mailbox.messages.clear()
    instance.mailbox.put_control(Leave("the process was killed"))


class _Abandoned:
    """The behaviour of an actor in a killed process: its thread comes to its end, and no more of its code
    runs."""

    def __init__(self, behaviour: Any) -> None:
        self.is_async = behaviour.is_async
        self._behaviour = behaviour

    def construct(self) -> None:
        return None

    def restarted(self) -> Any:
        return None

    def handle(self, delivery: Delivery) -> None:
        return None

    async def handle_async(self, delivery: Delivery) -> None:
        return None

    def supervise(self, failure: Any) -> Any:
        return None

    def undeliverable(self, bounced: Bounced) -> Any:
        return None

    def cleanup(self, cause: Exception | None) -> Any:
        return None

    async def settle_tasks(self) -> None:
        await self._behaviour.settle_tasks()

    def describe_failure(self, exc: BaseException, doing: str) -> Failure:
        return Failure("the process was killed", stopped=True)

    def describe_stop(self, reason: str) -> Failure:
        return Failure("the process was killed", stopped=True)

    def describe_stale(self) -> Failure:
        return Failure("the process was killed", stopped=True)


class _Record:
    """One process: starting -> running -> ended."""

    def __init__(self, mesh: _MeshRecord, rank: int, proc: SimulatedProc) -> None:
        self.mesh = mesh
        self.rank = rank
        self.proc = proc
        self.connection: Connection | None = None
        self.watchers: set[Connection] = set()
        self.stopping = ""
        self.told = False  # by its owner, to stop
        self.timer: Timer | None = None


class _MeshRecord:
    def __init__(self, uid: str, owner: str, connection: Connection) -> None:
        self.uid = uid
        self.owner = owner
        self.connection = connection
        self.records: dict[int, _Record] = {}
        self.stop_waiters: list[tuple[Connection, int]] = []


class SimulatedAgent:
    """Starts, watches, stops and kills simulated processes. `on_done()` is called after Shutdown, when none
    is left."""

    def __init__(self, network: Network, host: str, loop: Loop, on_done: Callable[[], Any]) -> None:
        self.host = host
        self.loop = loop
        self.on_done = on_done
        self.meshes: dict[str, _MeshRecord] = {}
        self.records: dict[str, _Record] = {}  # by address, the living
        self.procs: list[SimulatedProc] = []  # all that ever were
        self._ended: dict[str, ProcEnded] = {}
        self._waiting: dict[str, list[tuple[Connection, Timer]]] = {}
        self._pids = itertools.count(2)
        self._closing = False
        self._network = network
        limits = (int(settings.get("outgoing_queue_bytes")), int(settings.get("codec_max_frame_length")))
        InprocTransport(network, agent_at(host), loop, self, lambda: limits).listen()
        self._receivers: dict[type, Callable[[Connection, Any, Frame], None]] = {
            SpawnProcs: self._on_spawn,
            StopProcs: self._on_stop,
            Watch: self._on_watch,
            Flush: lambda connection, flush, frame: self._send(connection, Flushed(flush.token)),
            Shutdown: lambda connection, shutdown, frame: self._shutdown(shutdown.grace),
        }

    # --- connections

    def _send(self, connection: Connection, msg: Any) -> None:
        try:
            connection.send(frames.encode(message.encode(msg)))
        except ConnectionLost:
            pass

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        for frame in received:
            msg = message.decode(frame.head)
            if type(msg) is Hello:
                self._on_hello(connection, msg)
                continue
            receiver = self._receivers.get(type(msg))
            if receiver is not None:
                receiver(connection, msg, frame)

    def _on_hello(self, connection: Connection, hello: Hello) -> None:
        connection.remote = hello.address
        connection.pid = hello.pid
        record = self.records.get(hello.address)
        if record is not None:
            record.connection = connection
            self._send(record.mesh.connection, ProcStarted(record.mesh.uid, record.rank, hello.pid))
            if record.stopping and not record.told:
                self._send(connection, StopProc(record.stopping))

    def connection_lost(self, connection: Connection, reason: str) -> None:
        for record in self.records.values():
            record.watchers.discard(connection)

    # --- starting

    def _on_spawn(self, connection: Connection, ask: SpawnProcs, frame: Frame) -> None:
        spec = msgspec.msgpack.decode(frame.body, type=LaunchSpec)
        mesh = _MeshRecord(ask.mesh, ask.owner, connection)
        ranks = range(ask.first, ask.first + ask.count)
        if spec.executable or any(command is not None for command in spec.commands or ()):
            self._refuse(
                mesh,
                ranks,
                "an InProcessCluster runs no commands and no other interpreters: use real processes",
            )
            return
        self.meshes[ask.mesh] = mesh
        for rank in ranks:
            address = proc_address(self.host, ask.mesh, rank)
            proc = SimulatedProc(self._network, address, self.loop, next(self._pids))
            proc.mesh.name = spec.name
            if spec.gated:
                proc.mesh.close_gate()
            record = mesh.records[rank] = self.records[address] = _Record(mesh, rank, proc)
            proc.on_exit = lambda code, record=record: self._end(record, code)  # type: ignore[misc]
            self.procs.append(proc)
            record.watchers.add(connection)
            for watcher, timer in self._waiting.pop(address, ()):
                timer.cancel()
                record.watchers.add(watcher)
                self._send(watcher, Listening(address))

    def _refuse(self, mesh: _MeshRecord, ranks: range, why: str) -> None:
        self._send(mesh.connection, ProcsRefused(mesh.uid, why))
        for rank in ranks:
            address = proc_address(self.host, mesh.uid, rank)
            ended = self._ended[address] = ProcEnded(address, 0, 1, False, [], f"could not be started: {why}")
            self._send(mesh.connection, ended)

    def _on_watch(self, connection: Connection, watch: Watch, frame: Frame) -> None:
        address = watch.address
        record, ended = self.records.get(address), self._ended.get(address)
        if record is not None:
            record.watchers.add(connection)
            self._send(connection, Listening(address))
        elif ended is not None:
            self._send(connection, ended)
        elif address == f"{self.host}/client":
            self._send(connection, Listening(address))
        else:
            timer = self.loop.call_later(
                settings.get("host_spawn_ready_timeout"), lambda: self._never_started(connection, address)
            )
            self._waiting.setdefault(address, []).append((connection, timer))

    def _never_started(self, connection: Connection, address: str) -> None:
        self._waiting.pop(address, None)
        self._send(connection, ProcEnded(address, 0, 1, False, [], "was never started on this host"))

    # --- ending

    def _on_stop(self, connection: Connection, stop: StopProcs, frame: Frame) -> None:
        mesh = self.meshes.get(stop.mesh)
        if mesh is None:
            self._send(connection, ProcsStopped(stop.mesh, stop.port))
            return
        mesh.stop_waiters.append((connection, stop.port))
        self._stop_mesh(mesh, stop.reason, stop.grace, told=True)

    def _stop_mesh(self, mesh: _MeshRecord, reason: str, grace: float, told: bool = False) -> None:
        for record in list(mesh.records.values()):
            record.stopping = reason or "stopped"
            record.told = told
            if record.timer is not None:
                record.timer.cancel()
            record.timer = self.loop.call_later(grace, lambda record=record: self._kill(record, -_SIGTERM))  # type: ignore[misc]
            if record.connection is not None and not told:
                self._send(record.connection, StopProc(record.stopping))

    def _shutdown(self, grace: float) -> None:
        self._closing = True
        for mesh in list(self.meshes.values()):
            self._stop_mesh(mesh, "the client has ended", grace)
        if not self.records:
            self.on_done()

    def kill(self, address: str, code: int) -> None:
        """ValueError when no process lives there."""
        record = self.records.get(address)
        if record is None:
            raise ValueError(f"no simulated process lives at {address}: it has ended, or belongs to another cluster")
        self._kill(record, code)

    def kill_all(self) -> None:
        """Whatever is left."""
        for record in list(self.records.values()):
            self._kill(record, -_SIGTERM)

    def _kill(self, record: _Record, code: int) -> None:
        if record.proc.address in self.records:
            ended = self._ended_with(record, code)
            record.proc.kill(ended)
            self._end(record, code)

    def _ended_with(self, record: _Record, code: int) -> ProcEnded:
        return ProcEnded(record.proc.address, record.proc.pid, code, bool(record.stopping), [])

    def _end(self, record: _Record, code: int) -> None:
        address, mesh = record.proc.address, record.mesh
        if self.records.pop(address, None) is None:
            return
        if record.timer is not None:
            record.timer.cancel()
        ended = self._ended[address] = self._ended_with(record, code)
        for watcher in list(record.watchers):
            self._send(watcher, ended)
        mesh.records.pop(record.rank, None)
        if not mesh.records:
            self.meshes.pop(mesh.uid, None)
            for connection, port in mesh.stop_waiters:
                self._send(connection, ProcsStopped(mesh.uid, port))
        for owned in [other for other in self.meshes.values() if other.owner == address]:
            self._stop_mesh(owned, "the process that spawned it has ended", _ABANDONED_GRACE)
        if self._closing and not self.records:
            self.on_done()
