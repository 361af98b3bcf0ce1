"""The host agent: starts the processes of a host, tells those that ask when they end, carries frames to other hosts and back.

A client's own agent ends with the client; a worker's ends when it is shut down, or with the process that started it.
Single-threaded but for the looking up of host names, runs no user code, unpickles nothing. It is a subreaper, so every
process that descends from it and loses its parent comes to it, and none is left when it goes. What is told to whom is
decided by its Roster; here is what touches the operating system.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from monarch._linux import private_files, procfs
from monarch._mesh.agent.base_host_agent import BaseHostAgent
from monarch._mesh.agent.effects import Start
from monarch._mesh.agent.host_links import HostLinks, HostListener
from monarch._mesh.agent.neighbours import is_neighbour
from monarch._mesh.agent.oom import OutOfMemory
from monarch._mesh.agent.roster import ABANDONED_GRACE
from monarch._mesh.agent.routes import HostLink
from monarch._mesh.inspection import fault_signal
from monarch._mesh.output.capture import MeshOutput, Outputs, ProcOutput
from monarch._mesh.output.rank_files import folder_of
from monarch._mesh.start import agent_process, device_slots, forkserver, launch, leftovers, threads
from monarch._mesh.start.agent_process import AgentOptions, Credentials
from monarch._mesh.start.forkserver_pool import ForkServers, Order
from monarch._mesh.start.launch import CannotLaunch
from monarch._mesh.start.run_directory import remove_directory
from monarch._runtime.internal_errors import end_process
from monarch._runtime.loop import Loop, TimerHandle
from monarch._wire import os_text
from monarch._wire.address import AGENT, CLIENT, host_of, is_dialable, name_of
from monarch._wire.frame import Frame
from monarch._wire.link_connection import LinkConnection
from monarch._wire.message import (
    VALUE,
    Answer,
    AskDirect,
    Attach,
    AttachedHost,
    Command,
    Flush,
    Flushed,
    LaunchSpec,
    LinkHello,
    LogOption,
    Output,
    Preload,
    Printed,
    ProcEnded,
    SetCredentials,
)
from monarch._wire.relay import Relay
from monarch._wire.transport import unix
from monarch._wire.transport.base import Connection
from monarch.config import settings

logger = logging.getLogger("monarch")
_FORK_ATTEMPTS = 2  # fork servers that are asked for a process, should one end before it has forked it


class Prepared:
    """The things that a process gets to start with: its listening socket, and what to execute (None: it is forked)."""

    def __init__(self, command: Command | None, listening: socket.socket) -> None:
        self.command = command
        self.listening = listening


class HostAgent(BaseHostAgent):
    """`sock` leads to the process that started us (see AgentOptions); `first` to the first fork server."""

    def __init__(
        self, options: AgentOptions, loop: Loop, listening: HostListener, sock: socket.socket, first: socket.socket
    ) -> None:
        super().__init__(listening.prefix or f"unix:{options.directory}", loop)
        self.directory = directory = options.directory
        self.servers = ForkServers(first, self.loop, self)
        self.outputs = Outputs(self.loop, self._to_client, self._has_room)
        self._meshes: dict[str, MeshOutput] = {}
        self._shares: dict[str, int] = {}  # mesh -> threads of each of its processes
        self._devices = device_slots.HostDeviceSlots()
        self._prepared: dict[tuple[str, int], Prepared] = {}
        self._forking: dict[tuple[str, int], LaunchSpec] = {}  # asked of a fork server, and not answered
        self._running: dict[tuple[str, int], ProcOutput] = {}
        self._memory = OutOfMemory()
        self._wake_read, self._wake_write = socket.socketpair()
        limits = (settings.outgoing_queue_bytes(), settings.codec_max_frame_length())
        self.transport = unix.UnixTransport(directory, self.loop, self, lambda: limits)
        self.transport.listen(unix.listen(os.path.join(directory, AGENT)))
        self.hostname = socket.gethostname()
        self.pushed: dict[str, str] = {}  # environment for processes that other hosts ask for
        self.links = HostLinks(options, loop, self.routes, listening)
        self.routes.gateway = options.gateway
        self.lease = Lease(options.lease, self.loop.now())
        self._lease_timer: TimerHandle | None = None
        self._starter = sock
        self.client: Connection | None = None
        if not options.worker:
            self.client = self.transport.connect(sock, f"{self.host}/{CLIENT}")
            self.routes.joined(CLIENT, self.client)
        self.receivers[Flush] = lambda connection, flush, frame: self._on_flush(connection, flush)
        self.receivers[Printed] = lambda connection, msg, frame: self.outputs.printed(msg.counted, msg.size)
        self.receivers[LogOption] = lambda connection, option, frame: self._on_log_option(connection, option)
        self.receivers[Preload] = lambda connection, hint, frame: self._on_preload(frame)
        self.receivers[Attach] = lambda connection, attach, frame: self._on_attach(connection, attach)
        self.receivers[AskDirect] = lambda connection, ask, frame: self._on_ask_direct(connection, ask)
        self.receivers[SetCredentials] = lambda connection, trust, frame: self._on_trust(trust, frame)

    def run(self) -> None:
        """Serves until the process that started us is gone and every process with it."""
        self._wake_write.setblocking(False)
        self._wake_read.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(
            signal.SIGTERM, lambda *_: self.loop.call_soon(lambda: self._leave("its host agent was told to end"))
        )
        self.loop.add(self._wake_read.fileno(), self._on_signal)
        if self.client is not None:
            self.client.start()  # type: ignore[attr-defined]
        else:
            self.loop.add(self._starter.fileno(), lambda mask: self._on_starter_gone())
            self._wait_for_clients()
        self.loop.run()
        for sock in (self._wake_read, self._wake_write, *(() if self.client is not None else (self._starter,))):
            sock.close()

    def _on_starter_gone(self) -> None:
        self.loop.remove(self._starter.fileno())
        self._leave("the worker program there has ended")

    def _leave(self, why: str) -> None:
        """Nobody asked for it who owns something here: to others this host is lost, at once."""
        self.links.close()
        self.routes.close(why)
        self.shutdown(ABANDONED_GRACE)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        super().connection_lost(connection, reason)
        if connection is self.client:
            self.shutdown(ABANDONED_GRACE)

    # --- other hosts

    def begin_link(self, host: str) -> HostLink:
        return self.links.dial(host)

    def is_near(self, host: str) -> bool:
        return is_neighbour(host)

    def take_link(self, hello: LinkHello) -> HostLink:
        if not is_dialable(hello.host):
            self._client_came(hello.host)
        return self.links.take(hello)

    def host_lost(self, host: str, why: str) -> None:
        super().host_lost(host, why)
        self._client_left(host)

    def _on_far_ended(self, ended: ProcEnded) -> None:
        super()._on_far_ended(ended)
        self._client_left(ended.address)

    def host_suspected(self, host: str, why: str) -> None:
        super().host_suspected(host, why)
        link = self.routes.links().get(host)
        if why and self.client is None and isinstance(link, LinkConnection) and not link.other_agent:
            logger.warning("host %s cannot be reached yet: %s", host, why)  # its client cannot see that
        known = is_dialable(host) or is_neighbour(host)
        if why and isinstance(link, LinkConnection) and not link.dials and known:
            self.links.look_after(host, link)

    def _on_attach(self, connection: Connection, attach: Attach) -> None:
        """A client will use this host: processes that other hosts ask for get this environment."""
        self._client_came(connection.remote)
        self.take_moves(connection, attach)
        self.pushed = os_text.decode(attach.env, dict[str, str])
        settings.restore(msgspec.msgpack.decode(attach.config))
        facts = AttachedHost(self.hostname, os.getpid(), sys.version.split()[0], self.routes.agent)
        self.send(connection, Answer(attach.port, attach.rank, VALUE), msgspec.msgpack.encode(facts))

    def _on_ask_direct(self, connection: Connection, ask: AskDirect) -> None:
        if type(connection) is Relay:  # the secret leaves this host for nobody
            return
        if ask.hello is not None:
            self.links.open_stream(ask.hello, lambda told: self.send(connection, told))
            return
        told = self.links.may_dial(ask.address)
        told.stream = ask.stream
        self.send(connection, told)

    def _on_trust(self, trust: SetCredentials, frame: Frame) -> None:
        settings.restore(msgspec.msgpack.decode(trust.config))
        credentials = msgspec.msgpack.decode(frame.body, type=Credentials)
        for host in trust.hosts:
            self.links.trust(host, credentials)

    def _has_room(self, client: str) -> bool:
        """True if output may be sent there: a program that is stopped takes none, and memory is not to grow meanwhile."""
        here = self.client is not None and client in ("", self.client.remote)
        way = self.client if here else self.routes.way_to(host_of(client)) if client else None
        return way is None or way.queued < 2 * settings.outgoing_queue_bytes()

    def _to_client(self, client: str, output: Output) -> None:
        if self.client is not None and client in ("", self.client.remote):
            self.send(self.client, output)
        elif client:
            self._to_far(client, output)

    # --- clients, and none

    def _client_came(self, client: str) -> None:
        self.lease.came(client)
        self._wait_for_clients()

    def _client_left(self, client: str) -> None:
        self.lease.left(client, self.loop.now())
        self._wait_for_clients()

    def _wait_for_clients(self) -> None:
        """Until the lease is over, while there is none."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        due = self.lease.due()
        if due != NEVER:
            self._lease_timer = self.loop.call_later(max(0.0, due - self.loop.now()), self._look_at_lease)

    def _look_at_lease(self) -> None:
        self._lease_timer = None
        if self.lease.is_over(self.loop.now()):
            logger.warning("host %s ends: %s", self.host, self.lease.verdict())
            self._leave(self.lease.verdict())
        else:
            self._wait_for_clients()

    # --- starting

    def prepare(self, starts: Sequence[Start]) -> None:
        listening: list[socket.socket] = []
        try:
            launch.check_room(len(starts), len(self.roster) - len(starts))
            self._share_threads(starts[0])
            self._share_devices(starts)
            can_fork = self.servers.usable()
            commands = [launch.command_for(start.spec, start.place, can_fork) for start in starts]
            for start in starts:
                listening.append(unix.listen(self._path_of(start.address)))
        except (CannotLaunch, OSError) as exc:
            for start, sock in zip(starts, listening, strict=False):
                sock.close()
                _unlink(self._path_of(start.address))
            self.act(self.roster.refused(self.loop.now(), starts, _why(exc)))
            return
        for start, command, sock in zip(starts, commands, listening, strict=True):
            self._prepared[start.key] = Prepared(command, sock)
        self.act(self.roster.prepared(self.loop.now(), starts))

    def _share_threads(self, start: Start) -> None:
        """Shares the processor's threads among processes. Those that take the place of others of the mesh get what
        those had."""
        spec = start.spec
        if spec.share_threads and not threads.is_said(spec.env):
            if start.mesh not in self._shares:
                self._shares[start.mesh] = threads.share(threads.processors(), len(self.roster))
            spec.threads = self._shares[start.mesh]

    def _share_devices(self, starts: Sequence[Start]) -> None:
        """Shares the devices, as `_share_threads` does."""
        first = starts[0]
        spec = first.spec
        if spec.share_devices and device_slots.driver_here():
            processes = max(start.place for start in starts) + 1
            rank = first.rank - first.place
            spec.devices = self._devices.give(first.mesh, first.name, rank, processes, spec.share_devices)

    def _path_of(self, address: str) -> str:
        return os.path.join(self.directory, name_of(address))

    def adapt_spec(self, spec: LaunchSpec) -> None:
        spec.folder = self.directory
        if spec.change is not None:
            launch.adapt_spec(spec, {**os.environ, **self.pushed})

    def launch(self, starts: Sequence[Start]) -> None:
        """All of one mesh, with one spec."""
        spec, orders = starts[0].spec, []
        spec.reached_at = self.routes.at(host_of(starts[0].address))
        for start in starts:
            prepared = self._prepared.pop(start.key)
            if prepared.command is not None:
                self._execute(start, prepared.command, prepared.listening)
                prepared.listening.close()
            else:
                fds = {"listen": prepared.listening.detach(), **self._open_output(start)}
                orders.append(Order(*start.key, fds, spec.binds[start.place] if spec.binds else {}))
        if orders:
            self._fork(spec, orders)

    def _fork(self, spec: LaunchSpec, orders: Sequence[Order]) -> None:
        for order in orders:
            self._forking[order.key] = spec
        self.servers.serving(spec).fork(private_files.memory_file(os_text.encode(spec)), orders)

    def fork_server_ended(self, orders: Sequence[Order], why: str) -> None:
        """Asks another fork server for what the ended one had still to fork; what failed there too is told."""
        again: dict[int, list[Order]] = {}
        for order in orders:
            if order.tried < _FORK_ATTEMPTS and order.key in self._forking and self.servers.usable():
                again.setdefault(id(self._forking[order.key]), []).append(order)
            else:
                order.close()
                self.not_forked(*order.key, f"could not be forked: {why}")
        for same in again.values():
            self._fork(self._forking[same[0].key], same)

    def _execute(self, start: Start, command: Command, listening: socket.socket) -> None:
        spec_fd = private_files.memory_file(os_text.encode(start.spec))
        writing = self._open_output(start)
        given = f"{spec_fd},{listening.fileno()},{os.getpid()},{start.place},{start.incarnation},{start.address}"
        try:
            process = subprocess.Popen(
                [command.arg0 or command.program, *command.args],
                executable=command.program,
                env={**command.env, "MONARCH_LAUNCH": given, leftovers.RUN: self.directory},
                cwd=start.spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=writing.get("stdout"),
                stderr=writing["stderr"],
                pass_fds=(spec_fd, listening.fileno()),
                process_group=0,
            )
        except OSError as exc:
            self.not_forked(*start.key, f"could not be started: {_why(exc)} ({command.program})")
        else:
            process.returncode = 0  # its end is noticed here, not by Popen
            self.forked(*start.key, process.pid)
        finally:
            for fd in (spec_fd, *writing.values()):
                os.close(fd)

    def _open_output(self, start: Start) -> dict[str, int]:
        mesh = self._meshes.get(start.mesh)
        if mesh is None:
            spec = start.spec
            told, config = settings.told, msgspec.msgpack.decode(spec.config)
            tail, limit = told(config, settings.tail_log_lines), told(config, settings.log_file_bytes)
            files = folder_of(told(config, settings.log_dir)) if told(config, settings.enable_file_capture) else ""
            forward, with_rank = spec.forward_logs, spec.prefix_with_rank
            mesh = MeshOutput(start.name, forward, with_rank, spec.client, tail, spec.stream_lines, files, limit)
            self._meshes[start.mesh] = mesh
        output = self._running[start.key] = ProcOutput(mesh, start.rank, start.address, start.incarnation)
        return self.outputs.open(output)

    def _on_preload(self, frame: Frame) -> None:
        spec = self.decode_spec(frame)
        if spec.warm:
            self.servers.warm(spec)
        else:
            self.servers.serving(spec)

    def forked(self, address: str, incarnation: int, pid: int) -> None:
        self._forking.pop((address, incarnation), None)
        self.act(self.roster.pid_known(self.loop.now(), address, incarnation, pid))

    def not_forked(self, address: str, incarnation: int, why: str) -> None:
        self._forking.pop((address, incarnation), None)
        self.act(self.roster.not_started(self.loop.now(), address, incarnation, why))

    # --- ending

    def send_signal(self, pid: int, number: int) -> None:
        _kill(pid, number)

    def _on_signal(self, _mask: int) -> None:
        try:
            self._wake_read.recv(4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if not pid:
                return
            self._on_status(pid, status)

    def _on_status(self, pid: int, status: int) -> None:
        now = self.loop.now()
        if os.WIFSTOPPED(status):
            self.servers.stopped(pid)
            self.act(self.roster.stopped(now, pid, os.WSTOPSIG(status)))
        elif os.WIFCONTINUED(status):
            self.act(self.roster.continued(now, pid))
        else:
            code = os.waitstatus_to_exitcode(status)
            unexplained = code == -signal.SIGKILL and not self.roster.killing(pid)
            self.act(self.roster.exited(now, pid, code, self._memory.killed(pid) if unexplained else ""))

    def release(self, ended: ProcEnded) -> None:
        key = (ended.address, ended.incarnation)
        if ended.pid:
            _kill_group(ended.pid)
        prepared = self._prepared.pop(key, None)
        if prepared is not None:
            prepared.listening.close()
        output = self._running.pop(key, None)
        if output is not None:
            self.outputs.close(output)
            ended.tail.extend(output.tail.shown(crashed=ended.code < 0))
        _unlink(self._path_of(ended.address))
        fault_signal.forget(self.directory, name_of(ended.address))
        ended.hostname = self.hostname

    def mesh_ended(self, mesh: str) -> None:
        self._shares.pop(mesh, None)
        self._devices.release(mesh)
        output = self._meshes.pop(mesh, None)
        if output is not None:
            self.outputs.mesh_ended(output)

    # --- output

    def _on_log_option(self, connection: Connection, option: LogOption) -> None:
        mesh = self._meshes.get(option.mesh)
        if mesh is not None:
            self.outputs.set_option(mesh, option.stream, option.window)
        self.send(connection, Answer(option.port, option.rank, VALUE))

    def _on_flush(self, connection: Connection, flush: Flush) -> None:
        self.outputs.read_now()
        self.outputs.show_gathered(self._meshes.values())
        self.send(connection, Flushed(flush.token))

    # --- the end

    def finish(self) -> None:
        self.routes.close("it was shut down")
        self.links.close()
        self.servers.close()
        self.outputs.flush()
        self.outputs.files.flush(1.0)
        self._memory.close()
        _kill_descendants()
        remove_directory(self.directory)
        self.transport.close()
        if self.client is not None:
            self.client.close("the agent has ended")
        self.loop.stop()


def _why(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        where = f": {exc.filename}" if exc.filename else ""
        return f"{exc.strerror}{where}"
    return str(exc)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill_group(pid: int) -> None:
    """Kills all that a process that ended has left in its process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_descendants() -> None:
    """Fork servers, and orphans that left their process groups: as subreaper we are the parent of them all."""
    for _ in range(100):
        children = procfs.children_of("self")
        if not children:
            return
        for pid in children:
            _kill(pid, signal.SIGKILL)
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def run(descriptors: list[int], preload: list[str], begun: socket.socket | None) -> None:
    """The life of an agent: see `main`. `begun` leads to a fork server that imports `preload`."""
    first, _pid = forkserver.start([], close=[*descriptors, *(() if begun is None else (begun.fileno(),))])
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sock = socket.socket(fileno=descriptors[0])
    options = agent_process.read_options(sock)
    loop = Loop("monarch-agent")
    loop.ended_unasked = end_process
    try:
        listening = HostListener(options, loop)
    except (OSError, ValueError) as exc:
        agent_process.write(sock, agent_process.AgentStarted(error=_why(exc)))
        remove_directory(options.directory)
        return
    if options.listen:
        agent_process.write(sock, agent_process.AgentStarted(listening.prefix))
    try:
        agent = HostAgent(options, loop, listening, sock, first)
    except OSError as exc:
        if not os.path.isdir(options.directory):  # whoever started us has failed, said so and gone
            return
        raise SystemExit(f"monarch: the host agent cannot begin: {exc}") from None
    if begun is not None:
        agent.servers.add(begun, preload)
    agent.run()


NEVER = float("inf")
_ROUNDING = 1e-6  # seconds that a timer may be early


class Lease:
    """The time that a worker waits for a client before it ends by itself: `seconds`, 0 for ever. Pure.

    A client is a process that has attached, or a client's machine that has made a link. The lease runs while there is
    none: from the worker's start, and from the moment that the last one left or was lost.
    """

    __slots__ = ("_clients", "_since", "seconds")

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self._clients: set[str] = set()  # addresses of processes, and prefixes of hosts
        self._since = now  # when there was a client last, or the start

    def came(self, client: str) -> None:
        self._clients.add(client)

    def left(self, client: str, now: float) -> None:
        """Notes that a process or host is gone; with a host, its processes."""
        before = len(self._clients)
        self._clients = {known for known in self._clients if known != client and host_of(known) != client}
        if before and not self._clients:
            self._since = now

    def due(self) -> float:
        """Returns when it is over unless a client comes; NEVER while there is one."""
        return NEVER if self._clients or self.seconds <= 0 else self._since + self.seconds

    def is_over(self, now: float) -> bool:
        return now + _ROUNDING >= self.due()

    def verdict(self) -> str:
        """Returns why the worker ended, with the setting that decides it."""
        return f"no client for {self.seconds:g} s (setting worker_lease, MONARCH_WORKER_LEASE, --lease)"
