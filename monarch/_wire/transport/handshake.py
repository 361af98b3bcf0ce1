"""The first seconds of a connection between hosts: TLS where it is used, then the challenge of `monarch._wire.auth`.

Until a handshake is done nothing of the connection reaches a frame decoder, and it reads not one byte more than the
challenge asks for. Memory: what `auth.Challenge` keeps; TLS adds a few records.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch._linux.loopback_peer import stranger_at
from monarch._wire.auth import Challenge, HandshakeFailure
from monarch._wire.transport.base import Reactor, StreamSocket

if TYPE_CHECKING:
    from monarch._wire.transport.tls import TlsSocket

DEADLINE = 5.0  # seconds for all of it, however lively the other side is meanwhile
_DRAINED = 16  # reads, of 4 KiB, of what is not wanted any more


def _nothing(*_: object) -> None:
    return None


class Handshake:
    """One connection until it may speak. All of it runs on the I/O thread.

    `done` is called once: with the socket, which is ready for frames and no longer watched here, or, the
    socket closed already, with the HandshakeFailure.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Reactor,
        challenge: Challenge,
        done: Callable[[StreamSocket | HandshakeFailure], None],
        *,
        tls: TlsSocket | None = None,
        deadline: float = DEADLINE,
        spoke: Callable[[], None] = _nothing,
    ) -> None:
        """`tls`: the TLS session over `sock`; it is what `done` gets then. `spoke` is called once, when the other side has
        sent a valid first message."""
        self._plain = sock
        self._sock: StreamSocket = sock if tls is None else tls
        self._tls = tls
        self._loop = loop
        self._challenge = challenge
        self._done: Callable[[StreamSocket | HandshakeFailure], None] = done
        self._spoke: Callable[[], None] | None = spoke
        self._fd = sock.fileno()
        self._buffer = b""
        self._out = b""
        self._writing = False
        self._over = False
        self._lingers: HandshakeFailure | None = None
        self._drained = 0
        self._seconds = deadline

    def __repr__(self) -> str:
        return f"<Handshake {'over' if self._over else repr(self._challenge)}>"

    def start(self) -> None:
        """Begins. `done` may be called before this returns, when the socket is broken already."""
        self._sock.setblocking(False)
        self._loop.add(self._fd, self._on_event)
        self._timer = self._loop.call_later(self._seconds, self._late)
        self._whose = self._stranger()  # asked now as well: who closes behind his last word is nobody's at the end
        self._out = self._challenge.start()
        self._on_event(0)

    def give_up(self, text: str) -> None:
        """Ends it, with a HandshakeFailure that says `text`."""
        self._end(self._lingers or HandshakeFailure(text, final=False))

    def _late(self) -> None:
        stage = "TLS handshake" if self._tls is not None and not self._tls.established else "handshake"
        self.give_up(
            f"the {stage} was not over within {self._seconds:g} s; the other side may hang, or not be a monarch host"
        )

    def _on_event(self, _mask: int) -> None:
        if self._over:
            return
        try:
            if self._lingers is not None:
                self._drain()
            elif self._tls is None or self._tls.handshake():
                self._converse()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            self._broke(exc)
        if not self._over and self._lingers is None:
            self._watch_writable()
            if self._spoke is not None and (self._challenge.greeted or (self._tls is not None and self._tls.spoken)):
                spoke, self._spoke = self._spoke, None
                spoke()

    def _broke(self, exc: OSError) -> None:
        """A broken connection may be better the next time; certificates that do not fit will not."""
        explained = getattr(exc, "tls_failure", None)
        if explained is None:
            text = f"the connection broke in the middle of the handshake: {exc.strerror or exc}"
            self._end(self._lingers or self._challenge.failure or HandshakeFailure(text, final=False))
            return
        # Closing while bytes of the other side are on their way would take the reason (TLS's alert) from it.
        self._lingers = HandshakeFailure(str(explained), final=True)
        try:
            self._loop.want_write(self._fd, False)
            self._sock.shutdown(socket.SHUT_WR)
            self._drain()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(self._lingers)

    def _drain(self) -> None:
        """Reads and forgets until the other side has closed too; the deadline goes on."""
        while self._drained < _DRAINED and self._plain.recv(4096):
            self._drained += 1
        self._end(self._lingers)

    def _converse(self) -> None:
        """Sends and reads by turns until the challenge is over. BlockingIOError when the socket has nothing more."""
        challenge = self._challenge
        while True:
            while self._out:
                self._out = self._out[self._sock.send(self._out) :]
            if challenge.done or challenge.failure is not None:
                if self._tls is None or self._tls.flush():
                    self._end(challenge.failure or self._whose or self._stranger())
                return
            self._read()

    def _stranger(self) -> HandshakeFailure | None:
        """Proofs over a connection without TLS can have been passed on by another user of this machine."""
        whose = stranger_at(self._plain) if self._tls is None and self._challenge.proves else ""
        return HandshakeFailure(whose, final=True) if whose else None

    def _read(self) -> None:
        challenge = self._challenge
        rest = bytearray(challenge.wanted - len(self._buffer))
        count = self._sock.recv_into(rest)
        if not count:
            challenge.closed()
            return
        self._buffer += rest[:count]
        if len(self._buffer) == challenge.wanted:
            data, self._buffer = self._buffer, b""
            self._out = challenge.received(data)

    def _watch_writable(self) -> None:
        wanted = bool(self._out) if self._tls is None else self._tls.unsent
        if wanted != self._writing:
            self._writing = wanted
            self._loop.want_write(self._fd, wanted)

    def _end(self, failure: HandshakeFailure | None) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        self._loop.remove(self._fd)
        # They hold this object: it is freed at once, and not by the garbage collector.
        done, self._done, self._spoke = self._done, _nothing, None
        if failure is None:
            done(self._sock)
        else:
            self._forget_unread()
            self._sock.close()
            done(failure)

    def _forget_unread(self) -> None:
        """Closing with bytes unread would be a reset, which takes from the other side what it was told last."""
        try:
            while self._drained < _DRAINED and self._plain.recv(4096):
                self._drained += 1
        except OSError:
            pass
