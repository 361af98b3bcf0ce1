"""The recording of a process while telemetry runs (`_runtime.recorder`), and its way: in batches, about each second, over
the connection to the client, which passes them on to the observer. Questions "telemetry.record" and "telemetry.flush".

A process that is spawned later begins by itself: the client's setting `telemetry_recording` says so. Bounds: the recorder's,
those of a batch (`outgoing_batches`), WINDOW batches on their way; while the client is slow nothing is sent, and the recorder
drops. While it does not answer one batch goes out now and then, up to _LATEST seconds apart, until it does.

Clocks: each batch is answered with the client's time when it came. Half of the time that took is the error of the difference
between the two clocks; the estimate with the smallest error of the last few counts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from typing import Any

import msgspec

from monarch._linux.locks import Condition, Lock
from monarch._mesh.inspection import identities, outgoing_batches
from monarch._mesh.inspection.outgoing_batches import BATCH, MOST_BYTES, BatchHead
from monarch._runtime import log_tap
from monarch._runtime import recorder as recorders
from monarch._runtime.context import root_of
from monarch._runtime.future import Source, once
from monarch._runtime.instance import Instance
from monarch._runtime.proc import Proc
from monarch._runtime.recorder import ACTOR, GAUGE, HISTOGRAM, MESH, STATUS, SUM, TEXT, Recorder
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry
from monarch._shape.as_json import extent_json, shape_json
from monarch._text import NAME_LIMIT, sendable
from monarch._wire.address import CLIENT, host_of, name_of
from monarch._wire.message import VALUE, ProcEnded, Recorded
from monarch._wire.peer import PeerEnded
from monarch.config import settings

PERIOD = 1.0  # seconds between two looks at what was recorded
WINDOW = 4  # batches that the client has not answered
_LATE = 10.0  # seconds after which an answer is not waited for any more
_LATEST = 300.0  # seconds between two batches, at most, for a client that does not answer
_SOON = 0.001  # seconds
_LAST = 1.0  # seconds in which a process that ends hands over what it has recorded
_CLOCKS = 8  # estimates of the difference between the clocks
_OWN = ("monarch.telemetry", "monarch.observer")  # loggers that are not recorded

SYSTEM = "system"  # a word of the setting


class ClockOffset:
    """The time by which the client's clock is ahead of this one. Pure."""

    def __init__(self) -> None:
        self._estimates: deque[tuple[float, float]] = deque(maxlen=_CLOCKS)  # (error, offset)

    def learn(self, sent: float, there: float, back: float) -> None:
        """A message left at `sent` and was answered at `back`, by this clock; it was `there` by the other one."""
        self._estimates.append((max(0.0, back - sent) / 2, there - (sent + back) / 2))

    @property
    def best(self) -> tuple[float, float]:
        """The estimate with the least error: (offset, error) in seconds."""
        error, offset = min(self._estimates, default=(0.0, 0.0))
        return offset, error


class _Answer(Entry):
    """The client's answer to a batch."""

    __slots__ = ("_fn", "sent_at")

    def __init__(self, fn: Any) -> None:
        super().__init__(None)
        self._fn = fn
        self.sent_at = time.time()

    def receive(self, raw: Raw) -> None:
        self.close()
        self._fn(self, raw)

    def give_up(self, error: BaseException) -> None:
        self.close()
        self._fn(self, None)


