"""Question "tree": what one process tells of itself and its actors. Question "config": its settings.

Answered on the I/O thread while the actors go on or are stuck: it reads what they have noted anyway, and runs no user code.
Times are seconds since the epoch by the clock of that machine.
"""

from __future__ import annotations

import itertools
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import msgspec

from monarch._devices.own_figures import OWN, DeviceFigures
from monarch._linux.thread_frames import thread_frames
from monarch._mesh.failures.activity import Job, jobs_of, lines_of_job
from monarch._mesh.inspection import identities
from monarch._runtime.context import root_of
from monarch._runtime.departed import Departed, is_system
from monarch._runtime.flight_recorder import Event
from monarch._runtime.instance import Instance
from monarch._runtime.ordering import Session
from monarch._runtime.proc import Proc
from monarch._runtime.waiting import Wait
from monarch._wire.message import Failure
from monarch.config import settings

Named = Callable[[str, str, int, bool], str]

MOST_ACTORS = 5_000  # of one process, which take it some 50 ms; it says how many are left out
_HANDLERS = 64  # endpoint names of one actor that run, the oldest
_WAITS = 16  # of one actor
_SESSIONS = 64  # senders of one actor of which messages are held back
_TEXT = 4_000  # characters of a failure's report
_ABANDONED = "(abandoned: it did not end in time)"


class Facts(msgspec.Struct, array_like=True, gc=False):
    """Travels as an array: fields are added at the end only. Trees of facts have no rings, so nothing collects them."""


class HandlerFacts(Facts):
    """Calls of one endpoint that an actor handles now: how many, and since when the oldest. `file`, `line`: where that one
    is, told of an actor's oldest call; "" and 0 where it cannot be seen."""

    endpoint: str
    count: int
    since: float
    file: str = ""
    line: int = 0


class WaitingFacts(Facts):
    """An actor waits for the answer of `target` (mesh.endpoint), of `unanswered` ranks, since then."""

    target: str
    unanswered: int
    since: float


class FailureFacts(Facts):
    """The failure of an actor. `cause`: (mesh key, rank, process, name) of another actor that failed first."""

    report: str
    at: float
    cause: tuple[str, int, str, str] | None


class OrderingFacts(Facts):
    """Messages that came before others of the same sender, and wait for those."""

    known: int  # senders
    held: int  # messages
    most: int  # of one sender
    sessions: list[tuple[str, int, int, int, int]]  # sender, number awaited, messages held, lowest and highest of them
    left_out: int


class ActorFacts(Facts):
    key: str
    id: str
    name: str
    rank: int
    unique: str
    cls: str
    system: bool
    owner: str  # the unique name of the actor that spawned it
    owner_proc: str
    status: str
    detail: str
    created: float
    processed: int
    busy: float  # seconds in endpoints
    queue: int
    peak: int
    endpoint: str  # the last one
    handlers: list[HandlerFacts]
    handling: int
    waits: list[WaitingFacts]
    failure: FailureFacts | None
    ordering: OrderingFacts | None
    events: list[Event]  # only when asked for
    ended: float = 0.0


class ProcessFacts(Facts):
    address: str
    id: str
    reached_at: str  # the host's address
    mesh: str
    pid: int
    hostname: str
    user: str
    command: str
    started: float
    now: float
    rss: int
    vm: int
    poisoned: str  # why nothing can be spawned here; "" it can
    idle: float | None  # seconds since a message was last taken from a mailbox; None: never
    actors: list[ActorFacts]
    stopped: list[ActorFacts]
    left_out: int
    retention: int
    events: list[Event]  # of the process itself, only when asked for
    processors: float = 0.0  # seconds of processor time so far
    device: DeviceFigures | None = None  # of the device that it uses, as last measured


class TreeRequest(msgspec.Struct):
    """`actor`: the key of one actor that is told of in full; "*": all of them."""

    actor: str = ""


class SettingFacts(Facts):
    name: str
    value: str
    default: str
    origin: str  # runtime, client, environment, inherited, default
    variable: str
    inert: bool


def answer(proc: Proc, argument: bytes) -> bytes:
    """Answers the question "tree": what is in this process."""
    ask = msgspec.msgpack.decode(argument, type=TreeRequest) if argument else TreeRequest()
    return msgspec.msgpack.encode(describe(proc, ask))


