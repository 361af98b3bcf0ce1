"""The base of host agents: gives messages, timers and ends to the Roster, and carries out what it wants done; passes on
what goes to other hosts.

How a process starts, is signalled and cleaned up after is left to the agent: of real processes in `host_agent`, of simulated
ones in `monarch.testing.simulated`. Everything here runs on the agent's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from monarch._mesh.agent.effects import (
    Effect,
    HostEmpty,
    Launch,
    Limits,
    MeshEnded,
    Prepare,
    Refuse,
    ReleaseProcess,
    Send,
    Signal,
    Start,
)
from monarch._mesh.agent.roster import BEAT, HEARD_PATIENCE, Roster
from monarch._mesh.agent.routes import HostLink, Routes
from monarch._mesh.casts.machine import Arm, Disarm
from monarch._mesh.casts.relay import Casts, Deliver, DirectReply, Forward, Merge, Reply
from monarch._mesh.inspection import questions
from monarch._runtime.loop import Loop, TimerHandle
from monarch._wire import frame as frames
from monarch._wire import message, os_text
from monarch._wire.address import AGENT, agent_at, agent_of, host_of, name_of
from monarch._wire.frame import Buffer, Frame
from monarch._wire.ids import new_id
from monarch._wire.message import (
    VALUE,
    VERSION,
    Answer,
    Answers,
    Attach,
    Bye,
    Call,
    CancelGather,
    Cast,
    CastPlan,
    Combined,
    Delivered,
    Envelope,
    ForgetPlan,
    Hello,
    HostHeard,
    HostReplaced,
    HostUnreachable,
    IncarnationAck,
    LaunchSpec,
    LinkHello,
    ListProcs,
    PlanUnknown,
    Pong,
    ProcEnded,
    ProcReachable,
    RestartProcs,
    Shutdown,
    SpawnProcs,
    StopProcs,
    Suspected,
    TreeAnswer,
    TreeCall,
    Watch,
)
from monarch._wire.peer import PeerEnded
from monarch._wire.relay import Relay, addressed, route
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch.config import settings

# Broadcasts are written at the end of the loop's turn, several at once, or when there are so many: nobody waits for them.
# (However late a turn comes, when many processes want a core: that is when it helps most.)
_FLOOD = 3600.0
_TOGETHER = 32

# (connection, message, its frame)
Receiver = Callable[[Connection, Any, Frame], None]


class _Unacknowledged:
    """Processes that do not know yet that a host was replaced, and whom to tell when they do."""

    def __init__(self, processes: set[str], timer: TimerHandle) -> None:
        self.processes = processes
        self.timer = timer
        self.tell: list[tuple[Connection, HostReplaced]] = []


class BaseHostAgent:
    """`host` is the address prefix of the processes. `receivers` are for messages that concern one kind of agent only."""

    def __init__(self, host: str, loop: Loop) -> None:
        self.host = host
        self.loop = loop
        self.roster = Roster(host, settings.host_spawn_ready_timeout())
        self.routes = Routes(self, host, new_id(), settings.outgoing_queue_bytes())
        self.casts = Casts()
        self._children: dict[str, Relay] = {}  # agents that casts are passed on to, by host
        self._broadcasts = 0
        self._sources: set[str] = set()  # processes of other hosts whose casts came here
        self._far: dict[tuple[str, str], Relay] = {}  # by who speaks to us from another host, and as whom
        self._unheard: dict[tuple[str, int], _Unacknowledged] = {}  # by host and generation: who does not know it yet
        self._timers: dict[tuple[Any, ...], TimerHandle] = {}
        self._effects: deque[Effect] = deque()
        self._acting = False
        roster, now = self.roster, loop.now
        self.receivers: dict[type, Receiver] = {
            SpawnProcs: lambda c, m, f: self.act(roster.spawn(now(), c, m, *self._launch(f))),
            RestartProcs: lambda c, m, f: self.act(roster.restart(now(), c, m, *self._launch(f))),
            StopProcs: lambda c, m, f: self.act(roster.stop(now(), c, m)),
            Watch: lambda c, m, f: self.act(roster.watch(now(), c, m)),
            IncarnationAck: lambda c, m, f: self.act(roster.heard(now(), c, m)),
            ListProcs: lambda c, m, f: self.act(roster.census(now(), c, m)),
            Shutdown: lambda c, m, f: self._on_shutdown(m),
            Pong: lambda c, m, f: self.act(roster.pong(now(), c, m.token)),
            CastPlan: lambda c, m, f: self._on_plan(c, m),
            ForgetPlan: lambda c, m, f: self._cast_on(self.casts.forget(now(), c, m)),
            Cast: self._on_cast,
            CancelGather: lambda c, m, f: self._cast_on(self.casts.unwanted(now(), c, m)),
            TreeAnswer: lambda c, m, f: self._cast_on(self.casts.answer(now(), m.back, m.answer, f.body, f.buffers)),
            Combined: lambda c, m, f: self._cast_on(self.casts.combined(now(), c.remote, m, f.body, f.buffers)),
            Answers: lambda c, m, f: self._cast_on(self.casts.answers(now(), host_of(c.remote), m, f.body, f.buffers)),
            Delivered: lambda c, m, f: self._cast_on(self.casts.delivered(now(), host_of(c.remote), m)),
            HostUnreachable: lambda c, m, f: self._cast_on(self.casts.unreached(now(), host_of(c.remote), m)),
            PlanUnknown: lambda c, m, f: self._cast_on(
                self.casts.plan_unknown(now(), host_of(c.remote), m, f.body, f.buffers)
            ),
            Envelope: lambda c, m, f: self.routes.pass_on(m, f, c),
            HostReplaced: lambda c, m, f: self._on_host_replaced(c, m),
            HostHeard: lambda c, m, f: self._on_host_heard(c, m.host, m.generation),
            ProcEnded: lambda c, m, f: self._on_far_ended(m),
            ProcReachable: lambda c, m, f: self._on_remote_proc_reachable(c, m),
        }
        questions.serve_agent(self)

    # --- what an agent supplies

    def prepare(self, starts: Sequence[Start]) -> None:
        """Carries out `effects.Prepare`."""
        raise NotImplementedError

    def launch(self, starts: Sequence[Start]) -> None:
        """Carries out `effects.Launch`."""
        raise NotImplementedError

    def send_signal(self, pid: int, number: int) -> None:
        raise NotImplementedError

    def release(self, ended: ProcEnded) -> None:
        """Carries out `effects.ReleaseProcess`."""
        raise NotImplementedError

    def mesh_ended(self, mesh: str) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """After a shutdown, when no process is left."""
        raise NotImplementedError

    def adapt_spec(self, spec: LaunchSpec) -> None:
        """Fits what a process is to start with to this host."""

    def begin_link(self, host: str) -> HostLink:
        raise NotImplementedError

    def is_near(self, host: str) -> bool:
        return False

    def take_link(self, hello: LinkHello) -> HostLink:
        raise NotImplementedError

    # --- events

    def shutdown(self, grace: float) -> None:
        self.act(self.roster.shutdown(self.loop.now(), grace))

    def _on_shutdown(self, order: Shutdown) -> None:
        """An order that crossed the end of the agent it was for goes over a new link, to whoever has the address now."""
        if order.agent in ("", self.routes.agent):
            self.shutdown(order.grace)

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        self.act(self.roster.alive(self.loop.now(), connection))
        for index, frame in enumerate(received):
            msg = message.decode(frame.head)
            if not connection.remote:
                if type(msg) is LinkHello:  # the agent of another program of this machine: see `neighbours`
                    entrance = self.routes.entrance()
                    connection.heard_by(entrance)  # type: ignore[attr-defined]  # it came to our own socket
                    entrance.connection_received(connection, received[index:])
                    return
                if not self._on_hello(connection, msg):
                    return
                continue
            receiver = self.receivers.get(type(msg))
            if receiver is not None:
                receiver(connection, msg, frame)

    def _on_hello(self, connection: Connection, hello: Any) -> bool:
        if type(hello) is not Hello or hello.version != VERSION:
            self._refuse(connection, "not a Hello of this version")
            return False
        connection.remote = hello.address
        connection.pid = hello.pid
        self.act(self.roster.hello(self.loop.now(), connection, hello))
        if not connection.lost:
            self.routes.joined(name_of(hello.address), connection)
        return not connection.lost

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self.routes.left(connection)
        for host, generation in list(self._unheard):
            self._on_host_heard(connection, host, generation)
        self._cast_on(self.casts.upstream_gone(self.loop.now(), connection))
        self.act(self.roster.connection_lost(self.loop.now(), connection))

    # --- other hosts

    def receive(self, envelope: Envelope, frame: Frame) -> None:
        """A process of another host, or the agent there, speaks to this agent, by one of the names of this host."""
        connection = self._far_connection(envelope.source, envelope.to)
        msg = message.decode(envelope.head)
        receiver = self.receivers.get(type(msg))
        if receiver is not None:
            receiver(connection, msg, Frame(envelope.head, frame.body, frame.buffers))

    def _far_connection(self, source: str, us: str) -> Relay:
        known = self._far.get((source, us))
        if known is None:
            known = self._far[source, us] = self._relay(source, us)
            if name_of(source) != AGENT:  # its end is the end of what it spawned here
                self.send(self._relay(agent_of(source), us), Watch(source))
        return known

    def _on_far_ended(self, ended: ProcEnded) -> None:
        for key in [key for key in self._far if key[0] == ended.address]:
            self._drop_far(key)
        if ended.address in self._sources:
            self._sources.discard(ended.address)
            for process in self.routes.processes():
                self.send(process, ended)
        self.act(self.roster.owner_ended(self.loop.now(), ended.address))
        self._forget_moves(lambda owner: owner == ended.address)

    def _on_remote_proc_reachable(self, connection: Connection, listening: ProcReachable) -> None:
        """We asked to hear of its end; who takes its place is not announced before all have heard."""
        if listening.incarnation:
            self.send(connection, IncarnationAck(listening.address, listening.incarnation))

    def _drop_far(self, key: tuple[str, str]) -> None:
        connection = self._far.pop(key)
        connection.lost = True
        self._cast_on(self.casts.upstream_gone(self.loop.now(), connection))
        self.act(self.roster.connection_lost(self.loop.now(), connection))

    def host_lost(self, host: str, why: str) -> None:
        for key in [key for key in self._far if host_of(key[0]) == host]:
            self._drop_far(key)
        self._children.pop(host, None)
        self._sources = {source for source in self._sources if host_of(source) != host}
        self._cast_on(self.casts.host_ended(self.loop.now(), host))
        self.act(self.roster.host_ended(self.loop.now(), host, why))
        self._forget_moves(lambda owner: host_of(owner) == host)

    # --- hosts that are replaced

    def _on_host_replaced(self, connection: Connection, told: HostReplaced) -> None:
        """The owner of hosts says so, and is answered when the processes here know it."""
        self._host_replaced(connection, told)
        unheard = self._unheard.get((told.host, told.generation))
        if unheard is None or not told.port:
            self.send(connection, Answer(told.port, told.rank, VALUE))
        else:
            unheard.tell.append((connection, told))

    def _host_replaced(self, connection: Connection, told: HostReplaced) -> None:
        """Processes here hear of it before anything that is sent to them from now on."""
        news = self.routes.replaced(told, connection.remote)
        self.host = self.routes.name
        if not news:
            return
        self._cast_on(self.casts.host_replaced(self.loop.now(), told.host))
        processes = self.routes.processes()
        if processes:
            key = told.host, told.generation
            timer = self.loop.call_later(HEARD_PATIENCE, lambda: self._heard_all(key))
            self._unheard[key] = _Unacknowledged({process.remote for process in processes}, timer)
        for process in processes:
            self.send(process, HostReplaced(told.host, told.at, told.agent, told.generation))

    def _on_host_heard(self, connection: Connection, host: str, generation: int) -> None:
        unheard = self._unheard.get((host, generation))
        if unheard is not None:
            unheard.processes.discard(connection.remote)
            if not unheard.processes:
                self._heard_all((host, generation))

    def _heard_all(self, key: tuple[str, int]) -> None:
        """Tells that all processes have acknowledged, or have had their time."""
        unheard = self._unheard.pop(key, None)
        if unheard is not None:
            unheard.timer.cancel()
            for connection, told in unheard.tell:
                self.send(connection, Answer(told.port, told.rank, VALUE))

    def take_moves(self, connection: Connection, attach: Attach) -> None:
        """Takes what a client says of replaced hosts when it attaches to this one, which may be such a replacement."""
        self.routes.client_came(host_of(connection.remote))
        for told in attach.moves:
            self._host_replaced(connection, told)
        if attach.replaces:
            self.act(self.roster.give_up(self.loop.now(), attach.replaces))

    def _forget_moves(self, of: Callable[[str], bool]) -> None:
        """Forgets the moves of owners that have ended."""
        self.routes.forget_moves(of)
        self.host = self.routes.name

    def host_suspected(self, host: str, why: str) -> None:
        """The processes here should know why answers from there do not come."""
        limit = settings.channel_reconnect_timeout()
        for connection in self.routes.processes():
            self.send(connection, Suspected(agent_at(host), 0, why, limit))

    # --- casts over a tree of agents

    def _on_plan(self, connection: Connection, plan: CastPlan) -> None:
        if plan.serve:  # another agent's, for which those below live
            for below in plan.hosts[1:]:
                self.routes.may_be_back(below.host)
        self._cast_on(self.casts.plan(self.loop.now(), connection, plan))

    def _on_cast(self, connection: Connection, cast: Cast, frame: Frame) -> None:
        if cast.source not in self._sources and host_of(cast.source) not in self.routes.names:
            self._sources.add(cast.source)  # processes here remember what they got from it until they hear of its end
            self._to_far(agent_of(cast.source), Watch(cast.source))
        self._broadcasts += not cast.port
        self._cast_on(self.casts.cast(self.loop.now(), connection, cast, frame.body, frame.buffers))

    def _cast_on(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._deal(effect)
                case Merge(address, msg, body, buffers):
                    if not self.routes.hand(name_of(address), address, msg, body, buffers):
                        self._cast_on(self.casts.process_ended(self.loop.now(), address))
                case Forward(host, msg, body, buffers):
                    # Dialling a host that has ended would hold up all below it for as long as attaching may take.
                    if self.routes.has_ended(host) or self.routes.way_to(host) is None:
                        self._cast_on(self.casts.host_ended(self.loop.now(), host))
                    else:
                        self._give(self._child(host), msg, body, buffers, self._lazy(msg))
                case Reply(upstream, msg, body, buffers):
                    self._give(upstream, msg, body, buffers)
                case DirectReply(address, msg, body, buffers):
                    self._give(self._relay(address, agent_at(self.host)), msg, body, buffers)
                case Arm(key, delay):
                    timer = ("casts", *key)
                    self._disarm(timer)
                    self._timers[timer] = self.loop.call_later(delay, partial(self._cast_timer, timer))
                case Disarm(key):
                    self._disarm(("casts", *key))

    def _child(self, host: str) -> Relay:
        """Returns the agent of another host."""
        relay = self._children.get(host)
        if relay is None:
            relay = self._children[host] = self._relay(agent_at(host), agent_at(self.host))
        return relay

    def _cast_timer(self, timer: tuple[Any, ...]) -> None:
        del self._timers[timer]
        self._cast_on(self.casts.fired(self.loop.now(), timer[1:]))

    def _deal(self, deliver: Deliver) -> None:
        msg: Any = deliver.message
        coalesce_within = self._lazy(msg)
        if type(msg) is Call:
            up = bool(msg.port) and self.casts.gathers(msg.back, msg.port)
            msg = TreeCall(deliver.source, msg, up, deliver.target_incarnation)
        name = name_of(deliver.address)
        if not self.routes.hand(name, deliver.address, msg, deliver.body, deliver.buffers, coalesce_within):
            self._cast_on(self.casts.process_ended(self.loop.now(), deliver.address))

    def _lazy(self, msg: Any) -> float:
        """See `base.Connection.send`; 0 for what somebody waits for."""
        return _FLOOD if type(msg) in (Cast, Call) and not msg.port and self._broadcasts % _TOGETHER else 0.0

    def _give(
        self, connection: Connection, msg: Any, body: Buffer, buffers: Sequence[Buffer], coalesce_within: float = 0.0
    ) -> None:
        head = addressed(connection, message.encode(msg))
        try:
            connection.send(
                frames.encode(head, body, [memoryview(buffer) for buffer in buffers]), False, coalesce_within
            )
        except (ConnectionLost, PeerEnded):
            pass

    def awaited(self, address: str) -> bool:
        return self.roster.awaited(address)

    # --- effects

    def act(self, effects: Iterable[Effect]) -> None:
        """Carries them out in order. What comes of one of them is done after those that were wanted before."""
        self._effects.extend(effects)
        if self._acting:
            return
        self._acting = True
        while self._effects:
            try:
                self._do(self._effects.popleft())
            except Exception as exc:  # one's trouble must not cost those behind it
                self.loop.on_error(exc)
        self._acting = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(connection, msg, body):
                self.send(connection, msg, body)
            case Prepare(starts):
                self.prepare(starts)
            case Launch(starts):
                self.launch(starts)
            case Signal(pid, number):
                self.send_signal(pid, number)
            case ReleaseProcess(ended):
                self.release(ended)
                self._forget_moves(lambda owner: owner == ended.address)
                self.routes.gone(name_of(ended.address))
                self._cast_on(self.casts.process_ended(self.loop.now(), ended.address))
            case MeshEnded(mesh):
                self.mesh_ended(mesh)
            case Arm(key, delay):
                self._disarm(key)
                self._timers[key] = self.loop.call_later(delay, lambda: self._fired(key))
            case Disarm(key):
                self._disarm(key)
            case Refuse(connection, why):
                self._refuse(connection, why)
            case HostEmpty():
                self.finish()

    def send(self, connection: Connection, msg: Any, body: bytes = b"") -> None:
        try:
            connection.send(frames.encode(addressed(connection, message.encode(msg)), body))
        except (ConnectionLost, PeerEnded):
            pass

    def _to_far(self, address: str, msg: Any) -> None:
        """Sends to a process of another host, or its agent."""
        self.send(self._relay(address, agent_at(self.host)), msg)

    def _relay(self, address: str, us: str) -> Relay:
        host = host_of(address)
        return Relay(lambda: self.routes.way_to(host), route(address, us), address)

    def decode_spec(self, frame: Frame) -> LaunchSpec:
        """Returns what the message's body says of the processes to start."""
        spec = os_text.decode(frame.body, LaunchSpec)
        self.adapt_spec(spec)
        return spec

    def _launch(self, frame: Frame) -> tuple[LaunchSpec, Limits]:
        """The settings are those of the client whose mesh it is, not ours."""
        spec = self.decode_spec(frame)
        told = msgspec.msgpack.decode(spec.config)
        limits = (settings.host_spawn_ready_timeout, settings.suspect_after, settings.suspect_timeout)
        return spec, Limits(*(settings.told(told, limit) for limit in limits))

    def _refuse(self, connection: Connection, why: str) -> None:
        self.send(connection, Bye(why))
        connection.close(why)

    def _disarm(self, key: tuple[Any, ...]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fired(self, key: tuple[Any, ...]) -> None:
        del self._timers[key]
        if key == BEAT:  # signs of life may wait in what is not read
            for connection in self.routes.held():
                self.act(self.roster.alive(self.loop.now(), connection))
        self.act(self.roster.fired(self.loop.now(), key))