class Recording:
    """The recorder of one process, and its batches on their way to the client."""

    def __init__(self, proc: Proc, include_system: bool) -> None:
        self.recorder = Recorder(include_system=include_system)
        self.recorder.client = proc.root_name
        self._proc = proc
        self._lock = Lock()
        self._room = Condition(self._lock)
        self._number = 0
        self._on_way = 0
        self._most = BATCH  # events that the next batch has at most
        self._late = 0  # batches, one after the other, that were not answered
        self._wait_until = 0.0
        self._clock = ClockOffset()
        self._logs = _Logs(self.recorder)
        self._stopped = False

    def start(self) -> None:
        recorders.active = self.recorder
        log_tap.add(self._logs)
        for event in existing(self._proc, self.recorder):
            self.recorder.add(event)
        self._proc.loop.call_rarely(PERIOD, self._tick)

    def stop(self) -> None:
        self._stopped = True
        if recorders.active is self.recorder:
            recorders.active = None
        log_tap.remove(self._logs)

    def _tick(self) -> None:
        if self._stopped or self._proc.closed is not None:
            return
        self._proc.loop.call_rarely(PERIOD, self._tick)
        self.look()
        self._send_some()

    def look(self) -> None:
        """Notes what is under way, and what was measured."""
        for instance in list(self._proc.actors.values()):
            self.recorder.under_way(instance)
        for entry in self._proc.ports.entries():
            if entry.record is not None:
                self.recorder.waiting(entry)
        self._measure()
        since, now, sums, distributions, values = self.recorder.metrics.take()
        for each in sums:
            self.recorder.add((SUM, *each, since, now))
        for each in distributions:
            self.recorder.add((HISTOGRAM, *each, since, now))
        for each in values:
            self.recorder.add((GAUGE, *each, now))

    def _measure(self) -> None:
        """Measures the process at this moment."""
        from monarch._mesh.inspection.description import memory  # loaded with the first record

        rss, vm = memory()
        metrics = self.recorder.metrics
        metrics.set("process.memory.rss_bytes", "By", rss, None)
        metrics.set("process.memory.vm_bytes", "By", vm, None)
        waiting = sum(len(instance.mailbox.messages) for instance in list(self._proc.actors.values()))
        metrics.set("actor.message_queue_size", "1", waiting, None)

    def _send_some(self) -> None:
        """One batch after the other, with turns of the loop between them."""
        if self._send() and not self._stopped:
            self._proc.loop.call_soon(self._send_some)

    def _send(self) -> bool:
        """Sends a batch, unless there is none or too many are on their way. Any thread."""
        with self._lock:
            if self._on_way >= WINDOW or time.monotonic() < self._wait_until or self._proc.closed is not None:
                return False
            events = self.recorder.take(self._most)
            if not events:
                return False
            offset, error = self._clock.best if host_of(self._proc.address) != host_of(self._to) else (0.0, 0.0)
            head = BatchHead(
                self._proc.address,
                process_name(self._proc),
                _hostname,
                os.getpid(),
                time.monotonic(),
                time.time(),
                offset,
                error,
                self._number + 1,
                self.recorder.dropped + self.recorder.metrics.dropped,
            )
            batch = outgoing_batches.encode(head, events, min(MOST_BYTES, self._proc.frame_limit or MOST_BYTES))
            self.recorder.dropped += batch.left_out
            self.recorder.put_back(batch.rest)
            self._most = max(1, len(events) - len(batch.rest)) if batch.rest else min(BATCH, 2 * self._most)
            answer = _Answer(self._answered)
            self._number += 1
            self._on_way += 1
        try:
            number = self._proc.ports.add(answer)
            answer.timer = self._proc.loop.call_later(_LATE, lambda: answer.give_up(TimeoutError()))
            self._proc.post(self._to, Recorded(number), batch.body)
        except (PeerEnded, RuntimeError):  # the program ends
            answer.give_up(ConnectionError())
            return False
        return True

    @property
    def _to(self) -> str:
        return self._proc.client

    def _answered(self, answer: _Answer, raw: Raw | None) -> None:
        with self._room:
            self._on_way -= 1
            if raw is not None and raw[1] == VALUE:
                there, wait = _decode_answer(raw[2])
                self._late = 0
                self._clock.learn(answer.sent_at, there, time.time())
                self._wait_until = time.monotonic() + wait
            elif time.monotonic() >= self._wait_until:  # of those that went out together, the first counts
                self._wait_until = time.monotonic() + pause(self._late)
                self._late += 1
            self._room.notify_all()

    def flush(self, patience: float = _LATE) -> None:
        """Sends what there is. Not on the I/O thread: waits for room, for `patience` seconds."""
        until = time.monotonic() + patience
        self._settle(until)
        self.look()
        while self.recorder.events and not self._stopped and time.monotonic() < until:
            if not self._send():
                with self._room:
                    self._room.wait_for(lambda: self._on_way < WINDOW, max(0.0, until - time.monotonic()))
                    self._wait_until = 0.0  # the caller takes the risk that some is dropped

    def _settle(self, until: float) -> None:
        """A caller that has an answer may ask at once for what was recorded of it, which its actor is just about to note."""
        pause = threading.Event()
        for instance in list(self._proc.actors.values()):
            delivery = instance.current
            while (
                delivery is not None and delivery.answered and instance.current is delivery and time.monotonic() < until
            ):
                pause.wait(_SOON)


