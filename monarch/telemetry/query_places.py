"""Places for queries of the tables, and for how long: each query has a process of its own, killed at its deadline."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from monarch._linux import local_socket
from monarch._linux.locks import Condition, Lock
from monarch.telemetry import query_process
from monarch.telemetry.keeper import Keeper
from monarch.telemetry.query_process import Asked, End
from monarch.telemetry.result import QueryError, QueryRefused, QueryTimeout

TYPED = 4  # queries of people at a time ...
OWN = 4  # ... and of the pages, which have these places for themselves
WAITING = 8  # queries of people that wait, and twice as many of pages; a further one is refused at once
TURN = 10.0  # seconds that a query of people has its place when others wait for one
_FRESH = 1.0  # seconds that a copy of the tables serves after it was made, for rows that nobody waits for
_LOOK = 0.2  # seconds between two looks of one that waits
_LOST = (
    "the query has ended its process: the engine failed on it, or it needs more than the "
    f"{query_process.MEMORY >> 20} MiB that a query may take. Ask for less at a time: fewer rows, shorter texts"
)


class Places:
    """Some places at a time, and for some more to wait. Decides with the time as an argument, and does nothing by itself."""

    def __init__(self, most: int, waiting: int) -> None:
        self._most = most
        self._most_waiting = waiting
        self._taken: dict[object, tuple[float, float]] = {}  # since when, and until when
        self._waiting: set[object] = set()

    def take(self, who: object, now: float, until: float) -> bool:
        """True if there was one."""
        if len(self._taken) >= self._most:
            return False
        self._taken[who] = (now, until)
        self._waiting.discard(who)
        return True

    def leave(self, who: object) -> None:
        self._taken.pop(who, None)
        self._waiting.discard(who)

    def wait(self, who: object) -> bool:
        """Has it wait for one; False if too many do."""
        if who not in self._waiting and len(self._waiting) >= self._most_waiting:
            return False
        self._waiting.add(who)
        return True

    def make_room(self, now: float) -> object | None:
        """Returns who has to go for one that waits, and takes its place from it: one after its time, which nobody may have
        noticed that reads its result slowly, or the one that has had a place for longest, if for more than TURN seconds."""
        for who, (since, until) in sorted(self._taken.items(), key=lambda item: item[1][0]):
            if now >= until or now >= since + TURN:
                del self._taken[who]
                return who
        return None


class QueryPlaces:
    """The queries that run over the tables of a keeper. Any thread."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._changed = Condition()
        self._typed, self._own = Places(TYPED, WAITING), Places(OWN, 2 * WAITING)
        self._idle: list[_TablesCopy] = []
        self.needed = 0  # writes that a query has to see

    @contextmanager
    def asked(self, asked: Asked, running: Callable[[Callable[[], None]], object] | None) -> Iterator[ResultStream]:
        """Gives the result of a query, in parts, each of them before its deadline, also when it had to wait for its place.
        QueryError; QueryRefused when there is none, and no room to wait; QueryTimeout; KeeperLost."""
        stream = ResultStream(asked)
        if running is not None:
            running(stream.cancel)
        places = self._typed if asked.typed else self._own
        try:
            self._enter(places, stream)
            stream.begin(self._process(stream))
            yield stream
        finally:
            process = stream.leave()
            with self._changed:
                places.leave(stream)
                if process is not None and not asked.typed and len(self._idle) < OWN:
                    self._idle.append(process)
                elif process is not None:
                    process.close()
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            for process in self._idle:
                process.close()
            self._idle.clear()

    def _enter(self, places: Places, stream: ResultStream) -> None:
        with self._changed:
            while not places.take(stream, now := time.monotonic(), stream.until):
                if stream.stopped:
                    raise QueryTimeout(stream.stopped)
                if not places.wait(stream):
                    raise QueryRefused("too many queries run and wait already: ask again later")
                gone = places.make_room(now)
                if isinstance(gone, ResultStream):
                    gone.make_room()
                    continue
                if now >= stream.until:
                    raise QueryTimeout(f"{TYPED} other queries run, and none ended within {stream.asked.seconds:g} s")
                self._changed.wait(min(stream.until - now, _LOOK))

    def _process(self, stream: ResultStream) -> _TablesCopy:
        """One that has seen what it needs to."""
        with self._changed:
            needed = self.needed
            while self._idle:
                process = self._idle.pop()
                if process.writes >= needed and time.monotonic() - process.made < _FRESH:
                    return process
                process.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._keeper.copy(theirs)
        try:
            ours.settimeout(max(stream.until - time.monotonic(), 0.01))
            data, descriptors, _, _ = socket.recv_fds(ours, query_process.HELLO.size, 1)
            (writes,) = query_process.HELLO.unpack(data)
        except TimeoutError:
            ours.close()
            raise QueryTimeout(
                f"the tables were written to for longer than {stream.asked.seconds:g} s; ask again"
            ) from None
        except Exception:
            ours.close()
            raise QueryError(
                "no process could be started for the query: the machine has no memory or no process left"
            ) from None
        return _TablesCopy(ours, descriptors[0], writes)


