"""One process of the runtime: its table of actors, its ports, and the other processes it knows.

Routes: a message for this process is delivered here and now, one for another goes to its Peer, one for an actor that is
not here waits a while for it or goes back. Several Procs can live in one operating-system process (monarch.testing).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from monarch._errors import BackpressureTimeout, ForkedClientError
from monarch._runtime.future import running_loop
from monarch._runtime.incarnations import Incarnations
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.loop import Loop, start_thread
from monarch._runtime.replies import Ports
from monarch._runtime.waiting import Waits
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.address import AGENT, CLIENT, agent_at, agent_of, host_of, is_dialable, name_of
from monarch._wire.frame import Buffer, Frame
from monarch._wire.message import (
    FAILED,
    MERGED,
    VALUE,
    VERSION,
    ActorEnded,
    Answer,
    Answers,
    Barrier,
    Bounced,
    Bye,
    Call,
    Envelope,
    Failure,
    Hello,
    HostEnded,
    IncarnationAck,
    MayDial,
    Pause,
    Ping,
    Pong,
    ProcEnded,
    ProcReachable,
    Restarted,
    SegmentsGone,
    SenderEnded,
    SharedPayload,
    Skip,
    Suspected,
    TreeAnswer,
    TreeCall,
    Watch,
    Welcome,
)
from monarch._wire.peer import Peer, PeerEnded
from monarch._wire.relay import Relay, addressed, enclose, route
from monarch._wire.transport.base import Connection, ConnectionLost
from monarch.config import settings

if TYPE_CHECKING:
    import socket

    from monarch._runtime.direct import Directs
    from monarch._runtime.payloads import Payloads, Placement
    from monarch._runtime.streams import Streams
    from monarch._wire.transport.unix import UnixTransport

_TOMBSTONES = 10_000  # ended actors remembered, to answer late messages; older ones count as unknown
_MISSED = 10_000  # actors remembered that were sent messages and never came
_ENDED_PEERS = 10_000  # ended processes remembered
_TOLD = 1_000  # failures remembered, to tell them again when the connection to their owner broke
_NEWEST = 2**31  # an incarnation of a process that none surpasses
_WAIT_FROM = 64 * 1024  # bytes of the caller's memory from which a sender waits rather than have them copied

# (connection or stand-in with `remote`, message, frame)
Receiver = Callable[[Any, Any, Frame], None]


class Transport(Protocol):
    def dial(self, address: str) -> Connection: ...
    def close(self) -> None: ...


class Proc:
    """`address` is where others reach this process, `host` the address prefix of its host.

    `receivers` maps a message type to what the mesh layer does with it, on the I/O thread.
    """

    def __init__(self, address: str, loop: Loop) -> None:
        self.address = address
        self.host = host_of(address)
        self.client = f"{self.host}/{CLIENT}"  # the root client of the program
        self.pid = os.getpid()
        self.loop = loop
        self.ports = Ports()
        self.waits = Waits(self.ports, loop)
        self.actors: dict[str, Instance] = {}
        self.receivers: dict[type, Receiver] = {}
        self.incarnation = 0  # how many processes were at this address before
        self.incarnations = Incarnations()
        self.suspected: dict[str, str] = {}  # processes that give no sign of life, and why that is
        self.process_ended: Callable[[ProcEnded], None] = _ignore
        self.process_suspected: Callable[[Suspected], None] = _ignore
        self.actor_failed: Callable[[ActorEnded], None] = _ignore
        self.bounced: Callable[[Bounced], None] = _ignore
        self.connection_broke: Callable[[str], None] = _ignore  # to a process that lives
        self.cast_to: Callable[[str], Sequence[str]] = _none  # processes that were sent casts of an actor
        self.addresses_on: Callable[[str], Sequence[str]] = _none  # processes of a host that the mesh layer knows of
        self.agent_lost: Callable[[str], None] = _ignore
        self.transport: Transport | None = None
        self.root_name = ""
        self.services: dict[str, Any] = {}  # actors that belong to the process itself, as meshes
        self.absent: dict[str, Callable[[], Any]] = {}  # actors made by the first message to them
        self.mesh: Any = None  # the mesh layer's state for this process
        self.mailbox_messages = int(settings.get("mailbox_messages"))
        self.frame_limit = int(settings.get("codec_max_frame_length"))
        self.queue_limit = int(settings.get("outgoing_queue_bytes"))
        self.closed: BaseException | None = None
        self._peers: dict[str, Peer] = {}
        self._ended_peers: deque[str] = deque()
        self._unknown: dict[str, list[Delivery]] = {}
        self._unknown_count = 0
        self._missed: OrderedDict[str, set[tuple[str, int]]] = OrderedDict()  # actor -> (sender, incarnation) refused
        self._tombstones: OrderedDict[str, Failure] = OrderedDict()
        self._senders: dict[str, dict[str, set[str]]] = {}  # process -> its actors that sent here -> to which actors
        self._ever_broke: set[str] = set()  # processes that a connection to broke although they live
        self._connections: dict[str, list[Connection]] = {}
        self.remote_changes = 0  # how often something was learned of which processes live on other hosts
        self.ended_remote: set[str] = set()  # processes of other hosts
        self._relays: dict[str, Relay] = {}  # processes of other hosts that speak to us
        self.payloads: Payloads | None = None  # None: everything goes through connections
        self._directs: Directs | None = None  # made with the first of them that speaks much
        self._streams: Streams | None = None  # made with the first of them
        self.receivers[MayDial] = lambda connection, may, frame: self._on_may_dial(connection.remote, may)
        self.receivers[Barrier] = lambda connection, barrier, frame: self.directs().barrier(connection, barrier)
        # New processes at addresses whose last one we still know: their connection, incarnation, and what they sent.
        self._newcomers: dict[str, tuple[Connection, int, list[Frame]]] = {}
        self._broken: dict[str, int] = {}  # process -> the next port when the connection to it broke
        self._notified: deque[tuple[str, ActorEnded]] = deque(maxlen=_TOLD)  # (process of the owner, failure)
        self._lock = threading.Lock()
        self._paused: set[tuple[str, str]] = set()
        self._resumed = threading.Condition()
        self.errors: deque[str] = deque(maxlen=100)
        _all.add(self)

    def limits(self) -> tuple[int, int]:
        return self.queue_limit, self.frame_limit

    def __repr__(self) -> str:
        return f"<Proc {self.address} ({len(self.actors)} actors, {len(self._peers)} peers, {len(self.ports)} ports)>"

    def statistics(self) -> dict[str, Any]:
        """Numbers for people who debug: actors, ports that wait, messages that wait, peers."""
        return {
            "actors": len(self.actors),
            "ports": len(self.ports),
            "mailboxes": sum(len(actor.mailbox) for actor in list(self.actors.values())),
            "undelivered": self._unknown_count,
            "peers": [repr(peer) for peer in list(self._peers.values())],
            "loop": self.loop.statistics(),
            "payloads": self.payloads.statistics() if self.payloads is not None else {},
        }

    # --- sending, any thread

    def peer(self, address: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            if self.closed is not None:
                raise self.closed
            source = "" if host_of(address) == self.host else self.address
            with self._lock:
                peer = self._peers.setdefault(
                    address, Peer(address, self._dial, self._ask_agent, source, self._learned)
                )
        return peer

    def _learned(self) -> None:
        self.remote_changes += 1

    def post(
        self,
        address: str,
        msg: Any,
        body: bytes = b"",
        buffers: Sequence[memoryview] = (),
        coalesce_within: float = 0.0,
        placement: Placement | None = None,
    ) -> Connection | None:
        """Sends a message: here, or to another process. Returns the connection that took it, None when it stayed here or is
        kept for later. Raises PeerEnded, MessageTooLargeError; may wait for room.

        `placement`: where its payload is already, for receivers that can have it there (see `place`).
        """
        peer = self._peers.get(address)
        if peer is not None and not buffers and not coalesce_within and len(body) < frames.SMALL:
            connection = peer.connection
            if connection is not None:
                head = message.encode(msg)
                if connection.route:
                    head = enclose(connection.route, head)
                if connection.send_small(frames.encode_small(head, body)):
                    return connection
        if address == self.address:
            self._receive_here(msg, body, buffers)
            return None
        if peer is None:
            peer = self.peer(address)
        head = message.encode(msg)
        size = len(body) + sum(b.nbytes for b in buffers) if buffers else len(body)
        port = msg.port if type(msg) is Call else 0
        payloads = self.payloads
        if payloads is not None and size >= payloads.least and not 0 < self.frame_limit < size and self._reaches(peer):
            taken = self._post_placed(payloads, peer, head, body, buffers, port, placement)
            if taken is not None:
                return taken
        pieces = frames.encode(enclose(peer.route, head) if peer.route else head, body, buffers, self.frame_limit)
        wait = size >= _WAIT_FROM and not self.loop.in_loop() and running_loop() is None
        return peer.send(pieces, wait, coalesce_within if size < _WAIT_FROM else 0.0, port)

    def place(
        self, addresses: Sequence[str], body: bytes, buffers: Sequence[memoryview], size: int
    ) -> Placement | None:
        """A payload of `size` bytes for several receivers, copied once for all of them that share memory with this process.
        To be closed when it has been posted to all. None when there are not two of them, or no memory for it is to be had.
        """
        payloads = self.payloads
        if payloads is None or size < payloads.least:
            return None
        peers = [self.peer(address) for address in addresses if address != self.address]
        near = [peer.address for peer in peers if self._reaches(peer)]
        return payloads.place(body, buffers, near) if len(near) > 1 else None

    def _reaches(self, peer: Peer) -> bool:
        """Whether payloads can be in memory that it shares with this process."""
        return not peer.route and name_of(peer.address) != AGENT and peer.connect() is not None

    def _post_placed(
        self,
        payloads: Payloads,
        peer: Peer,
        head: bytes,
        body: bytes,
        buffers: Sequence[memoryview],
        port: int,
        placement: Placement | None,
    ) -> Connection | None:
        """The connection that took it; None when nothing was sent: it has to go with all it carries."""
        address, connection = peer.address, peer.connection
        own = None
        if placement is None or address not in placement.slots:
            placement = own = payloads.place(body, buffers, [address])
            if placement is None:
                return None
        try:
            if connection is None or not payloads.introduce(placement.segment, address, connection):
                return None
            connection.send(frames.encode(placement.message(address, head), placement.inline(body)))
            placement.sent(address)
            return connection
        except ConnectionLost:
            assert connection is not None
            peer.lost(connection, port)
            return None
        finally:
            if own is not None:
                own.close()

    def check_size(self, body: bytes, buffers: Sequence[memoryview]) -> int:
        """The size of a message. Raises MessageTooLargeError when it cannot be sent."""
        size = len(body) + sum(b.nbytes for b in buffers) if buffers else len(body)
        if 0 < self.frame_limit < size:
            raise frames.too_large(size, self.frame_limit)
        return size

    def answer(
        self, address: str, answer: Answer, body: bytes, buffers: Sequence[memoryview], coalesce_within: float = 0.0
    ) -> None:
        """Sends an answer or a port message. One whose reader has gone is dropped, or bounced to its sender."""
        try:
            self.post(address, answer, body, buffers, coalesce_within)
        except PeerEnded:
            if answer.sender:
                dest = f"port {answer.port} of {address}"
                self.bounced(Bounced(answer.sender, dest, "a port message", "its process has ended", True))

    def reply(
        self,
        delivery: Delivery,
        kind: int,
        body: bytes,
        buffers: Sequence[memoryview] = (),
        coalesce_within: float = 0.0,
    ) -> None:
        """Answers a call: to the process that holds its port, or up the tree that it came down."""
        call = delivery.call
        answer = Answer(call.port, call.rank, kind)
        if not delivery.up:
            self.answer(delivery.back, answer, body, buffers, coalesce_within)
            return
        try:
            self.post(agent_of(self.address), TreeAnswer(delivery.back, answer), body, buffers, coalesce_within)
        except PeerEnded:  # and this process with it
            pass

    def refuse(self, delivery: Delivery, failure: Failure) -> None:
        """Tells whoever sent a message that it will not be handled, and why."""
        call = delivery.call
        if call.port:
            self.reply(delivery, FAILED, message.encode(failure))
        else:
            bounced = Bounced(
                call.sender,
                f"{failure.mesh_name or call.to}[{call.rank}]",
                f"{failure.mesh_name or call.to}.{call.method}() (broadcast)",
                failure.report,
                failure.will_restart,
            )
            self._post_quietly(delivery.back, bounced)

    def _post_quietly(self, address: str, msg: Any) -> None:
        try:
            self.post(address, msg)
        except PeerEnded:
            pass
        except RuntimeError:
            if self.closed is None:
                raise

    def pause_sender(self, address: str, key: str, on: bool) -> None:
        if address == self.address:
            self._on_pause(address, Pause(key, on))
        else:
            self._post_quietly(address, Pause(key, on))

    def must_wait(self, address: str, key: str) -> bool:
        """Whether a sender to actor `key` at `address` should wait: its mailbox or the way there is full."""
        if self._paused and (address, key) in self._paused:
            return True
        peer = self._peers.get(address)
        if peer is None:
            return False
        connection = peer.connection
        return (peer.queued if connection is None else connection.queued) >= self.queue_limit

    def wait_room(self, address: str, key: str) -> None:
        """Blocks until `must_wait` is no longer true. BackpressureTimeout after `message_delivery_timeout`."""
        if self.loop.in_loop():
            return
        timeout = settings.get("message_delivery_timeout")
        peer = self._peers.get(address)
        if peer is not None and not peer.wait_room(timeout):
            raise BackpressureTimeout(
                f"the connection to {address} has had {self.queue_limit} bytes queued (setting outgoing_queue_bytes) "
                f"for {timeout:g} s (setting message_delivery_timeout): that process does not read"
            )
        with self._resumed:
            if not self._resumed.wait_for(lambda: (address, key) not in self._paused, timeout):
                raise BackpressureTimeout(
                    f"actor {key} at {address} has had {self.mailbox_messages} messages waiting (setting "
                    f"mailbox_messages) and handled less than half of them within {timeout:g} s (setting "
                    f"message_delivery_timeout)"
                )

    def wait_room_for_all(self, addresses: Iterable[str], key: str) -> None:
        """`wait_room` for the receivers of a cast."""
        if self.must_wait(agent_of(self.address), key):
            self.wait_room(agent_of(self.address), key)
        if self._paused:
            for address in addresses:
                if (address, key) in self._paused:
                    self.wait_room(address, key)

    # --- receiving, on the I/O thread

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        if self.closed is not None:
            return  # on its way when we closed: whoever waits for it here was told, its sender sees the connection end
        remote = connection.remote
        for frame in received:
            try:
                msg = message.decode(frame.head)
                kind = type(msg)
                # As in `_on_message`, for these two are nearly all.
                if kind is Answer and remote and not self._newcomers:
                    self._on_answer(msg, frame.body, frame.buffers, remote)  # type: ignore[arg-type]
                elif kind is Call and remote and not self._newcomers:
                    self._on_call(msg, frame.body, frame.buffers, remote)  # type: ignore[arg-type]
                elif remote:
                    self._on_message(connection, msg, frame)
                elif not self._on_hello(connection, msg):
                    return
                else:
                    remote = connection.remote
            except msgspec.DecodeError as exc:
                connection.close(f"it sent an invalid message: {exc}")
                return
            except Exception as exc:  # one message's trouble must not cost those behind it
                self.loop.on_error(exc)

    def _on_message(self, connection: Connection, msg: Any, frame: Frame) -> None:
        kind = type(msg)
        if self._newcomers and self._early(connection, frame):
            return
        if kind is Call:
            self._on_call(msg, frame.body, frame.buffers, connection.remote)
        elif kind is Answer:
            self._on_answer(msg, frame.body, frame.buffers, connection.remote)
        else:
            self._on_other(connection, msg, frame)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        remote = connection.remote
        if not remote:
            return
        if remote == agent_of(self.address):
            self.agent_lost(reason)
            return
        with self._lock:
            known = [other for other in self._connections.pop(remote, ()) if other is not connection]
            if known:
                self._connections[remote] = known
        newcomer = self._newcomers.get(remote)
        if newcomer is not None and newcomer[0] is connection:
            return  # lost before we heard who it was; its agent tells that too
        self._lose_paths(remote)
        peer = self._peers.get(remote)
        if peer is not None and self.closed is None:
            if peer.ended is None:
                self._ever_broke.add(remote)
            peer.lost(connection)

    def _remember(self, remote: str, connection: Connection) -> None:
        with self._lock:
            self._connections[remote] = [*self._connections.get(remote, ()), connection]

    def _lose_paths(self, remote: str) -> None:
        """What actors of that process had sent here and has not arrived will not come."""
        for sender, keys in self._senders.get(remote, {}).items():
            for instance in filter(None, map(self.actors.get, keys)):
                instance.path_lost(sender)

    def _on_hello(self, connection: Connection, hello: Any) -> bool:
        if type(hello) is not Hello:
            connection.close("its first frame was not a Hello")
            return False
        if hello.version != VERSION:
            reason = f"protocol version {hello.version} meets version {VERSION}: all processes need one monarch version"
            self.errors.append(reason)
            _send_first(connection, Bye(reason))
            connection.close(reason)
            return False
        if 0 <= hello.target_incarnation < self.incarnation:  # it hears from its agent how that one ended
            connection.close("that process has ended, and a new one has taken its place")
            return False
        connection.remote = hello.address
        connection.pid = hello.pid
        peer = self.peer(hello.address)
        if hello.incarnation < peer.incarnation:
            connection.close("another process has taken its place")
            return False
        self._remember(hello.address, connection)
        if hello.again:  # perhaps we never heard who was at the other end
            self._ever_broke.add(hello.address)
        if self.incarnation:
            _send_first(connection, Welcome(self.incarnation))
        if hello.incarnation > peer.incarnation:  # how the one before it ended is on its way to us
            self._newcomers[hello.address] = (connection, hello.incarnation, [])
            self._post_quietly(agent_of(hello.address), Watch(hello.address, peer.incarnation))
        else:
            peer.adopt(connection)
            self.watch(hello.address)  # nobody else would tell of its end
        return True

    def _on_envelope(self, envelope: Envelope, frame: Frame) -> None:
        """A process of another host, or the agent there, speaks to us."""
        if envelope.target_incarnation not in (-1, self.incarnation):
            return  # for the process before this one, which has ended: its sender is being told
        source = envelope.source
        msg = message.decode(envelope.head)
        relay = self._relays.get(source)
        if type(msg) is Hello:
            relay = self._relays[source] = self._new_relay(route(source, self.address, msg.incarnation), source)
            self._on_hello(relay, msg)
        elif relay is None and name_of(source) == AGENT:
            relay = self._relays[source] = Relay(self._agent, route(source, self.address), source)
        if relay is not None and not relay.lost and type(msg) is not Hello:
            self._on_message(relay, msg, Frame(envelope.head, frame.body, frame.buffers))

    def _early(self, connection: Connection, frame: Frame) -> bool:
        """Keeps what a new process sends until its agent has told us what became of the one before it."""
        newcomer = self._newcomers.get(connection.remote)
        if newcomer is None or newcomer[0] is not connection:
            return False
        newcomer[2].append(frame)
        return True

    def _on_call(self, call: Call, body: Buffer, buffers: Sequence[Buffer], remote: str, up: bool = False) -> None:
        delivery = Delivery(call, body, buffers, remote, up)
        instance = self.actors.get(call.to)
        if instance is not None:
            if call.seq == 1:
                self._note_sender(remote, call)
            elif self._ever_broke and remote in self._ever_broke:
                self._take_up(remote, call, instance)
            instance.deliver(delivery)
        else:
            self._hold(delivery)

    def _on_dealt(self, dealt: TreeCall, frame: Frame) -> None:
        """A call came down the tree."""
        call = dealt.call
        if dealt.target_incarnation in (-1, self.incarnation):
            self._on_call(call, frame.body, frame.buffers, dealt.source, dealt.up)
            return
        text = f"the process of rank {call.rank} was replaced after {call.method}() was sent: it was meant for the one before"
        delivery = Delivery(call, frame.body, frame.buffers, dealt.source, dealt.up)
        if call.port:
            self.refuse(
                delivery, Failure(text, call.to, ranks=[call.rank], event=text, stopped=True, will_restart=True)
            )

    def _take_up(self, remote: str, call: Call, instance: Instance) -> None:
        """A connection to that process broke: the first messages of a sender may have been lost with it."""
        self._note_sender(remote, call)
        instance.take_up(call)

    def _note_sender(self, remote: str, call: Call) -> None:
        self._senders.setdefault(remote, {}).setdefault(call.sender, set()).add(call.to)

    def _on_sender_ended(self, remote: str, ended: SenderEnded) -> None:
        for instance in filter(None, map(self.actors.get, self._senders.get(remote, {}).pop(ended.sender, ()))):
            instance.sender_ended(ended.sender)

    def _on_answer(self, answer: Answer, body: Buffer, buffers: Sequence[Buffer], remote: str) -> None:
        if not self.ports.receive(answer.port, (answer.rank, answer.kind, body, buffers)) and answer.sender:
            dest = f"port {answer.port} of {self.address}"
            if self.ports.belonged_to_ended_actor(answer.port):
                bounced = Bounced(answer.sender, dest, dest, "the actor that opened it has ended", False)
            else:
                bounced = Bounced(answer.sender, dest, dest, "its receiver is gone", True)
            self._post_quietly(remote, bounced)

    def _on_answers(self, answers: Answers, frame: Frame) -> None:
        """They came up the tree together."""
        receive, port = self.ports.receive, answers.port
        if frame.buffers or len(answers.ranks) == 1:  # it is one, and what is merged into it
            receive(port, (answers.ranks[0], answers.kinds[0], frame.body, frame.buffers))
            for rank in answers.ranks[1:]:
                receive(port, (rank, MERGED, b"", ()))
            return
        view, start = memoryview(frame.body), 0
        for rank, kind, size in zip(answers.ranks, answers.kinds, answers.sizes, strict=True):
            receive(port, (rank, kind, bytes(view[start : start + size]), ()))
            start += size

    def _on_other(self, connection: Connection, msg: Any, frame: Frame) -> None:
        kind = type(msg)
        if kind is Envelope:
            self._on_envelope(msg, frame)
        elif kind is SharedPayload:
            self._on_placed(connection, msg, frame)
        elif kind is SegmentsGone:
            if self.payloads is not None:
                self.payloads.gone(connection.remote, msg.segments)
        elif kind is TreeCall:
            self._on_dealt(msg, frame)
        elif kind is Answers:
            self._on_answers(msg, frame)
        elif kind is Skip:
            instance = self.actors.get(msg.to)
            if instance is not None:
                instance.skip_lost(msg.sender)
        elif kind is ActorEnded:
            self.actor_failed(msg)
        elif kind is Bounced:
            self.bounced(msg)
        elif kind is ProcEnded:
            if self._directs is None or not self._directs.ended(msg):
                self.on_process_ended(msg)
        elif kind is HostEnded:
            self.host_ended(msg.host, msg.why)
        elif kind is ProcReachable:
            self.on_proc_reachable(msg)
        elif kind is Ping:
            self._post_quietly(connection.remote, Pong(msg.token))
        elif kind is Suspected:
            self._on_suspected(msg)
        elif kind is Restarted:
            self._on_restarted(connection.remote, msg)
        elif kind is Welcome:
            self._on_welcome(connection.remote, msg)
        elif kind is SenderEnded:
            self._on_sender_ended(connection.remote, msg)
        elif kind is Pause:
            self._on_pause(connection.remote, msg)
        elif kind is Bye:
            self.errors.append(f"{connection.remote} closed the connection: {msg.reason}")
        else:
            receiver = self.receivers.get(kind)
            if receiver is None:
                self.errors.append(f"unexpected {kind.__name__} from {connection.remote}")
            else:
                receiver(connection, msg, frame)

    def _on_placed(self, connection: Connection, placed: SharedPayload, frame: Frame) -> None:
        whole = self.payloads.open(placed, frame) if self.payloads is not None else None
        if whole is None:  # as when no memory can be had for what comes through the socket
            connection.close("a message came in shared memory that could not be mapped here")
            return
        self._on_message(connection, message.decode(whole.head), whole)

    def _receive_here(self, msg: Any, body: bytes, buffers: Sequence[memoryview]) -> None:
        """A message of this process to itself. Out-of-band memory is copied: the sender may change its own."""
        owned: Sequence[Buffer] = [bytearray(buffer) for buffer in buffers] if buffers else ()
        kind = type(msg)
        if kind is Call:
            self._on_call(msg, body, owned, self.address)
        elif kind is Answer:
            self._on_answer(msg, body, owned, self.address)
        elif kind is ActorEnded:
            self.actor_failed(msg)
        elif kind is Bounced:
            self.bounced(msg)
        elif kind is SenderEnded:
            self._on_sender_ended(self.address, msg)
        elif kind is Restarted:
            self._on_restarted(self.address, msg)
        elif kind is not Pause:
            self.receivers[kind](_Here(self.address), msg, Frame(b"", body, owned))

    def _on_pause(self, address: str, pause: Pause) -> None:
        with self._resumed:
            if pause.on:
                self._paused.add((address, pause.key))
            else:
                self._paused.discard((address, pause.key))
                self._resumed.notify_all()

    # --- actors that are not here

    def _hold(self, delivery: Delivery) -> None:
        """For an actor unknown here: its spawn may be on its way (another sender was faster), or it has ended."""
        key = delivery.call.to
        with self._lock:
            tombstone = self._tombstones.get(key)
            instance = self.actors.get(key)  # it may have come since the caller looked
            if tombstone is None and instance is None:
                if self._unknown_count < settings.get("undelivered_messages"):
                    if key not in self._unknown:
                        self._unknown[key] = []
                        self.loop.call_later(settings.get("pending_actor_delivery_timeout"), lambda: self._give_up(key))
                    self._unknown[key].append(delivery)
                    self._unknown_count += 1
                    make = self.absent.pop(key, None)
                    if make is not None:
                        start_thread(make, "monarch-make")
                    return
                tombstone = Failure(
                    f"no actor {key} is here and {self._unknown_count} messages already wait for others"
                )
                self._note_missed(delivery)
        if instance is not None:
            instance.deliver(delivery)
        else:
            assert tombstone is not None
            self._note_sender(delivery.source, delivery.call)  # told of it, should another take its place
            self.refuse(delivery, tombstone)

    def _give_up(self, key: str) -> None:
        if self.closed is not None:
            return
        with self._lock:
            deliveries = self._unknown.pop(key, [])
            self._unknown_count -= len(deliveries)
            for delivery in deliveries:
                self._note_missed(delivery)
        for delivery in deliveries:
            self.refuse(delivery, Failure(f"the actor {key} does not exist in the process at {self.address}"))

    def _note_missed(self, delivery: Delivery) -> None:
        """An actor that comes after all is not to wait for a message that was refused. (What continues an older stream was
        meant for an actor of the process before.)"""
        call = delivery.call
        refused = self._missed.setdefault(call.to, set())
        if call.incarnation or call.seq == 1 or (call.sender, 0) in refused:
            refused.add((call.sender, call.incarnation))
            self._note_sender(delivery.source, call)
        if len(self._missed) > _MISSED:
            self._missed.popitem(last=False)

    def add_actor(self, instance: Instance) -> None:
        """The actor takes messages from now on, those that came before it included."""
        with self._lock:
            for sender, incarnation in self._missed.pop(instance.key, ()):
                instance.missed(sender, incarnation)
            self.actors[instance.key] = instance
            self._tombstones.pop(instance.key, None)
            waiting = self._unknown.pop(instance.key, [])
            self._unknown_count -= len(waiting)
        ever_broke = [delivery for delivery in waiting if delivery.source in self._ever_broke]
        for delivery in waiting:
            if delivery.call.seq == 1 or delivery in ever_broke:
                self._note_sender(delivery.source, delivery.call)
            instance.deliver(delivery)
        for delivery in ever_broke:  # what came before or after it may have been lost with a connection
            instance.path_lost(delivery.call.sender)

    def actor_ended(self, instance: Instance, failure: Failure | None) -> None:
        with self._lock:
            if self.actors.get(instance.key) is instance:  # else it was given up on, and another has taken its place
                del self.actors[instance.key]
                end = instance.end or failure or Failure("ended", stopped=True)
                end.incarnation = instance.incarnation
                self._bury(instance.key, end)
        self.ports.actor_ended(instance)
        if instance.numbering:
            for address in (self.address, *self.connected(), *self.cast_to(instance.unique)):
                self._post_quietly(address, SenderEnded(instance.unique))
        if failure is not None and instance.owner_proc:
            ended = ActorEnded(instance.owner, failure)
            self._notified.append((instance.owner_proc, ended))
            self._post_quietly(instance.owner_proc, ended)

    def never_comes(self, key: str, end: Failure) -> None:
        """An actor was stopped before it came, that of incarnation `end.incarnation`: what waits for it is refused, and what
        is sent to it until another takes its place."""
        with self._lock:
            known = self._tombstones.get(key)
            if key in self.actors or (known is not None and known.incarnation >= end.incarnation):
                return
            self._bury(key, end)
            waiting = self._unknown.pop(key, [])
            self._unknown_count -= len(waiting)
        for delivery in waiting:
            self._note_sender(delivery.source, delivery.call)  # told of it, should another take its place
            self.refuse(delivery, end)

    def _bury(self, key: str, end: Failure) -> None:
        """With the lock."""
        self._tombstones[key] = end
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)

    def end_of(self, key: str) -> Failure | None:
        """Why actor `key` of this process takes no more messages; None while it does, or when it was never here."""
        instance = self.actors.get(key)
        return instance.end if instance is not None else self._tombstones.get(key)

    # --- other processes

    def _dial(self, address: str) -> Connection:
        assert self.transport is not None
        if self.closed is not None:
            raise self.closed
        peer = self._peers.get(address)
        if peer is not None and peer.route:
            connection: Connection = self._relay(peer)
            if name_of(address) == AGENT:
                return connection
        else:
            connection = self.transport.dial(address)
        self._remember(address, connection)
        target_incarnation = peer.incarnation if peer is not None and peer.incarnation_known else -1
        hello = Hello(
            VERSION, self.address, self.pid, self.incarnation, target_incarnation, peer is not None and peer.ever_broke
        )
        connection.send(frames.encode(addressed(connection, message.encode(hello))))
        return connection

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
        many = int(settings.get("direct_after"))
        if name_of(address) == AGENT or not is_dialable(host_of(address)):
            many = 0
        elif self.address > address and is_dialable(self.host):
            many *= 2
        return Relay(self._agent, route, address, many, self._busy)

    def _busy(self, relay: Relay) -> None:
        from monarch._runtime import direct  # noqa: F401  takes its time, which is better this thread's than the loop's

        self.loop.call_soon(lambda: self.directs().busy(relay))

    def directs(self) -> Directs:
        """On the I/O thread: the links that this process has made with processes of other hosts."""
        if self._directs is None:
            from monarch._runtime.direct import Directs  # few processes need it, and it imports much

            self._directs = Directs(self)
        return self._directs

    def take_over(self, sock: socket.socket, data: bytes) -> None:
        """The agent gives us a connection that a process of another host has made."""
        self.directs().handed(sock, data)

    def _on_may_dial(self, remote: str, may: MayDial) -> None:
        if remote != agent_of(self.address):
            return
        if may.stream:
            self.streams().may_dial(may)
        else:
            self.directs().may_dial(may)

    def streams(self) -> Streams:
        """Any thread: plain sockets to other processes."""
        if self._streams is None:
            from monarch._runtime.streams import Streams  # few processes need it

            with self._lock:
                self._streams = self._streams or Streams(self)
        return self._streams

    def share_memory(self, transport: UnixTransport) -> None:
        """Large payloads travel in memory shared with the other processes that this transport reaches."""
        from monarch._runtime.payloads import Payloads  # not for those in one process

        self.payloads = Payloads(self.address, self.incarnation, self.loop, transport, self._post_quietly)
        transport.lent = self.payloads.take

    def known_peer(self, address: str) -> Peer | None:
        return self._peers.get(address)

    def known_incarnation_at(self, address: str) -> int:
        """The incarnation of the process there that is meant by what is sent now; -1: none is known, whoever is there."""
        peer = self._peers.get(address)
        return peer.incarnation if peer is not None and peer.incarnation_known else -1

    def watch(self, address: str) -> None:
        """Sees to it that we hear of the end of that process of another host."""
        peer = self.peer(address)
        if peer.route and not peer.watched:
            peer.watched = True
            self._post_quietly(agent_of(address), Watch(address, peer.incarnation))

    def _agent(self) -> Connection | None:
        peer = self._peers.get(agent_of(self.address))
        return None if peer is None else peer.connection

    def _ask_agent(self, peer: Peer) -> None:
        """Its agent tells when the process listens and when it has ended."""
        if peer.broken:
            self._broken[peer.address] = self.ports.count()
        peer.watched = True
        if self.closed is None and peer.address != agent_of(peer.address):
            self._post_quietly(agent_of(peer.address), Watch(peer.address, peer.incarnation))

    def use_agent(self, connection: Connection) -> None:
        """The connection to this host's agent."""
        self.peer(agent_of(self.address)).connection = connection

    def connected(self) -> list[str]:
        """The processes there is a connection to, the agent excepted."""
        return [address for address, peer in self.known_processes() if peer.connection is not None]

    def known_processes(self) -> list[tuple[str, Peer]]:
        """Every process this one has spoken to, agents excepted."""
        return [(address, peer) for address, peer in list(self._peers.items()) if name_of(address) != AGENT]

    def on_proc_reachable(self, listening: ProcReachable) -> None:
        """The agent's word: a process can be reached there; perhaps a new one in the place of one that ended."""
        address, incarnation = listening.address, listening.incarnation
        if self._directs is not None:
            self._directs.settle(address)
        peer = self._peers.get(address)
        unknown = peer is not None and peer.route and not peer.incarnation_known and peer.ended is None
        if peer is not None and unknown and incarnation > peer.incarnation:
            peer.incarnation = incarnation  # the first that we hear of it
            self.incarnations.process_restarted(address, incarnation)
        if peer is not None and incarnation > peer.incarnation:
            if peer.ended is None:
                detail = "was replaced by a new process"
                self.on_process_ended(ProcEnded(address, 0, 1, False, [], detail, peer.incarnation))
            self.incarnations.process_restarted(address, incarnation)
            peer.revive(incarnation)
            self.ended_remote.discard(address)
            self._welcome_newcomer(peer)
        elif peer is not None:
            if peer.asking:  # else the other side was faster and has dialled us
                peer.listening()
            self._fail_broken(peer)
        if incarnation:
            self._post_quietly(agent_of(address), IncarnationAck(address, incarnation))

    def _welcome_newcomer(self, peer: Peer) -> None:
        newcomer = self._newcomers.get(peer.address)
        if newcomer is not None and newcomer[1] <= peer.incarnation:
            del self._newcomers[peer.address]
            connection, _, early = newcomer
            if not connection.lost:
                peer.adopt(connection)
            self.connection_received(connection, early)

    def _fail_broken(self, peer: Peer) -> None:
        """A connection broke and its process lives: what was under way may be lost, and nobody would ever know."""
        address, unsent = peer.address, peer.take_unsent()
        count = self._broken.pop(address, None)
        if count is not None:
            if self.payloads is not None:
                self.payloads.broke(address)
            what = f"the connection to {address} broke while the call was under way; it may have run there or not"
            self.ports.connection_broke(address, range(count), unsent, Failure(what), peer.survivor)
            for owner_proc, ended in list(self._notified):
                if owner_proc == address:
                    self._post_quietly(address, ended)
            self.connection_broke(address)

    def on_process_ended(self, ended: ProcEnded) -> None:
        """The agent's word: that process is gone. Whoever waits for it is told, then the mesh layer."""
        address = ended.address
        peer = self.peer(address)
        if ended.incarnation < peer.incarnation:
            return
        if peer.ended is not None and ended.incarnation == peer.incarnation:
            return
        peer.incarnation = ended.incarnation
        if peer.route:
            self.ended_remote.add(address)
        if self._directs is not None:
            self._directs.end(address, ended.incarnation)
        newcomer = self._newcomers.get(address)
        for connection in list(self._connections.get(address, ())):
            if newcomer is None or newcomer[0] is not connection:
                connection.finish("the process has ended")
        if self.payloads is not None:
            self.payloads.ended(address, ended.incarnation)
        with self._lock:
            left = [connection for connection in self._connections.pop(address, ()) if not connection.lost]
            if left:
                self._connections[address] = left
        self._lose_paths(address)
        self._senders.pop(address, None)
        self._ever_broke.discard(address)
        peer.end(ended)
        self._broken.pop(address, None)
        self.suspected.pop(address, None)
        self._ended_peers.append(address)
        if len(self._ended_peers) > _ENDED_PEERS:  # its agent remembers it, should anybody still ask
            self._forget_peer(self._ended_peers.popleft())
        with self._resumed:
            self._paused = {entry for entry in self._paused if entry[0] != ended.address}
            self._resumed.notify_all()
        self.ports.process_ended(ended)
        self.process_ended(ended)

    def host_ended(self, host: str, why: str) -> None:
        """That host is gone, or cannot be reached any more: as if everything on it had ended."""
        agent = agent_at(host)
        known = {address for address, _ in self.known_processes() if host_of(address) == host}
        if agent in self._peers:  # first: who hears of the others is not to ask it for new ones
            self.on_process_ended(ProcEnded(agent, 0, 1, False, [], why))
        for address in sorted(known.union(self.addresses_on(host))):
            self.on_process_ended(ProcEnded(address, 0, 1, False, [], why, _NEWEST))
        if agent != agent_of(self.address):  # another may be reached there one day
            self._peers.pop(agent, None)
            self._relays.pop(agent, None)

    def _forget_peer(self, address: str) -> None:
        peer = self._peers.get(address)
        if peer is not None and peer.ended is not None:
            del self._peers[address]
            self.ended_remote.discard(address)
            self.incarnations.forget_process(address)

    def _on_suspected(self, suspected: Suspected) -> None:
        if suspected.why:
            self.suspected[suspected.address] = suspected.why
        else:
            self.suspected.pop(suspected.address, None)
            if self._directs is not None and name_of(suspected.address) == AGENT:
                self._directs.recovered(host_of(suspected.address))
        self.process_suspected(suspected)

    def end_of_process(self, address: str) -> ProcEnded | None:
        """How the process there ended, as far as known here; None while it lives or when nothing is known."""
        peer = self._peers.get(address)
        return None if peer is None else peer.ended

    # --- restarts

    def _on_welcome(self, remote: str, welcome: Welcome) -> None:
        """We dialled a process that is not the first at its address, and did not know."""
        peer = self.peer(remote)
        if peer.ended is None and welcome.incarnation > peer.incarnation:
            peer.incarnation = welcome.incarnation
            peer.incarnation_known = True
            self.incarnations.process_restarted(remote, welcome.incarnation)
            self._welcome_newcomer(peer)  # it has dialled us at the same time

    def _on_restarted(self, remote: str, restarted: Restarted) -> None:
        """An actor was restarted in its process: calls mean the new one from now on."""
        self.incarnations.actor_restarted(restarted.key, restarted.rank, restarted.incarnation)
        if restarted.port:
            self.answer(remote, Answer(restarted.port, 0, VALUE), b"", ())

    def tell_restarted(self, address: str, instance: Instance, port: int = 0) -> None:
        """Its actors may still mean the one that `instance` has taken the place of."""
        self._post_quietly(address, Restarted(instance.key, instance.rank, instance.incarnation, port))

    def senders_to(self, key: str) -> list[str]:
        """The processes with actors that have sent to actor `key` here."""
        senders = list(self._senders.items())
        return [remote for remote, actors in senders if any(key in keys for keys in list(actors.values()))]

    # --- the end

    def close(self, error: BaseException) -> None:
        """Answers everybody who waits, closes every connection, ends the I/O thread. `error` is for later users."""
        if self.closed is not None:
            return
        self.disconnect(error)
        if self.loop.in_loop():
            self.loop.stop()
        else:
            self.loop.call_soon(lambda: self.loop.call_soon(self.loop.stop))
            self.loop.join(5.0)

    def disconnect(self, error: BaseException) -> None:
        """`close` for a Proc whose loop serves others as well."""
        self.closed = error
        self.ports.close_all(Failure(str(error), stopped=True))
        if self._directs is not None:
            self._directs.close("this process is closing")
        if self._streams is not None:
            self._streams.close()
        if self.transport is not None:
            self.transport.close()
        if self.payloads is not None:
            self.payloads.close()
        for peer in list(self._peers.values()):
            connection = peer.connection
            if connection is not None:
                connection.close("this process is closing")

    def forked(self) -> None:
        """In a child made by `os.fork`: the links are the parent's. Lets go of the descriptors without a word."""
        self.closed = ForkedClientError(
            f"this process was made by os.fork from one with a running monarch client (pid {self.pid}); the client "
            f"belongs to the parent. Use this_host().spawn_procs() for processes, or multiprocessing with 'spawn'"
        )
        if self._streams is not None:
            self._streams.forked()
        for fd in self.loop.descriptors():
            try:
                os.close(fd)
            except OSError:
                pass


def _send_first(connection: Connection, msg: Any) -> None:
    """Unless it has broken already, which is told like any other loss."""
    try:
        connection.send(frames.encode(addressed(connection, message.encode(msg))))
    except ConnectionLost:
        pass


class _Here:
    """Stands for the connection of a message that never left the process."""

    def __init__(self, address: str) -> None:
        self.remote = address


def _ignore(_event: Any) -> None:
    return None


def _none(_host: str) -> Sequence[str]:
    return ()


_all: weakref.WeakSet[Proc] = weakref.WeakSet()


def _before_fork() -> None:
    for proc in list(_all):
        if proc.payloads is not None:
            proc.payloads.before_fork()


def _after_fork_in_child() -> None:
    for proc in list(_all):
        proc.forked()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
