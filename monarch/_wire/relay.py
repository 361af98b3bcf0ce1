"""A process of another host, as a connection: its frames go through the agent of this host, inside Envelopes.

Nothing is lost on the way while both hosts live and reach each other (links between agents see to that), so a Relay
ends only with the process at its other end, or with that host. Or it is succeeded by a link between the two processes: see
`_runtime.direct`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from monarch._linux.locks import RLock
from monarch._wire.frame import Buffer, encode_small
from monarch._wire.transport.base import Connection, ConnectionLost

_ENVELOPE = b"\x95\x32"  # msgpack: an array of five, the first of which is the tag of message.Envelope
_HEAD = struct.Struct(">BI")  # msgpack: bytes of that length follow
_BIN32 = 0xC6


ANYONE = -1


def route(to: str, source: str, target_incarnation: int = ANYONE) -> bytes:
    """Returns what every Envelope from `source` to `to` begins with; `target_incarnation`: of the process at `to`."""
    encode = msgspec.msgpack.encode
    return b"".join((_ENVELOPE, encode(to), encode(source), encode(target_incarnation)))


def enclose(route: bytes, head: bytes) -> bytes:
    """The encoded Envelope around an encoded message."""
    return b"".join((route, _HEAD.pack(_BIN32, len(head)), head))


def addressed(connection: Connection, head: bytes) -> bytes:
    """An encoded message as it goes over that connection."""
    return enclose(connection.route, head) if connection.route else head


class Way(Protocol):
    """The part of a connection that a Relay uses."""

    @property
    def queued(self) -> int: ...
    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool: ...
    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None: ...
    def wait_room(self, timeout: float) -> bool: ...


class Relay:
    """See the module, and `base.Connection`. `agent` is the connection to this host's agent; what is sent must be enclosed
    (`route` is not empty, which says so). It is lost when this side says so. `busy` hears of it, once, in the thread that
    sends, when `many` frames were sent (0: never)."""

    __slots__ = (
        "_agent",
        "_busy",
        "_emptied",
        "_lock",
        "_many",
        "_sending",
        "_successor",
        "lost",
        "pid",
        "remote",
        "route",
    )

    def __init__(
        self,
        agent: Callable[[], Way | None],
        route: bytes,
        remote: str = "",
        many: int = 0,
        busy: Callable[[Relay], None] | None = None,
    ) -> None:
        self._agent = agent
        self.route = route
        self.remote = remote
        self.pid = 0
        self.lost = False
        self._many = many
        self._busy = busy
        self._lock = RLock()  # a finalizer of the program may send in the midst of any step
        self._sending: set[object] = set()  # frames that are being sent: a mark of each
        self._successor: Way | None = None
        self._emptied: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Relay to {self.remote or '?'}{' (lost)' if self.lost else ''}>"

    def _way(self) -> Way:
        connection = None if self.lost else self._agent()
        if connection is None:
            raise ConnectionLost("the process at the other end, or the agent of this host, has ended")
        return connection

    def _enter(self, mark: object) -> Way | None:
        """The successor, or None: then `_leave` is called when the frame is sent."""
        with self._lock:
            if self._successor is None:
                self._sending.add(mark)
            return self._successor

    def _leave(self, mark: object) -> None:
        """May be called again, should a handler of signals raise in the midst of it."""
        busy = False
        with self._lock:
            if self._many:
                self._many -= 1
                busy = not self._many
            self._sending.discard(mark)
            emptied = None if self._sending else self._emptied
        if emptied is not None:
            emptied()
            self._emptied = None
        if busy and self._busy is not None:
            self._busy(self)

    def succeed(self, successor: Way, emptied: Callable[[], None]) -> None:
        """Sends what comes from now on to `successor`, enclosed as it is. `emptied` is called once no thread sends
        here any more, in this thread or in the last of them."""
        with self._lock:
            self._successor = successor
            if self._sending:
                self._emptied = emptied
                return
        emptied()

    def last_word(self, head: bytes) -> None:
        """Sends an encoded message after all others, although there is a successor."""
        self._way().send([encode_small(enclose(self.route, head), b"")])

    @property
    def queued(self) -> int:
        connection = self._successor or self._agent()
        return 0 if connection is None else connection.queued

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        mark = object()
        try:
            successor = self._enter(mark)
            if successor is not None:
                return successor.send_small(frame, coalesce_within)
            connection = None if self.lost else self._agent()
            taken = connection is not None and connection.send_small(frame, coalesce_within)
            self._leave(mark)
        except BaseException:
            self._leave(mark)
            raise
        return taken

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        mark = object()
        try:
            successor = self._enter(mark)
            if successor is not None:
                successor.send(pieces, wait, coalesce_within, owned)
                return
            self._way().send(pieces, wait, coalesce_within, owned)
            self._leave(mark)
        except BaseException:
            self._leave(mark)
            raise

    def wait_room(self, timeout: float) -> bool:
        connection = self._successor or self._agent()
        return connection is None or connection.wait_room(timeout)

    def close(self, reason: str) -> None:
        """Nothing is sent here any more. The other end is not told: its own agent knows how it is with this process."""
        self.lost = True

    def finish(self, reason: str) -> None:
        self.lost = True
