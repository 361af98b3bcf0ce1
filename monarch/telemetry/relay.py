"""In the client: passes what processes have recorded on to the observer, unread, from the I/O thread.

Bounded: MOST bytes wait. Beyond that the process of which most waits loses its newest batch, so one that floods takes nothing
from the others; from a quarter of it on, processes are told to wait. A batch over LARGEST_BATCH is dropped. While there is no
observer batches wait for the next one; after `close` nothing does.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux.locks import Lock
from monarch._wire.message import VALUE, Answer, Recorded
from monarch.telemetry import frames

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

MOST = 32 << 20  # bytes that wait
_SLOW = MOST // 4
_PAUSE = 1.0  # seconds that a process is asked to wait then
_SMALL = 4096


class WaitingBatches:
    """Batches that wait to be written, of each source in its order, the sources in turns. Pure."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.bytes = 0
        self.dropped = 0  # batches
        self._queues: dict[str, deque[bytes]] = {}
        self._sizes: dict[str, int] = {}

    def put(self, source: str, data: bytes) -> None:
        while self.bytes + len(data) > self.most:
            largest = max(self._sizes, key=self._sizes.__getitem__, default=source)
            self.dropped += 1
            if self._sizes.get(source, 0) + len(data) >= self._sizes.get(largest, 0):
                return
            self._take(largest, newest=True)
        self._queues.setdefault(source, deque()).append(data)
        self._sizes[source] = self._sizes.get(source, 0) + len(data)
        self.bytes += len(data)

    def next(self) -> bytes:
        """The oldest of the source whose turn it is; b"" for nothing."""
        source = next(iter(self._queues), None)
        if source is None:
            return b""
        data = self._take(source, newest=False)
        if source in self._queues:  # behind the others
            self._queues[source] = self._queues.pop(source)
        return data

    def clear(self) -> None:
        self.dropped += sum(len(queue) for queue in self._queues.values())
        self._queues, self._sizes, self.bytes = {}, {}, 0

    def _take(self, source: str, newest: bool) -> bytes:
        queue = self._queues[source]
        data = queue.pop() if newest else queue.popleft()
        self._sizes[source] -= len(data)
        self.bytes -= len(data)
        if not queue:
            del self._queues[source], self._sizes[source]
        return data


class RowRelay:
    """One a client. `lost` is called on the I/O thread when the observer has gone."""

    def __init__(self, proc: Proc, lost: Any) -> None:
        self._proc = proc
        self._loop = proc.loop
        self._lost = lost
        self._closed = False
        self._lock = Lock()
        self._waiting = WaitingBatches()
        self._sock: socket.socket | None = None
        self._rest = memoryview(b"")
        self._came = bytearray()
        self._marks: dict[int, threading.Event] = {}
        self._to_mark: deque[int] = deque()
        self._numbers = itertools.count(1)
        self.hosts: dict[str, str] = {}  # a process of each host of which batches came, by host
        proc.receivers[Recorded] = self._receive

    @property
    def dropped(self) -> int:
        return self._waiting.dropped

    def connect(self, sock: socket.socket) -> None:
        """Any thread: the observer is at the other end."""
        sock.setblocking(False)

        def begin() -> None:
            self._drop_socket()
            self._sock = sock
            self._loop.add(sock.fileno(), self._on_event)
            self._write()

        self._loop.call_soon(begin)

    def close(self) -> None:
        """Any thread. What waits is dropped, and what comes later."""
        self._lost = lambda: None
        with self._lock:
            self._closed = True
            self._waiting.clear()
        if self._proc.closed is None:
            self._loop.call_soon(self._drop_socket)
        elif self._sock is not None:
            self._sock.close()

    def flush(self, timeout: float) -> bool:
        """Returns when all that has come is in the tables; False when that takes longer, or nobody is there. Not on the I/O
        thread."""
        number, done = next(self._numbers), threading.Event()
        self._marks[number] = done
        self._to_mark.append(number)
        self._loop.call_soon(self._write)
        try:
            return done.wait(timeout)
        finally:
            del self._marks[number]

    # --- any thread: what this process itself has recorded comes where it was sent

    def _receive(self, connection: Any, recorded: Recorded, frame: Any) -> None:
        source = connection.remote
        with self._lock:
            if self._closed or len(frame.body) > frames.LARGEST_BATCH:
                self._waiting.dropped += 1
            else:
                self._waiting.put(source, frames.pack(frames.ROWS, bytes(frame.body)))
            wait = _PAUSE if self._waiting.bytes > _SLOW else 0.0
        self.hosts.setdefault(source.rpartition("/")[0], source)
        answer = msgspec.msgpack.encode((time.time(), wait))
        self._proc.answer(source, Answer(recorded.port, 0, VALUE), answer, ())
        if self._loop.in_loop():
            self._write()
        else:
            self._loop.call_soon(self._write)

    # --- the I/O thread

    def _write(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            while True:
                if not self._rest:
                    with self._lock:
                        self._rest = memoryview(self._waiting.next())
                    if not self._rest and self._to_mark:
                        mark = frames.pack(frames.MARK, self._to_mark.popleft().to_bytes(8, "big"))
                        self._rest = memoryview(mark)
                    if not self._rest:
                        self._loop.want_write(sock.fileno(), False)
                        return
                self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            self._loop.want_write(sock.fileno(), True)
        except OSError:
            self._gone()

    def _on_event(self, mask: int) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            data = sock.recv(_SMALL)
        except BlockingIOError:
            self._write()
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        self._came += data
        while len(self._came) >= frames.HEAD.size:
            length, kind = frames.HEAD.unpack_from(self._came)
            end = frames.HEAD.size + length
            if length > _SMALL:
                self._gone()
                return
            if len(self._came) < end:
                break
            if kind == frames.MARKED:
                done = self._marks.get(int.from_bytes(self._came[frames.HEAD.size : end], "big"))
                if done is not None:
                    done.set()
            del self._came[:end]
        self._write()

    def _gone(self) -> None:
        self._drop_socket()
        self._lost()

    def _drop_socket(self) -> None:
        sock, self._sock = self._sock, None
        self._rest = memoryview(b"")  # a frame that was begun cannot be ended elsewhere
        self._came.clear()
        if sock is not None:
            self._loop.remove(sock.fileno())
            sock.close()
