"""One ordered conversation of two host agents over one connection after another. Pure: events in, effects out.

    dialler:   down ──dialled──► handshake ──its hello──► up ──broken, silent──► down ──…──► dead
    acceptor:  down ──────────accepted────────────────► up ──broken, silent──► down ──…──► dead

Data frames carry no number: both sides count them. What was sent is kept until the other side says, in a Beat or in the
LinkHello that opens each connection, how many it has received; what it lacks then is sent again on the new connection. So
nothing is lost, repeated or reordered while both processes live and meet again in time. Otherwise the link is dead, once
and for all: what was kept is given up and both sides say so for themselves.

Each method is an event and takes the time as `now`, in seconds; it returns what is to be done, in that order. Connections
are opaque keys, told apart by identity; events of any but the latest are ignored. `tick` is to be called at `due()`, which
changes with every event.

A frame that one side cannot take (no memory, over its limit) breaks the connection and comes again with the next, which helps
when there is memory by then. After `FRAME_REFUSALS` times that side gives the link up, and tells the other why.

Bound: `full` from `limits.queue` bytes on that the other side has not said it has. Nothing is dropped or refused there:
the sender has to wait, and a single frame may pass the bound.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from monarch._wire.frame import Buffer
from monarch._wire.message import VERSION, Beat, LinkHello
from monarch._wire.software import Software, mismatch

NEVER = float("inf")
SILENT_AFTER = 3  # heartbeats without a sign of life
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two attempts to dial; each pause is twice the one before
STEADY = 0.1  # seconds that a connection must have been up to be redialled at once when it breaks
# A host agent holds its port for its whole life: so often refused, over so many seconds, and it has ended. More than once,
# because a full backlog or a firewall that is being set up refuses too.
REFUSALS, REFUSED_FOR = 3, 0.3
# Times that one frame is refused until the link is given up: 7 s or so with the pauses between connections.
FRAME_REFUSALS = 10
_ROUNDING = 1e-6  # seconds that a timer may be early

Connection: TypeAlias = Any  # a key; only the code that carries out effects knows more


class LinkLimits(NamedTuple):
    """The limits of a link; times in seconds. `link_connection.limits_from_settings` names the settings that they come
    from."""

    ack_every: int = 1000  # data frames received, after which the sender is told
    ack_bytes: int = 4 << 20  # or bytes
    ack_interval: float = 0.5  # or time since the first of them
    heartbeat: float = 1.0  # between two signs of life; 0: none are sent, and silence is no reason
    reconnect: float = 60.0  # for a broken connection to be replaced
    attach: float = 60.0  # for the first one to be made
    queue: int = 64 << 20  # bytes kept from which senders are held


# --- effects ------------------------------------------------------------------------------------------------


class Dial(NamedTuple):
    """Begin one attempt. Answered by `dialled` or `dial_failed`, once."""


class SendMessage(NamedTuple):
    """A message of the link itself, which does not count; the connection may be gone."""

    connection: Connection
    message: Any


class Carry(NamedTuple):
    """The link is up. Write every frame in `kept` to the connection, in order; and what is sent from now on."""

    connection: Connection


class SendBye(NamedTuple):
    """The effect: tell the other side why, and close the connection once that is sent."""

    connection: Connection
    why: str


class Close(NamedTuple):
    connection: Connection
    why: str


class Suspect(NamedTuple):
    """The reason why nothing gets through at present; "": the link is up again, or it is only that nobody has answered
    yet."""

    why: str


class Dead(NamedTuple):
    """The last effect that is not a SendBye or Close. `orderly`: one of the two closed it on purpose."""

    why: str
    orderly: bool = False


LinkEffect: TypeAlias = Dial | SendMessage | Carry | SendBye | Close | Suspect | Dead

_DOWN, _HANDSHAKE, _UP = "down", "handshake", "up"


class LinkTarget(NamedTuple):
    """The two ends of a link between processes: see the fields of that name in `message.LinkHello`."""

    to: str = ""
    target_incarnation: int = -1
    incarnation: int = 0


NOBODY = LinkTarget()  # a link between agents


class Link:
    """See the module. `uid` is unique for all time and chosen by the side that dials; `host` is the address prefix of this
    side, `agent` the unique id of its process, `reached` the address that is dialled. The acceptor leaves `reached` empty:
    the dialler's hello says what its host is called. `rng`: for the jitter of pauses.
    `target_incarnation`: whom the dialler is after. `software`: what this host runs; the other side's has to fit it."""

    def __init__(
        self, uid: str, *, host: str, agent: str, limits: LinkLimits, rng: random.Random, reached: str = "",
        target_incarnation: LinkTarget = NOBODY, software: Software | None = None,
    ) -> None:  # fmt: skip
        self.uid = uid
        self.remote = reached  # address prefix of the other host; known to the acceptor from the first hello on
        self.kept: deque[tuple[Sequence[Buffer], int]] = deque()  # sent and not known to be received: pieces, bytes
        self.unacknowledged_bytes = 0
        self.received = 0  # data frames, on all connections
        self.suspected = ""
        self.dead: Dead | None = None
        self.connection: Connection = None  # the latest, whose events count
        self._host = host
        self._agent = agent
        self._reached = reached
        self._meant = target_incarnation
        self._software = software
        self._dials = bool(reached)
        self._limits = limits
        self._rng = rng
        self._state = _DOWN
        self._established = False  # a connection has been up
        self.other_agent = ""  # the unique id of the process at the other end; known from the first connection on
        self._acknowledged = 0  # frames that are not kept any more
        # of the connection
        self._up_at = 0.0
        self._heard_at = 0.0
        self._beat_at = 0.0
        self._ack_at = NEVER
        self._unacked = self._unacked_bytes = 0  # received and not told
        self._deaf = False
        # of a frame that this side could not take, and behind which nothing gets through
        self._frame_refusals = 0
        self._frame_number = 0  # `received` when it came
        self._frame_why = ""
        # of the search for one
        self._window = NEVER  # when it ends
        self._why = "nothing was tried yet"
        self._dialling = False
        self._dial_at = NEVER
        self._attempt = 0
        self._refusals = 0
        self._refused_at = 0.0
        self._unexpected = False  # the last failure was

    def __repr__(self) -> str:
        state = f"dead: {self.dead.why}" if self.dead else self._state
        return f"<Link {self.uid} to {self.remote or '?'} ({state}, {self.unacknowledged} frames kept)>"

    # --- state

    @property
    def up(self) -> bool:
        return self._state == _UP

    @property
    def sent(self) -> int:
        """Data frames, since the link's beginning."""
        return self._acknowledged + len(self.kept)

    @property
    def unacknowledged(self) -> int:
        """Frames sent that the other side has not said it has."""
        return len(self.kept)

    @property
    def full(self) -> bool:
        """True while senders are to wait."""
        return self.unacknowledged_bytes >= self._limits.queue

    def due(self) -> float:
        """Returns when `tick` is to be called next; NEVER: there is no need."""
        if self.dead:
            return NEVER
        if self._state == _UP:
            beat = self._beat_at + self._limits.heartbeat if self._limits.heartbeat > 0 else NEVER
            return min(beat, self._silent_at(), self._ack_at)
        if self._state == _HANDSHAKE:
            return min(self._window, self._silent_at())
        return min(self._window, self._dial_at)

    def _silent_at(self) -> float:
        heartbeat = self._limits.heartbeat
        deaf = self._deaf and self._state == _UP  # a hello is always read
        return NEVER if deaf or heartbeat <= 0 else self._heard_at + SILENT_AFTER * heartbeat

    # --- events: data

    def keep(self, pieces: Sequence[Buffer], size: int) -> None:
        """A data frame is sent: written at once when the link is up, else by the next Carry. Its pieces stay as they are
        until it is acknowledged."""
        self.unacknowledged_bytes += size  # first: a handler of signals that raises does so behind a call
        self.kept.append((pieces, size))

    def keeps(self, pieces: Sequence[Buffer]) -> bool:
        """Returns whether these very pieces are the last that were kept."""
        return bool(self.kept) and self.kept[-1][0] is pieces

    def took(self, now: float, connection: Connection, count: int, size: int) -> list[LinkEffect]:
        """`count` data frames of `size` bytes arrived and are passed on."""
        if connection is not self.connection:
            return []
        self._heard_at = now
        self.received += count
        self._unacked += count
        self._unacked_bytes += size
        if self._unacked >= self._limits.ack_every or self._unacked_bytes >= self._limits.ack_bytes:
            return [self._beat(now)]
        if self._ack_at == NEVER:
            self._ack_at = now + self._limits.ack_interval
        return []

    def beat(self, now: float, connection: Connection, received: int) -> list[LinkEffect]:
        if connection is not self.connection:
            return []
        self._heard_at = now
        if received > self.sent:
            return self._refuse_and_die(connection, self._miscounted(received))
        self._acknowledge(received)
        return []

    def alive(self, now: float) -> None:
        """Something arrived: a part of a frame."""
        self._heard_at = now

    def deaf(self, now: float, on: bool) -> None:
        """We do not read for a while: silence says nothing. Off: the other side has its full time again."""
        self._deaf = on
        self._heard_at = now

    def _acknowledge(self, received: int) -> None:
        kept = self.kept
        while self._acknowledged < received:
            self.unacknowledged_bytes -= kept.popleft()[1]
            self._acknowledged += 1

    def _beat(self, now: float) -> LinkEffect:
        self._beat_at = now
        self._told()
        return SendMessage(self.connection, Beat(self.received))

    def _told(self) -> None:
        """The other side hears how much we have received."""
        self._ack_at, self._unacked, self._unacked_bytes = NEVER, 0, 0

    # --- events: connections

    def start(self, now: float) -> list[LinkEffect]:
        """Begins, at the dialler, who has the limit `attach` to come through."""
        self._window = now + self._limits.attach
        return self._dial()

    def dialled(self, now: float, connection: Connection) -> list[LinkEffect]:
        if self.dead or not self._dialling:
            return [Close(connection, "it is not wanted any more")]
        self._dialling = False
        self._refusals = 0
        self._state, self.connection = _HANDSHAKE, connection
        self._heard_at = now
        return [SendMessage(connection, self._hello(self._host, self._reached))]

    def dial_failed(
        self, now: float, why: str, refused: bool = False, final: bool = False, unexpected: bool = False
    ) -> list[LinkEffect]:
        """`refused`: nobody listens there. `final`: trying again would not help. `unexpected`: it is not
        that the worker is yet to start. Of a host that was never reached this is said when it comes twice in a row: a
        worker that ends just now may break a connection once."""
        if self.dead or not self._dialling:
            return []
        self._dialling = False
        self._why = why
        again, self._unexpected = unexpected and self._unexpected, unexpected
        if final:
            return self._die(why)
        self._refusals = self._refusals + 1 if refused else 0
        if self._refusals == 1:
            self._refused_at = now
            if self._established:  # soon it is known whether it has ended, however long its port still took connections
                self._attempt = 0
        long_enough = now + _ROUNDING >= self._refused_at + REFUSED_FOR
        if self._established and self._refusals >= REFUSALS and long_enough:
            return self._die(f"nobody listens at {self.remote} any more: the process has ended ({why})")
        self._dial_later(now)
        if self._established:
            return []
        if unexpected and not again:
            return []
        return self._suspect(f"{why}; it is tried again for up to {self._attach_limit()}" if again else "")

    def hello_received(self, now: float, connection: Connection, hello: LinkHello) -> list[LinkEffect]:
        """Takes the acceptor's hello: goes on where the last connection ended, or dies where the two do not fit."""
        if connection is not self.connection:
            return []
        if self._state != _HANDSHAKE:
            return self._close_broken(now, "the other side said hello a second time")
        why = self._unfit(hello) or self._untakeable()
        if not why and self._established and (not hello.resume or hello.received < self._acknowledged):
            why = self._replaced()
        if why:
            return self._refuse_and_die(connection, why)
        return self._open(now, connection, hello)

    def accepted(self, now: float, connection: Connection, hello: LinkHello) -> list[LinkEffect]:
        """A connection for this link was accepted; `hello` is the dialler's. Takes the place of the one before it."""
        if self.dead:
            return [SendBye(connection, self.dead.why)]
        self.remote = self.remote or hello.host
        why = self._unfit(hello) or self._untakeable()
        if why:
            return self._refuse_and_die(connection, why)
        if hello.received < self._acknowledged or (not hello.resume and (self.received or self._acknowledged)):
            # The same process, which forgets nothing: it has said more since, on a connection that overtook this one.
            return [SendBye(connection, "a newer connection has taken the place of this one")]
        effects: list[LinkEffect] = []
        if self.connection is not None:
            effects.append(Close(self.connection, "a newer connection has taken the place of this one"))
        self._reached = hello.reached
        effects.append(SendMessage(connection, self._hello(hello.reached, hello.reached)))
        return effects + self._open(now, connection, hello)

    def broken(self, now: float, connection: Connection, why: str, frame_refused: bool = False) -> list[LinkEffect]:
        """Takes note that the connection is gone. `frame_refused`: because this side could not take a frame of it."""
        if connection is not self.connection or self.dead:
            return []
        was_up = self._state == _UP
        if frame_refused:
            same = self.received == self._frame_number
            self._frame_refusals = self._frame_refusals + 1 if same else 1
            self._frame_number, self._frame_why = self.received, why
        self._state, self.connection = _DOWN, None
        if not was_up:
            self._why = f"the connection broke before the other side had said hello: {why}"
            self._dial_later(now)
            return []
        self._why = f"the connection to {self.remote} broke: {why}"
        self._window = now + self._limits.reconnect
        effects = self._suspect(self._why)
        if not self._dials:
            return effects
        if now + _ROUNDING < self._up_at + STEADY:
            self._dial_later(now)
            return effects
        self._attempt = 0
        return effects + self._dial()

    def said_bye(self, now: float, connection: Connection, reason: str) -> list[LinkEffect]:
        """The other side gives the link up, or refuses it."""
        if connection is not self.connection:
            return []
        up = self._state == _UP
        why = f"{self.remote} said goodbye: {reason}" if up else f"{self.remote} refused the link: {reason}"
        return self._die(why, orderly=up)

    def close(self, now: float, reason: str) -> list[LinkEffect]:
        """Gives the link up at our side."""
        if self.dead:
            return []
        if self.connection is None:
            return self._die(reason, orderly=True)
        return self._refuse_and_die(self.connection, reason, orderly=True)

    def _hello(self, host: str, reached: str) -> LinkHello:
        state = (self.uid, reached, self.received, self._established)
        return LinkHello(VERSION, host, self._agent, *state, *self._meant, software=self._software)

    def _unfit(self, hello: LinkHello) -> str:
        """Returns why the two cannot go on."""
        if hello.version != VERSION:
            other = f"version {hello.version} of {self.remote}"
            return f"protocol version {VERSION} meets {other}: all hosts need one monarch version"
        if self._software is not None and hello.software is not None:
            why = mismatch(self._host or hello.reached, self._software, self.remote, hello.software)
            if why:
                return why
        if self.other_agent and hello.agent != self.other_agent:
            return self._replaced()
        if hello.link != self.uid:
            return f"{self.remote} spoke of the link {hello.link} on a connection of {self.uid}"
        if not self._established and hello.resume and not self._dials:
            return (
                f"the host at {hello.reached} does not know the link {self.uid}: it was restarted, or gave the link up"
            )
        return "" if hello.received <= self.sent else self._miscounted(hello.received)

    def _untakeable(self) -> str:
        """Returns why nothing more can come from the other side: it would begin with a frame that was refused too
        often."""
        if self._frame_refusals < FRAME_REFUSALS or self.received != self._frame_number:
            return ""
        return f"a frame from {self.remote} could not be taken, {self._frame_refusals} times: {self._frame_why}"

    def _replaced(self) -> str:
        return f"the process at {self.remote} is another one now: the host was restarted"

    def _miscounted(self, received: int) -> str:
        return f"{self.remote} says it has received {received} frames of the {self.sent} that were sent: please report this"

    def _open(self, now: float, connection: Connection, hello: LinkHello) -> list[LinkEffect]:
        self._state, self.connection = _UP, connection
        self._established = True
        self.other_agent = hello.agent
        self._up_at = self._heard_at = self._beat_at = now
        self._window = self._dial_at = NEVER
        self._told()
        self._acknowledge(hello.received)
        return [Carry(connection), *self._suspect("")]

    def _suspect(self, why: str) -> list[LinkEffect]:
        if bool(why) == bool(self.suspected):
            return []
        self.suspected = why
        return [Suspect(why)]

    # --- events: time

    def tick(self, now: float, busy: bool = False) -> list[LinkEffect]:
        """`busy`: the connection has bytes to write, behind which a heartbeat would only wait."""
        due = self.due()
        if now + _ROUNDING < due:
            return []
        if now - due > (self._limits.heartbeat or 1.0) / 2:
            self._forgive(now)
        if self._state != _DOWN and now + _ROUNDING >= self._silent_at():
            silence = SILENT_AFTER * self._limits.heartbeat
            return self._close_broken(
                now, f"no sign of life for {silence:g} s (setting server_heartbeat_interval: {SILENT_AFTER} missed)"
            )
        if self._state == _UP:
            return self._beats(now, busy)
        if now + _ROUNDING >= self._window:
            return self._give_up()
        if now + _ROUNDING >= self._dial_at:
            return self._dial()
        return []

    def _beats(self, now: float, busy: bool) -> list[LinkEffect]:
        if now + _ROUNDING >= self._ack_at:
            return [self._beat(now)]
        if self._limits.heartbeat > 0 and now + _ROUNDING >= self._beat_at + self._limits.heartbeat:
            if not busy:
                return [self._beat(now)]
            self._beat_at = now
        return []

    def _forgive(self, now: float) -> None:
        """We are late: this process was stopped, or did not get the processor. What it did not hear then says nothing."""
        heartbeat = self._limits.heartbeat or 1.0
        self._heard_at = max(self._heard_at, now - (SILENT_AFTER - 1) * heartbeat)
        limit = self._limits.reconnect if self._established else self._limits.attach
        if self._state != _UP:
            self._window = max(self._window, now + min(limit, SILENT_AFTER * heartbeat))

    def _close_broken(self, now: float, why: str) -> list[LinkEffect]:
        """We give the connection up, not the link."""
        connection = self.connection
        return [Close(connection, why), *self.broken(now, connection, why)]

    def _give_up(self) -> list[LinkEffect]:
        if self._established:
            limit = f"{self._limits.reconnect:g} s (setting channel_reconnect_timeout)"
            return self._die(f"no new connection with {self.remote} came about within {limit}: {self._why}")
        return self._die(f"{self.remote} could not be reached within {self._attach_limit()}: {self._why}")

    def _attach_limit(self) -> str:
        return f"{self._limits.attach:g} s (setting mesh_attach_config_timeout)"

    def _dial(self) -> list[LinkEffect]:
        self._dialling, self._dial_at = True, NEVER
        return [Dial()]

    def _dial_later(self, now: float) -> None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        self._dial_at = now + pause * self._rng.uniform(0.5, 1.0)

    # --- the end

    def _refuse_and_die(self, connection: Connection, why: str, orderly: bool = False) -> list[LinkEffect]:
        effects: list[LinkEffect] = [SendBye(connection, why)]
        if connection is self.connection:
            self.connection = None
        return effects + self._die(why, orderly)

    def _die(self, why: str, orderly: bool = False) -> list[LinkEffect]:
        effects: list[LinkEffect] = []
        if self.connection is not None:
            effects.append(Close(self.connection, why))
        self.dead = Dead(why, orderly)
        self._state, self.connection = _DOWN, None
        self.kept.clear()
        self.unacknowledged_bytes = 0
        return [*effects, self.dead]
