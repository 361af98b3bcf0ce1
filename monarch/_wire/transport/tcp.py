"""Connections between hosts: listening and dialling over TCP, or over a Unix socket (`ipc://`) on one machine.

Whoever gets a socket from here knows that the other side has gone through the handshake: TLS where certificates are given,
and the challenge on the job's secret. Everything runs on the I/O thread, but for names that have to be looked up.
`dialling` has the other half.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch._wire.auth import Acceptor, Failure, Secret
from monarch._wire.host_address import HostAddress
from monarch._wire.transport.base import Reactor, StreamSocket, Timer
from monarch._wire.transport.dialling import Dial, dial
from monarch._wire.transport.handshake import Handshake
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
from monarch._wire.transport.unix import same_user

if TYPE_CHECKING:
    import ssl

__all__ = ["Accepted", "Dial", "TcpListener", "dial"]

logger = logging.getLogger("monarch")

IN_HANDSHAKE = 64  # connections of one listener that have not shown yet who they are
_ACCEPTS_A_TURN = 64
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds without accepting when there are no descriptors left
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
    file that is left there is removed when nobody listens to it. Bounds: 64 connections in their handshake, the oldest gives
    way to the next; each for 5 seconds at most. Those that fail are logged with their address, 5 lines in 10 seconds.

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
        self._handshakes: dict[Handshake, str] = {}  # oldest first
        self._log = _FailureLog(loop)
        self._timer: Timer | None = None
        self._sock = listen(address)
        self._tls = None if self._sock.family == socket.AF_UNIX else tls
        self._file = socket_file(address)
        self._closed = False
        self.prefix = address.prefix or prefix_of(address, self._sock)
        """What addresses of processes on this host begin with."""
        loop.add(self._sock.fileno(), self._on_event)

    def __repr__(self) -> str:
        return f"<TcpListener {self.prefix} ({len(self._handshakes)} in handshake{', closed' if self._closed else ''})>"

    def statistics(self) -> dict[str, int]:
        return {"handshake": len(self._handshakes), "failed": self._log.total}

    def _on_event(self, _mask: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if self._closed:
                    return
                if exc.errno not in _OUT_OF_DESCRIPTORS:
                    self._log.failed("a connection that was not accepted", str(exc), self.prefix)
                    return
                self._pause(exc)
                return
            self._shake_hands(sock)

    def _pause(self, exc: OSError) -> None:
        """Without descriptors the kernel would tell of the waiting connection again and again."""
        self._log.failed("the next connection", f"it is accepted later: {exc.strerror}", self.prefix)
        self._give_up_oldest()
        self._loop.remove(self._sock.fileno())
        self._timer = self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if not self._closed:
            self._loop.add(self._sock.fileno(), self._on_event)

    def _give_up_oldest(self) -> None:
        for handshake in self._handshakes:
            handshake.give_up("it was slow, and others were waiting for their handshake")
            return

    def _shake_hands(self, sock: socket.socket) -> None:
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
        if len(self._handshakes) >= IN_HANDSHAKE:
            self._give_up_oldest()

        def done(outcome: StreamSocket | Failure) -> None:
            del self._handshakes[handshake]
            if isinstance(outcome, Failure):
                if not self._closed:
                    self._log.failed(peer, outcome.text, self.prefix)
            else:
                self._accept(Accepted(outcome, peer, reached))

        handshake = Handshake(sock, self._loop, Acceptor(self._secret), done, tls=tls)
        self._handshakes[handshake] = peer
        handshake.start()

    def close(self) -> None:
        """Stops listening and gives up connections in their handshake; what was handed to `accept` lives on."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove(self._sock.fileno())
        self._sock.close()
        if self._file is not None:
            remove_own(*self._file)
        for handshake in list(self._handshakes):
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
            logger.warning("%s: refused %s: %s", prefix, peer, text)
        else:
            self._left_out += 1

    def _summary(self) -> None:
        left_out, self._left_out, self._written, self._timer = self._left_out, 0, 0, None
        if left_out:
            logger.warning("refused %d more connections in %g seconds", left_out, _LINES_SECONDS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._summary()