def answer_config(proc: Proc, argument: bytes) -> bytes:
    """Answers the question "config": every setting, its value, and where that is from."""
    rows = [
        SettingFacts(row.name, value, row.kind.write(row.kind.check(row.default)), origin, row.env or "", row.inert)
        for row, value, origin in settings.LAYERS.origins()
    ]
    return msgspec.msgpack.encode(rows)


def describe(proc: Proc, ask: TreeRequest) -> ProcessFacts:
    now = time.time()
    clock = _Clock(now, proc.loop.now())
    instances = list(proc.actors.values())
    root = root_of(proc) if proc.address == proc.client else None
    if root is not None:
        instances.insert(0, root)
    left_out = max(0, len(instances) - MOST_ACTORS)
    waits = _waits(proc.waits.standing(), root)
    named = identities.actor_ids(proc)
    actors = [_actor(proc, instance, named, clock, waits, ask) for instance in instances[:MOST_ACTORS]]
    name = identities.proc_id(proc)
    stopped = [_departed(departed, named, proc, ask) for departed in proc.departed.copy()]
    taken = max((instance.last_taken for instance in instances), default=0.0)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    rss, vm = memory()
    return ProcessFacts(
        proc.address,
        name,
        proc.reached_at,
        proc.mesh.name,
        proc.pid,
        socket.gethostname(),
        _user(),
        " ".join(sys.orig_argv)[:_TEXT] if root is not None else "",
        proc.started_at,
        now,
        rss,
        vm,
        _poisoned(proc),
        max(0.0, clock.loop - taken) if taken else None,
        actors,
        stopped,
        left_out,
        proc.departed.maxlen or 0,
        proc.events.events("") if ask.actor == "*" else [],
        usage.ru_utime + usage.ru_stime,
        OWN.last(),
    )


