"""The present work of the actors of one process: what they handle, whom they wait for, at which line of the program.

Found from outside, on the I/O thread, while the actors go on or are stuck; nothing is prepared for it but the notes of
`_runtime.waiting`.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import socket
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from monarch._mesh.failures import stacks
from monarch._mesh.failures.stacks import Line
from monarch._runtime.context import Current, current, root_of
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.replies import shown
from monarch._runtime.waiting import Wait
from monarch._wire.message import Call, Text

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_RANKS = 64  # unanswered ranks an edge names; it counts them all
_QUEUED = 10_000  # messages of a mailbox among which one is looked for
_LOOKED_AT, _NAMED = 100, 3  # messages that wait behind an endpoint of which the endpoints are named, so many of them
_TASKS = 2_000  # tasks of an actor above which nothing is said of those of one message


class WaitEdge(Text, msgspec.Struct, frozen=True):
    """One wait: who waits for whom, since when, and where.

    `who`, `rank`, `host`, `pid`, `address`: the actor and its process ("<root>" is the client). `doing`: the endpoint that it
    runs ("" outside of any). `target`: the endpoint it waits for, as mesh.endpoint; `ranks`: those of that mesh that have not
    answered, `unanswered` of them (64 are named). `seconds`: for how long. `limited`: the wait has a time limit. `file`,
    `line`, `function`: where ("", 0 and "" when that could not be seen).
    """

    names = ("who", "host", "doing", "target", "file", "function")

    who: str
    rank: int
    host: str
    pid: int
    address: str
    doing: str
    target: str
    ranks: list[int]
    unanswered: int
    seconds: float
    limited: bool
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        inside = f", in {self.doing}()," if self.doing else ""
        limit = ", with a time limit" if self.limited else ""
        return (
            f"{self.who} (rank {self.rank}, host {self.host}, pid {self.pid}){inside} waits for {self.target}(), "
            f"rank(s) {self._ranks()}, for {self.seconds:.1f} s{limit}{_at(self.file, self.line, self.function)}"
        )

    def _ranks(self) -> str:
        return f"{shown(self.ranks)} ({self.unanswered} of them)" if self.unanswered > 1 else shown(self.ranks)


class RunningHandler(Text, msgspec.Struct, frozen=True):
    """One endpoint that runs: where, for how long (`seconds`), and at which line it is. Fields as those of WaitEdge.
    `queued`: messages of its actor that wait until it has returned, `waiting` the endpoints of the first of them;
    `is_async`: it is an `async def`."""

    names = ("who", "host", "endpoint", "file", "function", "waiting")

    who: str
    rank: int
    host: str
    pid: int
    address: str
    endpoint: str
    seconds: float
    file: str
    line: int
    function: str
    queued: int = 0
    is_async: bool = False
    waiting: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.who} (rank {self.rank}, host {self.host}, pid {self.pid}) has been running {self.endpoint}() for "
            f"{self.seconds:.1f} s{_at(self.file, self.line, self.function)}{behind(self)}"
        )


def behind(handler: RunningHandler) -> str:
    """Returns what is said of the messages that wait for an endpoint to return, and of how they need not."""
    if not handler.queued:
        return ""
    text = f"; {handler.queued} message(s) of this actor wait behind it"
    if handler.waiting:
        text += f": {', '.join(f'{name}()' for name in handler.waiting)}"
    if handler.is_async:
        text += f", because {handler.endpoint}() is an @endpoint: if it were a @concurrent_endpoint, they would run beside it"
    return text


def _at(file: str, line: int, function: str) -> str:
    return f", at {file}:{line} in {function}" if file else ""


class Job(NamedTuple):
    """A message that an actor handles; `task` None: on the actor's thread, which does nothing else meanwhile."""

    instance: Instance
    delivery: Delivery
    task: Any

    @property
    def explicit(self) -> bool:
        """True if the endpoint answers through a port, which it may have given to others."""
        method = self._method
        return method is None or bool(method.explicit)

    @property
    def is_async(self) -> bool:
        return self._method is not None and bool(self._method.is_async)

    @property
    def is_debugged(self) -> bool:
        """True if it waits for people: its actor stands at a breakpoint (see `actors.breakpoints`), or serves those."""
        behaviour: Any = self.instance.behaviour
        return "debugging" in vars(behaviour) or getattr(behaviour.cls, "_waits_for_people", False)

    @property
    def queued(self) -> int:
        """Messages that wait until this one has been handled."""
        return len(self.instance.mailbox.messages) if self.delivery is self.instance.current else 0

    @property
    def waiting(self) -> list[str]:
        """The endpoints of the first of them."""
        first = list(itertools.islice(self.instance.mailbox.messages, _LOOKED_AT)) if self.queued else []
        return list(dict.fromkeys(delivery.call.method for delivery in first if delivery.call.method))[:_NAMED]

    @property
    def _method(self) -> Any:
        return getattr(self.instance.behaviour, "_methods", {}).get(self.delivery.call.method)


