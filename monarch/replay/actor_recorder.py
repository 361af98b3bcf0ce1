"""Records what one actor receives, as it happens.

With the kernel before the actor sees it: a message before its endpoint runs, an answer before the code that waits for it gets
it. So the recording of a process that was killed has all that it had seen. What the actor did is written with what it sees
next. All writing is done on the actor's own threads; the I/O
thread only notes what came. A recording that fails (disk full, bound reached) stops and says so; the actor goes on.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from monarch._linux import private_files
from monarch._linux.locks import Lock
from monarch._mesh.failures.ledger import MeshFailure
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.log_thread import log
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._runtime.watcher import Asking
from monarch._text import clip
from monarch._wire import codec, message
from monarch._wire.frame import Buffer
from monarch._wire.message import Bounced, Spawn
from monarch.replay import environment
from monarch.replay.behaviour import watch
from monarch.replay.events import (
    MAGIC,
    SUFFIX,
    AnsweredEvent,
    AskedEvent,
    BeginEvent,
    DoneEvent,
    EndedEvent,
    Event,
    GaveUpEvent,
    OpenedEvent,
    Piece,
    ReturnedEvent,
    SeedsEvent,
    SentEvent,
    SourcesEvent,
    StartedEvent,
    StoppedEvent,
    SupervisedEvent,
    encode,
    summary,
)

_log = logging.getLogger("monarch")
_TEXT = 2_000  # characters of an exception


def begin(instance: Instance, spawn: Spawn, body: Buffer, buffers: Sequence[Buffer]) -> None:
    """On the actor's thread, before anything of it runs. An actor that cannot be recorded runs all the same."""
    who = f"{spawn.name}[{spawn.rank}]"
    try:
        path = _begin(instance, spawn, body, buffers)
    except OSError as exc:
        log(_log, logging.WARNING, "actor %s is not recorded: %s", who, exc)
    except Exception as exc:  # states of generators are told by their libraries
        log(_log, logging.WARNING, "actor %s is not recorded: %s: %s", who, type(exc).__name__, exc)
    else:
        log(_log, logging.INFO, "actor %s is recorded in %s", who, path)


def _begin(instance: Instance, spawn: Spawn, body: Buffer, buffers: Sequence[Buffer]) -> str:
    writer = RecordingWriter(os.fsdecode(spawn.record), spawn.name, spawn.rank, spawn.record_bytes)
    behaviour: Any = instance.behaviour
    recorder = ActorRecorder(instance, writer)
    proc = instance.proc
    event = BeginEvent(
        _now(), spawn.key, spawn.name, spawn.rank, spawn.view, spawn.cls, spawn.loop, behaviour.display,
        instance.incarnation, proc.address, proc.mesh.name, socket.gethostname(), os.getpid(), environment.facts(),
        list(sys.path), environment.environment(os.environ), environment.modules(),
    )  # fmt: skip
    recorder.add(event, [body, *buffers])
    recorder.add(SeedsEvent(_now()), [pickle.dumps(environment.rng_state())])
    recorder.flush()
    instance.watcher = recorder
    instance.ended.on_ready(recorder.close)
    watch(behaviour)
    return writer.path


def _now() -> int:
    return time.time_ns() // 1000


