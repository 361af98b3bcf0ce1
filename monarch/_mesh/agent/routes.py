"""Routes of frames that cross from host to host. One a host agent, on its loop.

    process ──► its agent ──link──► the other agent ──► process

A host is known by the prefixes under which others have reached it (`names`). To a host that has an address of its own a
link is dialled with the first frame; one that has none (a client behind a firewall) is reached over the link it has
dialled itself, or over the gateway through which its frames came.

A host of a mesh may be replaced: another goes by its name from then on, and is dialled elsewhere or at the same address
(`at`). Who owns the mesh tells (`replaced`). Only the agent that was named then is believed what comes from a host of that
name: the one that was lost may only have been cut off, and come back.

What is to be handed to a process that has not said hello yet waits for it. Bounds: a link or a process that does not take its
frames, and what waits for processes to come, hold up to `limit` bytes each; then those who send to it are not read from until
half of that is gone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import AGENT, host_of, is_dialable, name_of
from monarch._wire.frame import Buffer, Frame
from monarch._wire.message import VERSION, WHO, Bye, Envelope, HostAsked, HostEnded, HostReplaced, LinkHello
from monarch._wire.transport.base import Connection, ConnectionLost, Reactor

_GONE_KEPT = 1_000  # hosts; the end of one that is forgotten may be told to its processes twice
_ASK_AFTER = 0.3  # seconds in which a host is reached, else clients are asked of it; each pause is twice the one before
_LOOK_AGAIN = 0.005  # seconds until those who were held up are looked at again


# Gives a connection to the process of this host that its first frame names; returns why that cannot be, or "".
HandOver = Callable[[Any, LinkHello], str]


class HostLink(Protocol):
    """A connection that survives its sockets (see `linked`)."""

    remote: str

    @property
    def other_agent(self) -> str: ...
    @property
    def queued(self) -> int: ...
    @property
    def lost(self) -> bool: ...
    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None: ...
    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool: ...
    def wait_room(self, timeout: float) -> bool: ...
    def accept(self, connection: Any, hello: LinkHello) -> None: ...
    def connection_received(self, connection: Any, received: list[Frame]) -> None: ...
    def connection_lost(self, connection: Any, reason: str) -> None: ...
    def close(self, reason: str) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class RoutingHost(Protocol):
    """The agent, as its routes need it."""

    @property
    def loop(self) -> Reactor: ...

    def begin_link(self, host: str) -> HostLink:
        """A link that dials `host` until it is there or given up. ValueError when that is no address."""
        ...

    def is_near(self, host: str) -> bool:
        """True if it is another program of this machine, to which a link can be begun although it has no address."""
        ...

    def take_link(self, hello: LinkHello) -> HostLink:
        """The other end of a link that `hello.host` has dialled."""
        ...

    def receive(self, envelope: Envelope, frame: Frame) -> None:
        """A message for the agent itself."""
        ...

    def awaited(self, address: str) -> bool:
        """True if a process is to come there that has not said hello."""
        ...

    def host_lost(self, host: str, why: str) -> None: ...
    def host_suspected(self, host: str, why: str) -> None: ...


class Move(NamedTuple):
    """A name that another host goes by now: where it is dialled, its agent's unique id ("" not known yet), how often the host
    was replaced, and the process that owns it."""

    at: str
    agent: str
    generation: int
    owner: str


class _Asked(NamedTuple):
    """Question to clients about a host: which link did not reach it, and over which links they said that it has ended."""

    link: HostLink
    said: set[HostLink]


class Routes:
    """See the module. `agent` is the unique id of this process, `limit` bytes; `gateway` the host that is asked to pass
    on what is for hosts there is no link to, or ""."""

    def __init__(self, station: RoutingHost, host: str, agent: str, limit: int) -> None:
        self.names = {host}
        self.name = host  # the one that it says of itself
        self.agent = agent
        self.gateway = ""
        self._home = host
        self._moves: dict[str, Move] = {}  # by name
        self._begun: set[str] = set()  # those whose new place is dialled, and not known to everybody
        self._station = station
        self._limit = limit
        self._links: dict[str, HostLink] = {}  # by host; those behind a gateway share its link
        self._accepted: dict[str, HostLink] = {}  # by the link's id
        self._latest: dict[tuple[str, str], str] = {}  # (host, name it dialled) -> the uid of the last link it began
        # Hosts whose end was passed on, and of which nothing came since; with why.
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._clients: set[str] = set()  # hosts of those that use this one
        self._asked: dict[str, _Asked] = {}  # hosts that were not reached yet, of which clients were asked
        self._local: dict[str, Connection] = {}
        self._early: dict[str, list[list[Buffer]]] = {}  # for processes that are to come
        self._early_bytes = 0
        self._held: deque[tuple[Any, Any]] = deque()  # (who is not read from, who does not take)
        self._looking = False
        self._closed = ""

    def __repr__(self) -> str:
        return f"<Routes of {sorted(self.names)} ({len(self._links)} hosts, {len(self._local)} processes)>"

    # --- hosts that are replaced

    def at(self, host: str) -> str:
        """Returns where the host of that name is dialled."""
        move = self._moves.get(host)
        return host if move is None else move.at

    def generation(self, host: str) -> int:
        move = self._moves.get(host)
        return 0 if move is None else move.generation

    def replaced(self, told: HostReplaced, owner: str) -> bool:
        """Another host goes by that name. Whether that is news for the processes here. Old news change nothing.

        A link to the one that was lost is given up, and with it, should that not be known here, the host.
        """
        host, generation = told.host, self.generation(told.host)
        if told.generation < generation:
            return False
        news = told.generation > generation
        begun = news and host in self._begun  # then there is a link to the new one, or to a gateway that has one
        if (news and not begun) or not told.agent:
            self._leave_behind(host, "another host has taken its place")
        self._gone.pop(host, None)
        if told.agent:
            self._begun.discard(host)
        else:
            self._begun.add(host)
        self._moves[host] = Move(told.at, told.agent, told.generation, owner)
        if told.agent == self.agent:
            self.names.add(host)
        elif told.agent:
            self.names.discard(host)
        self._choose_name()
        return news

    def _leave_behind(self, host: str, why: str) -> None:
        link = self._links.pop(host, None)
        if link is None:
            return
        self._tell_lost(host, why)
        if not any(other is link for other in self._links.values()):
            link.close(why)

    def forget_moves(self, of: Callable[[str], bool]) -> None:
        """Forgets the moves of owners that have ended: nobody means these hosts any more."""
        for host, move in [(host, move) for host, move in self._moves.items() if of(move.owner)]:
            del self._moves[host]
            self._begun.discard(host)
            if host == self._home:
                self.names.add(host)
            elif move.agent == self.agent:
                self.names.discard(host)
            else:
                self._leave_behind(host, "whoever had replaced that host has ended")
            self._gone.pop(host, None)
        self._choose_name()

    def _choose_name(self) -> None:
        """One that no other host goes by."""
        if self.name not in self.names or self._home in self.names:
            self.name = self._home if self._home in self.names else min(self.names, default=self._home)

    def _is(self, host: str, agent: str) -> bool:
        """True if an agent may speak for that host."""
        move = self._moves.get(host)
        return move is None or not move.agent or agent in ("", move.agent)

    # --- processes of this host

    def joined(self, name: str, connection: Connection) -> None:
        """Hands a process that has said hello what waited for it."""
        self._local[name] = connection
        for pieces in self._early.pop(name, ()):
            self._early_bytes -= _size(pieces)
            self._hand(connection, pieces)

    def left(self, connection: Connection) -> None:
        name = name_of(connection.remote)
        if self._local.get(name) is connection:
            del self._local[name]

    def gone(self, name: str) -> None:
        """The process has ended; if it never said hello, what waits for it is given up. Senders hear of its end."""
        self._local.pop(name, None)  # its connection may stay a little longer: nothing for a successor goes there
        self._early_bytes -= sum(map(_size, self._early.pop(name, ())))

    def processes(self) -> list[Connection]:
        return list(self._local.values())

    # --- frames

    def pass_on(self, envelope: Envelope, frame: Frame, origin: Any) -> None:
        """An Envelope came from `origin`, a process of this host or a link."""
        host = host_of(envelope.to)
        if host in self.names:
            self._deliver(envelope, frame, origin)
            return
        link = self.way_to(host)
        if link is None:
            self._refuse(origin, host)
        else:
            self._give(link, _pieces(frame), origin, owned=True)

    def way_to(self, host: str) -> HostLink | None:
        """The link over which `host` is reached; begun if need be. None when there can be none."""
        link = self._links.get(host)
        if link is None and not self._closed:
            if self._station.is_near(host):
                link = self._station.begin_link(host)
            elif self.gateway and host != self.gateway:
                link = self.way_to(self.gateway)
            elif is_dialable(host):
                try:
                    link = self._station.begin_link(host)
                except ValueError:  # a process has made it up
                    return None
                if self._clients:
                    begun = link
                    self._station.loop.call_later(_ASK_AFTER, lambda: self._ask(host, begun, _ASK_AFTER))
            if link is not None:
                self._links[host] = link
                self._gone.pop(host, None)
        return link

    def has_ended(self, host: str) -> bool:
        """True if its end was told, and neither side has begun a link since."""
        return host in self._gone and host not in self._links

    def client_came(self, host: str) -> None:
        """A client of that host uses this one."""
        self._clients.add(host)

    def _ask(self, host: str, link: HostLink, pause: float) -> None:
        """Asks the clients' hosts whether that host has ended, as long as the link has not reached it. They have spoken with
        it and know that at once; who dials it for the first time only finds that nobody listens yet."""
        asked = self._asked.get(host)
        if self._links.get(host) is not link or link.lost or link.other_agent or not self._clients:
            if asked is not None and asked.link is link:
                del self._asked[host]
            return
        if asked is None or asked.link is not link:
            self._asked[host] = _Asked(link, set())
        for way in self._client_ways(link):
            _try_send(way, HostAsked(host))
        self._station.loop.call_later(pause, lambda: self._ask(host, link, pause * 2))

    def _client_ways(self, but: HostLink) -> list[HostLink]:
        ways = [way for way in map(self._links.get, self._clients) if way is not None and way is not but]
        return list({id(way): way for way in ways}.values())

    def may_be_back(self, host: str) -> None:
        """Somebody counts on it: its end is old news."""
        self._gone.pop(host, None)

    def _refuse(self, origin: Any, host: str) -> None:
        why = self._closed or (
            f"there is no way to the host {host}: it has no address of its own and no connection to this one. Give it one "
            f"with enable_transport('tcp') before its first use of monarch"
        )
        _try_send(origin, HostEnded(host, why, self.generation(host)))

    def _deliver(self, envelope: Envelope, frame: Frame, origin: Any) -> None:
        name = name_of(envelope.to)
        if name == AGENT:
            self._station.receive(envelope, frame)
            return
        connection = self._local.get(name)
        if connection is not None:
            self._give(connection, _pieces(frame), origin)
        elif self._station.awaited(envelope.to):
            pieces = _pieces(frame)
            self._early.setdefault(name, []).append(pieces)
            self._early_bytes += _size(pieces)
            if self._early_bytes > self._limit:
                self._hold(origin, None)

    def hand(
        self,
        name: str,
        address: str,
        msg: Any,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
        coalesce_within: float = 0.0,
    ) -> bool:
        """A message of the agent's own for a process of this host. False when it is not there and will not come.

        `coalesce_within`: see `base.Connection.send`."""
        connection = self._local.get(name)
        if connection is None and not self._station.awaited(address):
            return False
        pieces = frames.encode(message.encode(msg), body, [memoryview(buffer) for buffer in buffers])
        if connection is not None:
            self._hand(connection, pieces, coalesce_within)
        else:
            self._early.setdefault(name, []).append(pieces)
            self._early_bytes += _size(pieces)
        return True

    def _hand(self, connection: Any, pieces: list[Buffer], coalesce_within: float = 0.0) -> None:
        try:
            connection.send(pieces, False, coalesce_within)
        except ConnectionLost:  # its end is told in other ways
            pass

    def _give(self, target: Any, pieces: list[Buffer], origin: Any, **how: bool) -> None:
        """Gives a frame to a link (which may keep what is `owned`) or a process; who sends to one that does not take it
        is held."""
        try:
            target.send(pieces, **how)
        except ConnectionLost:
            return
        if target.queued > self._limit:
            self._hold(origin, target)

    # --- those that do not take their frames

    def _hold(self, origin: Any, target: Any) -> None:
        """Nothing more is read from `origin` until `target` (None: the processes to come) has room again."""
        pause: Callable[[], None] | None = getattr(origin, "pause_reading", None)
        if pause is None or any(held is origin and there is target for held, there in self._held):
            return
        pause()
        self._held.append((origin, target))
        self._look_later()

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._station.loop.call_later(_LOOK_AGAIN, self._look)

    def _look(self) -> None:
        self._looking = False
        held, self._held = self._held, deque()
        for origin, target in held:
            queued = self._early_bytes if target is None else 0 if target.lost else target.queued
            if queued > self._limit // 2:
                self._held.append((origin, target))
        waiting = [origin for origin, _ in self._held]
        for origin, _ in held:
            if not any(origin is other for other in waiting):
                origin.resume_reading()
        if self._held:
            self._look_later()

    def held(self) -> list[Any]:
        """The connections that are not read from, so that their silence says nothing."""
        return [origin for origin, _ in self._held]

    # --- links

    def link_suspected(self, link: Any, why: str) -> None:
        """Nothing gets through to the hosts behind it at present; "": it does again."""
        for host in [host for host, known in self._links.items() if known is link]:
            self._station.host_suspected(host, why)

    def entrance(self, hand_over: HandOver | None = None) -> InboundLink:
        """The handler of a connection that another host has made: its agent, or a process of it, which `hand_over` serves."""
        return InboundLink(self, hand_over)

    def link_hello(self, connection: Any, hello: LinkHello) -> HostLink | None:
        """The first frame of a connection from another agent. None when it is refused."""
        if hello.agent == self.agent:
            self.names.add(hello.reached)
            self._refuse_link(connection, f"{hello.reached} is this host itself")
            return None
        if self._closed:
            self._refuse_link(connection, self._closed)
            return None
        link = self._accepted.get(hello.link)
        if link is None or link.lost:
            if not hello.resume:
                self._replace(hello)
            link = self._station.take_link(hello)
            self._accepted[hello.link] = link
        known = self._links.get(hello.host)
        if (known is None or known.lost) and self._is(hello.host, hello.agent):
            self._links[hello.host] = link
            self._gone.pop(hello.host, None)
        if hello.reached and max(hello.target_incarnation, 0) >= self.generation(hello.reached):
            self.names.add(hello.reached)
        link.accept(connection, hello)
        return None if link.lost else link

    def say_who(self, connection: Any, hello: LinkHello) -> None:
        """Another host wonders whether the one it knew is still here, or another has been started at this address."""
        _try_send(connection, LinkHello(VERSION, hello.reached, self.agent, hello.link, hello.reached, 0, False))
        connection.close("it was told who is here")

    def _replace(self, hello: LinkHello) -> None:
        """A host begins a link when it has none, or has given up the one it had: what it told its processes then is
        true here too, though this side would have waited for longer."""
        way = (hello.host, hello.reached)
        earlier = self._accepted.get(self._latest.get(way, ""))
        self._latest[way] = hello.link
        if earlier is not None:
            earlier.close(f"{hello.host} gave the link up and began another")

    def _refuse_link(self, connection: Any, why: str) -> None:
        _try_send(connection, Bye(why))
        connection.close(why)

    def connection_received(self, link: Any, received: list[Frame]) -> None:
        """Receives data frames of a link."""
        for frame in received:
            msg = message.decode(frame.head)
            if type(msg) is Envelope:
                if self._learn(host_of(msg.source), link):
                    self.pass_on(msg, frame, link)
            elif type(msg) is HostEnded:
                self._host_ended(msg.host, msg.why, msg.generation, link)
            elif type(msg) is HostAsked and self.has_ended(msg.host) and link.queued <= self._limit:  # it asks again
                _try_send(link, HostEnded(msg.host, self._gone[msg.host], self.generation(msg.host)))

    def _learn(self, host: str, link: HostLink) -> bool:
        """A host that cannot be dialled is reached the way its frames came. False when they are of one that was replaced."""
        known = self._links.get(host)
        if known is link:
            return True
        if not self._is(host, link.other_agent) and link is not self._links.get(self.gateway):
            return False
        if (known is None or known.lost) and host not in self.names:
            self._links[host] = link
            self._gone.pop(host, None)
        return True

    def connection_lost(self, link: Any, reason: str) -> None:
        """A link has ended: all hosts behind it are lost."""
        for key, accepted in list(self._accepted.items()):
            if accepted is link:
                del self._accepted[key]
                self._latest = {way: uid for way, uid in self._latest.items() if uid != key}
        for host in [host for host, known in self._links.items() if known is link]:
            del self._links[host]
            self._tell_lost(host, reason)

    def _host_ended(self, host: str, why: str, generation: int, link: HostLink) -> None:
        """Another agent says so. Agents tell each other, so each passes it on once.

        A successor that is being dialled is known to nobody else yet, but for the gateway on the way there: others, who may
        notice a death a second later than this host, mean the one before.
        """
        if generation < self.generation(host):
            return
        if host in self._begun and link is not self._links.get(self.gateway):
            return
        known = self._links.get(host)
        if known in (link, None) and host not in self._gone:
            self._links.pop(host, None)
            self._tell_lost(host, why)
        elif known is not None and not known.other_agent and host in self._asked and self._asked[host].link is known:
            # One client may be cut off from a host that lives for another: all have to say so.
            said, ways = self._asked[host].said, self._client_ways(known)
            said.add(link)
            if link in ways and said.issuperset(ways):
                del self._asked[host]
                self._leave_behind(host, why)

    def _tell_lost(self, host: str, why: str) -> None:
        self._clients.discard(host)
        self._gone[host] = why
        if len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)
        ended = HostEnded(host, why, self.generation(host))
        for connection in self.processes():
            _try_send(connection, ended)
        if not is_dialable(host) or self._serves_as_gateway():
            for link in {id(other): other for other in self._links.values()}.values():
                _try_send(link, ended)
        self._station.host_lost(host, why)

    def _serves_as_gateway(self) -> bool:
        """True if some host without an address reaches others through this one."""
        return any(not is_dialable(host) for host in self._links)

    def close(self, reason: str) -> None:
        """Says goodbye to every host, and speaks to none from now on."""
        self._closed = self._closed or reason
        for link in {id(link): link for link in [*self._links.values(), *self._accepted.values()]}.values():
            link.close(reason)

    def links(self) -> dict[str, HostLink]:
        return dict(self._links)


class InboundLink:
    """Hears the first frame of a connection that was accepted, and is the link's part of it from then on."""

    def __init__(self, routes: Routes, hand_over: HandOver | None = None) -> None:
        self._routes = routes
        self._hand_over = hand_over
        self._link: HostLink | None = None

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        if self._link is None:
            hello = message.decode(received[0].head)
            if type(hello) is not LinkHello:
                self._routes._refuse_link(connection, f"the first frame of a link is a LinkHello (version {VERSION})")
                return
            if hello.to:
                self._pass_on(connection, hello, len(received))
                return
            if hello.purpose == WHO:
                self._routes.say_who(connection, hello)
                return
            self._link = self._routes.link_hello(connection, hello)
            received = received[1:]
        if self._link is not None and received:
            self._link.connection_received(connection, received)

    def _pass_on(self, connection: Any, hello: LinkHello, count: int) -> None:
        why = "it sent more before it was answered" if count > 1 else "this host serves no links of processes"
        if count == 1 and self._hand_over is not None:
            why = self._hand_over(connection, hello)
        if why:
            self._routes._refuse_link(connection, why)

    def connection_lost(self, connection: Any, reason: str) -> None:
        if self._link is not None:
            self._link.connection_lost(connection, reason)


def _pieces(frame: Frame) -> list[Buffer]:
    """The frame as it came, to be sent on."""
    return frames.encode(bytes(frame.head), frame.body, [memoryview(buffer) for buffer in frame.buffers])


def _size(pieces: Sequence[Buffer]) -> int:
    return sum(map(len, pieces))


def _try_send(connection: Any, msg: Any) -> None:
    try:
        connection.send(frames.encode(message.encode(msg)))
    except ConnectionLost:
        pass
