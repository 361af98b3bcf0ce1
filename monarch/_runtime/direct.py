"""Links that processes of different hosts make themselves, when they have much to say to each other.

    before   A ──► agent ──link──► agent ──► B       (see `_wire.relay`)
    after    A ──────────link──────────────► B

When A has sent B so many messages (setting direct_after), A asks the agent of its host how to dial (AskDirect, MayDial)
and connects to the port of B's host, as an agent does. The first frame names B; B's agent, who has checked that the
connection may speak, hands its descriptor to B. So a host has one open port, and a connection that breaks is made again in
the same way: both ends are `link_connection.LinkConnection`s, so nothing is lost, repeated or reordered by that.

Order across the change: once the link is up, A sends everything new over it, and behind what still goes through the agents a
Barrier. B takes nothing from the link before the Barrier has come. B then does the same towards A. A link that dies is as any
connection that breaks: the process goes back to the agents, and calls under way fail (see `Peer`).

These links have no heartbeat: whether a process that says nothing lives, its agent judges, and whether its host does, the
link between the agents shows. When that one was interrupted and works again, those beside it are made anew (`recovered`): the
kernel would wait longer before it tries again. A connection that nobody answers for otherwise breaks after
channel_reconnect_timeout, by the kernel's TCP_USER_TIMEOUT.

The end of a process is told by the agents, and its last answers may still be on the link: see `Directs.ended`.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._runtime.loop import start_thread
from monarch._wire import host_address, message
from monarch._wire.address import agent_of, host_of, name_of
from monarch._wire.auth import Secret
from monarch._wire.frame import Frame
from monarch._wire.ids import new_id
from monarch._wire.link import LinkTarget
from monarch._wire.link_connection import LinkConnection, limits_from_settings
from monarch._wire.message import AskDirect, Barrier, LinkHello, MayDial, ProcEnded
from monarch._wire.peer import PeerEnded
from monarch._wire.relay import Relay
from monarch._wire.transport import tcp
from monarch._wire.transport.base import Connection, ConnectionLost, DialFailed, StreamSocket, Timer
from monarch._wire.transport.stream import StreamConnection, refuse
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

MOST = 64  # links of one process; the pairs beyond stay with the agents
_ATTACH = 10.0  # seconds to make a link; nobody waits for it
_LONGEST = 2**31 - 1  # milliseconds that the kernel takes
LAST_WORDS = 1.0  # seconds without a byte after which a process that has ended has nothing more to say


class Pair:
    """One link, and what is known of the process at its other end. On the I/O thread."""

    def __init__(self, address: str, incarnation: int, dialled: bool) -> None:
        self.address = address
        self.incarnation = incarnation
        self.dialled = dialled
        self.link: LinkConnection
        self.sending = False  # what we send goes over it
        self.taking = False  # and what comes over it counts: the Barrier has come
        self.held: list[Frame] = []  # what came before; the link is not read from then
        self.over = False  # nobody wants to hear of its loss
        self.gone = ""  # why there is no link any more, while something is held
        self.end: ProcEnded | None = None  # its process has ended, and what it said last may be on its way
        self.timer: Timer | None = None
        self.reads = 0
        self.attempt: tcp.DialAttempt | None = None

    def __repr__(self) -> str:
        return f"<Pair with {self.address} ({'sending' if self.sending else ''} {'taking' if self.taking else ''})>"


class Directs:
    """The links of one process. On its I/O thread but for `close`. Bound: MOST; a further one is refused."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._loop = proc.loop
        self._id = new_id()
        self._pairs: dict[str, Pair] = {}  # by the link's uid
        self._closed_hosts: set[str] = set()  # whose agent we have asked, or ours has, to no avail
        self._rng = random.Random()
        self._replaced: set[str] = set()  # hosts in whose place others have come

    def __repr__(self) -> str:
        return f"<Directs {list(self._pairs.values())}>"

    @property
    def pairs(self) -> list[Pair]:
        return list(self._pairs.values())

    # --- making one

    def busy(self, relay: Relay) -> None:
        """Asks for a link, once more than `direct_after` messages to that process were relayed."""
        address, proc = relay.remote, self._proc
        if relay.lost or proc.closed is not None:
            return
        for pair in self._with(address):
            if pair.taking or (pair.dialled and pair.link.up):
                self._switch(pair)
            return
        if host_of(address) not in self._closed_hosts and len(self._pairs) < MOST:
            self._ask(address)

    def _ask(self, address: str) -> None:
        try:
            self._proc.post(agent_of(self._proc.address), AskDirect(address))
        except (PeerEnded, RuntimeError):  # the agent has ended, or we have
            pass

    def _with(self, address: str) -> list[Pair]:
        return [pair for pair in self.pairs if pair.address == address]

    def may_dial(self, told: MayDial) -> None:
        """Takes the agent's answer: dials the other process, or leaves its host alone from now on."""
        address = told.address
        if told.why:
            self._closed_hosts.add(host_of(address))
            return
        peer = self._proc.known_peer(address)
        if peer is None or type(peer.connection) is not Relay or self._with(address) or self._proc.closed is not None:
            return  # it has ended meanwhile, or has dialled us
        pair = Pair(address, peer.incarnation, dialled=True)
        self._add(
            pair,
            uid=new_id(),
            reached=address,
            dial=self._dialler(pair, told.at or host_of(address), Secret(told.secret) if told.secret else None),
            target_incarnation=LinkTarget(address, peer.incarnation, self._proc.incarnation),
        )
        pair.link.on_up = lambda: self._switch(pair)
        pair.link.start()

    def _add(self, pair: Pair, *, uid: str, **how: Any) -> None:
        limits = limits_from_settings()
        limits = limits._replace(attach=min(limits.attach, _ATTACH), heartbeat=0)
        pair.link = LinkConnection(
            self._loop, self, uid=uid, host=self._proc.address, agent=self._id, limits=limits, rng=self._rng, **how
        )
        self._pairs[uid] = pair

    def _dialler(self, pair: Pair, at: str, secret: Secret | None) -> Callable[[Callable[[Any], None]], None]:
        def begin(done: Callable[[Any], None]) -> None:
            def connected(outcome: Any) -> None:
                pair.attempt = None
                if isinstance(outcome, DialFailed):
                    done(outcome)
                    return
                connection = self._connection(outcome, pair.link)
                done(connection)
                connection.start()

            try:
                to = host_address.parse_dial(at)
                pair.attempt = tcp.dial(to, self._loop, connected, secret=secret, start_thread=start_thread)
            except ValueError as exc:
                why = str(exc)
                self._loop.call_soon(lambda: done(DialFailed(why, final=True)))

        return begin

    def _connection(self, sock: StreamSocket, link: LinkConnection) -> StreamConnection:
        if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
            patience = min(round(settings.channel_reconnect_timeout() * 1000), _LONGEST)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
            except OSError:  # broken already, which reading tells
                pass
        queue, frame_limit = self._proc.limits()
        return StreamConnection(sock, self._loop, link, limit=queue, frame_limit=frame_limit)

    def handed(self, sock: socket.socket, data: bytes) -> None:
        """The agent of this host gives us a connection that may speak; `data` is its first frame's head, a LinkHello."""
        try:
            hello = message.decode(data)
        except msgspec.MsgspecError:
            hello = None
        if type(hello) is not LinkHello or self._proc.closed is not None:
            sock.close()
            return
        if hello.purpose:
            self._proc.streams().handed(sock, hello)
            return
        pair = self._pairs.get(hello.link)
        why = self._unwanted(hello) if pair is None else "that link has ended here" if pair.gone else ""
        if why:
            refuse(sock, why)
            return
        if pair is None:
            pair = Pair(hello.host, hello.incarnation, dialled=False)
            self._add(pair, uid=hello.link)
        connection = self._connection(sock, pair.link)
        connection.start()
        pair.link.accept(connection, hello)

    def _unwanted(self, hello: LinkHello) -> str:
        """Returns why there is to be no new link with the process that dials."""
        proc, address = self._proc, hello.host
        if name_of(hello.to) != name_of(proc.address):
            return f"the process {name_of(hello.to)} is not here"
        if hello.target_incarnation != proc.incarnation:
            return "that process has ended, and a new one has taken its place"
        if hello.resume:
            return "that link is not known here: the process was replaced, or gave the link up"
        peer = proc.known_peer(address)
        if peer is not None and hello.incarnation < peer.incarnation:
            return "another process has taken the place of the one that dials"
        if host_of(address) in self._replaced and (peer is None or peer.ended is not None):
            return "its host was replaced, and by the agents, who know which one is meant, it has said nothing yet"
        for pair in self._with(address):
            if not pair.dialled or pair.incarnation != hello.incarnation:
                pair.link.close("a newer link has taken the place of this one")
            elif pair.link.up or proc.address < address:
                return "both processes dialled each other, and the other connection is used"
            else:
                pair.link.close("the other process dials")
        return f"it has {MOST} links already" if len(self._pairs) >= MOST else ""

    # --- changing over

    def _switch(self, pair: Pair) -> None:
        """Sends over the link from now on."""
        peer, link = self._proc.known_peer(pair.address), pair.link
        relay = None if peer is None else peer.connection
        if (
            pair.sending
            or link.lost
            or peer is None
            or type(relay) is not Relay
            or peer.incarnation != pair.incarnation
        ):
            return
        if peer.succeed(relay, link):
            pair.sending = True
            relay.succeed(link, lambda: self._loop.call_soon(lambda: _last_word(relay, link.uid)))

    def barrier(self, connection: Connection, barrier: Barrier) -> None:
        """All that the process at the other end of `connection` has sent through the agents has been handled."""
        pair = self._pairs.get(barrier.link)
        peer = self._proc.known_peer(connection.remote)
        if pair is None or peer is None or pair.address != connection.remote or peer.incarnation != pair.incarnation:
            return  # the link has died
        self._take(pair)
        if pair.gone:
            self._lost(pair, pair.gone)
        else:
            self._switch(pair)

    def _take(self, pair: Pair) -> None:
        if not pair.taking:
            pair.taking = True
            held, pair.held = pair.held, []
            if held:
                self._proc.connection_received(pair.link, held)
                if not pair.gone:
                    pair.link.resume_reading()

    # --- what links tell

    def connection_received(self, link: LinkConnection, received: list[Frame]) -> None:
        pair = self._pairs.get(link.uid)
        if pair is None:
            return
        if pair.taking:
            self._proc.connection_received(link, received)
            return
        if not pair.held:
            link.pause_reading()
        pair.held += received

    def connection_lost(self, link: LinkConnection, reason: str) -> None:
        pair = self._pairs.get(link.uid)
        if pair is None or pair.link is not link:
            return
        if pair.attempt is not None:
            pair.attempt.cancel()
            pair.attempt = None
        if pair.held and not pair.taking:
            pair.gone = reason
        else:
            self._lost(pair, reason)

    def _lost(self, pair: Pair, reason: str) -> None:
        del self._pairs[pair.link.uid]
        if pair.end is not None:
            self._tell_end(pair)
        elif (pair.sending or pair.taking) and not pair.over:
            self._proc.connection_lost(pair.link, reason)

    def link_suspected(self, link: LinkConnection, why: str) -> None:
        """Its connection broke. What that says of the host, the agents know."""
        pair = self._pairs.get(link.uid)
        if why and pair is not None and pair.end is not None:
            self._tell_end(pair)

    def recovered(self, host: str) -> None:
        """The agents hear each other again."""
        for pair in self.pairs:
            if host_of(pair.address) == host:
                pair.link.renew("the connection to that host was interrupted")

    def host_replaced(self, host: str) -> None:
        self._closed_hosts.discard(host)
        self._replaced.add(host)

    # --- ends

    def ended(self, ended: ProcEnded) -> bool:
        """The agents say that a process has ended. True when there is a link over which its last words may still come: the
        end is told to the Proc once that is over, or nothing has come for LAST_WORDS seconds."""
        pair = next((p for p in self._with(ended.address) if p.incarnation <= ended.incarnation and p.link.up), None)
        if pair is None:
            return False
        pair.end = ended
        self._take(pair)  # no Barrier will come
        if pair.timer is None and pair.end is not None:
            self._wait(pair)
        return True

    def _wait(self, pair: Pair) -> None:
        pair.reads = pair.link.reads
        pair.timer = self._loop.call_later(LAST_WORDS, lambda: self._look(pair))

    def _look(self, pair: Pair) -> None:
        if pair.end is None:
            return
        if pair.link.up and pair.link.reads != pair.reads:
            self._wait(pair)
        else:
            self._tell_end(pair)

    def _tell_end(self, pair: Pair) -> None:
        ended, pair.end = pair.end, None
        if pair.timer is not None:
            pair.timer.cancel()
        if ended is not None:
            self._proc.on_process_ended(ended)

    def tell_end(self, address: str) -> None:
        """The end of that process, if it was put off, is told now."""
        for pair in self._with(address):
            self._tell_end(pair)

    def end(self, address: str, incarnation: int) -> None:
        """Counts that process as ended: its links are read empty and closed without a word to the Proc."""
        for pair in self._with(address):
            if pair.incarnation <= incarnation:
                pair.end = None
                if pair.timer is not None:
                    pair.timer.cancel()
                self._take(pair)
                pair.over = True
                pair.link.finish("the process has ended")
                self._pairs.pop(pair.link.uid, None)

    def close(self, reason: str) -> None:
        """May be called from any thread."""
        for pair in self.pairs:
            pair.link.close(reason)


def _last_word(relay: Relay, link: str) -> None:
    try:
        relay.last_word(message.encode(Barrier(link)))
    except ConnectionLost:  # the agent has ended, and this process with it
        pass
