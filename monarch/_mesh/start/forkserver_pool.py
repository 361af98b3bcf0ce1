"""The agent's fork servers: which one serves a launch, what was asked of it, what became of that.

Never waits for a fork server: one that is busy importing torch gets its packets when it reads again. One that ends is
replaced when the next is wanted, and what it had not forked is asked of that.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from monarch._linux import private_files
from monarch._mesh.start.forkserver_protocol import load_time_env, receive_packet, send_packet
from monarch._runtime.loop import Loop
from monarch._wire import os_text
from monarch._wire.message import LaunchSpec

KEPT = 4  # fork servers beside the first; the longest unused goes


class Order:
    """A process that is to be forked. Its descriptors are open here until it is, for another fork server to have them."""

    def __init__(self, address: str, incarnation: int, fds: dict[str, int], bind: dict[str, str]) -> None:
        self.key = (address, incarnation)
        self.fds = fds
        self.bind = bind
        self.tried = 0

    def close(self) -> None:
        _close_all(self.fds.values())
        self.fds = {}


class Launched(Protocol):
    """The one who asked for processes. Called on the agent's loop."""

    def forked(self, address: str, incarnation: int, pid: int) -> None: ...
    def not_forked(self, address: str, incarnation: int, why: str) -> None: ...
    def fork_server_ended(self, orders: Sequence[Order], why: str) -> None:
        """It has forked none of these. They are the caller's now."""


