"""Interfaces of the I/O loop, of a connection, and of those that hear of its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import call
from typing import Any, Protocol

from monarch._wire.frame import Buffer, Frame


class Timer(Protocol):
    def cancel(self) -> None: ...


class Turn:
    """The handling of what a thread that waits has polled. `end` gives the lead back, at its first `next`. `revoked`: a
    handler of signals that waits has taken the lead away; what goes on behind it touches nothing more."""

    __slots__ = ("end", "events", "revoked")

    def __init__(self, events: list[tuple[int, int]], release: Callable[[], object]) -> None:
        self.events = events
        self.end = map(call, (release,))
        self.revoked = False


class Reactor(Protocol):
    """The I/O loop, as connections see it. `now` is its clock, which tests may own."""

    def now(self) -> float: ...
    def in_loop(self) -> bool: ...
    def call_soon(self, fn: Callable[[], Any]) -> None: ...
    def call_later(self, delay: float, fn: Callable[[], Any]) -> Timer: ...
    def add(self, fd: int, on_event: Callable[[int], Any], quick: Callable[[Turn], bool] | None = None) -> None: ...
    def want_write(self, fd: int, on: bool, read: bool = True) -> None: ...
    def remove(self, fd: int) -> None: ...


class StreamSocket(Protocol):
    """The part of a non-blocking stream socket that a connection uses: `socket.socket`, or TLS over one.

    An implementation that holds back bytes it has read already also has `pending() -> bool`: whether `recv_into` may give
    some although the descriptor is silent.
    """

    def fileno(self) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def send(self, data: Buffer, /) -> int: ...
    def sendmsg(self, buffers: Sequence[Buffer], /) -> int: ...
    def recv_into(self, buffer: bytearray | memoryview, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class ConnectionLost(ConnectionError):
    """The other end is gone, or this end was closed; the text says which."""


class DialFailed(ConnectionError):
    """No connection came of an attempt to dial; the text says why and what to do.

    `refused`: every address said no (nobody listens at that port, or the handshake was refused); otherwise there was no
    answer, or half of one. `final`: trying again does not help until somebody changes something (another secret, another
    version, no host of ours). `unexpected`: not what comes of a worker that is yet to start. The host's name
    has no address, and may be misspelt, or known later; or somebody else listens at that port, or one that hangs.
    """

    def __init__(self, text: str, refused: bool = False, final: bool = False, unexpected: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        self.final = final
        self.unexpected = unexpected


class Connection(Protocol):
    """An ordered stream of frames to one other process.

    `send` may be called from any thread and never waits unless `wait` is given: then it returns when the pieces have left
    the caller's memory. `coalesce_within` seconds: when the last frame was sent less than that ago this is a flood, and
    frames are written together a little later, at the latest before the next frame without it. It raises ConnectionLost
    once the connection is gone. `owned`: nobody changes the pieces from now on, so none has to be copied. `queued` counts
    bytes not yet taken by the transport; `wait_room` blocks until it is below the limit.
    """

    remote: str
    pid: int
    route: bytes  # not empty: every head must be enclosed in an Envelope that begins so (see `relay`)

    @property
    def queued(self) -> int: ...
    @property
    def lost(self) -> bool: ...
    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        """Does what `send` does with one small frame. False when that cannot be done in one step just now (`send` takes it
        then)."""
        ...

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None: ...
    def wait_room(self, timeout: float) -> bool: ...
    def close(self, reason: str) -> None: ...
    def finish(self, reason: str) -> None:
        """On the I/O thread, when the other process has ended: takes what it still sent, then closes."""
        ...


class Handler(Protocol):
    """The callbacks of a connection, called on the I/O thread."""

    def connection_received(self, connection: Any, frames: list[Frame]) -> None: ...
    def connection_lost(self, connection: Any, reason: str) -> None: ...
