"""Another process, as this one sees it: dialled on first use, remembered when it has ended.

    idle ──send──► up ──connection lost──► asking ──listening──► up
      ├──nobody listens──► asking ──ended──► ended ──revived──► idle
      └──out of descriptors, ...──► asking ──dialled again──► up
                                       └──in vain──► idle, what was kept fails

Whether a process that does not answer is not there yet or no longer there, only its host agent knows: a Peer in `asking`
keeps frames until the agent's word comes. Lost frames of a broken connection are not sent again (on one host a connection
breaks only with its process).

That dialling failed for another reason (see `socket_errors`) says nothing of the process: it is dialled again after a pause,
and after a bounded time what was kept is failed, with that reason.

A process that has ended may be replaced by another at the same address: the peer is then `revived`, with the next
incarnation. What was sent to the one before it is never sent to the new one.

A finalizer, or a handler of signals, may send while its own thread is in the midst of a step here. What it sends is kept,
and sent when that step is over (`go_on`).

A process of another host is remote: frames to it are enclosed (see `relay`), and its agent is asked before the first of them
is sent, because nobody else would tell of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch._linux.locks import RLock, is_mine
from monarch._wire.frame import Buffer
from monarch._wire.relay import ANYONE, route
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch._wire.transport.socket_errors import OnDial, on_dial
from monarch._wire.waiters import Waiters


def _nothing() -> None:
    return None


def _tell_nobody(peer: Peer, error: OSError) -> None:
    return None


def _nowhere(peer: Peer) -> None:
    return None


# Of a process that has ended, and so never added to.
_NO_PORTS: set[int] = set()
_NOTHING_KEPT: list[list[Buffer]] = []


class PeerEnded(ConnectionError):
    """The process behind the peer has ended; `why` is what its agent said."""

    def __init__(self, address: str, why: Any) -> None:
        super().__init__(f"the process at {address} has ended")
        self.why = why


class Peer:
    """`dial(address)` returns a started Connection or raises OSError when nobody listens there; `ask(peer)` asks the
    agent. `source`: our own address, for a remote process; `learned()` is called then when it is known which is there.
    `dial_failed(peer, error)` says that dialling failed for another reason: it calls `dial_again` or `give_up` later.
    `later(peer)` has `go_on` called soon, at no point of a step of this thread; it takes no lock.
    """

    __slots__ = (
        "_ask",
        "_changed",
        "_dial",
        "_dial_failed",
        "_kept",
        "_kept_bytes",
        "_later",
        "_learned",
        "_lock",
        "_lost",
        "_source",
        "address",
        "asking",
        "broken",
        "connection",
        "ended",
        "ever_broke",
        "incarnation",
        "incarnation_known",
        "listens",
        "route",
        "survivor",
        "unsent",
        "watched",
    )

    def __init__(
        self,
        address: str,
        dial: Callable[[str], Connection],
        ask: Callable[[Peer], None],
        source: str = "",
        learned: Callable[[], None] = _nothing,
        dial_failed: Callable[[Peer, OSError], None] = _tell_nobody,
        later: Callable[[Peer], None] = _nowhere,
    ) -> None:
        self.address = address
        self._later = later
        self._dial_failed = dial_failed
        self._learned = learned
        self.route = route(address, source) if source else b""  # see `Connection.route`
        self.watched = False  # whether its agent was asked to tell of its end
        self.listens = False  # whether its agent said that it can be reached
        self._source = source
        self.connection: Connection | None = None
        self.ended: Any = None
        self.incarnation = 0  # of the process there, as far as known
        self.incarnation_known = False  # whether somebody has told us, so that what we send is meant for no later one
        self.asking = False
        self.broken = False  # asking because a connection broke: what was under way on it may be lost
        self.unsent: set[int] = (
            set()
        )  # ports of messages that a broken connection did not take: nothing of them is lost
        self.ever_broke = False  # whether a connection to that process ever broke: messages to it may be missing there
        self.survivor: Connection | None = None  # ours when another one broke, so it is older than that
        self._lost: Connection | None = None
        self._dial = dial
        self._ask = ask
        self._kept: list[list[Buffer]] = []
        self._kept_bytes = 0
        self._lock = RLock()
        self._changed: Waiters | None = None  # made by the first who waits

    def __repr__(self) -> str:
        if self.ended is not None:
            state = "ended"
        elif self.asking:
            state = f"asking its agent, {len(self._kept)} frames kept"
        else:
            state = "idle" if self.connection is None else "up"
        return f"<Peer {self.address} ({state})>"

    def wait_room(self, timeout: float) -> bool:
        """Waits until frames can be sent on, or the process is known to have ended. False after `timeout` seconds."""
        connection = self.connection
        if connection is not None:
            return connection.wait_room(timeout)
        with self._lock:
            changed = self._changed = self._changed or Waiters()
        return changed.wait_for(lambda: not self.asking, timeout)

    def _wake(self) -> None:
        """Makes those who wait look again. With the lock held."""
        if self._changed is not None:
            self._changed.tell()

    @property
    def queued(self) -> int:
        connection = self.connection
        return self._kept_bytes + (connection.queued if connection is not None else 0)

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, port: int = 0
    ) -> Connection | None:
        """Writes, dials and writes, or keeps. Returns the connection that took it, None when it is kept. Raises PeerEnded.
        `port`: where the answer to it is awaited, 0 for none."""
        while True:
            connection = self.connection
            if connection is None:
                connection = self._connect_or_keep(pieces, port)
                if connection is None:
                    return None
            try:
                connection.send(pieces, wait, coalesce_within)
                return connection
            except ConnectionLost:
                self.lost(connection, port)

    def _connect_or_keep(self, pieces: Sequence[Buffer], port: int) -> Connection | None:
        failed: OSError | None = None
        if is_mine(self._lock):
            if self.ended is not None:
                raise PeerEnded(self.address, self.ended)
            self._keep(pieces, port)
            self._later(self)
            return None
        with self._lock:
            if self.ended is not None:
                raise PeerEnded(self.address, self.ended)
            if self.connection is None and not self.asking:
                try:
                    dialled = self._dial(self.address)
                    if self._kept:  # who was to ask was interrupted
                        self._send_kept(dialled)
                    self.connection = dialled
                except OSError as exc:
                    failed = exc.with_traceback(None)  # else it has this frame, which has it: a circle with all senders
            connection = self.connection
            if connection is None:
                self._keep(pieces, port)
                if failed is not None:
                    self.asking = True
        if failed is not None:
            try:
                self._not_dialled(failed)
            except BaseException:  # of a handler of signals: the next sender dials, and asks
                self.asking = False
                raise
        return connection

    def _keep(self, pieces: Sequence[Buffer], port: int) -> None:
        owned: list[Buffer] = [bytes(piece) for piece in pieces]
        self._kept.append(owned)
        self._kept_bytes += sum(map(len, owned))
        self.unsent.add(port)

    def go_on(self) -> None:
        """Sends what was kept while its own thread was in the midst of a step."""
        failed: OSError | None = None
        with self._lock:
            connection = self.connection
            if not self._kept or self.asking or self.ended is not None:
                return
            try:
                connection = connection or self._dial(self.address)
            except OSError as exc:
                failed, self.asking = exc.with_traceback(None), True
            else:
                self._send_kept(connection)
                self.connection = connection
                self._wake()
        if failed is not None:
            self._not_dialled(failed)

    def _not_dialled(self, error: OSError) -> None:
        if on_dial(error.errno) is OnDial.ENDED:
            self._ask(self)
        else:
            self._dial_failed(self, error)

    def dial_again(self) -> None:
        """Sends what is kept, if that process can be dialled now."""
        with self._lock:
            if self.connection is not None or not self.asking or self.ended is not None:
                return
            try:
                connection = self._dial(self.address)
            except OSError as exc:
                failed: OSError | None = exc.with_traceback(None)
            else:
                failed = None
                self._send_kept(connection)
                self.connection = connection
                self._wake()
        if failed is not None:
            self._not_dialled(failed)

    def give_up(self) -> list[list[Buffer]]:
        """Returns what was kept, which will not be sent: that process could not be dialled for too long."""
        with self._lock:
            if self.connection is not None or not self.asking or self.ended is not None:
                return []
            kept, self._kept, self._kept_bytes = self._kept, [], 0
            self.asking = self.broken = False
            self.ever_broke = True  # so that its actors do not wait for the numbers that are missing
            self._wake()
        return kept

    def connect(self) -> Connection | None:
        """The connection, dialled first where there is none; None when that process cannot be reached just now."""
        connection = self.connection
        if connection is None and not is_mine(self._lock):
            with self._lock:
                if self.connection is None and not self.asking and self.ended is None:
                    try:
                        self.connection = self._dial(self.address)
                    except OSError:
                        return None
                connection = self.connection
        return connection

    def adopt(self, connection: Connection) -> None:
        """The other side dialled us: use its connection when we have none."""
        with self._lock:
            self.incarnation_known = True
            self._mean()
            if self.connection is None and self.ended is None:
                self._send_kept(connection)
                self.connection = connection
                self._wake()

    def succeed(self, connection: Connection, successor: Connection) -> bool:
        """A better connection to the same process, for what is sent from now on. False when `connection` is not ours."""
        with self._lock:
            if self.connection is not connection or self.ended is not None:
                return False
            self.connection = successor
            return True

    def lost(self, connection: Connection, port: int | None = None) -> None:
        """The connection broke; asks the agent what became of the process. `port`: of a message that it did not take."""
        with self._lock:
            if self.ended is not None:  # nothing is kept of it, the connection least of all
                return
            if connection is self._lost:
                if port is not None:
                    self.unsent.add(port)
                return
            self._lost = connection
            self.ever_broke = True
            if self.connection is not None:
                self.unsent.clear()  # those before were sent on this one, or their answers may have come on it
            if self.connection is connection:
                self.connection = None
            self.survivor = self.connection
            if port is not None:
                self.unsent.add(port)
            # Also while it is dialled again, or its agent is being asked: the other side had a connection of its own, and
            # answers on that one are lost, to messages that are younger than the first question to the agent.
            self.asking = self.broken = True
        try:
            self._ask(self)
        except BaseException:  # of a handler of signals; to ask twice does no harm
            self._ask(self)
            raise

    def listening(self) -> None:
        """The agent says the process can be reached."""
        with self._lock:
            self.incarnation_known = self.listens = True
            self._mean()
            self.asking = False
            failed: OSError | None = None
            if self.connection is None and self._kept and self.ended is None:
                try:
                    connection = self._dial(self.address)
                except OSError as exc:
                    failed, self.asking = exc, True
                else:
                    self._send_kept(connection)
                    self.connection = connection
            self.broken = False
            if failed is None:
                self._wake()
        # Where nobody listens any more it has ended meanwhile, and the agent tells. Of a connection that broke as soon as it
        # was there nobody would tell anything: the process may live.
        if failed is not None and not isinstance(failed, (FileNotFoundError, ConnectionRefusedError)):
            self._dial_failed(self, failed)

    def _mean(self) -> None:
        """Makes frames from now on be for the present incarnation, and no other may take them."""
        if self._source:
            self.route = route(self.address, self._source, self.incarnation if self.incarnation_known else ANYONE)
            self._learned()

    def take_unsent(self) -> set[int]:
        """The ports of messages that a broken connection did not take and that were sent since, or will be."""
        with self._lock:
            unsent = self.unsent
            if unsent:
                self.unsent = set()
        return unsent

    def _send_kept(self, connection: Connection) -> None:
        """Before others see the connection: what was kept goes first."""
        kept, self._kept, self._kept_bytes, self.asking = self._kept, [], 0, False
        if not self.broken:  # else they are to be told from those that it took with it
            self.unsent.clear()
        try:
            for pieces in kept:
                connection.send(pieces)
        except ConnectionLost:  # it ended meanwhile; its loss is told like any other
            pass

    def end(self, why: Any) -> None:
        """The agent says the process has ended: what was kept for it is given up."""
        with self._lock:
            if self.ended is None:
                self.ended = why
            # Many may be remembered: they are to be small.
            self._kept, self._kept_bytes = _NOTHING_KEPT, 0
            self.unsent = _NO_PORTS
            self._changed, changed = None, self._changed
            self._lost = self.survivor = None
            self.asking = self.broken = self.listens = self.watched = False
            connection, self.connection = self.connection, None
            if changed is not None:
                changed.tell()
        if connection is not None:
            connection.close("the process has ended")

    def forget_end(self) -> None:
        """Another may come in the place of the one that has ended, and its agent is being asked: until its word comes, frames
        are kept."""
        with self._lock:
            self.incarnation_known = self.listens = False
            self.watched = self.asking = True
            self._mean()
            self.ever_broke = False
            self._kept = []
            self._kept_bytes = 0
            self.unsent = set()
            self.broken = False
            self.ended = None

    def revive(self, incarnation: int) -> None:
        """The agent says that a new process listens in the place of the one that has ended."""
        with self._lock:
            self.incarnation = incarnation
            self.incarnation_known = self.listens = self.watched = True
            self._mean()
            self.ever_broke = False
            self._kept = []
            self._kept_bytes = 0
            self.unsent = set()
            self.asking = self.broken = False
            self.ended = None
            self._wake()