def pause(late: int) -> float:
    """Returns the seconds to wait until the next batch, where so many before were not answered. Pure."""
    return float(min(_LATEST, _LATE * 2 ** min(late, 16)))


_decode_answer = msgspec.msgpack.Decoder(tuple[float, float]).decode
_hostname = sendable(socket.gethostname(), NAME_LIMIT)
_recording: Recording | None = None
_switching = Lock()


def recording() -> Recording | None:
    """Returns the recording of this process, if it records."""
    return _recording


def begin(proc: Proc, include_system: bool = False, again: bool = False) -> None:
    """This process records from now on. `again`: what was told of its actors and meshes is lost, and told once more."""
    global _recording
    with _switching:
        if _recording is None:
            made = Recording(proc, include_system)
            made.start()
            _recording = made
            return
        _recording.recorder.include_system = include_system
        for event in existing(proc, _recording.recorder) if again else ():
            _recording.recorder.add(event)


def end() -> None:
    global _recording
    with _switching:
        if _recording is not None:
            _recording.stop()
            _recording = None


def begin_if_asked(proc: Proc) -> None:
    """A process that starts records if the client was recording when it was spawned."""
    words = settings.telemetry_recording().split(",")
    if words != [""]:
        begin(proc, SYSTEM in words)


def finish() -> None:
    """The process ends in order: what it has recorded leaves first."""
    if _recording is not None:
        _recording.flush(_LAST)


# --- questions


def switch(proc: Proc, argument: bytes) -> bytes:
    """Question "telemetry.record": the setting's words, "" to end."""
    words = msgspec.msgpack.decode(argument, type=str)
    if words:
        begin(proc, SYSTEM in words.split(","), "again" in words.split(","))
    else:
        end()
    return b"\xc0"


def flush(proc: Proc, argument: bytes) -> bytes:
    """Question "telemetry.flush": what was recorded before has left when it is answered."""
    if _recording is not None:
        _recording.flush()
    return b"\xc0"


# --- what is there when recording begins


def existing(proc: Proc, recorder: Recorder) -> list[tuple[Any, ...]]:
    """The events of actors and meshes that are there already."""
    now = time.monotonic()
    found: list[tuple[Any, ...]] = []
    host = host_of(proc.address)
    root = root_of(proc)
    if root is not None:
        found.append((MESH, f"host:{host}", "Host", "local", "local", extent_json((), ()), "", "", now))
        found.append((MESH, proc.address, "Proc", "local", "local", extent_json((), ()), f"host:{host}", "", now))
        name = f"local/{CLIENT}"
        found.append((MESH, root.key, "Client", CLIENT, name, extent_json((), ()), proc.address, "", now))
        found.append(actor_event(root, ""))
        found.append((STATUS, root.unique, "Client", "", "", now))
    for procs in list(proc.mesh.owned.procs.values()):
        found += procs_events(procs.spec)
    for actors in list(proc.mesh.owned.actors.values()):
        if not recorder.leaves_out(_is_system(actors.spec)):
            found.append(actors_event(actors.spec))
    for instance in list(proc.actors.values()):
        if not recorder.leaves_out(instance.system):
            found.append(actor_event(instance, ""))
            found.append((STATUS, instance.unique, _status(instance), "", "", now))
    return found


def _status(instance: Instance) -> str:
    if instance.stopping or instance.end is not None:
        return "Stopping"
    return "Idle" if instance.ready.ready else "Initializing"


def actor_event(instance: Instance, cls: str) -> tuple[Any, ...]:
    behaviour: Any = instance.behaviour
    display = "<root>" if behaviour is None else None if instance.system else behaviour.display
    known = getattr(behaviour, "cls", None)
    name = cls or ("" if known is None else f"{known.__module__}.{known.__qualname__}")
    full_name = str(identities.actor_address(instance))
    return (
        ACTOR,
        instance.unique,
        instance.key,
        instance.name,
        instance.rank,
        full_name,
        display,
        name,
        time.monotonic(),
    )


