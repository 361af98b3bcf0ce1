"""One connected stream socket as a Connection.

Senders write in their own thread, under the lock; what the socket does not take is queued for the I/O thread. That one
reads, or a thread that waits in its place (`_quick`), never two at once. The I/O thread never waits for the lock: it hands
its pieces to the thread that holds it.

A handler of signals may raise in the midst of a send (Ctrl-C). Frames stay whole then: one of which nothing was written is
not sent, of one that has begun the rest follows. Python looks for signals behind calls and where functions and loops begin.
So `with` is used for the lock, which takes it and enters its block in one step; `(sent,) = map(send, (frame,))` calls and
keeps the result in one step; and what belongs together is changed by statements with no call before the last of them. What
else was left undone, the I/O thread does (`_mend`). A handler may send as well, while its own thread has the lock: then it
leaves its pieces for that send, as the I/O thread does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter
from types import FrameType
from typing import Any

from monarch._linux.descriptors import OUT_OF
from monarch._linux.locks import Lock
from monarch._wire import message
from monarch._wire.frame import PREFIX, Buffer, Decoder, FrameError, encode_small
from monarch._wire.transport.base import ConnectionLost, Handler, Reactor, StreamSocket, Turn
from monarch._wire.waiters import Waiters

READ, WRITE, ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP

_IOV_MAX = 1024
_BYTES_A_TURN = 8 * 1024 * 1024  # read from one connection before the others get their turn
_HELD_UP = 0.001  # seconds until the I/O thread tries to write again where a sender had the lock
_REST = 0.02  # seconds until a call is made again for which there was no memory
QUICK = 16 * 1024  # bytes that a thread that leads reads at once
_STALLED = 30.0  # seconds without progress after which a waiting sender leaves its bytes to the queue


class StreamConnection:
    """See `base.Connection`. Bound: `limit` bytes queued before `wait_room` waits; a single frame may pass it."""

    def __init__(
        self, sock: StreamSocket, loop: Reactor, handler: Handler, *, limit: int, frame_limit: int = 0
    ) -> None:
        sock.setblocking(False)
        self.remote = ""
        self.route = b""
        self.pid = 0
        self._sock = sock
        self._recv: Callable[[int], bytes] = getattr(sock, "recv", _nothing)
        self._pending: Callable[[], bool] | None = getattr(sock, "pending", None)
        self._fd = sock.fileno()
        self._loop = loop
        self._virtual = getattr(loop, "virtual", False)  # time may stand still: no timer ends a wait
        self._handler = handler
        self._limit = limit
        self._decoder = Decoder(frame_limit)
        self.reads = 0  # grows whenever bytes arrive, also those of a frame that is not complete yet
        self._lock = Lock()
        self._out: deque[Buffer] = deque()  # what nobody changes any more
        self.queued = 0
        self._deferred: deque[list[Buffer]] = deque()  # the same
        self._written = 0  # bytes at the head of the queue that the socket has, until they are taken off it
        self._room = Waiters()
        self._lost = False
        self._reason = ""
        self._reading, self._resting = True, False
        self.frame_refused = False  # lost because of what the other side sent: no frame, too large, no memory for it
        self.small: Callable[[StreamConnection, bytes, bytes], bool] | None = None  # see `_quick`; set before `start`
        self._kept: deque[bytes] = deque(maxlen=1)  # what a thread that led has read, until it was handled
        self.says_why = False  # whether the other side hears in a Bye what is wrong with its frames
        self._coalesced = False  # the queue holds frames only because their senders were in no hurry
        self._last_coalesced = 0.0

    def heard_by(self, handler: Handler) -> None:
        """On the I/O thread: `handler` hears what comes from now on. It is a link, which a Bye would end."""
        self._handler = handler
        self.says_why = False
        self.small = None

    def start(self) -> None:
        """Begins to read. Call once `remote` and the owner are ready for events."""
        if self.small is None or self._pending is not None:
            self._loop.add(self._fd, self._on_event)
        else:
            self._loop.add(self._fd, self._on_event, self._quick)
        self._read_rest()

    @property
    def lost(self) -> bool:
        return self._lost

    def __repr__(self) -> str:
        state = f"lost: {self._reason}" if self._lost else f"{self.queued} bytes queued"
        return f"<StreamConnection to {self.remote or '?'} ({state})>"

    # --- sending, any thread

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        if self._loop.in_loop():
            if not self._lock.acquire(False):
                return False
            try:
                taken = self._send_small(frame, coalesce_within)
            finally:
                self._lock.release()
        elif self._lock.locked() and self._interrupted():
            return False
        else:
            try:
                with self._lock:
                    taken = self._send_small(frame, coalesce_within)
            except BaseException:
                self._loop.call_soon(self._mend)
                raise
        if self._deferred:
            self._loop.call_soon(self._flush_deferred)
        return taken

    def _send_small(self, frame: bytes, coalesce_within: float) -> bool:
        if coalesce_within and not self._deferred and not self._lost:
            if self._follows_within(coalesce_within):
                self._coalesced = True
                self.queued += len(frame)  # as `_enqueue` does
                self._out.append(frame)
                if len(self._out) == 1:
                    self._loop.want_write(self._fd, True, self._reading)
                return True
            if self._out:
                self._last_coalesced = 0.0  # `send` takes it, and is to find the same
        if self._out or self._deferred or self._lost:
            return False
        sent = 0
        try:
            (sent,) = map(self._sock.send, (frame,))
            if sent < len(frame):
                self._enqueue([frame[sent:]])
        except OSError:  # full, or gone: `send` finds out
            return False
        except BaseException:
            if 0 < sent < len(frame) and not self._out:
                self._enqueue([frame[sent:]])
            raise
        return True

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        if self._loop.in_loop():
            if not self._lock.acquire(False):
                self._deferred.append(_owned(pieces, owned))
                self._flush_deferred()
                return
            try:
                self._send(pieces, wait, coalesce_within, owned)
            finally:
                self._lock.release()
        elif self._lock.locked() and self._interrupted():
            if self._lost:
                raise ConnectionLost(self._reason)
            self._deferred.append(_owned(pieces, owned))
        else:
            try:
                with self._lock:
                    self._send(pieces, wait, coalesce_within, owned)
            except BaseException:
                self._loop.call_soon(self._mend)
                raise
        if self._deferred:
            self._loop.call_soon(self._flush_deferred)

    def _send(self, pieces: Sequence[Buffer], wait: bool, coalesce_within: float, owned: bool) -> None:
        if self._deferred:
            self._take_deferred()
        if coalesce_within and not self._lost and self._follows_within(coalesce_within):
            self._enqueue(pieces, owned)
            self._coalesced = True
        else:
            self._write(pieces, wait, owned)

    def _interrupted(self) -> bool:
        """Returns whether this thread is sending here already: a handler of signals that sends has interrupted it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if (code is _SEND or code is _SEND_SMALL) and frame.f_locals["self"] is self:
                return True
            frame = frame.f_back
        return False

    def _mend(self) -> None:
        """On the I/O thread, after a sender was interrupted, or held up what is in the queue: it is written."""
        if not self._lost and not self._resting:
            self._loop.want_write(self._fd, True, self._reading)

    def _write(self, pieces: Sequence[Buffer], wait: bool, owned: bool = False) -> None:
        if self._lost:
            raise ConnectionLost(self._reason)
        if self._coalesced:  # what was put off goes first, with small frames in the same system call
            self._coalesced = False
            if not wait:
                self._enqueue(pieces, owned)
                self._write_queue()
                return
            self._write_queue()
        if self._out:
            self._enqueue(pieces, owned)
            return
        sent = 0
        try:
            try:
                if len(pieces) == 1:
                    (sent,) = map(self._sock.send, pieces)
                    if sent == len(pieces[0]):
                        return
                else:
                    (sent,) = map(self._sock.sendmsg, (pieces[:_IOV_MAX],))
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as exc:
                if exc.errno not in OUT_OF:
                    raise ConnectionLost(str(exc)) from exc
                wait = False
            rest = _after(pieces, sent)
            poll = self._poll() if wait and rest else None
            while rest and poll is not None and poll.poll(_STALLED * 1000) and not self._lost:
                try:  # from the caller's memory
                    (more,) = map(self._sock.sendmsg, (rest[:_IOV_MAX],))
                    sent += more
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError as exc:
                    if exc.errno not in OUT_OF:
                        raise ConnectionLost(str(exc)) from exc
                    poll = None
                rest = _after(pieces, sent)
            if rest:
                self._enqueue(rest, owned)
        except BaseException:  # Ctrl-C in the middle of a frame: the rest of it still has to follow
            if sent and not self._out and not self._lost and (rest := _after(pieces, sent)):
                self._enqueue(rest)
            raise

    def _poll(self) -> select.poll:
        """Waits, in the caller's thread, until the socket takes something."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return poll

    def _follows_within(self, seconds: float) -> bool:
        """Returns whether frames follow each other so closely that writing several at once pays."""
        now = perf_counter()
        closely = now - self._last_coalesced < seconds
        self._last_coalesced = now
        return closely

    def _enqueue(self, pieces: Sequence[Buffer], owned: bool = False) -> None:
        if len(pieces) == 1 and type(pieces[0]) is bytes:  # most messages
            kept, size = pieces, len(pieces[0])
        else:
            kept = _owned(pieces, owned)
            size = sum(map(len, kept))
        first = not self._out
        self.queued += size
        self._out.extend(kept)
        if first and not self._lost:
            self._loop.want_write(self._fd, True, self._reading)

    def _take_deferred(self) -> None:
        """Puts what the I/O thread has left into the queue, and writes from there."""
        if self._lost:
            raise ConnectionLost(self._reason)
        while self._deferred:
            kept = self._deferred[0]
            size = sum(map(len, kept))
            self.queued += size
            del self._deferred[0]
            self._out.extend(kept)
        self._write_queue()
        if self._out and not self._lost:
            self._loop.want_write(self._fd, True, self._reading)

    def _flush_deferred(self) -> None:
        """Writes what the I/O thread left for the lock's holder. The holder looks again after releasing."""
        while self._deferred and self._lock.acquire(False):
            try:
                self._take_deferred()
            except ConnectionLost:
                self._deferred.clear()
            finally:
                self._lock.release()

    def wait_room(self, timeout: float) -> bool:
        """Waits until fewer than `limit` bytes are queued. False after `timeout` seconds."""
        if self.queued < self._limit or self._lost:
            return True
        return self._room.wait_for(lambda: self.queued < self._limit or self._lost, timeout)

    # --- the I/O thread

    def pause_reading(self) -> None:
        """On the I/O thread: takes nothing more until `resume_reading`, so that the other end has to wait."""
        self._set_reading(False)

    def resume_reading(self) -> None:
        self._set_reading(True)

    def _set_reading(self, on: bool) -> None:
        with self._lock:
            if not self._lost and self._reading != on:
                self._reading = on
                self._loop.want_write(self._fd, bool(self._out), on)
                self._read_rest()

    def _on_event(self, mask: int) -> None:
        if mask & (READ | ERROR):
            self._readable(final=bool(mask & ERROR))  # the other end is gone: nothing is left to wait for
        if mask & WRITE and not self._lost:
            self._writable()

    def _quick(self, turn: Turn) -> bool:
        """Reads a little, in a thread that leads, and hands `small` every whole frame without buffers (head, body).
        False when something is left for the I/O thread: in `_kept`, with the socket, or because `small` refused a
        frame.

        What was read is kept in the step in which it is read, and dropped when it was handled: a handler of signals may
        raise in between, and then the I/O thread handles it all again. It may wait as well, which revokes the turn: then the
        I/O thread has the rest. Each look whether it was is followed by no call before what it is for.
        """
        kept, small = self._kept, self.small
        if kept or small is None or self._lost or not self._decoder.empty or not self._reading:
            return False
        received = map(self._recv, (QUICK,))
        try:
            if turn.revoked:
                return True
            kept.extend(received)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:  # which the I/O thread will meet
            return False
        if turn.revoked:
            return True
        data = kept[0]
        self.reads += 1
        start, size = 0, len(data)
        while size - start >= 16:
            head_size, body_size, count = PREFIX.unpack_from(data, start)
            middle = start + 16 + head_size
            end = middle + body_size
            if turn.revoked or count or end > size or not small(self, data[start + 16 : middle], data[middle:end]):
                break
            start = end
        if turn.revoked:
            return True
        if start == size and size:
            kept.clear()
            return True
        if start and kept:
            kept[0] = data[start:]
        return False

    def _readable(self, final: bool = False) -> None:
        budget = _BYTES_A_TURN
        decoder, recv_into = self._decoder, self._sock.recv_into
        while budget > 0 and not self._lost and (self._reading or final):
            if self._kept:
                self._take_kept()
                continue
            buffer = decoder.get_buffer()
            try:
                count = recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno in OUT_OF and not final:
                    self._rest()
                else:
                    self._lose(str(exc))
                return
            if not self._received(count) or count < len(buffer):
                return
            budget -= count
        self._read_rest()

    def _take_kept(self) -> None:
        """Returns what a thread that led has read and not handled."""
        rest = memoryview(self._kept.popleft())
        while True:
            buffer = self._decoder.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            if not self._received(count) or self._lost or not rest:
                return

    def _received(self, count: int) -> bool:
        """So many bytes were put into the decoder's buffer. False when this is the end of it."""
        if not count:
            self._lose("the other process closed the connection")
            return False
        self.reads += 1
        try:
            frames = self._decoder.received(count)
        except FrameError as exc:
            self.frame_refused = True
            self._say_bye(str(exc))
            self._lose(str(exc))
            return False
        if frames:
            self._handler.connection_received(self, frames)
        return True

    def _say_bye(self, why: str) -> None:
        """If that can be done at once, and in between two frames."""
        if not self.says_why or not self._lock.acquire(False):
            return
        try:
            if not self._out and not self._deferred:
                self._sock.send(encode_small(message.encode(message.Bye(why)), b""))
        except OSError:
            pass
        finally:
            self._lock.release()

    def _read_rest(self) -> None:
        """Comes back for bytes that the socket holds itself: the kernel does not tell of them."""
        if self._reading and not self._lost and (self._kept or (self._pending is not None and self._pending())):
            self._loop.call_soon(self._readable)

    def _writable(self) -> None:
        if not self._lock.acquire(False):
            # The loop would call again and again, and keep the interpreter from the thread that has the lock.
            if not self._virtual:
                self._loop.want_write(self._fd, False, self._reading)
                self._loop.call_later(_HELD_UP, self._mend)
            return
        try:
            self._coalesced = False
            self._write_queue()
            if not self._out and not self._lost:
                self._loop.want_write(self._fd, False, self._reading)
        finally:
            self._lock.release()
        self._tell_room()
        if self._deferred:
            self._flush_deferred()

    def _write_queue(self) -> None:
        """Writes from the queue what the socket takes."""
        out = self._out
        self._drop_written()
        while out:
            pieces = list(islice(out, 128))
            try:
                (self._written,) = map(self._sock.sendmsg, (pieces,))
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno in OUT_OF:
                    self._rest()
                else:
                    self.close(str(exc))
                return
            self._drop_written()

    def _drop_written(self) -> None:
        """Takes off the queue what the socket has."""
        out = self._out
        while self._written:
            head, size = out[0], len(out[0])
            if self._written < size:
                rest = memoryview(head)[self._written :]
                self.queued -= self._written
                self._written = 0
                out[0] = rest
            else:
                self.queued -= size
                self._written -= size
                del out[0]

    def _rest(self) -> None:
        """The machine is out of memory for it just now, of which the connection has no fault: goes on a little later."""
        if not self._resting:
            self._resting = True
            self._loop.want_write(self._fd, False, False)
            self._loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        with self._lock:
            if not self._lost:
                self._loop.want_write(self._fd, bool(self._out), self._reading)

    def _tell_room(self) -> None:
        if self.queued < self._limit or self._lost:
            self._room.tell()

    def close(self, reason: str) -> None:
        """Any thread. What is queued is given up; the handler hears `connection_lost` on the I/O thread."""
        if self._loop.in_loop():
            self._lose(reason)
        else:
            self._loop.call_soon(lambda: self._lose(reason))

    def finish(self, reason: str) -> None:
        """On the I/O thread, when the other process has ended: takes what it still sent, then closes."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while not self._lost and (self._kept or poll.poll(0)):
            self._readable(final=True)
        self._lose(reason)

    def fileno(self) -> int:
        return self._fd

    def detach(self, beneath: bool = False) -> socket.socket | None:
        """On the I/O thread, from `connection_received`: gives the socket away, and is lost without a word to anybody.

        None, and nothing changes, when bytes of it are here, or when it is no plain socket: another could not go on. With
        `beneath` that under TLS is given away, for a session of others: the other side must do the same at this point.
        """
        sock: Any = self._sock
        if beneath and hasattr(sock, "beneath"):
            sock = sock.beneath()
        if self._lost or self._kept or not self._decoder.empty or not isinstance(sock, socket.socket):
            return None
        with self._lock:
            if self._out or self._deferred:
                return None
            self._reason, self._lost = "its socket was given away", True
        self._loop.remove(self._fd)
        self._tell_room()
        return sock

    def _lose(self, reason: str) -> None:
        if self._lost:
            return
        self._reason = reason
        self._lost = True
        self._loop.remove(self._fd)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a sender that waits for room
        self._release()
        self._tell_room()
        self._handler.connection_lost(self, reason)

    def _release(self) -> None:
        """Closes the socket once no sender is inside a system call on it."""
        if not self._lock.acquire(False):
            self._loop.call_soon(self._release)
            return
        self._out.clear()
        self._kept.clear()
        self.queued = self._written = 0
        self._decoder.release()  # code that remembers the connection is not to keep what it received into
        self._sock.close()
        self._lock.release()


_SEND, _SEND_SMALL = StreamConnection.send.__code__, StreamConnection.send_small.__code__


def _nothing(_size: int) -> bytes:
    raise BlockingIOError


def _owned(pieces: Sequence[Buffer], owned: bool = False) -> list[Buffer]:
    """The pieces as nobody changes them: copied, unless they are `owned` or cannot be changed."""
    return [
        (piece.cast("B") if owned or type(piece.obj) is bytes else bytes(piece))
        if isinstance(piece, memoryview)
        else (piece if owned or isinstance(piece, bytes) else bytes(piece))
        for piece in pieces
    ]


def _after(pieces: Sequence[Buffer], sent: int) -> Sequence[Buffer]:
    """Returns what is left of `pieces` when `sent` bytes of them are gone."""
    for index, piece in enumerate(pieces):
        size = piece.nbytes if isinstance(piece, memoryview) else len(piece)
        if sent < size:
            rest = memoryview(piece).cast("B")[sent:] if sent else piece
            return [rest, *pieces[index + 1 :]]
        sent -= size
    return ()


def refuse(sock: socket.socket, why: str) -> None:
    """Closes a connected socket; the other side reads a Bye with the reason, if the socket takes it at once."""
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.send(encode_small(message.encode(message.Bye(why)), b""))
