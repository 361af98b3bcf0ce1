"""Accepting connections on a listening socket, of any kind. What an error means is said by `socket_errors`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from monarch._linux.descriptors import OUT_OF
from monarch._wire.logs import warn
from monarch._wire.transport.base import Reactor, Timer
from monarch._wire.transport.socket_errors import OnAccept, explain, on_accept

_ACCEPTS_A_TURN = 64
PAUSE = 0.5  # seconds without accepting, when this process is out of what a connection needs
_SAID_EVERY = 10.0  # seconds


class Accepting:
    """Gives each connection that comes to `accepted`, with its address, from its making until `close`. On the I/O thread.

    `accepted` owns the socket; an OSError that it raises counts as one of accepting, and the socket is closed. `paused` is
    called when no more can be accepted for a while; code that gives descriptors back then may. A line says so, at most once
    in 10 seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Reactor,
        accepted: Callable[[socket.socket, Any], None],
        paused: Callable[[], None] = lambda: None,
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._accepted = accepted
        self._paused = paused
        self._timer: Timer | None = None
        self._closed = False
        self._kept: tuple[socket.socket, Any] | None = None  # accepted, and not taken yet
        self._said_at = float("-inf")
        loop.add(sock.fileno(), self._on_event)

    def __repr__(self) -> str:
        return f"<Accepting ({'closed' if self._closed else 'paused' if self._timer is not None else 'open'})>"

    def look(self) -> None:
        """Accepts what has come."""
        if self._timer is None:
            self._on_event(0)

    def _on_event(self, _mask: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            sock: socket.socket | None = None
            try:
                if self._kept is not None:
                    (sock, where), self._kept = self._kept, None
                else:
                    sock, where = self._sock.accept()
                self._accepted(sock, where)
            except OSError as exc:
                verdict = on_accept(exc.errno)
                over = self._closed or self._sock.fileno() < 0  # closed by another thread just now
                if sock is not None and exc.errno in OUT_OF and not over:
                    self._kept = sock, where  # there was no room for it, which is no fault of the other side
                elif sock is not None:
                    sock.close()
                if over or (verdict is OnAccept.WAIT and sock is None):
                    return
                if verdict is OnAccept.PAUSE:
                    self._pause(exc)
                    return

    def _pause(self, exc: OSError) -> None:
        now = self._loop.now()
        if now - self._said_at >= _SAID_EVERY:
            self._said_at = now
            warn("connections have to wait at %s: %s", _shown(self._sock), explain(exc))
        self._paused()
        self._loop.remove(self._sock.fileno())
        self._timer = self._loop.call_later(PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if not self._closed and self._sock.fileno() >= 0:
            try:
                self._loop.add(self._sock.fileno(), self._on_event)
            except OSError:  # there is no room for it at present
                self._timer = self._loop.call_later(PAUSE, self._go_on)
            else:
                if self._kept is not None:  # of which the kernel tells nothing
                    self._on_event(0)

    def close(self) -> None:
        """Ends it for good, and closes the socket and what was kept for a full process."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._kept is not None:
            self._kept[0].close()
            self._kept = None
        if self._sock.fileno() >= 0:
            self._loop.remove(self._sock.fileno())
            self._sock.close()


def _shown(sock: socket.socket) -> str:
    where = sock.getsockname()
    return f"{where[0]}:{where[1]}" if isinstance(where, tuple) else repr(where)
