"""The host agent: starts the processes of a host, tells whoever asks when they end, and ends with its client.

Single-threaded, runs no user code, unpickles nothing. It is a subreaper, so every process that descends from it and loses
its parent comes to it, and none is left when it goes.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._mesh import launch, zygote
from monarch._mesh.forkservers import ForkServers
from monarch._mesh.launch import CannotLaunch
from monarch._mesh.outputs import MeshOutput, Outputs, ProcOutput
from monarch._mesh.rundir import remove_directory
from monarch._runtime.loop import Loop, Timer
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import AGENT, agent_at, proc_address
from monarch._wire.frame import Frame
from monarch._wire.message import (
    VERSION,
    Bye,
    Flush,
    Flushed,
    Hello,
    LaunchSpec,
    Listening,
    LogOption,
    Preload,
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
from monarch._wire.peer import PeerEnded
from monarch._wire.transport import unix
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch.config import settings

PR_SET_CHILD_SUBREAPER = 36

_ENDED_KEPT = 10_000  # ends of processes remembered for those who ask late
_ABANDONED_GRACE = 0.4  # seconds that processes get for their cleanup when the client is gone
_TERM_TO_KILL = 1.0  # seconds between SIGTERM and SIGKILL
_PRELOAD_PATIENCE = 120.0  # seconds more until a process must be up when its zygote imports modules first


class Record:
    """One process: starting -> running -> ended."""

    def __init__(self, mesh: MeshRecord, rank: int, address: str) -> None:
        self.mesh = mesh
        self.rank = rank
        self.address = address
        self.pid = 0
        self.connection: Connection | None = None
        self.watchers: set[Connection] = set()
        self.stopping = ""
        self.told = False  # by its owner, to stop
        self.ended: ProcEnded | None = None
        self.output = ProcOutput(mesh.output, rank)
        self.timer: Timer | None = None
        self.detail = ""


class MeshRecord:
    def __init__(self, uid: str, owner: str, connection: Connection, output: MeshOutput) -> None:
        self.uid = uid
        self.owner = owner
        self.connection = connection
        self.output = output
        self.records: dict[int, Record] = {}
        self.stop_waiters: list[tuple[Connection, int]] = []


class HostAgent:
    """`host` is the address prefix; `client` the socket to the client that started us."""

    def __init__(self, directory: str, client: socket.socket, first: socket.socket) -> None:
        self.directory = directory
        self.host = f"unix:{directory}"
        self.address = agent_at(self.host)
        self.loop = Loop("monarch-agent")
        self.meshes: dict[str, MeshRecord] = {}
        self.records: dict[str, Record] = {}
        self.ended: OrderedDict[str, ProcEnded] = OrderedDict()
        self.by_pid: dict[int, Record] = {}
        self._early: OrderedDict[int, int] = OrderedDict()
        self._waiting: dict[str, list[tuple[Connection, Timer]]] = {}
        self._closing = False
        self.servers = ForkServers(first, self.loop, self)
        self.outputs = Outputs(self.loop, lambda output: self.send(self.client, output))
        self._wake_read, self._wake_write = socket.socketpair()
        limits = (int(settings.get("outgoing_queue_bytes")), int(settings.get("codec_max_frame_length")))
        self.transport = unix.UnixTransport(self.loop, self, lambda: limits)
        self.transport.listen(unix.listen(os.path.join(directory, AGENT)))
        self.client = self.transport.connect(client, f"{self.host}/client")
        self.receivers: dict[type, Callable[[Connection, Any, Frame], None]] = {
            SpawnProcs: self._on_spawn,
            StopProcs: self._on_stop,
            Watch: self._on_watch,
            Shutdown: lambda c, m, f: self.shutdown(m.grace),
            Flush: self._on_flush,
            LogOption: self._on_log_option,
            Preload: self._on_preload,
        }

    def run(self) -> None:
        """Serves until the client is gone and every process with it."""
        self._wake_write.setblocking(False)
        self._wake_read.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.loop.call_soon(lambda: self.shutdown(_ABANDONED_GRACE)))
        self.loop.add(self._wake_read.fileno(), self._on_signal)
        self.client.start()
        self.loop.run()
        for sock in (self._wake_read, self._wake_write):
            sock.close()

    def send(self, connection: Connection, msg: Any) -> None:
        try:
            connection.send(frames.encode(message.encode(msg)))
        except (ConnectionLost, PeerEnded):
            pass

    # --- connections

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        for frame in received:
            msg = message.decode(frame.head)
            if not connection.remote:
                if not self._on_hello(connection, msg):
                    return
                continue
            receiver = self.receivers.get(type(msg))
            if receiver is not None:
                receiver(connection, msg, frame)

    def _on_hello(self, connection: Connection, hello: Any) -> bool:
        if type(hello) is not Hello or hello.version != VERSION:
            self.send(connection, Bye("not a Hello of this version"))
            connection.close("not a Hello of this version")
            return False
        connection.remote = hello.address
        connection.pid = hello.pid
        record = self.records.get(hello.address)
        if record is not None and record.ended is None:
            record.connection = connection
            if record.timer is not None:
                record.timer.cancel()
            self.send(record.mesh.connection, ProcStarted(record.mesh.uid, record.rank, hello.pid))
            if record.stopping and not record.told:
                self._stop_record(record, record.stopping, _ABANDONED_GRACE)
        return True

    def connection_lost(self, connection: Connection, reason: str) -> None:
        for record in list(self.records.values()):
            record.watchers.discard(connection)
        if connection is self.client:
            self.shutdown(_ABANDONED_GRACE)

    # --- starting

    def _on_spawn(self, connection: Connection, ask: SpawnProcs, frame: Frame) -> None:
        spec = msgspec.msgpack.decode(frame.body, type=LaunchSpec)
        output = MeshOutput(ask.name, spec.forward_logs, spec.prefix_with_rank)
        mesh = MeshRecord(ask.mesh, ask.owner, connection, output)
        self.meshes[ask.mesh] = mesh
        ranks = range(ask.first, ask.first + ask.count)
        listening: dict[int, socket.socket] = {}
        try:
            if self._closing:
                raise CannotLaunch("this host is shutting down")
            launch.check_room(ask.count, len(self.records))
            commands = [launch.command_for(spec, index, self.servers.alive) for index in range(ask.count)]
            for rank in ranks:
                address = proc_address(self.host, ask.mesh, rank)
                listening[rank] = unix.listen(unix.path_of(address))
        except (CannotLaunch, OSError) as exc:
            self._refuse(mesh, ranks, listening, _why(exc))
            return
        for rank in ranks:
            address = proc_address(self.host, ask.mesh, rank)
            record = mesh.records[rank] = self.records[address] = Record(mesh, rank, address)
            record.watchers.add(connection)
            patience = settings.get("host_spawn_ready_timeout") + (_PRELOAD_PATIENCE if spec.preload else 0.0)
            record.timer = self.loop.call_later(patience, lambda record=record: self._not_ready(record))  # type: ignore[misc]
        forked = [rank for rank, command in zip(ranks, commands, strict=True) if command is None]
        if forked:
            self._fork(mesh, spec, forked, ask.first, listening)
        for rank, command in zip(ranks, commands, strict=True):
            if command is not None:
                self._execute(mesh.records[rank], spec, command, listening[rank])
        for rank, sock in listening.items():
            sock.close()
            for watcher, timer in self._waiting.pop(proc_address(self.host, ask.mesh, rank), ()):
                timer.cancel()
                mesh.records[rank].watchers.add(watcher)
                self.send(watcher, Listening(mesh.records[rank].address))

    def _refuse(self, mesh: MeshRecord, ranks: range, listening: dict[int, socket.socket], why: str) -> None:
        """Nothing of the mesh runs; its owner is told once for the mesh and once for each rank."""
        for sock in listening.values():
            sock.close()
        self.send(mesh.connection, ProcsRefused(mesh.uid, why))
        for rank in ranks:
            address = proc_address(self.host, mesh.uid, rank)
            _unlink(unix.path_of(address))
            ended = ProcEnded(address, 0, 1, False, [], f"could not be started: {why}")
            self._remember(ended)
            self.send(mesh.connection, ended)
            for watcher, timer in self._waiting.pop(address, ()):
                timer.cancel()
                self.send(watcher, ended)

    def _fork(
        self,
        mesh: MeshRecord,
        spec: LaunchSpec,
        ranks: list[int],
        first: int,
        listening: dict[int, socket.socket],
    ) -> None:
        server = self.servers.serving(spec)
        server.send(("batch", len(ranks)), [_memory_file(msgspec.msgpack.encode(spec))])
        for rank in ranks:
            record = mesh.records[rank]
            fds = {"listen": os.dup(listening[rank].fileno()), **self.outputs.open(record.output)}
            server.fork(mesh.uid, rank, record.address, fds, spec.binds[rank - first] if spec.binds else {})

    def _execute(self, record: Record, spec: LaunchSpec, command: message.Command, listening: socket.socket) -> None:
        spec_fd = _memory_file(msgspec.msgpack.encode(spec))
        writing = self.outputs.open(record.output)
        given = f"{spec_fd},{listening.fileno()},{os.getpid()},{record.address},{record.rank}"
        try:
            process = subprocess.Popen(
                [command.arg0 or command.program, *command.args],
                executable=command.program,
                env={**command.env, "MONARCH_LAUNCH": given},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=writing.get("stdout"),
                stderr=writing["stderr"],
                pass_fds=(spec_fd, listening.fileno()),
                process_group=0,
            )
        except OSError as exc:
            self._end(record, 1, f"could not be started: {_why(exc)} ({command.program})")
        else:
            process.returncode = 0  # its end is noticed here, not by Popen
            self._on_pid(record, process.pid)
        finally:
            for fd in (spec_fd, *writing.values()):
                os.close(fd)

    def _on_preload(self, connection: Connection, hint: Preload, frame: Frame) -> None:
        self.servers.serving(msgspec.msgpack.decode(frame.body, type=LaunchSpec))

    def forked(self, mesh: str, rank: int, pid: int) -> None:
        record = self._record(mesh, rank)
        if record is None or record.ended is not None:
            _kill(pid, signal.SIGKILL)
        else:
            self._on_pid(record, pid)

    def not_forked(self, mesh: str, rank: int, why: str) -> None:
        record = self._record(mesh, rank)
        if record is not None:
            self._end(record, 1, why)

    def _record(self, mesh: str, rank: int) -> Record | None:
        known = self.meshes.get(mesh)
        return known.records.get(rank) if known is not None else None

    def _on_pid(self, record: Record, pid: int) -> None:
        record.pid = pid
        self.by_pid[pid] = record
        if pid in self._early:
            self._exited(record, self._early.pop(pid))
        elif record.stopping and not record.told and record.connection is None:
            _kill(pid, signal.SIGKILL)

    def _not_ready(self, record: Record) -> None:
        if record.ended is None and record.connection is None:
            patience = settings.get("host_spawn_ready_timeout")
            record.detail = f"was not ready within {patience:g} s (setting host_spawn_ready_timeout)"
            if record.pid:
                _kill(record.pid, signal.SIGKILL)
            else:
                self._end(record, 1, record.detail)

    # --- ending

    def _on_signal(self, _mask: int) -> None:
        try:
            self._wake_read.recv(4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            record = self.by_pid.get(pid)
            if record is not None:
                self._exited(record, code)
            else:  # its "forked" packet is still under way, or it is an orphan of a process of ours
                self._early[pid] = code
                if len(self._early) > 1024:
                    self._early.popitem(last=False)

    def _exited(self, record: Record, code: int) -> None:
        self.by_pid.pop(record.pid, None)
        _kill_group(record.pid)
        self._end(record, code, record.detail)

    def _end(self, record: Record, code: int, detail: str = "") -> None:
        if record.ended is not None:
            return
        self.outputs.close(record.output)
        if record.timer is not None:
            record.timer.cancel()
        stopped = bool(record.stopping) and not detail
        ended = ProcEnded(record.address, record.pid, code, stopped, list(record.output.tail), detail)
        record.ended = ended
        self._remember(ended)
        self.records.pop(record.address, None)
        _unlink(unix.path_of(record.address))
        for watcher in record.watchers:
            self.send(watcher, ended)
        mesh = record.mesh
        mesh.records.pop(record.rank, None)
        if not mesh.records:
            self._mesh_ended(mesh)
        for owned in [m for m in self.meshes.values() if m.owner == record.address]:
            self._stop_mesh(owned, "the process that spawned it has ended", _ABANDONED_GRACE)
        if self._closing and not self.records:
            self._finish()

    def _mesh_ended(self, mesh: MeshRecord) -> None:
        self.outputs.show_gathered([mesh.output])
        self.meshes.pop(mesh.uid, None)
        for connection, port in mesh.stop_waiters:
            self.send(connection, ProcsStopped(mesh.uid, port))

    def _remember(self, ended: ProcEnded) -> None:
        self.ended[ended.address] = ended
        if len(self.ended) > _ENDED_KEPT:
            self.ended.popitem(last=False)

    def _on_stop(self, connection: Connection, stop: StopProcs, frame: Frame) -> None:
        mesh = self.meshes.get(stop.mesh)
        if mesh is None:
            self.send(connection, ProcsStopped(stop.mesh, stop.port))
            return
        mesh.stop_waiters.append((connection, stop.port))
        self._stop_mesh(mesh, stop.reason, stop.grace, told=True)

    def _stop_mesh(self, mesh: MeshRecord, reason: str, grace: float, told: bool = False) -> None:
        for record in list(mesh.records.values()):
            self._stop_record(record, reason, grace, told)
        if not mesh.records:
            self._mesh_ended(mesh)

    def _stop_record(self, record: Record, reason: str, grace: float, told: bool = False) -> None:
        """Asks politely (unless its owner has `told` it), then with SIGTERM, then with SIGKILL."""
        record.stopping = reason or "stopped"
        record.told = told
        if record.timer is not None:
            record.timer.cancel()
        if record.connection is not None and not told:
            self.send(record.connection, StopProc(record.stopping))

        def term() -> None:
            if record.ended is None:
                _kill(record.pid, signal.SIGTERM)
                record.timer = self.loop.call_later(_TERM_TO_KILL, lambda: self._kill_record(record))

        record.timer = self.loop.call_later(grace, term)

    def _kill_record(self, record: Record) -> None:
        if record.ended is None:
            _kill(record.pid, signal.SIGKILL)
            if not record.pid:
                self._end(record, -signal.SIGKILL)

    def _on_watch(self, connection: Connection, watch: Watch, frame: Frame) -> None:
        record = self.records.get(watch.address)
        if record is not None:
            record.watchers.add(connection)
            self.send(connection, Listening(watch.address))
            return
        ended = self.ended.get(watch.address)
        if ended is not None:
            self.send(connection, ended)
            return
        if watch.address == self.client.remote:
            self.send(connection, Listening(watch.address))
            return

        def give_up() -> None:
            self._waiting.pop(watch.address, None)
            detail = "was never started on this host"
            self.send(connection, ProcEnded(watch.address, 0, 1, False, [], detail))

        timer = self.loop.call_later(settings.get("host_spawn_ready_timeout"), give_up)
        self._waiting.setdefault(watch.address, []).append((connection, timer))

    # --- output

    def _on_log_option(self, connection: Connection, option: LogOption, frame: Frame) -> None:
        mesh = self.meshes.get(option.mesh)
        if mesh is not None:
            self.outputs.set_option(mesh.output, option.stream, option.window)

    def _on_flush(self, connection: Connection, flush: Flush, frame: Frame) -> None:
        self.outputs.read_now()
        self.outputs.show_gathered(mesh.output for mesh in self.meshes.values())
        self.send(connection, Flushed(flush.token))

    # --- the end

    def shutdown(self, grace: float) -> None:
        """Stops every process, then ends the agent."""
        if self._closing:
            return
        self._closing = True
        for mesh in list(self.meshes.values()):
            self._stop_mesh(mesh, "the client has ended", grace)
        if not self.records:
            self._finish()

    def _finish(self) -> None:
        self.servers.close()
        self.outputs.flush()
        _kill_descendants()
        remove_directory(self.directory)
        self.transport.close()
        self.client.close("the agent has ended")
        self.loop.stop()


def _why(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        where = f": {exc.filename}" if exc.filename else ""
        return f"{exc.strerror}{where}"
    return str(exc)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("monarch-launch", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _kill(pid: int, number: int) -> None:
    if pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _kill_group(pid: int) -> None:
    """Whatever a process that ended has left in its process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_descendants() -> None:
    """Zygotes, and orphans that left their process groups: as subreaper we are the parent of them all."""
    me = os.getpid()
    for _ in range(100):
        try:
            with open(f"/proc/{me}/task/{me}/children") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not children:
            return
        for pid in children:
            _kill(pid, signal.SIGKILL)
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def main() -> None:
    """`main()` in a fresh interpreter: argv is (runtime folder, descriptor of the client's socket)."""
    directory, descriptor = sys.argv[1:3]
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sock, _pid = _first_zygote(int(descriptor))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    client = socket.socket(fileno=int(descriptor))
    agent = HostAgent(directory, client, sock)
    agent.run()


def _first_zygote(descriptor: int) -> tuple[socket.socket, int]:
    """Forked before anything is open here; must not keep the client's socket, whose end we wait for."""
    os.set_inheritable(descriptor, False)
    return zygote.start([], close=[descriptor])


if __name__ == "__main__":
    main()
