"""The agent's fork servers: which one serves a launch, what was asked of it, what became of that.

Never waits for a fork server: one that is busy importing torch gets its packets when it reads again.
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict, deque
from typing import Any, Protocol

from monarch._mesh.start.forkserver_protocol import load_time_env, receive_packet, send_packet
from monarch._runtime.loop import Loop
from monarch._wire.message import LaunchSpec

KEPT = 4  # fork servers beside the first; the longest unused goes


class Launched(Protocol):
    """Who asked for processes. Called on the agent's loop."""

    def forked(self, address: str, incarnation: int, pid: int) -> None: ...
    def not_forked(self, address: str, incarnation: int, why: str) -> None: ...


class ForkServer:
    """The agent's end of one fork server. `pending`: (address, incarnation) asked for and not answered yet. `ready`: whether
    it forks at once, as far as is known; one that is not says when it is."""

    def __init__(self, sock: socket.socket, loop: Loop, launched: Launched, ready: bool = True) -> None:
        sock.setblocking(False)
        self.alive = True
        self.ready = ready
        self.pending: set[tuple[str, int]] = set()
        self._sock = sock
        self._loop = loop
        self._launched = launched
        self._out: deque[tuple[Any, list[int]]] = deque()
        loop.add(sock.fileno(), self._on_event)

    def send(self, packet: Any, fds: list[int]) -> None:
        """Sends, or keeps until there is room. The descriptors are this object's from now on."""
        if not self.alive:
            _close_all(fds)
            return
        self._out.append((packet, fds))
        self._flush()

    def fork(self, address: str, incarnation: int, fds: dict[str, int], bind: dict[str, str]) -> None:
        """One process of the batch announced before."""
        self.pending.add((address, incarnation))
        self.send(("proc", address, incarnation, list(fds), bind), list(fds.values()))
        if not self.alive:
            self._fail_pending()

    def _flush(self) -> None:
        while self._out:
            packet, fds = self._out[0]
            try:
                send_packet(self._sock, packet, fds)
            except BlockingIOError:
                self._loop.want_write(self._sock.fileno(), True)
                return
            except OSError:
                self.close()
                return
            self._out.popleft()
            _close_all(fds)
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
            (what, address, incarnation, said), _fds = received
            if what == "ready":
                self.ready = True
                continue
            self.pending.discard((address, incarnation))
            if what == "forked":
                self._launched.forked(address, incarnation, said)
            else:
                self._launched.not_forked(address, incarnation, said)
        if self.alive and self._out:
            self._flush()

    def close(self) -> None:
        """The fork server ends when it has served what it was sent; what it was not sent fails."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove(self._sock.fileno())
        self._sock.close()
        for _packet, fds in self._out:
            _close_all(fds)
        self._out.clear()
        self._fail_pending()

    def _fail_pending(self) -> None:
        pending, self.pending = self.pending, set()
        for address, incarnation in sorted(pending):
            self._launched.not_forked(address, incarnation, "could not be forked: the fork server has ended")


class ForkServers:
    """`first` is the socket of the bare fork server, off which the others are forked."""

    def __init__(self, first: socket.socket, loop: Loop, launched: Launched) -> None:
        self._loop = loop
        self._launched = launched
        self._first = ForkServer(first, loop, launched)
        self._others: OrderedDict[Any, ForkServer] = OrderedDict()

    @property
    def alive(self) -> bool:
        """Whether processes can be forked; when not, they have to be executed."""
        return self._first.alive

    def serving(self, spec: LaunchSpec) -> ForkServer:
        """The fork server that fits the spec's preloads and load-time environment, started if need be."""
        if spec.warm:
            warm = self._known(_key(spec, warm=True))
            if warm is not None and warm.ready:
                return warm
        sensitive = load_time_env(spec.env)
        if not spec.preload and sensitive == load_time_env(dict(os.environ)):
            return self._first
        return self._known(_key(spec)) or self._start(self._first, spec, False)

    def warm(self, spec: LaunchSpec) -> None:
        """Starts one for what the spec expects replacements to import, off the one that serves now. It imports in the
        background, at a low priority, and serves when it has done so."""
        if self._known(_key(spec, warm=True)) is None:
            self._start(self.serving(spec), spec, True)

    def _known(self, key: Any) -> ForkServer | None:
        server = self._others.get(key)
        if server is None or not server.alive:
            return None
        self._others.move_to_end(key)
        return server

    def _start(self, parent: ForkServer, spec: LaunchSpec, warm: bool) -> ForkServer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Only what is read at load time differs; each process gets its whole environment when it is forked.
        env = {key: value for key, value in os.environ.items() if not load_time_env({key: value})}
        wanted = spec.warm if warm else spec.preload
        parent.send(("forkserver", wanted, {**env, **load_time_env(spec.env)}, warm), [theirs.detach()])
        server = self._others[_key(spec, warm)] = ForkServer(ours, self._loop, self._launched, not warm)
        if len(self._others) > KEPT:
            idle = next((key for key, other in self._others.items() if not other.pending), None)
            if idle is not None and self._others[idle] is not server:
                self._others.pop(idle).close()
        return server

    def close(self) -> None:
        for server in (self._first, *self._others.values()):
            server.close()


def _key(spec: LaunchSpec, warm: bool = False) -> Any:
    """What a fork server must have been started with to serve this spec."""
    return tuple(spec.preload), tuple(spec.warm) if warm else (), tuple(sorted(load_time_env(spec.env).items()))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
