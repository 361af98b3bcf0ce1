"""A link as a Connection: what a `link.Link` wants done, done with real connections, one after the other.

       a sender ──► LinkConnection ──► the StreamConnection of today ──► socket
                         │     ▲
                       Link  frames: those of the link itself end here, the others go to the handler

Senders write in their own thread, under the link's lock: a frame is kept and handed to the connection in one step, so both
have the same order. The lock is held for one write that does not wait, so the I/O thread may take it too.

Frames of the link itself are told by their head without decoding it: a head is a msgpack array whose first item is the
message's tag, so byte 0 is 0x90 + length and byte 1 the tag, both small. They are not for `send`: Bye, LinkHello and Beat
would not be counted by the other side.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

from monarch._linux.locks import RLock, is_mine
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.copies import Copies
from monarch._wire.frame import Buffer, Frame
from monarch._wire.link import (
    NEVER,
    NOBODY,
    Carry,
    Close,
    Dead,
    Dial,
    Link,
    LinkEffect,
    LinkLimits,
    LinkTarget,
    SendBye,
    SendMessage,
    Suspect,
)
from monarch._wire.message import Beat, Bye, LinkHello
from monarch._wire.software import Software
from monarch._wire.transport.base import Connection, ConnectionLost, DialFailed, Handler, Reactor, Timer
from monarch._wire.waiters import Waiters
from monarch.config import settings

_CONTROL = frozenset({1, 51, 52})  # tags of Bye, LinkHello, Beat
_ACK_BYTES = 4 << 20
_IDLE = 10.0  # seconds after which free memory for copies is given back
_PIECES_A_WRITE = 512  # when what was kept is sent again


# Begins one attempt, on the I/O thread, and within a time of its own calls `done` there, once.
Dialler = Callable[[Callable[[Connection | DialFailed], None]], None]


class LinkHandler(Handler, Protocol):
    """Called on the I/O thread, as Handler is; `connection` is the link."""

    def link_suspected(self, link: LinkConnection, why: str) -> None:
        """Nothing gets through at present: what is sent waits. "": it does again."""
        ...


def limits_from_settings() -> LinkLimits:
    """Returns the limits as the settings are now."""
    queue = settings.outgoing_queue_bytes()
    return LinkLimits(
        ack_every=settings.message_ack_every_n_messages(),
        # The other side's senders wait at a bound like ours: they are to hear of what arrived well before.
        ack_bytes=max(1, min(_ACK_BYTES, queue // 4)),
        ack_interval=settings.message_ack_time_interval(),
        heartbeat=settings.server_heartbeat_interval(),
        reconnect=settings.channel_reconnect_timeout(),
        attach=settings.mesh_attach_config_timeout(),
        queue=queue,
    )


class LinkConnection:
    """See the module, `base.Connection` and `link.Link`.

    `dial` and `reached` (the address it dials) make it the side that dials, from `start` on; the other side gets each of its
    connections from `accept`. Either way the connection's frames and its loss must come here, as to its Handler.

    `host`: our address prefix; `agent`: unique id of this process; `uid`: of the link. `remote` is the other host's prefix;
    the owner of the link may set another text. `lost` means dead: `reason` says why, `orderly` whether one of the two closed
    it on purpose. A broken connection alone is no loss; see `suspected`.

    Bound: `limits.queue` bytes kept, from which `wait_room` waits; a frame may pass it. As many bytes of memory for copies
    of what is sent stay with the link while it is used (`copies`).
    """

    def __init__(
        self,
        loop: Reactor,
        handler: LinkHandler,
        *,
        uid: str,
        host: str,
        agent: str,
        limits: LinkLimits,
        rng: random.Random,
        reached: str = "",
        dial: Dialler | None = None,
        target_incarnation: LinkTarget = NOBODY,
        software: Software | None = None,
    ) -> None:
        if bool(reached) != (dial is not None):
            raise ValueError(f"`reached` and `dial` go together: got {reached!r} and {dial!r}")
        self.remote = reached
        self.route = b""
        self.pid = 0
        self.uid = uid
        self.reason = ""
        self.lost = False
        self.on_up: Callable[[], Any] | None = None  # called on the I/O thread each time a connection is up
        self.on_room: Callable[[], Any] | None = None  # and when there is room again after `full`
        self._loop = loop
        self._handler = handler
        self._dial = dial
        self._link = Link(
            uid, host=host, agent=agent, limits=limits, rng=rng, reached=reached, target_incarnation=target_incarnation,
            software=software,
        )  # fmt: skip
        self._copies = Copies(limits.queue, _IDLE, loop)
        self._lock = RLock()  # for what `_link` keeps, and so for its events
        self._carrier: Any = None  # takes data: the link's connection once it is up
        self._room = Waiters()
        self._was_full = False
        self._effects: deque[LinkEffect] = deque()
        self._acting = False
        self._timer: Timer | None = None
        self._armed_for = NEVER
        self._reads = 0
        self._paused = False

    def __repr__(self) -> str:
        state = f"dead: {self.reason}" if self.lost else self.suspected or ("up" if self.up else "not up yet")
        return f"<LinkConnection {self.uid} to {self.remote or '?'} ({state}, {self.queued} bytes kept)>"

    # --- state, any thread

    @property
    def queued(self) -> int:
        """Bytes sent that the other side has not said it has."""
        return self._link.unacknowledged_bytes

    @property
    def full(self) -> bool:
        """Senders are to wait: see `wait_room`, or `on_room` on the I/O thread."""
        if not self._link.full:
            return False
        self._was_full = True
        return self._link.full

    @property
    def up(self) -> bool:
        return self._carrier is not None

    @property
    def dials(self) -> bool:
        """Returns whether it is this side that makes connections."""
        return self._dial is not None

    @property
    def reads(self) -> int:
        """Grows while bytes arrive on the present connection; 0 without one."""
        return int(getattr(self._link.connection, "reads", 0))

    @property
    def suspected(self) -> str:
        """Returns why nothing gets through at present, or ""."""
        return self._link.suspected

    @property
    def other_agent(self) -> str:
        """The unique id of the process at the other end, "" before it was ever connected."""
        return self._link.other_agent

    @property
    def orderly(self) -> bool:
        dead = self._link.dead
        return dead is not None and dead.orderly

    # --- sending, any thread

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        if is_mine(self._lock):
            return False
        if not self._loop.in_loop():
            with self._lock:
                return self._send_small(frame, coalesce_within)
        if not self._lock.acquire(False):
            return False
        try:
            return self._send_small(frame, coalesce_within)
        finally:
            self._lock.release()

    def _send_small(self, frame: bytes, coalesce_within: float) -> bool:
        carrier: Connection | None = self._carrier
        pieces = (frame,)
        try:
            if carrier is None or not carrier.send_small(frame, coalesce_within):
                return False
            self._link.keep(pieces, len(frame))
            return True
        except BaseException as exc:  # of a handler of signals: nobody knows whether it was sent, so it is kept
            if not self._link.keeps(pieces):
                self._link.keep(pieces, len(frame))
            self._drop_carrier(exc)
            raise

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        """Returns at once also while there is no connection. `owned`: nobody changes the pieces from now on; else those
        that are not `bytes` are copied, which is why `wait` means nothing here. ConnectionLost once the link is dead."""
        if len(pieces) == 1 and type(pieces[0]) is bytes:
            size = len(pieces[0])
        else:
            if not owned:
                pieces = [self._copies.of(piece) for piece in pieces]
            size = _size(pieces)
        if is_mine(self._lock):  # a finalizer of the program, or a handler of signals, sends in the midst of a step
            self._loop.call_soon(lambda: self._send_later(pieces))
            return
        with self._lock:
            dead = self._link.dead
            if dead is not None:
                raise ConnectionLost(dead.why)
            try:
                self._link.keep(pieces, size)
                carrier = self._carrier
                if carrier is not None:
                    carrier.send(pieces, False, coalesce_within, owned=True)
            except ConnectionLost as exc:
                self._drop_carrier(exc)
            except BaseException as exc:  # of a handler of signals
                if self._link.keeps(pieces):
                    self._drop_carrier(exc)
                raise

    def _send_later(self, pieces: Sequence[Buffer]) -> None:
        try:
            self.send(pieces, owned=True)
        except ConnectionLost:  # which is told of all that was sent here
            pass

    def _drop_carrier(self, exc: BaseException) -> None:
        """Under the lock. A frame is missing on it now, or may be, so none may follow."""
        carrier, why = self._carrier, str(exc) or type(exc).__name__
        if carrier is not None:
            self._carrier = None
            self._loop.call_soon(lambda: self._give_up(carrier, why))

    def wait_room(self, timeout: float) -> bool:
        """Waits while `full`. False after `timeout` seconds."""
        if not self.full or self.lost:
            return True
        return self._room.wait_for(lambda: self.lost or not self.full, timeout)

    def close(self, reason: str) -> None:
        """Any thread. Says Bye; what was not received yet is given up. The handler hears `connection_lost` on the I/O
        thread, and the other side's handler that it was orderly, if the Bye arrives."""
        self._on_loop(lambda: self._event(self._link.close, reason))

    def renew(self, reason: str) -> None:
        """On the I/O thread: gives the present connection up for a new one, because it may be dead without knowing."""
        connection = self._link.connection
        if connection is not None and self._dial is not None:
            connection.close(reason)

    def finish(self, reason: str) -> None:
        """On the I/O thread, when the other host has ended: takes what it still sent, then closes. Says Bye, should it have
        been told wrongly."""
        connection = self._link.connection
        if connection is not None:
            self._tell(connection, Bye(reason))
            connection.finish(reason)
        self._event(self._link.close, reason)

    def _on_loop(self, fn: Callable[[], Any]) -> None:
        if self._loop.in_loop():
            fn()
        else:
            self._loop.call_soon(fn)

    # --- connections, on the I/O thread

    def start(self) -> None:
        """Begins to dial, from any thread."""
        if self._dial is None:
            raise ValueError("this side of the link does not dial")
        self._on_loop(lambda: self._event(self._link.start))

    def accept(self, connection: Connection, hello: LinkHello) -> None:
        """A connection for this link, whose first frame was `hello`. One that does not fit gets Bye and is closed."""
        self.remote = self.remote or hello.host
        self._event(self._link.accepted, connection, hello)

    def pause_reading(self) -> None:
        """Takes no more frames until `resume_reading`, neither from this connection nor from the next. What was read already,
        or is left in a connection when it breaks, may still come. Meanwhile the other side's silence says nothing."""
        self._paused = True
        self._link.deaf(self._loop.now(), True)
        self._apply_pause()

    def resume_reading(self) -> None:
        self._paused = False
        self._link.deaf(self._loop.now(), False)
        resume = getattr(self._carrier, "resume_reading", None)
        if resume is not None:
            resume()
        self._arm()

    def _apply_pause(self) -> None:
        pause = getattr(self._carrier, "pause_reading", None)
        if pause is not None:
            pause()

    def _dialled(self, outcome: Connection | DialFailed) -> None:
        if isinstance(outcome, DialFailed):
            self._event(self._link.dial_failed, str(outcome), outcome.refused, outcome.final, outcome.unexpected)
        else:
            self._reads = getattr(outcome, "reads", 0)
            self._event(self._link.dialled, outcome)

    # --- what connections tell, on the I/O thread

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        data: list[Frame] = []
        for frame in received:
            head = frame.head
            if len(head) > 1 and head[1] in _CONTROL and head[0] & 0xF0 == 0x90:
                if data:
                    self._deliver(connection, data)
                    data = []
                self._control(connection, frame)
            else:
                data.append(frame)
        if data:
            self._deliver(connection, data)

    def _deliver(self, connection: Any, data: list[Frame]) -> None:
        if connection is not self._link.connection:
            return
        if not self._link.up:
            self._give_up(connection, "it sent data before it said hello")
            return
        size = 0
        for frame in data:
            size += len(frame.head) + len(frame.body)
            if frame.buffers:
                size += _size(frame.buffers)
        self._reads = getattr(connection, "reads", 0)
        # Counted first: were it only counted when the handler is done, one that fails would get it a second time.
        effects = self._link.took(self._loop.now(), connection, len(data), size)
        if effects:
            self._act(effects)
        elif self._link.due() < self._armed_for:
            self._arm()
        try:
            self._handler.connection_received(self, data)
        except Exception as exc:  # the frames behind these are to be counted
            self._report(exc)

    def _control(self, connection: Any, frame: Frame) -> None:
        if connection is not self._link.connection:
            return
        self._reads = getattr(connection, "reads", 0)
        try:
            msg = message.decode(frame.head)
        except message.UNREADABLE as exc:
            self._give_up(connection, f"it sent a message that cannot be decoded: {exc}")
            return
        match msg:
            case Beat(received):
                self._event(self._link.beat, connection, received)
            case LinkHello():
                self._event(self._link.hello_received, connection, msg)
            case Bye(reason):
                self._event(self._link.said_bye, connection, reason)

    def connection_lost(self, connection: Any, reason: str) -> None:
        # Not at once: the connection may hold its own lock, which a sender wants who holds ours.
        refused = getattr(connection, "frame_refused", False)
        self._loop.call_soon(lambda: self._event(self._link.broken, connection, reason, refused))

    def _give_up(self, connection: Any, why: str) -> None:
        """Closes that connection, not the link. It may have told its loss before."""
        connection.close(why)
        self._event(self._link.broken, connection, why)

    # --- effects

    def _event(self, event: Callable[..., list[LinkEffect]], *args: Any) -> None:
        with self._lock:
            effects = event(self._loop.now(), *args)
            if self._link.connection is not self._carrier:
                self._carrier = None
        self._act(effects)

    def _act(self, effects: Iterable[LinkEffect]) -> None:
        """Carries them out in order. What comes of one of them is done after those that were wanted before."""
        self._effects.extend(effects)
        if self._acting:
            return
        self._acting = True
        while self._effects:
            try:
                self._do(self._effects.popleft())
            except Exception as exc:  # a handler's trouble must not cost the effects behind it
                self._report(exc)
        self._acting = False
        self._arm()
        self._tell_room()

    def _report(self, exc: Exception) -> None:
        """Reports to the loop, which has somewhere to say it."""
        self._loop.call_soon(lambda: _raise(exc))

    def _do(self, effect: LinkEffect) -> None:
        match effect:
            case SendMessage(connection, msg):
                self._tell(connection, msg)
            case Carry(connection):
                self._carry(connection)
            case Dial():
                self._begin_dial()
            case SendBye(connection, why):
                self._tell(connection, Bye(why))
                connection.close(why)
            case Close(connection, why):
                connection.close(why)
            case Suspect(why):
                self._handler.link_suspected(self, why)
            case Dead(why, _):
                self._die(why)

    def _tell(self, connection: Any, msg: Any) -> None:
        try:
            connection.send([frames.encode_small(message.encode(msg), b"")])
        except ConnectionLost as exc:
            why = str(exc)
            self._loop.call_soon(lambda: self._give_up(connection, why))

    def _carry(self, connection: Any) -> None:
        """Sends what the other side lacks again, and then what is new."""
        with self._lock:
            if self._link.connection is not connection:  # it was lost since that was wanted
                return
            self._carrier = connection
            self._reads = getattr(connection, "reads", 0)
            try:
                for pieces in _batches(self._link.kept):
                    connection.send(pieces, owned=True)
            except ConnectionLost as exc:
                self._drop_carrier(exc)
        if self._paused:
            self._apply_pause()
        if self.on_up is not None:
            self.on_up()

    def _begin_dial(self) -> None:
        if self._dial is None or self._link.dead:
            return
        try:
            self._dial(self._dialled)
        except Exception as exc:
            self._dialled(DialFailed(f"{type(exc).__name__}: {exc}"))

    def _die(self, why: str) -> None:
        self.reason, self.lost = why, True
        self._room.tell()
        self._handler.connection_lost(self, why)

    def _tell_room(self) -> None:
        if not self._was_full or self._link.full:
            return
        self._was_full = False
        self._room.tell()
        if self.on_room is not None:
            self.on_room()

    # --- time

    def _arm(self) -> None:
        """A timer that is early is left alone: it sets the next."""
        due = self._link.due()
        if due >= self._armed_for and due != NEVER:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = due
        if due != NEVER:
            self._timer = self._loop.call_later(max(0.0, due - self._loop.now()), self._fired)

    def _fired(self) -> None:
        self._timer, self._armed_for = None, NEVER
        current = self._link.connection
        reads = getattr(current, "reads", 0)
        if reads != self._reads:  # a frame is arriving that takes longer than silence may last
            self._reads = reads
            self._link.alive(self._loop.now())
        self._event(self._link.tick, current is not None and current.queued > 0)


def _raise(exc: BaseException) -> NoReturn:
    raise exc


def _size(pieces: Iterable[Buffer]) -> int:
    return sum(piece.nbytes if isinstance(piece, memoryview) else len(piece) for piece in pieces)


def _batches(kept: Iterable[tuple[Sequence[Buffer], int]]) -> Iterable[list[Buffer]]:
    """The pieces of many frames for one write each: they are one stream of bytes."""
    batch: list[Buffer] = []
    for pieces, _size in kept:
        batch += pieces
        if len(batch) >= _PIECES_A_WRITE:
            yield batch
            batch = []
    if batch:
        yield batch
