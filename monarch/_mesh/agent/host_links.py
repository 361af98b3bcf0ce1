"""An agent's links to other hosts: who may make one, over which sockets they go."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._mesh.agent import neighbours
from monarch._mesh.start.agent_process import AgentOptions, Credentials
from monarch._runtime.loop import Loop, start_thread
from monarch._wire import frame as frames
from monarch._wire import host_address, message, software
from monarch._wire.address import host_of, is_dialable, name_of
from monarch._wire.auth import Secret
from monarch._wire.frame import Frame
from monarch._wire.ids import new_id
from monarch._wire.link import REFUSALS, REFUSED_FOR, LinkTarget
from monarch._wire.link_connection import LinkConnection, limits_from_settings
from monarch._wire.message import WHO, Bye, LinkHello, MayDial
from monarch._wire.transport import tcp, unix
from monarch._wire.transport.base import ConnectionLost, DialFailed
from monarch._wire.transport.dialling import DialAttempt
from monarch._wire.transport.stream import StreamConnection, refuse
from monarch.config import settings

if TYPE_CHECKING:
    import ssl

    from monarch._mesh.agent.routes import Routes

_QUESTION_BYTES, _QUESTION_SECONDS = 1 << 16, 5.0
_MOST_OPENING = 256  # streams with TLS that are dialled at once
_KNOCK_AGAIN = 1.0  # seconds until a host that answers, but has not dialled again, is looked at again


class HostListener:
    """The socket at which this host listens, from its making on. OSError and ValueError as for TcpListener; `prefix` is
    its address."""

    def __init__(self, options: AgentOptions, loop: Loop) -> None:
        self.links: HostLinks | None = None
        self.prefix = ""
        self._listener: tcp.TcpListener | None = None
        if options.listen:
            address = host_address.parse(options.listen)
            given = options.credentials
            self._listener = tcp.TcpListener(
                address, loop, self._accepted, secret=_secret(given), tls=_context(given, server=True)
            )
            self.prefix = self._listener.prefix

    def _accepted(self, accepted: tcp.Accepted) -> None:
        assert self.links is not None
        self.links.accepted(accepted)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class HostLinks:
    """Makes links for `routes`, whose handler they have."""

    def __init__(self, options: AgentOptions, loop: Loop, routes: Routes, listening: HostListener) -> None:
        self._loop = loop
        self._routes = routes
        self._folder = options.directory
        self._own = options.credentials
        self._trusted: dict[str, Credentials] = {}  # by host, where they are not those of our own
        self._listening = listening
        self._closed = False
        self._knocking: dict[str, DialAttempt] = {}  # at hosts whose agents are to be asked who they are
        self._asking: set[_Question] = set()  # and those that are being asked
        self._opening: dict[str, DialAttempt | None] = {}  # for streams of processes, by the link of their hello
        self._rng = random.Random()
        self._frame_limit = settings.codec_max_frame_length()
        listening.links = self

    def trust(self, host: str, credentials: Credentials) -> None:
        """Makes these prove us to `host`, and the other way round, from now on."""
        self._trusted[host] = credentials

    def dial(self, host: str) -> LinkConnection:
        """A link that begins to dial. ValueError when `host` is no address that can be dialled."""
        address = self._address(host)
        limits = limits_from_settings()

        def begin(done: Any) -> None:
            def connected(outcome: Any) -> None:
                if isinstance(outcome, DialFailed):
                    done(outcome)
                    return
                connection = self._connection(outcome, link, limits.queue)
                done(connection)
                connection.start()

            try:
                self._dial(host, address, connected)
            except (OSError, ValueError) as exc:
                why = str(exc)
                self._loop.call_soon(lambda: done(DialFailed(why, final=True)))

        link = LinkConnection(
            self._loop, self._routes, uid=new_id(), host=self._routes.name, agent=self._routes.agent, limits=limits,
            rng=self._rng, reached=host, dial=begin, software=software.ours(),
            target_incarnation=LinkTarget(target_incarnation=self._routes.generation(host)),
        )  # fmt: skip
        link.start()
        return link

    def take(self, hello: LinkHello) -> LinkConnection:
        """The other end of a link that was dialled."""
        limits = limits_from_settings()
        if not hello.host.startswith(("tcp:", "ipc:")):  # a client: what it has started here must not stay for ever
            limits = limits._replace(reconnect=settings.mesh_orphan_timeout())
        return LinkConnection(
            self._loop, self._routes, uid=hello.link, host=hello.reached, agent=self._routes.agent, limits=limits,
            rng=self._rng, software=software.ours(),
        )  # fmt: skip

    def look_after(self, host: str, link: LinkConnection) -> None:
        """`host` has dialled that link, whose connection broke. It will dial again, unless it has ended: then nobody listens
        there, or another agent does, and the link is closed rather than waited for."""
        address, first_refused, refusals = self._address(host), 0.0, 0

        def knock() -> None:
            if not link.lost and link.suspected and not self._closed:
                dial = self._dial(host, address, answered)
                if dial is not None:
                    self._knocking[host] = dial

        def answered(outcome: Any) -> None:
            nonlocal first_refused, refusals
            self._knocking.pop(host, None)
            if not isinstance(outcome, OSError):
                refusals = 0
                if self._closed:
                    outcome.close()
                else:
                    who = self._who(host, link)
                    question = _Question(self._connection, outcome, who, self._loop, lambda said, _: told(said))
                    question.ask(self._asking)
                return
            refused = getattr(outcome, "refused", False)
            refusals = refusals + 1 if refused else 0
            now = self._loop.now()
            if refusals == 1:
                first_refused = now
            if refusals < REFUSALS or now < first_refused + REFUSED_FOR:
                self._loop.call_later(REFUSED_FOR / 2 if refused else _KNOCK_AGAIN, knock)
            elif not link.lost and link.suspected:
                link.finish(f"nobody listens at {host} any more: the process has ended")

        def told(said: object) -> None:
            agent = said.agent if type(said) is LinkHello else ""
            if agent in ("", link.other_agent):  # "": it did not say
                self._loop.call_later(_KNOCK_AGAIN, knock)
            elif not link.lost and link.suspected:
                link.finish(f"the process at {host} is another one now: the host was restarted")

        knock()

    def _who(self, host: str, link: LinkConnection) -> LinkHello:
        return LinkHello(message.VERSION, self._routes.name, self._routes.agent, link.uid, host, 0, False, purpose=WHO)

    def _address(self, host: str) -> host_address.HostAddress | None:
        """None: of another program of this machine, whose agent is dialled at its socket."""
        return None if host.startswith(neighbours.SCHEME) else host_address.parse_dial(self._routes.at(host))

    def _dial(
        self, host: str, address: host_address.HostAddress | None, done: Callable[[Any], None]
    ) -> DialAttempt | None:
        """None: it connects at once or not at all."""
        if address is None:
            neighbours.dial(host, self._loop, done)
            return None
        given = self._trusted.get(host, self._own)
        tls = _context(given, server=False)
        return tcp.dial(address, self._loop, done, secret=_secret(given), tls=tls, start_thread=start_thread)

    def accepted(self, accepted: tcp.Accepted) -> None:
        """A connection of somebody who may speak."""
        queue = settings.outgoing_queue_bytes()
        self._connection(accepted.sock, self._routes.entrance(self._hand_over), queue).start()

    # --- links that processes make themselves (see `_runtime.direct`)

    def may_dial(self, address: str) -> MayDial:
        """Returns what a process of this host needs to dial one of another. Only for its eyes: it has the job's secret
        in it."""
        host = host_of(address)
        given = self._trusted.get(host, self._own)
        why = ""
        if not is_dialable(host):
            why = "it has no address that can be dialled"
        elif self._routes.gateway and host != self._routes.gateway:
            why = "it is reached through a gateway"
        elif given.ca:
            why = "a connection with TLS cannot be handed from the agent to a process"
            return MayDial(address, why=why, encrypted=True)
        return MayDial(address, why=why) if why else MayDial(address, given.secret, at=self._routes.at(host))

    def _hand_over(self, connection: StreamConnection, hello: LinkHello) -> str:
        """Gives a connection to the process that it is for; returns why it cannot. That process may refuse it still."""
        if hello.pem:
            return self._hand_over_beneath(connection, hello)
        sock = connection.detach()
        if sock is None:
            return "a link of two processes goes without TLS, and whoever dials waits for the answer to its hello"
        with sock:
            try:
                unix.hand_over(self._folder, name_of(hello.to), sock, message.encode(hello))
            except (OSError, ValueError) as exc:
                refuse(sock, f"it could not be handed to the process {name_of(hello.to)}: {exc}")
        return ""

    def _hand_over_beneath(self, connection: StreamConnection, hello: LinkHello) -> str:
        """Does the same with the socket under the TLS of two agents: two processes have TLS of their own over it from the
        answer on. Until then the other agent sends nothing, so no byte is read by the wrong one."""
        try:
            unix.hand_over(self._folder, name_of(hello.to), connection, message.encode(hello))
        except (OSError, ValueError) as exc:
            return f"it could not be handed to the process {name_of(hello.to)}: {exc}"
        answer = LinkHello(message.VERSION, hello.reached, self._routes.agent, hello.link, hello.reached, 0, False)
        try:
            connection.send(frames.encode(message.encode(answer)))
        except ConnectionLost as exc:
            return str(exc)
        sock = connection.detach(beneath=True)
        if sock is None:
            return "it sent more before it was answered, or takes no answer"
        sock.close()
        return ""

    def open_stream(self, hello: LinkHello, failed: Callable[[MayDial], None]) -> None:
        """Connects a stream of a process here, which has made this hello, to one of a host with TLS, and hands it the socket;
        `failed` hears why that cannot be. Bounds: _MOST_OPENING at once, 5 seconds each for an answer."""

        def fail(why: str) -> None:
            failed(MayDial(hello.to, why=why, stream=True, link=hello.link))

        def connected(outcome: Any) -> None:
            self._opening.pop(hello.link, None)
            if isinstance(outcome, DialFailed):
                fail(str(outcome))
            elif self._closed:
                outcome.close()
            else:
                _Question(self._connection, outcome, hello, self._loop, told).ask(self._asking)

        def told(said: object, connection: StreamConnection) -> None:
            if type(said) is not LinkHello:
                fail(said.reason if type(said) is Bye else "the agent there did not answer")
                return
            sock = connection.detach(beneath=True)
            if sock is None:
                fail("the agent there said more than its answer")
                return
            with sock:
                try:
                    unix.hand_over(self._folder, name_of(hello.host), sock, message.encode(hello))
                except (OSError, ValueError) as exc:
                    fail(f"it could not be handed over: {exc}")

        host = host_of(hello.to)
        way = self.may_dial(hello.to)
        if not way.encrypted or len(self._opening) >= _MOST_OPENING:
            fail(way.why or f"{_MOST_OPENING} streams are being opened already")
            return
        self._opening[hello.link] = None
        try:
            self._opening[hello.link] = self._dial(host, self._address(host), connected)
        except (OSError, ValueError) as exc:
            del self._opening[hello.link]
            fail(str(exc))

    def _connection(self, sock: Any, handler: Any, queue: int) -> StreamConnection:
        return StreamConnection(sock, self._loop, handler, limit=queue, frame_limit=self._frame_limit)

    def close(self) -> None:
        self._closed = True
        self._listening.close()
        for dial in (*self._knocking.values(), *self._opening.values()):
            if dial is not None:
                dial.cancel()
        for question in list(self._asking):
            question.close("this host is closing")


class _Question:
    """A connection on which one thing is asked: which agent is there, or for one of its processes. `told` hears the answer,
    once, with the connection; None when there is none."""

    def __init__(
        self,
        connect: Callable[[Any, Any, int], StreamConnection],
        sock: Any,
        hello: LinkHello,
        loop: Loop,
        told: Callable[[object, StreamConnection], None],
    ) -> None:
        self._told: Callable[[object, StreamConnection], None] | None = told
        self._connection = connect(sock, self, _QUESTION_BYTES)
        self._timer = loop.call_later(_QUESTION_SECONDS, lambda: self.close("it did not say who it is"))
        self._hello = hello
        self._asked: set[_Question] = set()

    def ask(self, asked: set[_Question]) -> None:
        """It is among those in `asked` until its connection is gone."""
        self._asked = asked
        asked.add(self)
        self._connection.start()
        try:
            self._connection.send(frames.encode(message.encode(self._hello)))
        except ConnectionLost:  # which is told
            pass

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        try:
            answer = message.decode(received[0].head)
        except message.UNREADABLE:
            answer = None
        self._asked.discard(self)
        self._tell(answer)
        connection.close("it has said who it is")

    def connection_lost(self, connection: Any, reason: str) -> None:
        self._asked.discard(self)
        self._tell(None)

    def close(self, why: str) -> None:
        self._connection.close(why)

    def _tell(self, answer: object) -> None:
        told, self._told = self._told, None
        self._timer.cancel()
        if told is not None:
            told(answer, self._connection)


def _secret(given: Credentials) -> Secret | None:
    return Secret(given.secret) if given.secret else None


def _context(given: Credentials, server: bool) -> ssl.SSLContext | None:
    if not given.ca:
        return None
    from monarch._wire.transport import tls

    return tls.context(given.ca, given.certificate, given.private_key, server=server)
