"""One process of the runtime: sends and receives messages, and brings its parts together.

Routes: a message for this process is delivered here and now, one for another goes to its Peer. The actors here are in the
`actor_table`, those who wait for answers in the port table (`replies`), other processes in `processes`. Several Procs can
live in one operating-system process (monarch.testing).

Over 600 lines because the parts meet here: each names what it needs of the others once, and each message its receiver.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._errors import ForkedClientError, MessageTooLargeError
from monarch._linux.locks import Lock
from monarch._runtime import forks
from monarch._runtime.actor_table import ActorTable
from monarch._runtime.actor_threads import ActorThreads
from monarch._runtime.backpressure import Backpressure
from monarch._runtime.departed import Departed
from monarch._runtime.event_loops import running_loop
from monarch._runtime.flight_recorder import FlightRecorder
from monarch._runtime.hooks import Hooks
from monarch._runtime.incarnations import Incarnations, last_on
from monarch._runtime.instance import Delivery, Fed, Instance
from monarch._runtime.loop import Loop
from monarch._runtime.processes import Processes, Transport, send_first
from monarch._runtime.replies import Gather, OneReply, Ports
from monarch._runtime.waiting import Waits
from monarch._wire import codec, message
from monarch._wire import frame as frames
from monarch._wire.address import AGENT, CLIENT, agent_at, agent_of, host_of, name_of
from monarch._wire.frame import Buffer, Frame
from monarch._wire.message import (
    ERROR,
    FAILED,
    NO_METHOD,
    VALUE,
    ActorEnded,
    Answer,
    Bounced,
    Bye,
    Call,
    Failure,
    Hello,
    ProcEnded,
)
from monarch._wire.peer import Peer, PeerEnded
from monarch._wire.relay import Relay, enclose
from monarch._wire.transport.base import Connection
from monarch._wire.unpickling import is_marked
from monarch.config import settings

if TYPE_CHECKING:
    import socket

    from monarch._runtime.direct import Directs
    from monarch._runtime.payloads import Payloads, Placement
    from monarch._runtime.streams import Streams
    from monarch._wire.transport.unix import UnixTransport

_TOLD = 1_000  # failures remembered, to tell them again when the connection to their owner broke
_WAIT_FROM = 64 * 1024  # bytes of the caller's memory from which a sender waits rather than have them copied

_QUICK_REPLIES = (OneReply, Gather)
_main_thread = threading.main_thread().ident
_making = Lock()  # of the Streams of any process

# (connection, or a stand-in with `remote`; message; frame)
OnMessage = Callable[[Any, Any, Frame], None]
Receiver = tuple[int, int, str]  # (rank in the view, rank in the mesh, process)


class Proc:
    """`address` is where others reach this process, `host` the address prefix of its host.

    `receivers` says what is done with a message of each type but Call and Answer, on the I/O thread; the layer above adds its
    own. `hooks` are what that layer hears.
    """

    def __init__(self, address: str, loop: Loop) -> None:
        self.address = address
        self.host = host_of(address)
        self.client = f"{self.host}/{CLIENT}"  # the root client of the program
        self.pid = os.getpid()
        self.agent_pid = 0  # the process of its host agent; 0 where there is none (a cluster in memory)
        self.loop = loop
        self.closed: BaseException | None = None
        self.incarnation = 0  # how many processes were at this address before
        self.incarnations = Incarnations()
        self.suspected: dict[str, str] = {}  # processes that give no sign of life, and why that is
        self.reached_at = self.host  # where others dial our host, which may go by the name of one that it has replaced
        self.host_generations: dict[str, int] = {}  # of hosts: how often they were replaced, as far as known
        self._asked_again: dict[str, set[str]] = {}  # by host: processes that were lost there, and that were asked for
        self.hooks = Hooks()
        self.transport: Transport | None = None
        self.root_name = ""
        self.services: dict[str, Any] = {}  # actors that belong to the process itself, as meshes
        self.mailbox_messages = settings.mailbox_messages()
        self.frame_limit = settings.codec_max_frame_length()
        self.large_argument = settings.large_argument_bytes() or sys.maxsize
        # Only bodies of this size, and those with buffers, are looked at more closely.
        self.checked_from = min(self.frame_limit or sys.maxsize, self.large_argument)
        self.ports = Ports()
        self.waits = Waits(self.ports, loop)
        self.actor_threads = ActorThreads(lambda: list(self.actors.values()))
        self.table = ActorTable(
            address, loop.call_later, self.refuse, lambda: self.closed is not None, self._to_be_read
        )
        self.actors = self.table.actors
        self._deliver = self.table.deliver
        self.processes = Processes(self, self.incarnations)
        self._peers = self.processes.peers
        self._newcomers = self.processes.newcomers
        limit = settings.outgoing_queue_bytes()
        self.backpressure = Backpressure(
            agent_of(address), self._peers, limit, self.mailbox_messages, lambda: not loop.in_loop()
        )
        self.payloads: Payloads | None = None  # None: everything goes through connections
        self._directs: Directs | None = None  # made with the first of them that speaks much
        self._streams: Streams | None = None  # made with the first of them
        self._notified: deque[tuple[str, ActorEnded]] = deque(maxlen=_TOLD)  # (process of the owner, failure)
        self.errors: deque[str] = deque(maxlen=100)
        self.started_at = time.time()
        self.events = FlightRecorder()
        self.departed: deque[Departed] = deque(maxlen=settings.terminated_snapshot_retention())
        self.receivers: dict[type, OnMessage] = {
            ActorEnded: lambda origin, msg, frame: self.hooks.actor_failed(msg),
            message.Answers: lambda origin, msg, frame: self._on_answers(msg, frame.body, frame.buffers),
            message.Barrier: lambda origin, msg, frame: self.directs().barrier(origin, msg),
            Bounced: lambda origin, msg, frame: self.hooks.bounced(msg),
            Bye: lambda origin, msg, frame: self.processes.said_bye(origin.remote, msg.reason),
            message.Envelope: lambda origin, msg, frame: self._on_envelope(msg, frame),
            message.HostEnded: lambda origin, msg, frame: self.host_ended(msg.host, msg.why, msg.generation),
            message.HostReplaced: lambda origin, msg, frame: self.host_replaced(msg.host, msg.generation),
            message.MayDial: lambda origin, msg, frame: self._on_may_dial(origin.remote, msg),
            message.Pause: lambda origin, msg, frame: self.backpressure.set_pause(origin.remote, msg),
            message.Ping: lambda origin, msg, frame: self.tell(origin.remote, message.Pong(msg.token)),
            ProcEnded: lambda origin, msg, frame: self._on_word_of_end(msg),
            message.ProcReachable: lambda origin, msg, frame: self.on_proc_reachable(msg),
            message.Restarted: lambda origin, msg, frame: self._on_restarted(origin.remote, msg),
            message.SegmentsGone: self._on_segments_gone,
            message.SenderEnded: lambda origin, msg, frame: self.table.sender_ended(origin.remote, msg.sender),
            message.SharedPayload: self._on_shared_payload,
            message.Skip: lambda origin, msg, frame: self.table.skip_lost(msg),
            message.Suspected: lambda origin, msg, frame: self._on_suspected(msg),
            message.TreeCall: lambda origin, msg, frame: self._on_tree_call(msg, frame),
            message.Welcome: lambda origin, msg, frame: self.processes.welcome(origin.remote, msg),
        }
        forks.follow(self)

    @property
    def mesh(self) -> Any:
        """The hooks, for the layer whose they are: its types are not known here."""
        return self.hooks

    def limits(self) -> tuple[int, int]:
        return self.backpressure.queue_limit, self.frame_limit

    def __repr__(self) -> str:
        return f"<Proc {self.address} ({len(self.actors)} actors, {len(self._peers)} peers, {len(self.ports)} ports)>"

    def statistics(self) -> dict[str, Any]:
        """Returns numbers for people who debug: actors, ports that wait, messages that wait, peers, and how much is
        remembered of others."""
        return {
            "actors": len(self.actors),
            "ports": len(self.ports),
            "mailboxes": sum(len(actor.mailbox) for actor in list(self.actors.values())),
            "undelivered": self.table.waiting,
            "peers": [repr(peer) for peer in list(self._peers.values())],
            "loop": self.loop.statistics(),
            "payloads": self.payloads.statistics() if self.payloads is not None else {},
            "remembered": {
                **self.table.statistics(),
                **self.incarnations.statistics(),
                **self.processes.statistics(),
                "receivers": {actor.key: actor.numbering.sizes() for actor in list(self.actors.values())},
                "streams": {actor.key: actor.streams() for actor in list(self.actors.values())},
            },
        }

    # --- sending, any thread

    def check_open(self, address: str) -> None:
        """Raises why nothing is sent to `address` from here any more."""
        if self.closed is not None:
            raise self.closed

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
        if peer is not None and not buffers and len(body) < frames.SMALL:
            connection = peer.connection
            if connection is not None:
                head = message.encode(msg)
                if connection.route:
                    head = enclose(connection.route, head)
                if connection.send_small(frames.encode_small(head, body), coalesce_within):
                    return connection
        if address == self.address:
            self._receive_here(msg, body, buffers)
            return None
        if peer is None:
            peer = self.processes.peer(address)
        head = message.encode(msg)
        size = len(body) + sum(b.nbytes for b in buffers) if buffers else len(body)
        port = msg.port if type(msg) is Call else 0
        payloads = self.payloads
        if payloads is not None and size >= payloads.least and not 0 < self.frame_limit < size:
            taken = payloads.post(peer, head, body, buffers, port, placement)
            if taken is not None:
                return taken
        pieces = frames.encode(enclose(peer.route, head) if peer.route else head, body, buffers, self.frame_limit)
        wait = size >= _WAIT_FROM and not self.loop.in_loop() and running_loop() is None
        return peer.send(pieces, wait, coalesce_within if size < _WAIT_FROM else 0.0, port)

    def post_alike(
        self, call: Call, receivers: Sequence[Receiver], body: bytes, coalesce_within: float
    ) -> Sequence[Receiver]:
        """Sends a small call, encoded once, to receivers whose connections take it at once. Returns the others."""
        limit, peers = self.backpressure.queue_limit, self._peers
        if self.backpressure.paused:
            return receivers
        before, behind = message.encode_around_rank(call)
        width, start, end = 0, b"", behind + body
        left = []
        for receiver in receivers:
            peer = peers.get(receiver[2])
            connection = None if peer is None else peer.connection
            if connection is not None and not connection.route and connection.queued < limit:
                rank = message.encode(receiver[0])
                if len(rank) != width:  # large ones have more bytes
                    width = len(rank)
                    start = frames.PREFIX.pack(len(before) + width + len(behind), len(body), 0) + before
                if connection.send_small(start + rank + end, coalesce_within):
                    continue
            left.append(receiver)
        return left

    def place(
        self, addresses: Sequence[str], body: bytes, buffers: Sequence[memoryview], size: int
    ) -> Placement | None:
        """A payload of `size` bytes for several receivers, copied once for all of them that share memory with this process.
        To be closed when it has been posted to all. None when there are not two of them, or no memory for it is to be had.
        """
        payloads = self.payloads
        if payloads is None or size < payloads.least:
            return None
        peers = [self.processes.peer(address) for address in addresses if address != self.address]
        near = [peer.address for peer in peers if payloads.reaches(peer)]
        return payloads.place(body, buffers, near) if len(near) > 1 else None

    def check_size(self, body: bytes, buffers: Sequence[memoryview]) -> int:
        """The size of a message. Raises MessageTooLargeError when it cannot be sent."""
        size = len(body) + sum(b.nbytes for b in buffers) if buffers else len(body)
        if 0 < self.frame_limit < size:
            raise frames.too_large(size, self.frame_limit)
        return size

    def answer(
        self, address: str, answer: Answer, body: bytes, buffers: Sequence[memoryview], coalesce_within: float = 0.0
    ) -> None:
        """Sends an answer or a port message. One whose reader has gone is dropped, or bounced to its sender; an error that
        is too large to be sent is replaced by one that says so: the caller gets an answer."""
        try:
            self.post(address, answer, body, buffers, coalesce_within)
        except MessageTooLargeError as exc:
            if answer.kind not in (ERROR, FAILED):
                raise
            self.answer(address, Answer(answer.port, answer.rank, FAILED), _too_large(exc), ())
        except PeerEnded:
            if answer.sender:
                dest = f"port {answer.port} of {address}"
                self.hooks.bounced(Bounced(answer.sender, dest, "a port message", "its process has ended", True))

    def reply(
        self,
        delivery: Delivery,
        kind: int,
        body: bytes,
        buffers: Sequence[memoryview] = (),
        coalesce_within: float = 0.0,
    ) -> None:
        """Answers a call: to the process that holds its port, or up the tree that it came down. No error is told once this
        process has closed: what fails then, fails because it has, and the caller hears of its end."""
        if kind == ERROR and self.closed is not None:
            return
        call = delivery.call
        if not delivery.up:
            self.answer(delivery.back, Answer(call.port, call.rank, kind), body, buffers, coalesce_within)
            return
        if isinstance(delivery, Fed):
            delivery.answer(kind, body, buffers)
            return
        answer = message.TreeAnswer(delivery.back, Answer(call.port, call.rank, kind))
        try:
            self.post(agent_of(self.address), answer, body, buffers, coalesce_within)
        except MessageTooLargeError as exc:
            if kind not in (ERROR, FAILED):
                raise
            self.reply(delivery, FAILED, _too_large(exc))
        except PeerEnded:  # and this process with it
            pass

    def refuse(self, delivery: Delivery, failure: Failure) -> None:
        """Tells the sender of a message that it will not be handled, and why."""
        call = delivery.call
        if call.port:
            self.reply(delivery, FAILED, message.encode(failure))
        elif call.method != NO_METHOD:
            bounced = Bounced(
                call.sender,
                f"{failure.mesh_name or call.to}[{call.rank}]",
                f"{failure.mesh_name or call.to}.{call.method}() (broadcast)",
                failure.report,
                failure.will_restart,
            )
            self.tell(delivery.back, bounced)

    def tell(self, address: str, msg: Any) -> None:
        """Posts a message that may be lost: no error when its receiver has ended or this process is closing."""
        try:
            self.post(address, msg)
        except PeerEnded:
            pass
        except RuntimeError:
            if self.closed is None:
                raise

    def fill_place(self, address: str, call: Call) -> None:
        """Fills the place of a call that has a number and was perhaps not sent: its receiver is not to wait for it. A
        message that runs nothing follows under the same number, and whichever comes second is dropped as a repeat. Any
        thread; waits for nothing."""
        filler = Call(
            call.to, call.sender, call.seq, NO_METHOD, 0, "", call.rank, call.view, call.adverb, call.incarnation
        )

        def send() -> None:
            try:
                self.post(address, filler, *codec.encode_call((), {}))
            except (PeerEnded, RuntimeError):  # or this process is closing
                pass

        self.loop.call_soon(send)

    def pause_sender(self, address: str, key: str, on: bool) -> None:
        """Has the process at `address` wait with messages to actor `key`, or go on."""
        self.tell(address, message.Pause(key, on))

    # --- receiving, on the I/O thread

    def connection_received(self, connection: Connection, received: list[Frame]) -> None:
        if self.closed is not None:
            return  # on its way when we closed: its waiters here were told, its sender sees the connection end
        remote = connection.remote
        for frame in received:
            try:
                msg = message.decode(frame.head)
                kind = type(msg)
                # As in `_on_message`, for these two are nearly all.
                if kind is Answer and remote and not self._newcomers:
                    self._on_answer(msg, frame.body, frame.buffers, remote)  # type: ignore[arg-type]
                elif kind is Call and remote and not self._newcomers:
                    self._deliver(msg, frame.body, frame.buffers, remote)  # type: ignore[arg-type]
                elif remote:
                    self._on_message(connection, msg, frame)
                elif not self._on_hello(connection, msg):
                    return
                else:
                    remote = connection.remote
            except msgspec.DecodeError as exc:
                connection.close(f"it sent a message that cannot be decoded: {exc}")
                return
            except Exception as exc:  # one message's trouble must not cost those behind it
                self.loop.on_error(exc)

    def small_received(self, connection: Connection, head: bytes, body: bytes) -> bool:
        """A message that a thread has read that waits (see `leader`). False, and nothing was done, when it is the I/O
        thread's: all but answers with a value, which may come twice, and calls that come on a thread without signals."""
        remote = connection.remote
        if self.closed is not None or self._newcomers or not remote:
            return False
        try:
            msg = message.decode(head)
        except msgspec.DecodeError:
            return False
        if type(msg) is Answer:
            entry = self.ports.get(msg.port)
            if msg.kind != VALUE or type(entry) not in _QUICK_REPLIES:
                return False
            receive = partial(entry.receive, (msg.rank, VALUE, body, ()))  # type: ignore[union-attr]
            try:
                receive()
            except BaseException:  # a handler of signals raised, and its port may be closed already
                self.loop.soon.append(receive)
                raise
            return True
        if type(msg) is not Call or threading.get_ident() == _main_thread:
            return False
        try:
            self._deliver(msg, body, (), remote)
        except Exception:  # which the I/O thread reports when it meets it
            return False
        return True

    def _on_message(self, connection: Connection, msg: Any, frame: Frame) -> None:
        if self._newcomers and self.processes.early(connection, frame):
            return
        kind = type(msg)
        if kind is Call:
            self._deliver(msg, frame.body, frame.buffers, connection.remote)
        elif kind is Answer:
            self._on_answer(msg, frame.body, frame.buffers, connection.remote)
        elif (receiver := self.receivers.get(kind)) is not None:
            receiver(connection, msg, frame)
        else:
            self.errors.append(f"unexpected {kind.__name__} from {connection.remote}")

    def _receive_here(self, msg: Any, body: bytes, buffers: Sequence[memoryview]) -> None:
        """A message of this process to itself. Out-of-band memory is copied: the sender may change its own."""
        owned: Sequence[Buffer] = [bytearray(buffer) for buffer in buffers] if buffers else ()
        kind = type(msg)
        if kind is Call:
            self._deliver(msg, body, owned, self.address)
        elif kind is Answer:
            self._on_answer(msg, body, owned, self.address)
        else:
            self.receivers[kind](SimpleNamespace(remote=self.address), msg, Frame(b"", body, owned))

    def connection_lost(self, connection: Connection, reason: str) -> None:
        remote = connection.remote
        if remote == agent_of(self.address):
            self.hooks.agent_lost(reason)
        elif remote and self.processes.lost(connection, reason):
            self.table.paths_lost(remote)
            peer = self._peers.get(remote)
            if peer is not None and self.closed is None:
                if peer.ended is None:
                    self.table.connection_broke(remote)
                peer.lost(connection)

    def _on_hello(self, connection: Connection, hello: Any) -> bool:
        if type(hello) is not Hello:
            connection.close("its first frame was not a Hello")
            return False
        if hello.version != message.VERSION:
            both = f"protocol version {hello.version} meets version {message.VERSION}"
            reason = f"{both}: all processes need one monarch version"
            self.errors.append(reason)
            send_first(connection, Bye(reason))
        else:
            reason = self.processes.hello(connection, hello)
        if reason:
            connection.close(reason)
        elif hello.again:  # perhaps we never heard who was at the other end
            self.table.connection_broke(hello.address)
        return not reason

    def _on_envelope(self, envelope: message.Envelope, frame: Frame) -> None:
        """A process of another host, or the agent there, speaks to us."""
        if envelope.target_incarnation not in (-1, self.incarnation):
            return  # for the process before this one, which has ended: its sender is being told
        msg = message.decode(envelope.head)
        hello = msg if type(msg) is Hello else None
        relay = self.processes.relay_from(envelope.source, hello)
        if relay is None:
            return
        if hello is not None:
            self._on_hello(relay, hello)
        elif not relay.lost:
            self._on_message(relay, msg, Frame(envelope.head, frame.body, frame.buffers))

    def _on_tree_call(self, tree_call: message.TreeCall, frame: Frame) -> None:
        """A call came down the tree."""
        call = tree_call.call
        if tree_call.target_incarnation in (-1, self.incarnation):
            self._deliver(call, frame.body, frame.buffers, tree_call.source, tree_call.up)
            return
        text = f"the process of rank {call.rank} was replaced after {call.method}() was sent: it was meant for the one before"
        delivery = Delivery(call, frame.body, frame.buffers, tree_call.source, tree_call.up)
        if call.port:
            self.refuse(
                delivery, Failure(text, call.to, ranks=[call.rank], event=text, stopped=True, will_restart=True)
            )

    def _on_answer(self, answer: Answer, body: Buffer, buffers: Sequence[Buffer], remote: str) -> None:
        if buffers and is_marked(buffers):
            body = self._to_be_read(body, buffers)
        if not self.ports.receive(answer.port, (answer.rank, answer.kind, body, buffers)) and answer.sender:
            dest = f"port {answer.port} of {self.address}"
            if self.ports.belonged_to_ended_actor(answer.port):
                bounced = Bounced(answer.sender, dest, dest, "the actor that opened it has ended", False)
            else:
                bounced = Bounced(answer.sender, dest, dest, "its receiver is gone", True)
            self.tell(remote, bounced)

    def _on_answers(self, answers: message.Answers, body: Buffer, buffers: Sequence[Buffer]) -> None:
        self.ports.receive_many(
            answers, self._to_be_read(body, buffers) if buffers and is_marked(buffers) else body, buffers
        )

    def _to_be_read(self, body: Buffer, buffers: Sequence[Buffer]) -> Buffer:
        from monarch._runtime.unread_messages import to_be_read  # few programs have such messages

        return to_be_read(self, body, buffers)

    def _on_shared_payload(self, connection: Connection, shared: message.SharedPayload, frame: Frame) -> None:
        whole = self.payloads.open(shared, frame) if self.payloads is not None else None
        if whole is None:  # as when no memory can be had for what comes through the socket
            connection.close("a message came in shared memory that could not be mapped here")
            return
        self._on_message(connection, message.decode(whole.head), whole)

    def _on_segments_gone(self, connection: Connection, gone: message.SegmentsGone, frame: Frame) -> None:
        if self.payloads is not None:
            self.payloads.gone(connection.remote, gone.segments)

    # --- actors

    def add_actor(self, instance: Instance) -> None:
        """The actor takes messages from now on, those that came before it included."""
        self.events.note("created", instance.key, instance.cls)
        self.table.add(instance)

    def actor_ended(self, instance: Instance, failure: Failure | None) -> None:
        """It takes no more messages; its owner is told of a failure."""
        self._note_departed(instance, failure)
        self.table.remove(instance, failure)
        self.ports.actor_ended(instance)
        if instance.numbering:
            for address in (self.address, *self.processes.connected(), *self.hooks.cast_to(instance.unique)):
                self.tell(address, message.SenderEnded(instance.unique))
        if failure is not None and instance.owner_proc:
            ended = ActorEnded(instance.owner, failure)
            self._notified.append((instance.owner_proc, ended))
            self.tell(instance.owner_proc, ended)

    def _note_departed(self, instance: Instance, failure: Failure | None) -> None:
        departed = Departed.of(instance, failure)
        self.departed.append(departed)
        level = "INFO" if departed.failure.stopped else "ERROR"
        self.events.note(departed.word, instance.key, departed.failure.event or departed.failure.report, level)

    def _on_restarted(self, remote: str, restarted: message.Restarted) -> None:
        """An actor was restarted in its process: calls mean the new one from now on."""
        self.incarnations.actor_restarted(restarted.key, restarted.rank, restarted.incarnation)
        if restarted.port:
            self.answer(remote, Answer(restarted.port, 0, VALUE), b"", ())

    def tell_restarted(self, address: str, instance: Instance, port: int = 0) -> None:
        """Its actors may still mean the one that `instance` has taken the place of."""
        self.tell(address, message.Restarted(instance.key, instance.rank, instance.incarnation, port))

    # --- other processes

    def known_peer(self, address: str) -> Peer | None:
        return self._peers.get(address)

    def on_busy(self, relay: Relay) -> None:
        """Any thread: much has gone through the agents to that process."""
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

    def _on_may_dial(self, remote: str, may: message.MayDial) -> None:
        if remote == agent_of(self.address):
            (self.streams() if may.stream else self.directs()).may_dial(may)

    def streams(self) -> Streams:
        """Any thread: plain sockets to other processes."""
        if self._streams is None:
            from monarch._runtime.streams import Streams  # few processes need it

            with _making:
                self._streams = self._streams or Streams(self)
        return self._streams

    def use_unix(self, transport: UnixTransport) -> None:
        """This transport reaches the other processes, before it listens and the loop starts. Large payloads travel in memory
        shared with them, and threads that wait may read what comes."""
        self.transport = transport
        transport.handed = self.take_over
        transport.small = self.small_received
        self.loop.share_lead(settings.waiters_read())
        from monarch._runtime.payloads import Payloads  # not for those in one process

        self.payloads = Payloads(self.address, self.incarnation, self.loop, transport, self.tell)
        transport.lent = self.payloads.take

    # --- what becomes of other processes

    def on_proc_reachable(self, there: message.ProcReachable) -> None:
        """The agent's word: a process can be reached there; perhaps a new one in the place of one that ended."""
        if self._directs is not None:
            self._directs.tell_end(there.address)
        self.processes.reachable(there)
        if self._asked_again:
            self._answered_again(there.address, host_of(there.address))

    def on_connection_broke(self, peer: Peer, before: int, why: str) -> None:
        """A connection broke and its process lives: what was under way may be lost. Ports below `before` hear of it."""
        address = peer.address
        if self.payloads is not None:
            self.payloads.broke(address)
        what = f"the connection to {address} broke while the call was under way ({why}); it may have run there or not"
        self.ports.connection_broke(address, range(before), peer.take_unsent(), Failure(what), peer.survivor)
        self.tell_again(address)

    def tell_again(self, address: str) -> None:
        """Sends again what must not be lost with a connection, for it is asked for by nobody."""
        for ended in [ended for owner_proc, ended in list(self._notified) if owner_proc == address]:
            self.tell(address, ended)
        self.hooks.connection_broke(address)

    def _on_word_of_end(self, ended: ProcEnded) -> None:
        if self._directs is None or not self._directs.ended(ended):
            self.on_process_ended(ended)

    def on_process_ended(self, ended: ProcEnded) -> None:
        """The agent's word: that process is gone. Those who wait for it are told, then the mesh layer."""
        address = ended.address
        peer = self.processes.ending(ended)
        if peer is None:
            return
        if self._directs is not None:
            self._directs.end(address, ended.incarnation)
        self.processes.finish_connections(address)
        if self.payloads is not None:
            self.payloads.ended(address, ended.incarnation)
        self.table.process_ended(address)
        self.processes.ended(peer, ended)
        self.suspected.pop(address, None)
        self.backpressure.process_ended(address)
        self.ports.process_ended(ended)
        self.hooks.process_ended(ended)
        if self._asked_again:
            self._answered_again(address, host_of(address))

    def host_ended(self, host: str, why: str, generation: int = 0) -> None:
        """Takes note that the host is gone, or cannot be reached any more: as if everything on it had ended."""
        if generation < self.host_generations.get(host, 0):
            return  # another has taken its place since
        agent = agent_at(host)
        known = self.processes.known_on(host)
        if agent in self._peers:  # first: who hears of the others is not to ask it for new ones
            self.on_process_ended(ProcEnded(agent, 0, 1, False, [], why))
        for address in sorted(known.union(self.hooks.addresses_on(host))):
            self.on_process_ended(ProcEnded(address, 0, 1, False, [], why, last_on(generation)))
        self.processes.forget_agent(agent)

    def host_replaced(self, host: str, generation: int) -> None:
        """Another host has taken the place of one whose end was told: processes that were lost may come again there."""
        if generation <= self.host_generations.get(host, 0):
            return
        self.host_generations[host] = generation
        if self._directs is not None:
            self._directs.host_replaced(host)
        self._asked_again[host] = self.processes.host_replaced(host)
        self.hooks.host_replaced(host)
        self._answered_again("", host)

    def _answered_again(self, address: str, host: str) -> None:
        """Once all that were lost with that host are known to be there again, or not, the agent hears so."""
        asked = self._asked_again.get(host)
        if asked is None:
            return
        asked.discard(address)
        if not asked:
            del self._asked_again[host]
            self.tell(agent_of(self.address), message.HostHeard(host, self.host_generations[host]))

    def _on_suspected(self, suspected: message.Suspected) -> None:
        if name_of(suspected.address) == AGENT:
            self.ports.suspected(suspected.address, suspected.why)
        if suspected.why:
            self.suspected[suspected.address] = suspected.why
        else:
            self.suspected.pop(suspected.address, None)
            if self._directs is not None and name_of(suspected.address) == AGENT:
                self._directs.recovered(host_of(suspected.address))
        self.hooks.process_suspected(suspected)

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
        self.processes.close("this process is closing")
        forks.unfollow(self)

    def forked(self) -> None:
        """Closes, in a child made by `os.fork`, the descriptors of the links without a word: they are the parent's."""
        self.closed = ForkedClientError(
            f"this process was made by os.fork from one with a running monarch client (pid {self.pid}); the client "
            f"belongs to the parent. Use this_host().spawn_procs() for processes, or multiprocessing with 'spawn'"
        )
        if self._streams is not None:
            self._streams.forked()
        for actor in list(self.actors.values()):
            actor.mailbox.forked()
        forks.close(self.loop.forked())


def _too_large(exc: MessageTooLargeError) -> bytes:
    """A Failure of its own, in place of one that cannot be sent."""
    return message.encode(Failure(f"it failed, and the report cannot be sent: {exc}"))
