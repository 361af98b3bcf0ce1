"""The host agent: starts the processes of a host, tells whoever asks when they end, and ends with its client.

Single-threaded, runs no user code, unpickles nothing. It is a subreaper, so every process that descends from it and loses
its parent comes to it, and none is left when it goes.
"""

from __future__ import annotations

import codecs
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from monarch._mesh import launch, logs, zygote
from monarch._mesh.launch import CannotLaunch
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
    Output,
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
_ZYGOTES = 4  # fork servers kept beside the first; the longest unused goes
_PRELOAD_PATIENCE = (
    120.0  # seconds more until a process must be up when its fork server imports modules first
)
_TAIL = 64


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
        self.outputs: dict[int, OutputPipe] = {}
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.timer: Timer | None = None
        self.detail = ""


class MeshRecord:
    def __init__(self, uid: str, name: str, owner: str, connection: Connection) -> None:
        self.uid = uid
        self.name = name
        self.owner = owner
        self.connection = connection
        self.records: dict[int, Record] = {}
        self.stop_waiters: list[tuple[Connection, int]] = []
        self.stream = False
        self.aggregators: dict[int, logs.Aggregator] = {}
        self.window = 0.0
        self.with_rank = True
        self.forward = False


class OutputPipe:
    """The reading end of a process's stdout or stderr."""

    def __init__(self, fd: int, stream: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.stream = stream
        self.lines = logs.Lines()
        self.text = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character


class ForkServer:
    """The agent's end of a zygote."""

    def __init__(self, sock: socket.socket, key: Any) -> None:
        self.sock = sock
        self.key = key
        self.alive = True


class HostAgent:
    """`host` is the address prefix; `client` the socket to the client that started us."""

    def __init__(self, directory: str, client: socket.socket, first: ForkServer) -> None:
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
        self._first = first
        self._servers: OrderedDict[Any, ForkServer] = OrderedDict()
        self._closing = False
        self._echo = {1: logs.Echo(1), 2: logs.Echo(2)}
        self._echo_timer: Timer | None = None
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
        self._watch_server(first)

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
        mesh = MeshRecord(ask.mesh, ask.name, ask.owner, connection)
        mesh.forward = spec.forward_logs
        mesh.with_rank = spec.prefix_with_rank
        self.meshes[ask.mesh] = mesh
        ranks = range(ask.first, ask.first + ask.count)
        listening: dict[int, socket.socket] = {}
        try:
            if self._closing:
                raise CannotLaunch("this host is shutting down")
            launch.check_room(ask.count, len(self.records))
            commands = [launch.command_for(spec, index) for index in range(ask.count)]
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

    def _pipes(self, record: Record, spec: LaunchSpec) -> dict[str, int]:
        """Writing ends for the process; the reading ends are watched here."""
        writing = {}
        for name, stream in (("stdout", 1), ("stderr", 2)):
            if stream == 1 and not spec.forward_logs:
                continue
            read_fd, write_fd = os.pipe()
            pipe = record.outputs[stream] = OutputPipe(read_fd, stream)
            self.loop.add(read_fd, lambda mask, record=record, pipe=pipe: self._on_output(record, pipe))  # type: ignore[misc]
            writing[name] = write_fd
        return writing

    def _fork(
        self,
        mesh: MeshRecord,
        spec: LaunchSpec,
        ranks: list[int],
        first: int,
        listening: dict[int, socket.socket],
    ) -> None:
        server = self._server_for(spec)
        spec_fd = _memory_file(msgspec.msgpack.encode(spec))
        try:
            zygote.send_packet(server.sock, ("batch", len(ranks)), [spec_fd])
            for rank in ranks:
                record = mesh.records[rank]
                writing = self._pipes(record, spec)
                bind = spec.binds[rank - first] if spec.binds else {}
                names, fds = ["listen", *writing], [listening[rank].fileno(), *writing.values()]
                zygote.send_packet(server.sock, ("proc", mesh.uid, rank, record.address, names, bind), fds)
                for fd in writing.values():
                    os.close(fd)
        except OSError as exc:
            for rank in ranks:
                self._end(mesh.records[rank], 1, f"could not be forked: {_why(exc)}")
        finally:
            os.close(spec_fd)

    def _execute(
        self, record: Record, spec: LaunchSpec, command: message.Command, listening: socket.socket
    ) -> None:
        spec_fd = _memory_file(msgspec.msgpack.encode(spec))
        writing = self._pipes(record, spec)
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

    # --- fork servers

    def _on_preload(self, connection: Connection, hint: Preload, frame: Frame) -> None:
        self._server_for(msgspec.msgpack.decode(frame.body, type=LaunchSpec))

    def _server_for(self, spec: LaunchSpec) -> ForkServer:
        """The zygote that fits the spec's preloads and load-time environment, started if need be."""
        sensitive = zygote.load_time_env(spec.env)
        if not spec.preload and sensitive == zygote.load_time_env(dict(os.environ)):
            return self._first
        key = (tuple(spec.preload), tuple(sorted(sensitive.items())))
        server = self._servers.get(key)
        if server is not None and server.alive:
            self._servers.move_to_end(key)
            return server
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Only what is read at load time differs; each process gets its whole environment when it is forked.
        env = {**{k: v for k, v in os.environ.items() if not zygote.load_time_env({k: v})}, **sensitive}
        zygote.send_packet(self._first.sock, ("zygote", spec.preload, env), [theirs.fileno()])
        theirs.close()
        server = self._servers[key] = ForkServer(ours, key)
        self._watch_server(server)
        if len(self._servers) > _ZYGOTES:
            _, oldest = self._servers.popitem(last=False)
            self._drop_server(oldest)
        return server

    def _watch_server(self, server: ForkServer) -> None:
        server.sock.setblocking(True)
        self.loop.add(server.sock.fileno(), lambda mask: self._on_server(server))

    def _drop_server(self, server: ForkServer) -> None:
        if server.alive:
            server.alive = False
            self.loop.remove(server.sock.fileno())
            server.sock.close()

    def _on_server(self, server: ForkServer) -> None:
        received = zygote.receive_packet(server.sock)
        if received is None:
            self._drop_server(server)
            for record in list(self.records.values()):
                if not record.pid and record.ended is None:
                    self._end(record, 1, "could not be forked: the fork server ended")
            return
        (what, uid, rank, said), _fds = received
        mesh = self.meshes.get(uid)
        known = mesh.records.get(rank) if mesh is not None else None
        if what == "failed" and known is not None:
            self._end(known, 1, said)
        elif what == "forked":
            if known is None or known.ended is not None:
                _kill(said, signal.SIGKILL)
            else:
                self._on_pid(known, said)

    def _on_pid(self, record: Record, pid: int) -> None:
        record.pid = pid
        self.by_pid[pid] = record
        if pid in self._early:
            self._exited(record, self._early.pop(pid))
        elif record.stopping and not record.told and record.connection is None:
            _kill(pid, signal.SIGKILL)

    def _not_ready(self, record: Record) -> None:
        if record.ended is None and record.connection is None:
            record.detail = f"was not ready within {settings.get('host_spawn_ready_timeout'):g} s (setting host_spawn_ready_timeout)"
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
        for pipe in record.outputs.values():
            self._read_rest(record, pipe)
        if record.timer is not None:
            record.timer.cancel()
        stopped = bool(record.stopping) and not detail
        ended = ProcEnded(record.address, record.pid, code, stopped, list(record.tail), detail)
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
        self._flush_aggregates(mesh)
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

    def _on_output(self, record: Record, pipe: OutputPipe) -> None:
        if self._echo[pipe.stream].full:
            self._echo_later()
            self.loop.pause(pipe.fd)
            return
        try:
            data = os.read(pipe.fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._output(record, pipe, data)
        else:
            self._close_pipe(pipe)

    def _close_pipe(self, pipe: OutputPipe) -> None:
        if pipe.fd >= 0:
            self.loop.remove(pipe.fd)
            os.close(pipe.fd)
            pipe.fd = -1

    def _read_rest(self, record: Record, pipe: OutputPipe) -> None:
        """What a process that is gone still had in its pipe."""
        while pipe.fd >= 0:
            try:
                data = os.read(pipe.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self._output(record, pipe, data)
        self._lines(record, pipe, pipe.lines.flush())
        self._close_pipe(pipe)

    def _output(self, record: Record, pipe: OutputPipe, data: bytes) -> None:
        mesh = record.mesh
        if not mesh.forward:
            echo = self._echo[pipe.stream]
            echo.write(data)
            if echo.pending:
                self._echo_later()
        elif not mesh.stream:
            text = pipe.text.decode(data)
            if text:
                self.send(self.client, Output(pipe.stream, text))
        self._lines(record, pipe, pipe.lines.feed(data))

    def _lines(self, record: Record, pipe: OutputPipe, lines: list[str]) -> None:
        if pipe.stream == 2:
            record.tail.extend(lines)
        mesh = record.mesh
        if not lines or not mesh.forward or not mesh.stream:
            return
        if mesh.window:
            self._gather(mesh, pipe.stream, record.rank, lines)
            return
        proc = f"{mesh.name}-{record.rank}"
        host = socket.gethostname()
        text = "".join(logs.prefixed(host, proc, record.rank, line, mesh.with_rank) + "\n" for line in lines)
        self.send(self.client, Output(pipe.stream, text))

    def _gather(self, mesh: MeshRecord, stream: int, rank: int, lines: list[str]) -> None:
        """Folds lines into the window of their stream; the first of a window sets the clock."""
        aggregator = mesh.aggregators.setdefault(stream, logs.Aggregator(mesh.window))
        for line in lines:
            now = self.loop.now()
            fresh = aggregator.due(now) is None
            aggregator.add(rank, line, now)
            if fresh:
                self.loop.call_later(
                    mesh.window, lambda: self._window_ends(stream, aggregator, mesh.with_rank)
                )
            self._window_ends(stream, aggregator, mesh.with_rank)

    def _window_ends(self, stream: int, aggregator: logs.Aggregator, with_rank: bool) -> None:
        """Shows what was gathered if it is time: a window shown early has begun anew, with its own clock."""
        due = aggregator.due(self.loop.now())
        if due is not None and due <= self.loop.now():
            self.send(self.client, Output(stream, aggregator.take(logs.clock(), with_rank)))

    def _flush_aggregates(self, mesh: MeshRecord) -> None:
        for stream, aggregator in mesh.aggregators.items():
            text = aggregator.take(logs.clock(), mesh.with_rank)
            if text:
                self.send(self.client, Output(stream, text))

    def _echo_later(self) -> None:
        """The terminal takes no more for now: tries again, and reads on from the processes then."""
        if self._echo_timer is not None:
            return

        def again() -> None:
            self._echo_timer = None
            for echo in self._echo.values():
                echo.flush()
            if any(echo.pending for echo in self._echo.values()):
                self._echo_later()
            if not any(echo.full for echo in self._echo.values()):
                for record in self.records.values():
                    for pipe in record.outputs.values():
                        if pipe.fd >= 0:
                            self.loop.resume(pipe.fd)

        self._echo_timer = self.loop.call_later(0.02, again)

    def _on_log_option(self, connection: Connection, option: LogOption, frame: Frame) -> None:
        mesh = self.meshes.get(option.mesh)
        if mesh is not None:
            self._read_now(mesh.records.values())  # what was written until now is shown as it would have been
            self._flush_aggregates(mesh)
            mesh.stream, mesh.window = option.stream, option.window
            mesh.aggregators = {}

    def _on_flush(self, connection: Connection, flush: Flush, frame: Frame) -> None:
        self._read_now(self.records.values())
        for mesh in self.meshes.values():
            self._flush_aggregates(mesh)
        self.send(connection, Flushed(flush.token))

    def _read_now(self, records: Iterable[Record]) -> None:
        """Takes what stands in the pipes; one read takes as much as a pipe holds."""
        for record in list(records):
            for pipe in list(record.outputs.values()):
                if pipe.fd >= 0:
                    self._on_output(record, pipe)

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
        for server in (self._first, *self._servers.values()):
            self._drop_server(server)
        for echo in self._echo.values():
            echo.flush()
        _kill_descendants()
        remove_directory(self.directory)
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
    agent = HostAgent(directory, client, ForkServer(sock, None))
    agent.run()


def _first_zygote(descriptor: int) -> tuple[socket.socket, int]:
    """Forked before anything is open here; must not keep the client's socket, whose end we wait for."""
    os.set_inheritable(descriptor, False)
    return zygote.start([], close=[descriptor])


if __name__ == "__main__":
    main()