def memory() -> tuple[int, int]:
    """(resident, virtual) bytes of this process; (0, 0) where that cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            vm, rss = file.read().split()[:2]
    except OSError:  # no descriptor is left
        return 0, 0
    page = resource.getpagesize()
    return int(rss) * page, int(vm) * page


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())  # no name service is asked here


def _poisoned(proc: Proc) -> str:
    residents = getattr(proc.mesh, "residents", None)
    if residents is not None and residents.poisoned:
        return "the bootstrap function of its proc mesh raised"
    return ""


class _Clock:
    """The time of the I/O loop, as seconds since the epoch; `frames`: what the threads of the process run at that time."""

    def __init__(self, now: float, loop: float) -> None:
        self.now = now
        self.loop = loop
        self.frames = thread_frames()

    def epoch(self, at: float) -> float:
        return self.now - max(0.0, self.loop - at)


# --- actors


def _waits(standing: Iterable[Wait], root: Instance | None) -> dict[int, list[Wait]]:
    """Returns the waits by the identity of the actor that waits, longest first."""
    found: dict[int, list[Wait]] = {}
    for wait in sorted(standing, key=lambda wait: wait.since):
        instance = root if wait.running is None else wait.running.instance
        found.setdefault(id(instance), []).append(wait)
    return found


def _actor(
    proc: Proc, instance: Instance, named: Named, clock: _Clock, waits: dict[int, list[Wait]], ask: TreeRequest
) -> ActorFacts:
    call = instance.last_call
    handlers, handling = _handlers(instance, clock)
    status, detail = _status(instance, handlers, clock)
    end = instance.end
    in_full = ask.actor in (instance.key, "*")
    return ActorFacts(
        instance.key,
        named(instance.key, instance.name, instance.rank, instance.behaviour is None or instance.key == instance.name),
        instance.name,
        instance.rank,
        instance.unique,
        instance.cls,
        is_system(instance),
        instance.owner,
        instance.owner_proc,
        status,
        detail,
        instance.created_at,
        instance.processed,
        instance.busy + _so_far(instance, clock),
        len(instance.mailbox.messages),
        instance.peak,
        "" if call is None else call.method,
        handlers,
        handling,
        [
            WaitingFacts(wait.entry.target.label, len(wait.entry.unanswered()), clock.epoch(wait.since))
            for wait in waits.get(id(instance), ())[:_WAITS]
            if wait.entry.target is not None
        ],
        FailureFacts(_clip(end.report), clock.now, instance.caused_by) if end is not None and not end.stopped else None,
        _ordering(instance),
        proc.events.events(instance.key) if in_full else [],
    )


def _handlers(instance: Instance, clock: _Clock) -> tuple[list[HandlerFacts], int]:
    """The endpoints that run, oldest first, and how many calls of them."""
    found: dict[str, HandlerFacts] = {}
    jobs = jobs_of(instance)
    for job in jobs:
        since = clock.epoch(job.delivery.started)
        known = found.setdefault(job.delivery.call.method, HandlerFacts(job.delivery.call.method, 0, since))
        known.count += 1
        known.since = min(known.since, since)
    oldest = sorted(found.values(), key=lambda handler: handler.since)
    if jobs:
        oldest[0].file, oldest[0].line = _place(min(jobs, key=lambda job: job.delivery.started), clock.frames)
    return oldest[:_HANDLERS], len(jobs)


def _place(job: Job, frames: dict[int, FrameType]) -> tuple[str, int]:
    """The line of the program at which a message is handled."""
    lines = lines_of_job(job, frames)
    return lines[-1][:2] if lines else ("", 0)


def _so_far(instance: Instance, clock: _Clock) -> float:
    """Seconds in the endpoint that runs now in turn."""
    now = instance.current
    return 0.0 if now is None or now.answered else max(0.0, clock.loop - now.started)


def _status(instance: Instance, handlers: list[HandlerFacts], clock: _Clock) -> tuple[str, str]:
    end = instance.end
    if end is not None and not end.stopped:
        return "failed", _cause(end)
    if instance.stopping or end is not None:
        return "stopping", ""
    if instance.behaviour is None:
        return "client", ""
    if not instance.ready.ready:
        return ("initializing" if instance.thread_ident else "created"), ""
    if handlers:
        oldest = handlers[0]
        return "processing", f"{oldest.endpoint} for {max(0.0, clock.now - oldest.since) * 1000:.0f}ms"
    return "idle", ""


def _ordering(instance: Instance) -> OrderingFacts | None:
    if instance.behaviour is None:
        return None
    known, held = instance.reordering()
    sessions: list[tuple[str, int, int, int, int]] = [
        _session(session) for session in itertools.islice(held, _SESSIONS)
    ]
    return OrderingFacts(
        known,
        sum(s.held for s in held),
        max((s.held for s in held), default=0),
        sessions,
        max(0, len(held) - _SESSIONS),
    )


def _session(session: Session) -> tuple[str, int, int, int, int]:
    sender: Any = session.sender
    return (sender if isinstance(sender, str) else str(sender[0])), *session[1:]


def _departed(departed: Departed, named: Named, proc: Proc, ask: TreeRequest) -> ActorFacts:
    failure: Failure = departed.failure
    reason = _reason(failure)
    abandoned = failure.stopped and _ABANDONED in reason
    in_full = ask.actor in (departed.key, "*")
    return ActorFacts(
        departed.key,
        named(departed.key, departed.name, departed.rank, departed.key == departed.name),
        departed.name,
        departed.rank,
        departed.unique,
        departed.cls,
        departed.system,
        departed.owner,
        departed.owner_proc,
        "zombie" if abandoned else departed.word,
        reason if failure.stopped else _cause(failure),
        departed.created_at,
        departed.processed,
        departed.busy,
        0,
        departed.peak,
        departed.endpoint,
        [],
        0,
        [],
        None if failure.stopped else FailureFacts(_clip(failure.report), departed.ended_at, departed.caused_by),
        None,
        proc.events.events(departed.key) if in_full else [],
        departed.ended_at,
    )


def _reason(failure: Failure) -> str:
    """Returns the reason of an ordinary stop, without the words around it."""
    text = failure.event or failure.report
    return _clip(text.rpartition("stopped: ")[2].strip() or text)


def _cause(failure: Failure) -> str:
    """Returns the cause of a failure, without the words around it."""
    text = failure.event or failure.report
    begins, failed, cause = text.partition(" failed: ")
    return _clip(cause if failed and begins.startswith("Supervision event: actor ") else text)


def _clip(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + "..."
