"""The debugger's port for plain connections (`nc localhost 27000`); `monarch debug` needs none of it.

On loopback, programs of this user are let in, as the kernel says whose they are. Beyond it, those who say a token first: it
is printed when the listener starts. It has 192 random bits, and a connection has one try. While somebody says it others may
come, `MOST` at a time; nobody who is silent keeps others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from operator import itemgetter

from monarch._linux import loopback_peer
from monarch._text import counted
from monarch._wire.transport.handshake_slots import HandshakeSlots, source_of
from monarch.debugger.conversation import LINE

HOST, PORT, PROTOCOL = "MONARCH_DEBUG_SERVER_HOST", "MONARCH_DEBUG_SERVER_PORT", "MONARCH_DEBUG_SERVER_PROTOCOL"
MOST = 16  # connections at a time that have not said the token
_SETTLE = 0.5  # seconds between a connection and the first word of it
_TOKEN = 24  # bytes of it; as text it is longer
_TOKEN_WITHIN = 30.0  # seconds to say the token in

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Say = Callable[[str], None]


class DebuggerListener:
    """`token`: "" on loopback. `notes`: what the program should say of it, a line each."""

    def __init__(self, host: str, port: int, wanted: int, token: str, say: Say) -> None:
        self.host = host
        self.port = port
        self.token = token
        self.notes: list[str] = []
        if wanted not in (0, port):
            self.notes.append(f"port {wanted} of {host} ({PORT}) is taken: the debugger listens on port {port} instead")
        if token:
            self.notes.append(
                f"the debugger listens on {host}:{port}; the first line of a connection is the token {token}"
            )
        self._waiting: HandshakeSlots[asyncio.StreamWriter] = HandshakeSlots(MOST, itemgetter(0))
        self._door = loopback_peer.Doorkeeper(
            lambda count: say(f"the debugger's port {port} has refused {counted(count, 'connection')} of other users")
        )
        self._server: asyncio.Server | None = None

    async def serve(self, sock: socket.socket, converse: Converse) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                if await self._is_let_in(reader, writer):
                    await asyncio.sleep(_SETTLE)
                    await converse(reader, writer)

        self._server = await asyncio.start_server(connected, sock=sock, limit=LINE)

    async def _is_let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        sock = writer.get_extra_info("socket")
        if not self.token:
            if self._door.lets_in(sock):
                return True
            writer.write(b"refused: this debugger is another user's\n")
            return False
        if not loopback_peer.is_socket_ours(sock):  # this user's own need not make room for anybody
            goes = self._waiting.enter(writer, source_of((writer.get_extra_info("peername") or [""])[0]))
            if goes is not None:
                goes.transport.abort()
        try:
            async with asyncio.timeout(_TOKEN_WITHIN):
                line = await reader.readline()
        except (TimeoutError, ValueError, OSError):
            return False
        finally:
            self._waiting.remove(writer)
        if not line:  # it has gone, or had to go
            return False
        if hmac.compare_digest(line.strip(), self.token.encode()):
            return True
        writer.write(b"refused: the first line is the token that the program has printed\n")
        return False

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def listen(converse: Converse, say: Say) -> DebuggerListener:
    """At the address that the environment names. `say`: is told of strangers, once a minute at most. NotImplementedError for
    another protocol than tcp; OSError, ValueError when it cannot be had."""
    protocol = os.environ.get(PROTOCOL, "tcp")
    if protocol != "tcp":
        raise NotImplementedError(f"Network protocol {protocol} not yet supported.")
    host, port = os.environ.get(HOST, "localhost"), _port(os.environ.get(PORT, "27000"))
    family, address = await _resolve(host)
    try:
        sock = _bound(family, address, port)
    except OSError as error:
        if not port:
            raise OSError(error.errno, f"the debugger cannot listen on {host}: {error.strerror} ({HOST})") from None
        try:
            sock = _bound(family, address, 0)
        except OSError as again:
            raise OSError(again.errno, f"the debugger cannot listen on {host}: {again.strerror} ({HOST})") from None
    token = "" if loopback_peer.is_loopback(address) else secrets.token_urlsafe(_TOKEN)
    made = DebuggerListener(host, sock.getsockname()[1], port, token, say)
    await made.serve(sock, converse)
    return made


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{PORT} is {text!r}: expected a port, from 0 (any that is free) to 65535")
    return int(text)


async def _resolve(host: str) -> tuple[int, str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"the debugger cannot listen on {host!r} ({HOST}): {error.strerror or error}") from None
    best = min(found, key=lambda one: one[0] != socket.AF_INET)  # as nc, which goes to 127.0.0.1 first
    return best[0], str(best[4][0])


def _bound(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock
