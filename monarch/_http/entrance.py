"""The entrance of connections to an HTTP port: who may, how many, and who has to go for another.

A port of this machine is for this user: the kernel says who has connected before anything is read, and others are told so
and closed. All are unknown until the gate has let in a request of theirs. Bounds: `most`, of these UNKNOWN that are not
let in yet, and never more than a share of this process's descriptors. Beyond that one that is unknown gives way (see
`handshake_slots`), then the one that has been idle for longest; when all wait for answers, the new one is told so.
"""

from __future__ import annotations

import asyncio
import random
import socket
from operator import itemgetter
from typing import Any

from monarch._http.connection import HttpConnection, protocol, whole_answer
from monarch._http.connection_limits import CONNECTIONS, Phase
from monarch._linux.descriptors import for_unknown
from monarch._linux.loopback_peer import is_socket_ours
from monarch._wire.transport.handshake_slots import HandshakeSlots, source_of
from monarch._wire.transport.socket_errors import OnAccept, on_accept

UNKNOWN = 128
_ACCEPTS_A_TURN = 64
_PAUSE = 0.5  # seconds without accepting, when this process is out of what a connection needs
_LOOK = 0.5  # seconds between two looks at the connections
_TLS = 5.0  # seconds for its handshake
_STRANGER = whole_answer(403, "this server answers the user who runs the program, and you are another one")


class HttpVisitor:
    """A connection that has come, and its protocol from its TLS handshake on."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.protocol: HttpConnection | None = None
        self.beginning: asyncio.Task[Any] | None = None

    @property
    def connection(self) -> HttpConnection | None:
        """Its end that speaks HTTP; None until TLS does."""
        return self.protocol if self.protocol is not None and self.protocol.transport is not None else None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.transport.abort()
            return
        try:
            self.sock.shutdown(socket.SHUT_RDWR)  # its handshake fails
        except OSError:
            pass


class HttpEntrance:
    """One of a port, on the loop of its server: `config` and `server` are uvicorn's. Open until `close`."""

    def __init__(
        self, listening: socket.socket, config: Any, server: Any, *, local: bool, most: int = CONNECTIONS
    ) -> None:
        self._listening = listening
        self._config = config
        self._server = server
        self._local = local
        self._most = most
        self._full = whole_answer(503, f"{most} connections wait for answers here already: ask again later")
        self._loop = asyncio.get_running_loop()
        self._visitors: set[HttpVisitor] = set()
        self._unknown: HandshakeSlots[HttpVisitor] = HandshakeSlots(
            for_unknown(UNKNOWN), itemgetter(0) if local else random.Random().choice
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}
        listening.setblocking(False)
        self._go_on()
        self._look()

    def close(self) -> None:
        """No more come. What is being answered is the server's."""
        for timer in self._timers.values():
            timer.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for visitor in self._unknown:
            visitor.close()

    def _go_on(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, peer = self._listening.accept()
            except OSError as exc:
                verdict = on_accept(exc.errno)
                if verdict is OnAccept.WAIT:
                    return
                if verdict is OnAccept.PAUSE:
                    self._loop.remove_reader(self._listening)
                    self._give_way()
                    self._timers["accept"] = self._loop.call_later(_PAUSE, self._go_on)
                    return
                continue
            self._come(sock, str(peer[0]))

    def _come(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        # asyncio does so only for sockets that were made as TCP by number: heads and bodies would wait for each other, 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._local and not is_socket_ours(sock):
            _say_and_close(sock, _STRANGER)
            return
        if (self._unknown.full or len(self._visitors) >= self._most) and not self._give_way():
            _say_and_close(sock, self._full)
            return
        visitor = HttpVisitor(sock)
        self._visitors.add(visitor)
        self._unknown.add(visitor, source_of(host))
        visitor.beginning = self._loop.create_task(self._begin(visitor))

    async def _begin(self, visitor: HttpVisitor) -> None:
        def made() -> HttpConnection:
            visitor.protocol = protocol(
                self._config, self._server, lambda: self._unknown.remove(visitor), lambda _: self._forget(visitor)
            )
            return visitor.protocol

        try:
            tls = self._config.ssl
            limits = {"ssl": tls, "ssl_handshake_timeout": _TLS} if tls is not None else {}
            await self._loop.connect_accepted_socket(made, visitor.sock, **limits)
        except OSError:  # it went, or had to go, or speaks no TLS
            self._forget(visitor)

    def _forget(self, visitor: HttpVisitor) -> None:
        self._visitors.discard(visitor)
        self._unknown.remove(visitor)

    def _give_way(self) -> bool:
        """One goes. False when all that are there wait for answers."""
        visitor = self._unknown.victim()
        if visitor is None:
            idle = [
                (each.connection.since, each)
                for each in self._visitors
                if each.connection and each.connection.phase is Phase.IDLE
            ]
            visitor = min(idle, key=lambda each: each[0], default=(0.0, None))[1]
        if visitor is None:
            return False
        self._forget(visitor)
        visitor.close()
        return True

    def _look(self) -> None:
        for visitor in list(self._visitors):
            if visitor.connection is not None:
                visitor.connection.look()
        self._timers["look"] = self._loop.call_later(_LOOK, self._look)


def _say_and_close(sock: socket.socket, data: bytes) -> None:
    """Says what fits into the kernel's buffer, which is all."""
    with sock:
        try:
            sock.send(data)
        except OSError:
            pass
