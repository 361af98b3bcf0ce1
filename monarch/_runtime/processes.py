"""The other processes that one process knows: how it reaches them, which take whose place, which have ended.

What becomes of them is the word of their host agents: a process can be reached (`reachable`), or has ended (`ending`, then
`ended`). A new process at an address whose last one has not ended here yet is a newcomer: what it sends is kept until then.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from monarch._linux.locks import RLock
from monarch._runtime.incarnations import Incarnations
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import AGENT, agent_at, agent_of, host_of, is_dialable, name_of
from monarch._wire.frame import Frame
from monarch._wire.message import (
    Bounced,
    Call,
    Failure,
    Hello,
    IncarnationAck,
    ProcEnded,
    ProcReachable,
    Watch,
    Welcome,
)
from monarch._wire.peer import Peer
from monarch._wire.relay import Relay, addressed, route
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch._wire.transport.socket_errors import PATIENCE, Redial, explain
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

# Ended processes remembered; should anybody ask for one beyond, its agent remembers it. None takes the place of one that was
# stopped for good, and hardly anybody asks for it. About 600 bytes each, and as much as its last words have.
_ENDED_PEERS, _STOPPED_PEERS = 2_000, 100


class Transport(Protocol):
    def dial(self, address: str) -> Connection: ...
    def close(self) -> None: ...


class _Redialling:
    """A process that is to be dialled again."""

    __slots__ = ("waits", "when")

    def __init__(self, now: float) -> None:
        self.when = Redial(now)
        self.waits = False  # a timer runs


class Processes:
    """Any thread asks and dials; what agents and processes say is taken on the I/O thread. The lock guards the making of
    peers and the lists of connections; a Peer has its own."""

    def __init__(self, us: Proc, incarnations: Incarnations) -> None:
        self.peers: dict[str, Peer] = {}
        self._by_host: dict[str, set[str]] = {}  # the addresses of these
        # By address: its connection, its incarnation, and what it has sent.
        self.newcomers: dict[str, tuple[Connection, int, list[Frame]]] = {}
        self.remote_changes = 0  # how often something was learned of which processes live on other hosts
        self.ended_remote: set[str] = set()  # processes of other hosts
        self._us = us
        self._incarnations = incarnations
        self._ended: deque[str] = deque()
        self._stopped: deque[str] = deque()
        self._callbacks = (self._dial, self._ask_agent)  # the same objects for all peers, of which there are many
        self._tellers = (self._learned, self._dial_failed, self._later)
        self._connections: dict[str, list[Connection]] = {}
        self._relays: dict[str, Relay] = {}  # processes of other hosts that speak to us
        self._redials: dict[str, _Redialling] = {}  # by address: those that are to be dialled again
        self._reasons: dict[
            str, str
        ] = {}  # process -> why a connection to it broke, until its agent has said what became of it
        self._asked_who: dict[str, list[Callable[[int], None]]] = {}  # by address, see `follow`
        self._accepted: dict[str, tuple[Connection, int]] = {}  # the latest that a process has dialled, its incarnation
        self._broken: dict[str, int] = {}  # process -> the next port when the connection to it broke
        self._lock = RLock()  # a finalizer may send to others meanwhile

    def statistics(self) -> dict[str, int]:
        """Returns how many processes are known, have connections here, or have come and are not let in yet."""
        return {
            "processes": len(self.peers),
            "connected": len(self._connections),
            "newcomers": len(self.newcomers),
        }

    # --- what is known

    def peer(self, address: str) -> Peer:
        """The process there, from now on known."""
        peer = self.peers.get(address)
        if peer is None:
            self._us.check_open(address)
            source = "" if host_of(address) == self._us.host else self._us.address
            learned, dial_failed, later = self._tellers
            with self._lock:
                new = Peer(address, *self._callbacks, source, learned, dial_failed, later)
                peer = self.peers.setdefault(address, new)
                self._by_host.setdefault(host_of(address), set()).add(address)
        return peer

    def _later(self, peer: Peer) -> None:
        """Has what was kept for that process in the midst of a step sent on."""
        self._us.loop.call_soon(lambda: self._while_open(peer.go_on))

    def _learned(self) -> None:
        self.remote_changes += 1

    def known(self) -> list[tuple[str, Peer]]:
        """Every process this one has spoken to, agents excepted."""
        return [(address, peer) for address, peer in list(self.peers.items()) if name_of(address) != AGENT]

    def known_on(self, host: str) -> set[str]:
        """Returns those of one host."""
        with self._lock:
            return self._by_host.get(host, set()) - {agent_at(host)}

    def connected(self) -> list[str]:
        """The processes there is a connection to, the agent excepted."""
        return [address for address, peer in self.known() if peer.connection is not None]

    def incarnation_at(self, address: str) -> int:
        """The incarnation of the process there that is meant by what is sent now; -1: none is known, any is meant."""
        peer = self.peers.get(address)
        return peer.incarnation if peer is not None and peer.incarnation_known else -1

    def end_of(self, address: str) -> ProcEnded | None:
        """Returns how the process there ended, as far as known here; None while it lives or when nothing is known."""
        peer = self.peers.get(address)
        return None if peer is None else peer.ended

    # --- reaching them

    def watch(self, address: str) -> None:
        """Sees to it that we hear of the end of that process of another host."""
        peer = self.peer(address)
        if peer.route and not peer.watched:
            peer.watched = True
            self._us.tell(agent_of(address), Watch(address, peer.incarnation))

    def follow(self, address: str, lives: Callable[[int], None] | None = None) -> None:
        """Does the same for a process of any host. With `lives`, on the I/O thread: it is called with the incarnation of the
        process there, when its agent says that one lives."""
        peer = self.peer(address)
        if lives is not None:
            self._asked_who.setdefault(address, []).append(lives)
        if lives is not None or not peer.watched:
            peer.watched = True
            self._us.tell(agent_of(address), Watch(address, peer.incarnation))

    def use_agent(self, connection: Connection) -> None:
        """The connection to this host's agent."""
        self.peer(agent_of(self._us.address)).connection = connection

    def _agent(self) -> Connection | None:
        peer = self.peers.get(agent_of(self._us.address))
        return None if peer is None else peer.connection

    def _ask_agent(self, peer: Peer) -> None:
        """Its agent tells when the process listens and when it has ended."""
        if peer.broken:
            self._broken[peer.address] = self._us.ports.count()
        peer.watched = True
        if self._us.closed is None and peer.address != agent_of(peer.address):
            self._us.tell(agent_of(peer.address), Watch(peer.address, peer.incarnation))

    def _dial_failed(self, peer: Peer, error: OSError) -> None:
        """Any thread: this process is out of descriptors, or the like. Dials again, or gives up what was to be sent."""
        loop = self._us.loop
        with self._lock:
            redial = self._redials.get(peer.address)
            if redial is None:
                redial = self._redials[peer.address] = _Redialling(loop.now())
            if redial.waits:
                return
            redial.waits = True
            pause = redial.when.after(loop.now(), error.errno)
        if pause is not None:
            loop.call_later(pause, lambda: self._dial_again(peer, redial))
        else:
            loop.call_soon(lambda: self._give_up(peer, error))

    def _dial_again(self, peer: Peer, redial: _Redialling) -> None:
        redial.waits = False
        try:
            self._while_open(peer.dial_again)
        finally:
            with self._lock:
                if not redial.waits:
                    self._redials.pop(peer.address, None)

    def _while_open(self, step: Callable[[], None]) -> None:
        """Takes a step that may dial, unless another thread has closed this process, or does so meanwhile."""
        try:
            if self._us.closed is None:
                step()
        except Exception as exc:
            if exc is not self._us.closed:
                raise

    def _give_up(self, peer: Peer, error: OSError) -> None:
        """Fails what was kept for it, with the reason."""
        us, address = self._us, peer.address
        with self._lock:
            self._redials.pop(address, None)
        kept = peer.give_up()
        if not kept or us.closed is not None:
            return
        self._broken.pop(address, None)
        self._reasons.pop(address, None)
        text = (
            f"nothing could be sent from {us.address} (pid {us.pid}) to {address}: {explain(error)}. "
            f"It did not run there; the process may be well"
        )
        us.ports.not_sent(address, peer.take_unsent(), Failure(text, event=text))
        for pieces in kept:
            msg = message.decode(frames.head_of(pieces))
            if type(msg) is Call and not msg.port:
                us.hooks.bounced(Bounced(msg.sender, msg.to, f"{msg.method}() (broadcast)", text, True))
        us.loop.call_later(PATIENCE, lambda: self._tell_again(address))  # no sooner: it may fail at once, every time

    def _tell_again(self, address: str) -> None:
        if self._us.closed is None:
            self._us.tell_again(address)

    def _dial(self, address: str) -> Connection:
        us = self._us
        assert us.transport is not None
        us.check_open(address)
        peer = self.peers.get(address)
        if peer is not None and peer.route:
            connection: Connection = self._relay(peer)
            if name_of(address) == AGENT:
                return connection
        else:
            connection = us.transport.dial(address)
        try:
            self._remember(address, connection)
            us.check_open(address)  # `close` by another thread may not have seen this one
            again = peer is not None and peer.ever_broke
            hello = Hello(message.VERSION, us.address, us.pid, us.incarnation, self.incarnation_at(address), again)
            head = addressed(connection, message.encode(hello))
            if connection.route:
                connection.send(frames.encode(head))
            elif not connection.send_small(frames.encode_small(head, b"")):
                self._drop_unknown(connection)
        except ConnectionLost:
            raise
        except BaseException:  # of a handler of signals: nobody has the connection
            connection.close("dialling was interrupted")
            raise
        return connection

    def _drop_unknown(self, connection: Connection) -> None:
        """Gives up a connection that did not take its first frame at once (no memory): should it break, the other side would
        never hear whose it was, nor ask again for what was to follow. BlockingIOError: to be dialled again."""
        with self._lock:
            others = [other for other in self._connections.pop(connection.remote, ()) if other is not connection]
            if others:
                self._connections[connection.remote] = others
        connection.remote = ""  # closed by who calls, its loss is nobody's
        raise BlockingIOError(errno.EAGAIN, "the new connection takes nothing")

    def _relay(self, peer: Peer) -> Relay:
        """The way to a process of another host. OSError until its agent has said that it can be reached."""
        if not peer.listens and name_of(peer.address) != AGENT:
            raise ConnectionRefusedError(111, "its agent has to be asked first", peer.address)
        relay = self._new_relay(peer.route, peer.address)
        known = self._relays.get(peer.address)
        if known is None or known.lost:
            self._relays[peer.address] = relay
        return relay

    def _new_relay(self, route: bytes, address: str) -> Relay:
        """Both processes count; of two that say as much to each other one is the first to ask for a link between them."""
        many = settings.direct_after()
        if name_of(address) == AGENT or not is_dialable(host_of(address)):
            many = 0
        elif self._us.address > address and is_dialable(self._us.host):
            many *= 2
        return Relay(self._agent, route, address, many, self._us.on_busy)

    def relay_from(self, source: str, hello: Hello | None) -> Relay | None:
        """A process of another host, or the agent there, speaks to us; with `hello` it begins to."""
        relay = self._relays.get(source)
        if hello is not None:
            relay = self._relays[source] = self._new_relay(route(source, self._us.address, hello.incarnation), source)
        elif relay is None and name_of(source) == AGENT:
            relay = self._relays[source] = Relay(self._agent, route(source, self._us.address), source)
        return relay

    def _remember(self, remote: str, connection: Connection) -> None:
        with self._lock:
            self._connections.setdefault(remote, []).append(connection)

    def said_bye(self, address: str, why: str) -> None:
        """Takes note that the process closes a connection, and why."""
        self._us.errors.append(f"{address} closed the connection: {why}")
        if address in self.peers:
            self._reasons[address] = f"it said: {why}"

    def lost(self, connection: Connection, why: str) -> bool:
        """Takes note that the connection is lost. False when it was a newcomer's: nothing of it was taken, and its
        agent tells its end."""
        remote = connection.remote
        peer = self.peers.get(remote)
        if peer is not None and peer.ended is None:
            self._reasons.setdefault(remote, why)
        with self._lock:
            known = [other for other in self._connections.pop(remote, ()) if other is not connection]
            if known:
                self._connections[remote] = known
        if remote in self._accepted and self._accepted[remote][0] is connection:
            del self._accepted[remote]
        newcomer = self.newcomers.get(remote)
        return newcomer is None or newcomer[0] is not connection

    # --- what they say of themselves

    def hello(self, connection: Connection, hello: Hello) -> str:
        """A process has dialled us. Returns why it is not let in, or ""."""
        us = self._us
        if 0 <= hello.target_incarnation < us.incarnation:  # it hears from its agent how that one ended
            return "that process has ended, and a new one has taken its place"
        connection.remote = hello.address
        connection.pid = hello.pid
        peer = self.peer(hello.address)
        if hello.incarnation < peer.incarnation:
            return "another process has taken its place"
        self._remember(hello.address, connection)
        if us.incarnation:
            send_first(connection, Welcome(us.incarnation))
        if hello.incarnation > peer.incarnation:  # how the one before it ended is on its way to us
            self.newcomers[hello.address] = (connection, hello.incarnation, [])
            us.tell(agent_of(hello.address), Watch(hello.address, peer.incarnation))
        else:
            self._finish_replaced(hello, connection)
            peer.adopt(connection)
            self.watch(hello.address)  # nobody else would tell of its end
        return ""

    def _finish_replaced(self, hello: Hello, connection: Connection) -> None:
        """A process that dials again has lost the connection it dialled before: what we would still send on that is lost."""
        before, incarnation = self._accepted.get(hello.address, (None, 0))
        self._accepted[hello.address] = connection, hello.incarnation
        if before is not None and incarnation == hello.incarnation and not before.lost:
            before.finish("that process has dialled again")

    def welcome(self, remote: str, welcome: Welcome) -> None:
        """We dialled a process that is not the first at its address, and did not know."""
        peer = self.peer(remote)
        if peer.ended is None and welcome.incarnation > peer.incarnation:
            peer.incarnation = welcome.incarnation
            peer.incarnation_known = True
            self._replaced_unheard(peer)
            self._welcome_newcomer(peer)  # it has dialled us at the same time

    def _replaced_unheard(self, peer: Peer) -> None:
        """Another process is there than the one that was known, of whose end nothing has been heard, nor will be."""
        self._incarnations.process_restarted(peer.address, peer.incarnation)
        self._us.ports.process_replaced(_replaced(peer.address, peer.incarnation - 1))

    def early(self, connection: Connection, frame: Frame) -> bool:
        """Keeps what a new process sends until its agent has told us what became of the one before it."""
        newcomer = self.newcomers.get(connection.remote)
        if newcomer is None or newcomer[0] is not connection:
            return False
        newcomer[2].append(frame)
        return True

    def _welcome_newcomer(self, peer: Peer) -> None:
        newcomer = self.newcomers.get(peer.address)
        if newcomer is not None and newcomer[1] <= peer.incarnation:
            del self.newcomers[peer.address]
            connection, _, early = newcomer
            if not connection.lost:
                peer.adopt(connection)
            self._us.connection_received(connection, early)

    # --- what their agents say

    def reachable(self, there: ProcReachable) -> None:
        """A process can be reached; perhaps a new one in the place of one that ended."""
        address, incarnation = there.address, there.incarnation
        peer = self.peers.get(address)
        unheard = peer is not None and not peer.incarnation_known and peer.ended is None
        if peer is not None and unheard and incarnation > peer.incarnation:
            # What was sent is for whoever is there: should it have gone to the one before, its connection breaks.
            peer.incarnation = incarnation
            self._replaced_unheard(peer)
        if peer is not None and incarnation > peer.incarnation:
            if peer.ended is None:
                self._us.on_process_ended(_replaced(address, peer.incarnation))
            self._incarnations.process_restarted(address, incarnation)
            peer.revive(incarnation)
            self.ended_remote.discard(address)
            self._welcome_newcomer(peer)
        elif peer is not None:
            if peer.asking:  # else the other side was faster and has dialled us
                self._while_open(peer.listening)
            self._tell_broken(peer)
            self._welcome_newcomer(peer)  # whose end, of the one before it, nobody tells who was not there
        if incarnation:
            self._us.tell(agent_of(address), IncarnationAck(address, incarnation))
        for lives in self._asked_who.pop(address, ()):
            lives(incarnation)

    def _tell_broken(self, peer: Peer) -> None:
        before, why = self._broken.pop(peer.address, None), self._reasons.pop(peer.address, "no reason was told")
        if before is not None:
            self._us.on_connection_broke(peer, before, why)
        else:
            peer.take_unsent()

    def ending(self, ended: ProcEnded) -> Peer | None:
        """A process is gone; its connections are read empty and closed when `finish_connections` is called. None when that is
        known already, or another has taken its place."""
        peer = self.peer(ended.address)
        if ended.incarnation < peer.incarnation or (peer.ended is not None and ended.incarnation == peer.incarnation):
            return None
        peer.incarnation = ended.incarnation
        if peer.route:
            self.ended_remote.add(ended.address)
        return peer

    def finish_connections(self, address: str) -> None:
        """Takes what a process that has ended sent last, and closes its connections; those of a newcomer stay."""
        newcomer = self.newcomers.get(address)
        for connection in list(self._connections.get(address, ())):
            if newcomer is None or newcomer[0] is not connection:
                connection.finish("the process has ended")
        with self._lock:
            left = [connection for connection in self._connections.pop(address, ()) if not connection.lost]
            if left:
                self._connections[address] = left

    def ended(self, peer: Peer, ended: ProcEnded) -> None:
        """Tells from now on those who send there that it has ended."""
        peer.end(ended)
        self._broken.pop(peer.address, None)
        self._reasons.pop(peer.address, None)
        if peer.address not in self.newcomers:  # else it may be that one's
            self._relays.pop(peer.address, None)
        for_good = ended.stopped and not ended.replaced
        remembered, most = (self._stopped, _STOPPED_PEERS) if for_good else (self._ended, _ENDED_PEERS)
        remembered.append(peer.address)
        if len(remembered) > most:
            self._forget(remembered.popleft())

    def _forget(self, address: str) -> None:
        peer = self.peers.get(address)
        if peer is not None and peer.ended is not None and address not in self.newcomers:
            self._drop(address)
            self._incarnations.forget_process(address)
            self._asked_who.pop(address, None)

    def host_replaced(self, host: str) -> set[str]:
        """Asks the successor of a lost host about the processes there; it will say when others take their places.
        Returns which: each is reachable or has ended once more, soon."""
        asked = set()
        for address in sorted(self.known_on(host)):
            peer = self.peers[address]
            ended = peer.ended
            if ended is None or (ended.stopped and not ended.replaced):
                continue
            self.ended_remote.discard(address)
            peer.forget_end()
            asked.add(address)
            self._us.tell(agent_of(address), Watch(address, peer.incarnation, lost=True))
        return asked

    def forget_agent(self, address: str) -> None:
        """Forgets the agent of a host that is gone: another may be reached there one day."""
        if address != agent_of(self._us.address):
            self._drop(address)
            self._relays.pop(address, None)

    def _drop(self, address: str) -> None:
        self.ended_remote.discard(address)
        with self._lock:
            self.peers.pop(address, None)
            there = self._by_host.get(host_of(address), set())
            there.discard(address)
            if not there:
                self._by_host.pop(host_of(address), None)

    def close(self, reason: str) -> None:
        """Any thread: closes every connection that is in use."""
        with self._lock:  # what was dialled just now: its peer does not have it yet
            connections = {connection for known in self._connections.values() for connection in known}
        connections |= {peer.connection for peer in list(self.peers.values()) if peer.connection is not None}
        for connection in connections:
            connection.close(reason)


def _replaced(address: str, incarnation: int) -> ProcEnded:
    return ProcEnded(address, 0, 1, False, [], "was replaced by a new process", incarnation)


def send_first(connection: Connection, msg: message.Message) -> None:
    """Unless it has broken already, which is told like any other loss."""
    try:
        connection.send(frames.encode(addressed(connection, message.encode(msg))))
    except ConnectionLost:
        pass