class ResultStream:
    """The result of one query: `columns`, then `parts`, then `end`."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.columns: list[str] = []
        self.end = End()
        self._process: _TablesCopy | None = None
        self.until = time.monotonic() + asked.seconds
        self.stopped = ""  # why, if somebody has stopped it
        self._lock = Lock()
        self._done = False
        self._first: bytes | None = None

    def begin(self, process: _TablesCopy) -> None:
        """Asks, and waits for the columns and the first rows, or the error."""
        with self._lock:
            self._process = process
            if self.stopped:
                process.kill()
        try:
            local_socket.send(process.socket, msgspec.msgpack.encode(self.asked))
        except OSError:
            pass  # it has ended, which the answer says
        self.columns = msgspec.json.decode(self._next(query_process.COLUMNS), type=list[str])
        self._first = self._next(query_process.ROWS)

    def parts(self) -> Iterator[bytes]:
        """Yields JSON lists of rows."""
        part = self._first
        while part:
            yield part
            part = self._next(query_process.ROWS)

    def cancel(self) -> None:
        """Ends it, from any thread; may be called at any time and again."""
        self._stop("the query was cancelled")

    def make_room(self) -> None:
        """Ends it for another."""
        self._stop(
            f"the query had its place for {TURN:g} s and was ended, because others wait and {TYPED} run at a time: ask for "
            "less, or again later"
        )

    def _stop(self, why: str) -> None:
        with self._lock:
            self.stopped = self.stopped or why
            if self._process is not None:
                self._process.kill()

    def leave(self) -> _TablesCopy | None:
        """Returns its process if it may serve again; otherwise that has ended."""
        with self._lock:
            process, self._process = self._process, None
            if process is None or (self._done and not self.stopped):
                return process
            process.kill()
            process.close()
            return None

    def _next(self, wanted: bytes) -> bytes:
        """The next frame's body; b"" at the end."""
        assert self._process is not None
        sock = self._process.socket
        try:
            kind, length = query_process.HEAD.unpack(
                local_socket.read_exactly(sock, query_process.HEAD.size, self.until)
            )
            if length > query_process.LARGEST:
                raise EOFError
            body = bytes(local_socket.read_exactly(sock, length, self.until))
        except TimeoutError:
            raise QueryTimeout(f"the query took longer than {self.asked.seconds:g} s") from None
        except (OSError, EOFError):
            if self.stopped:
                raise QueryTimeout(self.stopped) from None
            raise QueryError(_LOST) from None
        if kind == wanted:
            return body
        if kind == query_process.FAILED:
            self._done = True
            raise QueryError(body.decode(errors="replace"))
        self.end = msgspec.json.decode(body, type=End)
        self._done = True
        return b""


class _TablesCopy:
    """A copy of the keeper that answers queries, one after the other."""

    def __init__(self, sock: socket.socket, descriptor: int, writes: int) -> None:
        self.socket = sock
        self.writes = writes  # that it has seen
        self.made = time.monotonic()
        self._descriptor = descriptor  # of the process: no number that another may have

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except OSError:
            pass

    def close(self) -> None:
        """It ends as soon as it sees that."""
        self.socket.close()
        os.close(self._descriptor)