def jobs_of(instance: Instance) -> list[Job]:
    """The message handled in turn, if any, then those of concurrent endpoints; none that was answered already."""
    serial = instance.current
    found = [] if serial is None else [Job(instance, serial, instance.task)]
    found += [Job(instance, delivery, task) for task, delivery in list(instance.concurrent.items())]
    return [job for job in found if not job.delivery.answered]


class Jobs:
    """The messages that the actors of a process handle now, to be looked up by waits."""

    def __init__(self, proc: Proc) -> None:
        self.all = [job for instance in list(proc.actors.values()) for job in jobs_of(instance)]
        self._by_call = {id(job.delivery.call): job for job in self.all}

    def of(self, wait: Wait) -> Job | None:
        """The message on whose behalf it waits."""
        call = None if wait.running is None else wait.running.call
        job = self._by_call.get(id(call))
        return job if job is not None and job.delivery.call is call else None


# --- lines of the program


def lines_of_job(job: Job, frames: dict[int, FrameType]) -> list[Line]:
    """Returns the lines where a message is handled, outermost first."""
    if job.task is None or stacks.is_running(job.task):
        return stacks.of_thread(frames.get(job.instance.thread_ident))
    return stacks.of_task(job.task)


def _lines_of_wait(wait: Wait, job: Job | None, frames: dict[int, FrameType]) -> list[Line]:
    lines = stacks.of_thread(frames.get(wait.ident)) if wait.task is None else stacks.of_task(wait.task)
    if not lines and job is not None:  # a task or thread of asyncio's own, as under gather: what awaits that one
        lines = lines_of_job(job, frames)
    return lines


def _innermost(lines: list[Line]) -> Line:
    return lines[-1] if lines else ("", 0, "")


# --- for people


@functools.cache
def _host() -> str:
    return socket.gethostname()


def display(instance: Instance | None) -> str:
    """Returns the actor's name in reports."""
    if instance is None or instance.behaviour is None:
        return "<root>" if instance is not None else "<a thread of no actor>"
    return getattr(instance.behaviour, "display", instance.name)


def edge_of(proc: Proc, wait: Wait, jobs: Jobs, frames: dict[int, FrameType]) -> WaitEdge:
    """A wait as people see it."""
    running, target = wait.running, wait.entry.target
    assert target is not None
    instance = root_of(proc) if running is None else running.instance
    job = jobs.of(wait)
    unanswered = wait.entry.unanswered()
    named = unanswered[:_RANKS]
    return WaitEdge(
        display(instance),
        instance.rank if instance is not None else 0,
        _host(),
        proc.pid,
        proc.address,
        "" if job is None else job.delivery.call.method,
        target.label,
        [target.ranks[rank] for rank in named] if target.ranks else named,
        len(unanswered),
        max(0.0, proc.loop.now() - wait.since),
        wait.limited,
        *_innermost(_lines_of_wait(wait, job, frames)),
    )


def handler_of(job: Job, frames: dict[int, FrameType]) -> RunningHandler:
    """A message that is handled, as people see it."""
    instance = job.instance
    proc = instance.proc
    return RunningHandler(
        display(instance),
        instance.rank,
        _host(),
        proc.pid,
        proc.address,
        job.delivery.call.method,
        max(0.0, proc.loop.now() - job.delivery.started),
        *_innermost(lines_of_job(job, frames)),
        job.queued,
        job.is_async,
        job.waiting,
    )


# --- who cannot go on


