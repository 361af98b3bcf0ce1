"""Connections between hosts: listening and dialling over TCP, or over a Unix socket (`ipc://`) on one machine.

Code that gets a socket from here knows that the other side has gone through the handshake: TLS where certificates are given,
and the challenge on the job's secret. Everything runs on the I/O thread, but for names that have to be looked up.
`dialling` has the other half.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch._linux.descriptors import for_unknown
from monarch._linux.local_socket import same_user
from monarch._wire.auth import Acceptor, HandshakeFailure, Secret
from monarch._wire.host_address import HostAddress
from monarch._wire.logs import warn
from monarch._wire.transport.accepting import Accepting
from monarch._wire.transport.base import Reactor, StreamSocket, Timer
from monarch._wire.transport.dialling import DialAttempt, dial
from monarch._wire.transport.handshake import Handshake
from monarch._wire.transport.handshake_slots import HandshakeSlots, source_of
from monarch._wire.transport.listeners import (
    TLS_MISSING,
    listen,
    name_of,
    peer_of,
    prefix_of,
    remove_own,
    socket_file,
    tls_over,
    tune,
)

if TYPE_CHECKING:
    import ssl

__all__ = ["Accepted", "DialAttempt", "TcpListener", "dial"]

IN_HANDSHAKE = 512  # connections of one listener that have not shown yet who they are
_LINES, _LINES_SECONDS = 5, 10.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A connection that has come and may speak. `peer` is its address, for people; `reached` the prefix of this host as the
    other side dialled it (`tcp://10.0.0.1:22222`)."""

    sock: StreamSocket
    peer: str
    reached: str


class TcpListener:
    """Listens where `address` says, from its making until `close`, and hands each connection that may speak to `accept`.

    `*` listens over IPv6 and IPv4 where the machine has both. A Unix socket has mode 0600 and takes our own user only; a
    file that is left there is removed when nobody listens to it. Bounds: 512 connections in their handshake, or a quarter of
    the descriptors of this process, then one gives way to the next (see `handshake_slots`); each for 5 seconds at most.
    Those that fail are logged with their address, 5 lines in 10 seconds.

    Make and close it on the I/O thread, or before it runs. OSError when the address cannot be had, ValueError when it wants
    certificates (`tls`, a context for servers) and there are none.
    """

    def __init__(
        self,
        address: HostAddress,
        loop: Reactor,
        accept: Callable[[Accepted], None],
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if address.tls and tls is None:
            raise ValueError(f"cannot listen at {address.bind}: {TLS_MISSING}")
        self._loop = loop
        self._accept = accept
        self._secret = secret
        self._handshakes: HandshakeSlots[Handshake] = HandshakeSlots(for_unknown(IN_HANDSHAKE), random.Random().choice)
        self._log = _FailureLog(loop)
        sock = listen(address)
        self._tls = None if sock.family == socket.AF_UNIX else tls
        self._file = socket_file(address)
        self._closed = False
        self.prefix = address.prefix or prefix_of(address, sock)
        """What addresses of processes on this host begin with."""
        self._accepting = Accepting(sock, loop, self._shake_hands, self._give_one_up)

    def __repr__(self) -> str:
        return f"<TcpListener {self.prefix} ({len(self._handshakes)} in handshake{', closed' if self._closed else ''})>"

    def statistics(self) -> dict[str, int]:
        return {"handshake": len(self._handshakes), "failed": self._log.total}

    def _give_one_up(self) -> None:
        handshake = self._handshakes.victim()
        if handshake is not None:
            handshake.give_up("too many connections were in their handshake, and this one gave way")

    def _shake_hands(self, sock: socket.socket, where: Any) -> None:
        try:
            peer = peer_of(sock)
            reached = name_of(sock.getsockname()) or self.prefix
            if sock.family == socket.AF_UNIX and not same_user(sock):
                self._log.failed(peer, "it belongs to another user", self.prefix)
                sock.close()
                return
            tune(sock)
            tls = None if self._tls is None else tls_over(sock, self._tls, server=True)
        except OSError:  # gone already
            sock.close()
            return
        if self._handshakes.full:
            self._give_one_up()

        def done(outcome: StreamSocket | HandshakeFailure) -> None:
            self._handshakes.remove(handshake)
            if isinstance(outcome, HandshakeFailure):
                if not self._closed:
                    self._log.failed(peer, outcome.text, self.prefix)
            else:
                self._accept(Accepted(outcome, peer, reached))

        def spoke() -> None:
            self._handshakes.spoke(handshake)

        handshake = Handshake(sock, self._loop, Acceptor(self._secret), done, tls=tls, spoke=spoke)
        self._handshakes.add(handshake, source_of(where[0]) if isinstance(where, tuple) else "")
        handshake.start()

    def close(self) -> None:
        """Stops listening and gives up connections in their handshake; what was handed to `accept` lives on."""
        if self._closed:
            return
        self._closed = True
        self._accepting.close()
        if self._file is not None:
            remove_own(*self._file)
        for handshake in self._handshakes:
            handshake.give_up("the listener was closed")
        self._log.close()


class _FailureLog:
    """Lines about connections that failed: `_LINES` in `_LINES_SECONDS`, then one that says how many were left out."""

    def __init__(self, loop: Reactor) -> None:
        self._loop = loop
        self._written = 0
        self._left_out = 0
        self._timer: Timer | None = None
        self.total = 0

    def failed(self, peer: str, text: str, prefix: str) -> None:
        self.total += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_LINES_SECONDS, self._summary)
        if self._written < _LINES:
            self._written += 1
            warn("%s: refused %s: %s", prefix, peer, text)
        else:
            self._left_out += 1

    def _summary(self) -> None:
        left_out, self._left_out, self._written, self._timer = self._left_out, 0, 0, None
        if left_out:
            warn("refused %d more connections in %g seconds", left_out, _LINES_SECONDS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._summary()
