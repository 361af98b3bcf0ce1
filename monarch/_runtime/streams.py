"""Plain connected sockets between two processes, for those parts of a program that move bytes on threads of their own.

A process of another host is reached as a direct link is (see `direct`): the agent of this host says how to dial, the one
there checks that the connection may speak and hands its descriptor to the process that the first frame names, a LinkHello
with a purpose. On one host there is nothing to dial: one end of a socket pair is handed to the other process. From its
answer on, a LinkHello or a Bye that says why not, the runtime has no part in the socket.

To a host with TLS the agent of this host dials, for a process has no key that proves anything. Over the TLS of the agents
goes the LinkHello, with a key and a certificate that this process has made for the one stream; then each agent hands its end
of the socket to its process, and these have TLS of their own over it (see `transport.tls_stream`). Only who says that it can
use such streams (`serve_either`, `open_either`) has them.

Bound: MOST streams that others have opened; a further one is refused. Those that are open when the process closes its
links are shut down, which wakes those who wait for them.
"""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._errors import NoStreamError
from monarch._linux.local_socket import read_exactly
from monarch._linux.locks import Lock
from monarch._linux.weak_sets import members
from monarch._runtime.future import Slot
from monarch._runtime.loop import start_thread
from monarch._wire import frame as frames
from monarch._wire import host_address, message
from monarch._wire.address import agent_of, host_of, name_of
from monarch._wire.auth import Secret
from monarch._wire.ids import new_id
from monarch._wire.message import VERSION, AskDirect, Bye, LinkHello, MayDial
from monarch._wire.peer import PeerEnded
from monarch._wire.transport import tcp
from monarch._wire.transport.base import DialFailed, StreamSocket
from monarch._wire.transport.stream import refuse
from monarch._wire.transport.unix import UnixTransport

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc
    from monarch._wire.transport.tls_stream import TlsStream

    Stream = socket.socket | TlsStream
else:
    Stream = Any

MOST = 256
_ANSWER_BYTES = 64 * 1024  # of an answer's head; a longer one is not ours
_LONGEST = 24 * 3600.0  # seconds of one wait
_ANSWER_SECONDS = 5.0  # for an answer, which takes a small part of it, to be written

logger = logging.getLogger("monarch")

# Serves one stream on a thread of its own, which closes the socket when this returns or raises.
Handler = Callable[[socket.socket], None]
TlsHandler = Callable[[Stream], None]