def procs_events(spec: Any) -> list[tuple[Any, ...]]:
    """A mesh of processes, and its hosts."""
    now, hosts = time.monotonic(), ",".join(spec.hosts)
    parent = f"host:{hosts}"
    name = "hosts" if len(spec.hosts) > 1 or name_of(spec.hosts[0]) else "local"
    shape = extent_json(("hosts",), (len(spec.hosts),)) if len(spec.hosts) > 1 else extent_json((), ())
    return [
        (MESH, parent, "Host", name, name, shape, "", "", now),
        (
            MESH,
            spec.uid,
            "Proc",
            spec.name,
            f"{spec.name}-{spec.uid}",
            extent_json(spec.labels, spec.sizes),
            parent,
            "",
            now,
        ),
    ]


def _is_system(spec: Any) -> bool:
    return bool(getattr(spec.cls, "_is_system_actor", False))


def actors_event(spec: Any) -> tuple[Any, ...]:
    extent, procs = spec.extent, spec.proc_mesh
    parent = getattr(getattr(procs, "_spec", None), "uid", "")
    shape = getattr(procs, "_shape", None)
    return (
        MESH,
        spec.key,
        f"Python<{spec.cls.__name__}>",
        spec.name,
        spec.mesh_name,
        extent_json(list(extent.labels), list(extent.sizes)),
        parent,
        "" if shape is None else shape_json(shape),
        time.monotonic(),
    )


def client_stops(client: Instance, spec: Any, reason: str, stopped: Source) -> None:
    """The client is at work until that mesh, which it owns, has stopped."""
    recorder = recorders.active
    if recorder is None or recorder.leaves_out(_is_system(spec)):
        return
    recorder.status(client, "Processing", f"stops {spec.name}: {reason}", "Client")
    stopped.on_ready(once(lambda: recorder.status(client, "Client", f"{spec.name} has stopped", "Processing")))


def process_ended(proc: Proc, ended: ProcEnded) -> None:
    """The actors of ours that lived there have ended without a word of their own."""
    recorder = recorders.active
    if recorder is None or (ended.stopped and ended.code == 0):
        return
    how = f"killed by signal {-ended.code}" if ended.code < 0 else f"exit status {ended.code}"
    reason = f"its process has ended, {how}" + (f": {ended.detail}" if ended.detail else "")
    for owned in list(proc.mesh.owned.actors.values()):
        if recorder.leaves_out(_is_system(owned.spec)):
            continue
        for rank, address in enumerate(owned.spec.addresses):
            if address == ended.address:
                incarnation = owned.incarnations.get(rank, 0)
                unique = f"{owned.spec.key}.{rank}~{incarnation}" if incarnation else f"{owned.spec.key}.{rank}"
                status = "Stopped" if ended.stopped else "Failed"
                recorder.add_text((STATUS, unique, status, reason[:TEXT], "", time.monotonic()))


def process_name(proc: Proc) -> str:
    """Returns the name of a process for people; unique among the processes of a program."""
    given = os.environ.get("HYPERACTOR_PROCESS_NAME", "")
    if name_of(proc.address) == CLIENT:
        return sendable(given, NAME_LIMIT) or f"client:{os.getpid()}"
    return sendable(str(identities.proc_id(proc)), NAME_LIMIT)


class _Logs:
    """The handler of what the program and the runtime log, from INFO on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, record: logging.LogRecord) -> None:
        try:
            if record.levelno >= logging.INFO and not record.name.startswith(_OWN):
                rest = (
                    record.thread or 0,
                    _name(record.threadName or ""),
                    _name(record.module),
                    _name(record.pathname),
                )
                text = log_tap.text_of(record)
                self._recorder.log(_name(record.name), _name(record.levelname), text, *rest, record.lineno)
        except Exception:  # of a class of the program
            self._recorder.dropped += 1


def _name(text: object) -> str:
    return sendable(str(text), NAME_LIMIT)