class ActorRecorder:
    """The watcher of an actor that is recorded."""

    def __init__(self, instance: Instance, writer: RecordingWriter) -> None:
        self._instance = instance
        self._writer: RecordingWriter | None = writer
        self._path = writer.path
        # Appending is atomic, and the order in which things are appended is the order of the recording.
        self._waiting: deque[tuple[Event, list[Piece]]] = deque()
        self._writing = Lock()
        self._messages = 0
        self._numbers: dict[int, int] = {}  # of messages under way, by the id of their Delivery
        self._ports = 0
        self._entries: dict[int, int] = {}  # numbers of ports, by the id of their Entry, while they are open
        self._within = threading.local()

    # --- writing

    def add(self, event: Event, pieces: Sequence[Piece] = ()) -> None:
        if self._writer is not None:
            self._waiting.append((event, list(pieces)))

    def flush(self) -> None:
        """Writes all that was noted. Any thread but the I/O thread."""
        if not self._waiting:
            return
        with self._writing:
            batch = []
            while self._waiting:
                batch.append(self._waiting.popleft())
            if self._writer is None or not batch:
                return
            try:
                self._writer.write(batch)
            except RecordingFull:
                self._stop("the bound on its size is reached (setting record_bytes)")
            except OSError as exc:
                self._stop(f"{exc.strerror or exc}")

    def _stop(self, why: str) -> None:
        assert self._writer is not None
        writer, self._writer = self._writer, None
        writer.end(StoppedEvent(_now(), why))
        self._waiting.clear()
        instance = self._instance
        log(_log, logging.WARNING, "recording of actor %s[%d] stopped after %d bytes: %s. What is in %s can be replayed",
            instance.name, instance.rank, writer.size, why, writer.path)  # fmt: skip

    def close(self) -> None:
        self.flush()
        with self._writing:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.end(None)

    # --- what the actor handles

    def constructed(self, cls: type) -> None:
        self.add(SourcesEvent(_now(), environment.sources(cls)))

    def started(self, delivery: Delivery, behaviour: Any) -> None:
        self._messages += 1
        self._numbers[id(delivery)] = self._messages
        call = message.encode(delivery.call)
        self.add(StartedEvent(_now(), self._messages, call, delivery.source), [delivery.body, *delivery.buffers])
        self.flush()

    def answered(self, delivery: Delivery, body: bytes, buffers: Sequence[memoryview]) -> None:
        size, check, short = summary([body, *buffers])
        self._done(delivery, "returned", "", size, check, short)

    def ended(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        text = "" if error is None else clip(f"{type(error).__name__}: {error}", _TEXT)
        self._done(delivery, outcome, text, 0, 0, [])

    def _done(self, delivery: Delivery, outcome: str, text: str, size: int, check: int, pieces: list[Piece]) -> None:
        number = self._numbers.pop(id(delivery), 0)
        if number:
            self.add(DoneEvent(_now(), number, outcome, text, size, check), pieces)

    def supervised(self, failure: MeshFailure) -> None:
        self.add(SupervisedEvent(_now()), [message.encode(failure._failure)])
        self.flush()

    def returned(self, bounced: Bounced) -> None:
        self.add(ReturnedEvent(_now()), [message.encode(bounced)])
        self.flush()

    def leaving(self, cause: Exception | None) -> None:
        end = self._instance.end
        self.add(EndedEvent(_now(), cause is not None, clip(end.report, _TEXT) if end is not None else ""))
        self.flush()

    # --- what it asks of others, and what they answer

    def asked(self, call: Asking) -> bool:
        port = self._watch(call.entry)
        size, check, short = summary([call.body, *call.buffers])
        self.add(AskedEvent(_now(), call.mesh, call.method, call.adverb, list(call.ranks), port, size, check), short)
        if call.entry is not None and call.entry.caller is None:
            call.entry.caller = self._instance
        return False

    def opened(self, queue: Entry) -> None:
        self.add(OpenedEvent(_now(), self._watch(queue)))

    def sent(self, kind: int, body: bytes, buffers: Sequence[memoryview]) -> None:
        size, check, short = summary([body, *buffers])
        self.add(SentEvent(_now(), kind, size, check), short)

    def _watch(self, entry: Entry | None) -> int:
        """The number of a port whose answers are recorded from now on."""
        if entry is None:
            return 0
        known = self._entries.get(id(entry))
        if known is None:
            self._ports += 1
            known = self._entries[id(entry)] = self._ports
            kind: Any = type(entry)
            entry.__class__ = _recorded_class(kind)
        return known

    def received(self, entry: Entry, raw: Raw) -> None:
        port = self._entries.get(id(entry))
        if port is not None:
            self.add(AnsweredEvent(_now(), port, raw[0], raw[1]), [raw[2], *raw[3]])

    def gave_up(self, entry: Entry, error: BaseException) -> None:
        port = self._entries.get(id(entry))
        if port is None or getattr(self._within, "receive", False):
            return
        try:
            body, buffers = codec.encode(error)
        except Exception:
            body, buffers = codec.encode(RuntimeError(str(error)))
        self.add(GaveUpEvent(_now(), port, clip(f"{type(error).__name__}: {error}", _TEXT)), [body, *buffers])

    def closed(self, entry: Entry) -> None:
        self._entries.pop(id(entry), None)


class _RecordedEntry:
    """A class in front of what waits for answers of a recorded actor. Without fields of its own: an entry becomes one in
    place."""

    __slots__ = ()

    def _recorder(self: Any) -> ActorRecorder | None:
        instance = self.caller or self.owner
        watcher = instance.watcher if instance is not None else None
        return watcher if isinstance(watcher, ActorRecorder) else None

    def receive(self: Any, raw: Raw) -> None:
        recorder = self._recorder()
        if recorder is None:
            super().receive(raw)  # type: ignore[misc]
            return
        recorder.received(self, raw)
        recorder._within.receive = True  # what it makes of the answer follows from the answer
        try:
            super().receive(raw)  # type: ignore[misc]
        finally:
            recorder._within.receive = False

    def give_up(self: Any, error: BaseException) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.gave_up(self, error)
        super().give_up(error)  # type: ignore[misc]

    def close(self: Any) -> None:
        super().close()  # type: ignore[misc]
        recorder = self._recorder()
        if recorder is not None:
            recorder.closed(self)

    def value(self: Any) -> Any:
        self.observed()
        return super().value()  # type: ignore[misc]

    def observed(self: Any) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.flush()


@functools.cache
def _recorded_class(kind: Any) -> Any:
    return type(f"Recorded{kind.__name__}", (_RecordedEntry, kind), {"__slots__": ()})


_MOST_PIECES = 1000  # that one system call writes
_SPARE = 4096  # bytes kept for the event that says why recording stopped


class RecordingFull(Exception):
    """No more is recorded: the bound is reached."""


class RecordingWriter:
    """OSError when the folder or the file cannot be made, and from `write` when the disk is full."""

    def __init__(self, folder: str, name: str, rank: int, most: int) -> None:
        make_folder(folder)
        plain = re.sub(r"[^-_.A-Za-z0-9]", "_", name)[:100] or "actor"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_APPEND
        number = 0
        while True:  # an actor of that name, in that second, may have been restarted
            again = f".{number}" if number else ""
            self.path = os.path.join(folder, f"{plain}-{rank}-{stamp}-{os.getpid()}{again}{SUFFIX}")
            try:
                self._fd = os.open(self.path, flags, 0o600)
                break
            except FileExistsError:
                number += 1
        self._left = most - len(MAGIC)
        self.size = len(MAGIC)
        os.write(self._fd, MAGIC)

    def write(self, events: list[tuple[Event, list[Piece]]]) -> None:
        """Returns when they are with the kernel, so that they outlive this process. RecordingFull: nothing of the first event
        that did not fit was written."""
        waiting: list[Piece] = []
        full = False
        for event, pieces in events:
            encoded = encode(event, pieces)
            size = sum(len(piece) for piece in encoded)
            if size > self._left:
                full = True
                break
            self._left -= size
            waiting += encoded
        self._put(waiting)
        if full:
            raise RecordingFull

    def end(self, event: Event | None) -> None:
        """Closes the file, after a last event for which there is room in any case."""
        if self._fd < 0:
            return
        try:
            if event is not None:
                self._put(encode(event)[:_SPARE])
        except OSError:  # full: then it ends without a word
            pass
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _put(self, pieces: list[Piece]) -> None:
        while pieces:
            count = os.writev(self._fd, pieces[:_MOST_PIECES])
            self.size += count
            while pieces and count >= len(pieces[0]):
                count -= len(pieces[0])
                del pieces[0]
            if count:
                pieces[0] = memoryview(pieces[0])[count:]


def make_folder(folder: str) -> None:
    """Makes it 0700; PermissionError for one that others own, or may write in."""
    try:
        private_files.make_folder(folder)
    except private_files.UntrustedFileError as exc:
        raise PermissionError(
            f"{exc}, and recordings hold all that an actor was sent: chmod go-w it, or name a folder of yours (setting "
            f"record_folder)"
        ) from None