class Streams:
    """The streams of one process. `serve`, `open`, `obstacle` and `encrypted` are for any thread but the I/O thread's."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._handlers: dict[str, Handler] = {}
        self._tls_handlers: dict[str, TlsHandler] = {}  # of those with TLS
        self._lock = Lock()
        self._waiting: dict[str, list[Slot]] = {}  # by address
        # Hosts that the agent was asked for, and why there is no way to them, for good, or "".
        self._hosts: dict[str, str] = {}
        self._encrypted: set[str] = set()  # those of them whose messages go by TLS
        self._open: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._coming: dict[str, Slot] = {}  # streams that the agent dials, by the link of their hello
        self._served = 0
        self._id = new_id()

    def __repr__(self) -> str:
        return f"<Streams for {sorted(self._handlers)} ({self._served} served)>"

    # --- the side that serves

    def serve(self, purpose: str, handler: Handler) -> None:
        """Takes streams for that purpose from now on, none with TLS."""
        self._handlers[purpose] = handler

    def serve_either(self, purpose: str, handler: TlsHandler) -> None:
        """Takes streams for that purpose from now on, with TLS and without."""
        self._handlers[purpose] = self._tls_handlers[purpose] = handler

    def handed(self, sock: socket.socket, hello: LinkHello) -> None:
        """On the I/O thread: somebody who may speak wants a stream, or the agent has dialled one for us."""
        if hello.pem and hello.host == self._proc.address:
            slot = self._coming.pop(hello.link, None)
            if slot is None:  # too late
                sock.close()
            else:
                slot.set(sock)
            return
        why = self._unwanted(hello)
        if not why or (hello.pem and self._served < 2 * MOST):  # with TLS a refusal takes a thread too
            with self._lock:
                self._served += 1
                self._open.add(sock)
            try:
                start_thread(self._serve, f"monarch-{hello.purpose}", sock, hello, why)
                return
            except RuntimeError as exc:
                with self._lock:
                    self._served -= 1
                why = f"it cannot start a thread: {exc}"
        if hello.pem:
            sock.close()
        else:
            refuse(sock, why)

    def _unwanted(self, hello: LinkHello) -> str:
        proc = self._proc
        if proc.closed is not None:
            return "the process is ending"
        if name_of(hello.to) != name_of(proc.address):
            return f"the process {name_of(hello.to)} is not here"
        if hello.target_incarnation not in (-1, proc.incarnation):
            return "that process has ended, and a new one has taken its place"
        if hello.purpose not in (self._tls_handlers if hello.pem else self._handlers):
            return f"it takes no streams{' with TLS' if hello.pem else ''} for {hello.purpose!r}"
        return f"it has {MOST} streams already" if self._served >= MOST else ""

    def _serve(self, sock: socket.socket, hello: LinkHello, why: str) -> None:
        with sock:
            try:
                stream = _over_tls(sock, hello.pem, server=True) if hello.pem else sock
                stream.settimeout(_ANSWER_SECONDS)
                if not isinstance(stream, socket.socket):
                    stream.handshake()
                hello.agent, hello.host, hello.pem = self._id, self._proc.address, b""
                stream.sendall(frames.encode_small(message.encode(Bye(why) if why else hello), b""))
                stream.settimeout(None)
                if not why:
                    self._serve_one(stream, hello.purpose)
            except OSError as exc:
                logger.debug("a stream for %s broke: %s", hello.purpose, exc)
            except Exception:
                logger.exception("a stream for %s was closed", hello.purpose)
            finally:
                with self._lock:
                    self._served -= 1

    def _serve_one(self, stream: Stream, purpose: str) -> None:
        if isinstance(stream, socket.socket):
            self._handlers[purpose](stream)
        else:
            self._tls_handlers[purpose](stream)

    # --- the side that opens

    def obstacle(self, address: str, timeout: float) -> str:
        """Returns why no stream can be opened to that process, as far as this host can tell; "" when nothing is known
        against it."""
        host = host_of(address)
        if host == self._proc.host:
            return "" if isinstance(self._proc.transport, UnixTransport) else "this process has no socket"
        why = self._hosts.get(host)
        if why is None and not host.startswith(("tcp:", "ipc:")):
            why = "its host has no address that can be dialled"
        if why is None and not self._proc.loop.in_loop():
            try:
                why = self._ask(address, monotonic() + timeout).why
            except (NoStreamError, TimeoutError) as exc:
                return str(exc)
        return why or ""

    def encrypted(self, address: str, timeout: float) -> bool:
        """Returns whether messages to that process go by TLS, which is then the only obstacle to a stream."""
        self.obstacle(address, timeout)
        return host_of(address) in self._encrypted

    def open(self, address: str, purpose: str, timeout: float) -> socket.socket:
        """A connected socket, blocking, to a thread that serves `purpose` in that process. Waits, at most `timeout` seconds.

        NoStreamError when there is none to be had, with the reason; TimeoutError.
        """
        stream = self._open_one(address, purpose, timeout, tls=False)
        assert isinstance(stream, socket.socket)
        return stream

    def open_either(self, address: str, purpose: str, timeout: float) -> Stream:
        """Does the same, and gives a stream with TLS where messages to that process go by TLS: never a plain one."""
        return self._open_one(address, purpose, timeout, tls=True)

    def _open_one(self, address: str, purpose: str, timeout: float, tls: bool) -> Stream:
        if self._proc.closed is not None:
            raise NoStreamError("this process is closing")
        deadline = monotonic() + timeout
        near = host_of(address) == self._proc.host
        stream = self._hand(address, purpose) if near else self._dial(address, purpose, deadline, tls)
        try:
            self._introduce(stream, address, purpose, deadline, said=near)
        except BaseException:
            stream.close()
            raise
        self._open.add(stream)
        return stream

    def _hand(self, address: str, purpose: str) -> socket.socket:
        transport = self._proc.transport
        if not isinstance(transport, UnixTransport):
            raise NoStreamError("this process has no socket")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                transport.hand_over(address, theirs, message.encode(self._hello(address, purpose)))
            except OSError as exc:
                ours.close()
                raise NoStreamError(f"the process {name_of(address)} takes no stream: {exc}") from None
        return ours

    def _hello(self, address: str, purpose: str) -> LinkHello:
        peer, proc = self._proc.known_peer(address), self._proc
        target_incarnation = peer.incarnation if peer is not None and peer.incarnation_known else -1
        return LinkHello(
            VERSION,
            proc.address,
            self._id,
            new_id(),
            address,
            0,
            False,
            address,
            target_incarnation,
            proc.incarnation,
            purpose,
        )

    def _dial(self, address: str, purpose: str, deadline: float, tls: bool) -> Stream:
        way = self._ask(address, deadline)
        if way.encrypted and tls:
            return self._through_agents(address, purpose, deadline)
        if way.why:
            raise NoStreamError(way.why)
        secret = Secret(way.secret) if way.secret else None
        slot = Slot()
        attempts: list[tcp.DialAttempt] = []

        def give_up() -> None:
            for attempt in attempts:
                attempt.cancel()

        def begin() -> None:
            try:
                to = host_address.parse_dial(way.at or host_of(address))
                attempts.append(tcp.dial(to, self._proc.loop, slot.set, secret=secret, start_thread=start_thread))
            except ValueError as exc:
                slot.set(DialFailed(str(exc), final=True))

        self._proc.loop.call_soon(begin)
        try:
            outcome = _wait(slot, deadline, f"the connection to {host_of(address)}")
        except TimeoutError:
            self._proc.loop.call_soon(give_up)
            slot.on_ready(lambda: _close(slot.value()))  # it may come all the same
            raise
        if not isinstance(outcome, socket.socket):
            raise NoStreamError(str(outcome))
        return outcome

    def _through_agents(self, address: str, purpose: str, deadline: float) -> TlsStream:
        from monarch._wire.transport.tls_stream import make_pem

        hello, slot = self._hello(address, purpose), Slot()
        try:
            hello.pem = make_pem()
        except ModuleNotFoundError as exc:
            raise NoStreamError(str(exc)) from exc
        self._coming[hello.link] = slot
        try:
            self._post(AskDirect(address, True, hello))
            outcome = _wait(slot, deadline, f"the connection to {host_of(address)}")
        except BaseException:
            slot.on_ready(lambda: _close(slot.value()))  # it may come all the same
            raise
        finally:
            self._coming.pop(hello.link, None)
        if not isinstance(outcome, socket.socket):
            raise NoStreamError(str(outcome))
        return _over_tls(outcome, hello.pem, server=False)

    def _introduce(self, sock: Stream, address: str, purpose: str, deadline: float, said: bool) -> None:
        try:
            if not isinstance(sock, socket.socket):
                sock.settimeout(_left(deadline))
                sock.handshake()
            elif not said:
                sock.settimeout(_left(deadline))
                hello = self._hello(address, purpose)
                sock.sendall(frames.encode_small(message.encode(hello), b""))
            answer = _read_answer(sock, deadline)
        except TimeoutError:
            raise TimeoutError(f"the process {address} did not answer in time") from None
        except (OSError, msgspec.MsgspecError) as exc:
            raise NoStreamError(f"the process {address} did not answer: {exc}") from exc
        if type(answer) is Bye:
            raise NoStreamError(f"the process {address} takes no stream: {answer.reason}")
        if type(answer) is not LinkHello or answer.purpose != purpose:
            raise NoStreamError(f"the process {address} sent an invalid answer")
        sock.settimeout(None)

    # --- what the agent says

    def _ask(self, address: str, deadline: float) -> MayDial:
        host = host_of(address)
        if not host.startswith(("tcp:", "ipc:")):
            raise NoStreamError("its host has no address that can be dialled")
        slot = Slot()
        with self._lock:
            self._waiting.setdefault(address, []).append(slot)
        try:
            self._post(AskDirect(address, True))
            told: MayDial = _wait(slot, deadline, "the agent of this host")
            return told
        finally:
            with self._lock:
                left = [other for other in self._waiting.pop(address, ()) if other is not slot]
                if left:
                    self._waiting[address] = left

    def _post(self, ask: AskDirect) -> None:
        try:
            self._proc.post(agent_of(self._proc.address), ask)
        except (PeerEnded, RuntimeError) as exc:
            raise NoStreamError(f"the agent of this host has ended: {exc}") from None

    def may_dial(self, told: MayDial) -> None:
        """Runs on the I/O thread."""
        if told.link:
            if (coming := self._coming.pop(told.link, None)) is not None:
                coming.set(DialFailed(told.why))
            return
        if told.encrypted:
            self._encrypted.add(host_of(told.address))
        self._hosts[host_of(told.address)] = told.why
        with self._lock:
            waiting = self._waiting.pop(told.address, [])
        for slot in waiting:
            slot.set(told)

    # --- the end

    def close(self) -> None:
        """May be called from any thread."""
        for sock in members(self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def forked(self) -> None:
        """Closes them in a child made by `os.fork`: they are the parent's."""
        for sock in members(self._open):
            sock.close()


def _wait(slot: Slot, deadline: float, what: str) -> Any:
    if not slot.wait(max(0.0, min(deadline - monotonic(), _LONGEST))):
        raise TimeoutError(f"{what} did not answer in time")
    return slot.value()


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, _LONGEST)


def _over_tls(sock: socket.socket, pem: bytes, *, server: bool) -> TlsStream:
    from monarch._wire.transport.tls_stream import TlsStream

    try:
        return TlsStream(sock, pem, server=server)
    except BaseException:
        sock.close()
        raise


def _read_answer(sock: Stream, deadline: float) -> message.Message:
    """Exactly one frame, so that what follows it is the stream's."""
    head, body, buffers = frames.PREFIX.unpack(read_exactly(sock, frames.PREFIX.size, deadline))
    if head > _ANSWER_BYTES or body or buffers:
        raise OSError("its first bytes are no answer")
    return message.decode(read_exactly(sock, head, deadline))


def _close(outcome: StreamSocket | DialFailed) -> None:
    if not isinstance(outcome, DialFailed):
        outcome.close()
