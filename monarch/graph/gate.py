"""The gate of a graph on one host: it has the host's memory, and the streams over which values go to other hosts and come.

A value is sent by the thread that wrote it where that is in the gate's process and the stream has room; else by the stream's
own thread, which writers of other processes wake. Another thread receives, straight into the slots, and wakes readers. Where
there is only one reader, in the gate's process, and one stream that has something for it, that thread stands aside while the
reader waits: it reads the stream itself (`sleep`). A thread less is to be woken then on each side.

The streams are those of the runtime (`_runtime.streams`): of processes that may speak to each other, and with TLS where
messages between them have it.

A stream that breaks ends the graph: its gate says why to all others, and the client to those that are not joined to it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from monarch._linux.local_socket import read_exactly
from monarch._linux.locks import Lock
from monarch.actor._feeding import open_stream_to, take_streams
from monarch.actor.lowlevel import start_thread
from monarch.config import settings
from monarch.graph.bells import DescriptorAt, OtherBell, OwnBell, Spin
from monarch.graph.crossing import Crossed, CrossingError, EdgeReceiver, EdgeSender, Heard
from monarch.graph.hosts import CLIENT_HOST, GateSpec, stream_reader
from monarch.graph.memory import GateMemory, make_file
from monarch.graph.plan import control_size

if TYPE_CHECKING:
    from monarch.actor._feeding import Stream

PURPOSE = "graph"
OPEN = 10.0  # seconds that a stream may take to open
_GREETING = struct.Struct("<HB")  # the dialling host, bytes of the graph's name
_WELCOME = b"\1"
_TICK = 0.1  # seconds between words to the client of what is only heard of
_LAST_WORD = 0.2  # seconds for saying why
_PATIENCE = 5.0  # seconds for a thread whose socket is shut down
_LONGEST = 2**31 - 1  # milliseconds that the kernel takes
_AT_ONCE = (False,)
_ASIDE = 3e-3  # seconds after a reader's visit in which the stream is left to its next one
_LONG = 20e-3  # seconds of a visit after which the end of it is waited for

_gates: dict[str, GraphGate] = {}  # of this process


class GateStream:
    """The stream to one host. `ring` on any thread: there is something to send."""

    def __init__(self, gate: GraphGate, host: int) -> None:
        spec, memory = gate.spec, gate.memory
        self.host = host
        self.bell = OwnBell()
        self._gate = gate
        self._tells = spec.tells if host == CLIENT_HOST else []
        self._sender = EdgeSender(spec.sends[host], memory.written, memory.value)
        self._receiver = EdgeReceiver(spec.takes[host], spec.hears[host], spec.depth, spec.slot_size, memory.slot)
        self._lock = Lock()  # of sending
        self._sock: Stream | None = None
        self._pending: Callable[[], bool] = _nothing  # may there be more to read although the descriptor is silent?
        self._own = False  # the socket is closed here
        self._over = False
        self._dozes = False
        self._sent = threading.Event()
        self._received = threading.Event()
        self._reading = Lock()  # of receiving
        self._end: tuple[str, bool] | None = None  # why nothing more comes, and whether the other host has said so
        self._visitor: OwnBell | None = None  # who sleeps here, or did
        self._visit: select.poll | None = None
        self._since = 0.0  # when the visitor came; 0: it is not here
        self._until = 0.0  # when the stream is not left to it any more

    # --- beginning

    def dial(self, address: str) -> None:
        """Connects to the gate of that process. NoStreamError, OSError, TimeoutError."""
        gate = self._gate
        sock = open_stream_to(address, PURPOSE, OPEN)
        try:
            name = gate.name.encode()
            sock.settimeout(OPEN)
            sock.sendall(_GREETING.pack(gate.spec.host, len(name)) + name)
            if sock.recv(1) != _WELCOME:
                raise ConnectionError("the graph has ended there meanwhile")
            sock.settimeout(None)
            self._own = True
            if not self._take(sock):
                raise ConnectionError("the graph has ended here meanwhile")
            start_thread(self.receive, "monarch-graph")
        except BaseException:
            sock.close()
            raise

    def welcome(self, sock: Stream) -> bool:
        """Takes the connection that the other gate has made; False where it is not wanted."""
        sock.sendall(_WELCOME)
        sock.settimeout(None)
        return self._take(sock)

    def _take(self, sock: Stream) -> bool:
        with self._lock:
            if self._sock is not None or self._over:
                return False
            self._sock = sock
            self._pending = getattr(sock, "pending", _nothing)
        if sock.family != socket.AF_UNIX:
            patience = min(round(settings.channel_reconnect_timeout() * 1000), _LONGEST)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        start_thread(self._send, "monarch-graph")
        return True

    # --- sending

    def ring(self) -> None:
        taken, left = False, True
        try:
            (taken,) = map(self._lock.acquire, _AT_ONCE)
            if taken:
                self._flush(socket.MSG_DONTWAIT)
                left = False
        except OSError:  # there is no room, or it broke: its thread waits, or tells
            pass
        except BaseException:  # of a handler of signals: nobody knows what was sent
            self._gate.lost(self.host, "it was interrupted while it sent a value")
            raise
        finally:
            if taken:
                self._lock.release()
        if left:
            self.bell.ring()

    def _flush(self, flags: int) -> None:
        sock, sender = self._sock, self._sender
        if sock is None or self._over:
            return
        while buffers := sender.buffers():
            sender.sent(sock.sendmsg(buffers, (), flags))

    def _send(self) -> None:
        gate, told, next_word, quiet = self._gate, -1, 0.0, not self._tells
        try:
            while not self._over:
                with self._lock:
                    self._flush(0)
                if self._tells:
                    quiet, now = False, monotonic()
                    if now >= next_word:
                        told, next_word = gate.newest, now + _TICK
                        with self._lock:
                            quiet = self._sender.mark(self._tells, told)
                            self._flush(0)
                self._dozes = quiet
                if gate.newest != told and self._tells:
                    self._dozes = quiet = False
                self.bell.sleep(None if quiet else _TICK)
        except OSError as exc:
            gate.lost(self.host, _why(exc))
        except ValueError:  # the memory is gone, and the graph with it
            pass
        finally:
            self._sent.set()

    def wake(self) -> None:
        """Has the client told of what is only heard of, soon."""
        if self._dozes and self._tells:
            self.bell.ring()

    # --- receiving

    def receive(self) -> None:
        """Runs until the stream ends, and then waits for the thread that sends."""
        try:
            self._gate.lost(self.host, *self._read())
        finally:
            self._sent.wait(_PATIENCE)
            if self._own and self._sock is not None:
                self._sock.close()
            self._received.set()

    def _read(self) -> tuple[str, bool]:
        """Returns why it ended, and whether the other host has said so."""
        sock = self._sock
        assert sock is not None
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while self._end is None:
            if not self._pending():
                poll.poll()
            if not self._stand_aside():
                with self._reading:
                    self._take_in(None)
        return self._end

    def _take_in(self, visitor: OwnBell | None) -> bool:
        """Receives what is there, and returns whether something was. `visitor` needs not be woken."""
        something = self._take_some(visitor)
        while self._pending() and self._end is None and self._take_some(visitor):
            pass
        return something

    def _take_some(self, visitor: OwnBell | None) -> bool:
        sock, receiver, gate = self._sock, self._receiver, self._gate
        if sock is None or self._end is not None:
            return True
        try:
            count = sock.recvmsg_into(receiver.into(), 0, socket.MSG_DONTWAIT)[0]
            if not count:
                self._end = "the connection was closed", False
            elif not self._over:  # else: not wanted, but if it were left the kernel would reset the connection
                for one in receiver.received(count):
                    if isinstance(one, Crossed):
                        gate.arrived(one, visitor)
                    elif isinstance(one, Heard):
                        gate.heard[one.ring] = one.number
                    else:
                        self._end = one.reason, True
        except BlockingIOError:  # nothing, or somebody else has read it
            return False
        except OSError as exc:
            self._end = _why(exc), False
        except CrossingError as exc:
            self._end = f"it carried {exc}", False
        except ValueError:  # the memory is gone, and the graph with it
            self._end = "", True
        except BaseException:  # of a handler of signals: nobody knows what was read
            self._end = "it was interrupted while it received a value", False
            raise
        return True

    def _stand_aside(self) -> bool:
        """Returns whether there was a visitor; it is gone then for a while."""
        aside = False
        while not self._over and self._end is None:
            since, now = self._since, monotonic()
            if since and now - since > _LONG:
                with self._reading:
                    pass
            elif since or now < self._until:
                sleep(_ASIDE)
            else:
                break
            aside = True
        return aside

    def sleep(self, bell: OwnBell, timeout: float | None, spin: Spin, due: Callable[[], bool]) -> bool:
        """Looks, and then sleeps as that bell does, also until something was received. False where the stream cannot be read
        now."""
        taken = False
        try:
            (taken,) = map(self._reading.acquire, _AT_ONCE)
            if not taken or self._over or self._end is not None or self._sock is None:
                return False
            visit = self._visit
            if visit is None or bell is not self._visitor:
                visit = self._visit = select.poll()
                visit.register(self._sock, select.POLLIN)
                visit.register(bell.fileno(), select.POLLIN)
                self._visitor = bell
            self._since = monotonic()
            if spin.until(lambda: due() or self._take_in(bell)):
                return True
            for fd, _ in visit.poll(None if timeout is None else max(0.0, timeout) * 1000):
                if fd == bell.fileno():
                    bell.forget()
                else:
                    self._take_in(bell)
            return True
        finally:
            if taken:
                self._until = monotonic() + _ASIDE
                self._since = 0.0
                self._reading.release()

    # --- the end

    def finish(self) -> None:
        """Says why the gate has ended, if that is possible at once, and ends both threads."""
        self._over = True
        sock = self._sock
        if sock is not None:
            if self._lock.acquire(timeout=_LAST_WORD):
                try:
                    self._sender.end(self._gate.words)
                    while buffers := self._sender.buffers():
                        self._sender.sent(sock.sendmsg(buffers, (), socket.MSG_DONTWAIT))
                except OSError:
                    pass
                finally:
                    self._lock.release()
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.bell.ring()

    def close(self) -> None:
        """Returns once both threads have ended."""
        self.finish()
        if self._sock is not None:
            self._sent.wait(_PATIENCE)
            self._received.wait(_PATIENCE)
        for lock, way in ((self._lock, self._sender), (self._reading, self._receiver)):
            taken = lock.acquire(timeout=_PATIENCE)  # a writer may ring still, a reader look
            way.close()
            if taken:
                lock.release()
        self.bell.close()


class GraphGate:
    """The gate of one graph in this process. `ended` hears once why the graph cannot go on, on any thread; "": it was ended
    in order elsewhere."""

    def __init__(self, name: str, spec: GateSpec, ended: Callable[[str], None]) -> None:
        self.name = name
        self.spec = spec
        self.newest = -1  # execution of which a value has come
        self.heard: dict[int, int] = {}  # the newest execution of rings that are not read here
        self.words = ""  # why it has ended; each of its streams says so, whoever ends that one first
        self._ended = ended
        self._lock = Lock()
        self._over = False
        self._closed = False
        self._readers: Mapping[int, list[Any]] = {}  # the bells of a ring's readers
        self._quick: GateStream | None = None  # from which all comes that is for the one reader
        fd = make_file(control_size(spec.rings, spec.depth) + spec.rings * spec.depth * spec.slot_size)
        try:
            self.memory = GateMemory(fd, spec.rings, spec.depth, spec.slot_size)
            self.at = DescriptorAt(os.getpid(), fd)
            self.streams = {host: GateStream(self, host) for host in spec.sends}
        except BaseException:
            os.close(fd)
            raise
        _gates[name] = self
        take_streams(PURPOSE, _serve)

    @property
    def bells(self) -> dict[int, DescriptorAt]:
        """The bells that writers of other processes ring, by the streams' numbers as readers."""
        return {stream_reader(host): stream.bell.at for host, stream in self.streams.items()}

    def connect(self, dials: Mapping[int, str], readers: Mapping[int, list[Any]]) -> str:
        """Connects to the gates of those processes, by host; `readers` are the bells of each ring's. Returns why not, or
        ""."""
        self._readers = readers
        sources = [host for host, rings in self.spec.takes.items() if rings]
        bells = {id(bell): bell for bell in _flat(readers.values())}
        if len(sources) == len(bells) == 1 and all(isinstance(bell, OwnBell) for bell in bells.values()):
            self._quick = self.streams[sources[0]]
        for host, address in dials.items():
            try:
                self.streams[host].dial(address)
            except OSError as exc:  # NoStreamError and TimeoutError too
                return f"{self.spec.names[self.spec.host]} cannot connect to {self.spec.names[host]}: {_why(exc)}"
        return ""

    def sleep(self, bell: OwnBell, timeout: float | None, spin: Spin, due: Callable[[], bool]) -> None:
        """Looks whether `due()` and then sleeps as that bell does, a reader's of this process. Receives meanwhile where that
        is quicker."""
        quick = self._quick
        if (quick is None or not quick.sleep(bell, timeout, spin, due)) and not spin.until(due):
            bell.sleep(timeout)

    def arrived(self, one: Crossed, awake: OwnBell | None) -> None:
        """A value has come. Whose bell is `awake` needs not be woken."""
        self.memory.tell(*one)
        for bell in self._readers.get(one.ring, ()):
            if bell is not awake:
                bell.ring()
        if one.number > self.newest:
            self.newest = one.number
            client = self.streams.get(CLIENT_HOST)
            if client is not None:
                client.wake()

    def lost(self, host: int, reason: str, said: bool = False) -> None:
        """A stream has ended. `said`: those are the other host's words."""
        names = self.spec.names
        words = reason if said else f"the connection between {names[self.spec.host]} and {names[host]} broke ({reason})"
        if self.end(words):
            self._ended(words)

    def end(self, words: str = "") -> bool:
        """Ends the streams, and has the processes of this host leave. Returns soon; False where it had ended before."""
        with self._lock:
            if self._over:
                return False
            self.words, self._over = words, True
        try:
            self.memory.end()
        except ValueError:  # it is gone
            pass
        for bell in {id(bell): bell for bell in _flat(self._readers.values())}.values():
            bell.ring()
        for stream in self.streams.values():
            stream.finish()
        return True

    def close(self) -> None:
        """Ends it, and leaves nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _gates.pop(self.name, None)
        self.end()
        for stream in self.streams.values():
            stream.close()
        for bell in _flat(self._readers.values()):
            if isinstance(bell, OtherBell):
                bell.close()
        self.memory.close()
        os.close(self.at.fd)


def _flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [one for several in lists for one in several]


def _nothing() -> bool:
    return False


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc) or type(exc).__name__


def _serve(sock: Stream) -> None:
    """Serves a stream that another gate has opened."""
    deadline = monotonic() + OPEN
    host, length = _GREETING.unpack(read_exactly(sock, _GREETING.size, deadline))
    name = read_exactly(sock, length, deadline).decode(errors="replace")
    gate = _gates.get(name)
    stream = None if gate is None else gate.streams.get(host)
    if stream is not None and stream.welcome(sock):
        stream.receive()