class ForkServer:
    """The agent's end of one fork server. `pending`: asked for and not answered yet; `pid`: 0 until it has said so. `ready`:
    whether it forks at once, as far as is known; one that does not says when it will."""

    def __init__(self, sock: socket.socket, loop: Loop, launched: Launched, ready: bool = True) -> None:
        sock.setblocking(False)
        self.alive = True
        self.ready = ready
        self.pid = 0
        self._why = "the fork server has ended"
        self.pending: dict[tuple[str, int], Order] = {}
        self._sock = sock
        self._loop = loop
        self._launched = launched
        self._out: deque[tuple[Any, list[int], list[int]]] = deque()  # and which descriptors are to be closed then
        loop.add(sock.fileno(), self._on_event)

    def send(self, packet: Any, fds: list[int]) -> None:
        """Sends, or keeps until there is room. The descriptors are this object's from now on."""
        self._send(packet, fds, fds)

    def _send(self, packet: Any, fds: list[int], own: list[int]) -> None:
        if not self.alive:
            _close_all(own)
            return
        self._out.append((packet, fds, own))
        self._flush()

    def fork(self, spec: int, orders: Sequence[Order]) -> None:
        """Forks these processes; `spec` is the descriptor of what they have in common."""
        self.pending.update((order.key, order) for order in orders)
        self.send(("batch", len(orders)), [spec])
        for order in orders:
            order.tried += 1
            self._send(("proc", *order.key, list(order.fds), order.bind), list(order.fds.values()), [])
        if not self.alive:
            self._give_back()

    def _flush(self) -> None:
        while self._out:
            packet, fds, own = self._out[0]
            try:
                send_packet(self._sock, packet, fds)
            except BlockingIOError:
                self._loop.want_write(self._sock.fileno(), True)
                return
            except OSError:
                self.close()
                return
            self._out.popleft()
            _close_all(own)
        self._loop.want_write(self._sock.fileno(), False)

    def _on_event(self, _mask: int) -> None:
        while self.alive:
            try:
                received = receive_packet(self._sock)
            except BlockingIOError:
                break
            except OSError:
                received = None
            if received is None:
                self.close()
                return
            self._on_packet(received[0])
        if self.alive and self._out:
            self._flush()

    def _on_packet(self, packet: Any) -> None:
        if packet[0] == "serving":
            self.pid = packet[1]
            return
        if packet[0] == "ready":
            self.ready = True
            return
        if packet[0] == "ended":
            self._why = packet[1]
            return
        what, address, incarnation, said = packet
        order = self.pending.pop((address, incarnation), None)
        if order is not None:
            order.close()
        if what == "forked":
            self._launched.forked(address, incarnation, said)
        else:
            self._launched.not_forked(address, incarnation, said)

    def close(self) -> None:
        """The fork server ends when it has served what it was sent; what it was not sent is given back."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove(self._sock.fileno())
        self._sock.close()
        for _packet, _fds, own in self._out:
            _close_all(own)
        self._out.clear()
        self._give_back()

    def _give_back(self) -> None:
        pending, self.pending = self.pending, {}
        if pending:
            self._launched.fork_server_ended(list(pending.values()), self._why)


class ForkServers:
    """`first` is the socket of the bare fork server, off which the others are forked. `start` starts another one."""

    def __init__(
        self, first: socket.socket, loop: Loop, launched: Launched, start: Callable[[], socket.socket] | None = None
    ) -> None:
        self._start = start or start_another
        self._closed = False
        self._loop = loop
        self._launched = launched
        self._first = ForkServer(first, loop, launched)
        self._others: OrderedDict[Any, ForkServer] = OrderedDict()

    def add(self, sock: socket.socket, preload: Sequence[str]) -> None:
        """One that began before there was anybody to ask for it, in this process's environment."""
        key = tuple(preload), (), tuple(sorted(load_time_env(dict(os.environ)).items()))
        self._others[key] = ForkServer(sock, self._loop, self._launched)

    def usable(self) -> bool:
        """True if processes can be forked; when not, they have to be executed."""
        if not self._first.alive and not self._closed:
            try:
                self._first = ForkServer(self._start(), self._loop, self._launched)
            except OSError:
                return False
        return self._first.alive

    def stopped(self, pid: int) -> None:
        """A child of ours was stopped by a signal. A fork server would hold up those who wait for it: another one serves."""
        if pid in [server.pid for server in (self._first, *self._others.values())]:
            os.kill(pid, signal.SIGKILL)

    def serving(self, spec: LaunchSpec) -> ForkServer:
        """The fork server that fits the spec's preloads and load-time environment, started if need be; one that has what the
        spec expects replacements to import, when that is ready."""
        if spec.warm:
            warm = self.warm(spec)
            if warm.ready:
                return warm
        return self._plain(spec)

    def _plain(self, spec: LaunchSpec) -> ForkServer:
        sensitive = load_time_env(spec.env)
        if not spec.preload and sensitive == load_time_env(dict(os.environ)):
            return self._first
        return self._known(_key(spec)) or self._fork_off(self._first, spec, False)

    def warm(self, spec: LaunchSpec) -> ForkServer:
        """Starts one for what the spec expects replacements to import, off the one that serves now. It imports in the
        background, at a low priority, and serves when it has done so."""
        return self._known(_key(spec, warm=True)) or self._fork_off(self._plain(spec), spec, True)

    def _known(self, key: Any) -> ForkServer | None:
        server = self._others.get(key)
        if server is None or not server.alive:
            return None
        self._others.move_to_end(key)
        return server

    def _fork_off(self, parent: ForkServer, spec: LaunchSpec, warm: bool) -> ForkServer:
        # Only what is read at load time differs; each process gets its whole environment when it is forked.
        env = {key: value for key, value in os.environ.items() if not load_time_env({key: value})}
        env_file = private_files.memory_file(os_text.encode({**env, **load_time_env(spec.env)}))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wanted = spec.warm if warm else spec.preload
        parent.send(("forkserver", wanted, warm), [theirs.detach(), env_file])
        server = self._others[_key(spec, warm)] = ForkServer(ours, self._loop, self._launched, not warm)
        if len(self._others) > KEPT:
            idle = next((key for key, other in self._others.items() if not other.pending), None)
            if idle is not None and self._others[idle] is not server:
                self._others.pop(idle).close()
        return server

    def close(self) -> None:
        self._closed = True
        for server in (self._first, *self._others.values()):
            server.close()


def _key(spec: LaunchSpec, warm: bool = False) -> Any:
    """Returns what a fork server must have been started with to serve this spec."""
    return tuple(spec.preload), tuple(spec.warm) if warm else (), tuple(sorted(load_time_env(spec.env).items()))


def start_another() -> socket.socket:
    """Starts a first fork server in a fresh interpreter: this process has too much open and loaded to be forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
        code = f"import sys; sys.path.insert(0, {root!r}); from monarch._mesh.start.forkserver import main; main()"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", code, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            restore_signals=False,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    process.returncode = 0  # the agent notices the end of every child itself
    return ours


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