class Helpers:
    """On behalf of which messages the event loops of actors have timers and tasks. Looks at each loop once."""

    def __init__(self) -> None:
        self._timers: dict[int, set[Current | None]] = {}
        self._tasks: dict[int, dict[Current | None, list[Any]]] = {}
        self._crowded: set[int] = set()

    def has(self, job: Job, running: Current) -> bool:
        """True if there are timers for the message, or tasks beside the one that handles it. True as well when there
        are too many tasks to look at."""
        loop = job.task.get_loop()
        if id(loop) not in self._timers:
            self._look_at(loop)
        if id(loop) in self._crowded or running in self._timers[id(loop)]:
            return True
        own = (job.task, job.instance.task)
        return any(task not in own for task in self._tasks[id(loop)].get(running, ()))

    def _look_at(self, loop: Any) -> None:
        # asyncio's own list: who set a timer is nowhere else to be had.
        timers = [handle for handle in list(loop._scheduled) if not handle._cancelled]
        self._timers[id(loop)] = {handle._context.get(current) for handle in timers}
        tasks = sys.modules["asyncio"].all_tasks(loop)
        if len(tasks) > _TASKS:
            self._crowded.add(id(loop))
            return
        made = self._tasks[id(loop)] = {}
        for task in tasks:
            for running in _messages_of(task):
                made.setdefault(running, []).append(task)


def _messages_of(task: Any) -> list[Current | None]:
    """On behalf of which message a task was made. Before Python 3.12 its context can only be had from the garbage collector,
    with those of its callbacks."""
    if sys.version_info >= (3, 12):
        return [task.get_context().get(current)]
    return [found.get(current) for found in gc.get_referents(task) if type(found) is contextvars.Context]


def is_bound(wait: Wait, helpers: Helpers) -> bool:
    """True if nothing but its answer ends this wait, and the message it belongs to does not end before it does.

    Cautious: False where it cannot be seen. A thread of an actor that blocks does nothing else. A task may be
    cancelled: it counts when it is the one that handles the message, the endpoint awaits the answer itself, and neither
    a timer nor another task was made on behalf of that message (as timeouts, gather, wait and task groups do).
    """
    running, target = wait.running, wait.entry.target
    if running is None or target is None or not target.key or wait.limited or not (wait.alone and wait.stands):
        return False
    if wait.source is not wait.entry and len(wait.entry.unanswered()) != 1:
        return False  # the next of several answers: any of them will do
    instance = running.instance
    if wait.task is None:
        return wait.ident == instance.thread_ident
    handled = instance.current if wait.task is instance.task else instance.concurrent.get(wait.task)
    if handled is None or handled.call is not running.call or instance.stopping:
        return False
    return not helpers.has(Job(instance, handled, wait.task), running)


def blockers(proc: Proc, key: str, port: int, back: str) -> list[Wait]:
    """The waits that keep actor `key` from answering the message whose answer goes to `port` of `back`; [] when there is
    none, it was answered, or that cannot be seen."""
    instance = proc.actors.get(key)
    waits = [] if instance is None else proc.waits.standing(instance)
    if instance is None or not waits:
        return []
    serial = instance.current
    job = next((job for job in jobs_of(instance) if _is_meant(job.delivery, port, back)), None)
    if job is None and not _is_queued(instance, port, back):
        return []
    if job is not None and job.explicit:
        return []
    blocking = [wait for wait in waits if wait.task is None and wait.ident == instance.thread_ident]
    if not blocking:  # the thread is free: it is held up by waits of its own, or of the message before it
        handled = serial if job is None else job.delivery
        blocking = [wait for wait in waits if handled is not None and _call_of(wait) is handled.call]
    helpers = Helpers()
    return [wait for wait in blocking if is_bound(wait, helpers)]  # asked last: what stands now stood all the while


def _call_of(wait: Wait) -> Call | None:
    return None if wait.running is None else wait.running.call


def _is_meant(delivery: Delivery, port: int, back: str) -> bool:
    return delivery.call.port == port and delivery.back == back


def _is_queued(instance: Instance, port: int, back: str) -> bool:
    waiting: Iterable[Delivery] = list(itertools.islice(instance.mailbox.messages, _QUEUED))
    return any(_is_meant(delivery, port, back) for delivery in waiting)
