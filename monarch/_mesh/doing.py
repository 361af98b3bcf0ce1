"""What the actors of one process do now: what they handle, whom they wait for, at which line of the program.

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
from typing import Any, NamedTuple

import msgspec

from monarch._runtime import stacks
from monarch._runtime.context import Current, current, root_of
from monarch._runtime.instance import Delivery, Instance
from monarch._runtime.proc import Proc
from monarch._runtime.replies import shown
from monarch._runtime.stacks import Line
from monarch._runtime.waiting import Wait

_RANKS = 64  # unanswered ranks an edge names; it counts them all
_QUEUED = 10_000  # messages of a mailbox among which one is looked for
_TASKS = 10_000  # tasks of a process above which nothing is said of those of one message


class WaitEdge(msgspec.Struct, frozen=True):
    """One wait: who waits for whom, since when, and where.

    `who`, `rank`, `host`, `pid`, `address`: the actor and its process ("<root>" is the client). `doing`: the endpoint that it
    runs ("" outside of any). `target`: the endpoint it waits for, as mesh.endpoint; `ranks`: those of that mesh that have not
    answered, `unanswered` of them (64 are named). `seconds`: for how long. `limited`: the wait has a time limit. `file`,
    `line`, `function`: where ("", 0 and "" when that could not be seen).
    """

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


class RunningHandler(msgspec.Struct, frozen=True):
    """One endpoint that runs: where, for how long (`seconds`), and at which line it is. Fields as those of WaitEdge."""

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

    def __str__(self) -> str:
        return (
            f"{self.who} (rank {self.rank}, host {self.host}, pid {self.pid}) has been running {self.endpoint}() for "
            f"{self.seconds:.1f} s{_at(self.file, self.line, self.function)}"
        )


def _at(file: str, line: int, function: str) -> str:
    return f", at {file}:{line} in {function}" if file else ""


class Job(NamedTuple):
    """A message that an actor handles; `task` None: on the actor's thread, which does nothing else meanwhile."""

    instance: Instance
    delivery: Delivery
    task: Any

    @property
    def explicit(self) -> bool:
        """Whether the endpoint answers through a port, which it may have given to others."""
        methods = getattr(self.instance.behaviour, "_methods", {})
        method = methods.get(self.delivery.call.method)
        return method is None or bool(method.explicit)


def jobs_of(instance: Instance) -> list[Job]:
    """The message handled in turn, if any, then those of concurrent endpoints."""
    serial = instance.current
    found = [] if serial is None else [Job(instance, serial, instance.task)]
    return found + [Job(instance, delivery, task) for task, delivery in list(instance.concurrent.items())]


def _job_of(wait: Wait) -> Job | None:
    """The message on whose behalf it waits."""
    running = wait.running
    if running is None or running.call is None:
        return None
    return next((job for job in jobs_of(running.instance) if job.delivery.call is running.call), None)


# --- lines of the program


def lines_of_job(job: Job, frames: dict[int, FrameType]) -> list[Line]:
    """Where a message is handled, outermost line first."""
    if job.task is None or stacks.is_running(job.task):
        return stacks.of_thread(frames.get(job.instance.thread_ident))
    return stacks.of_task(job.task)


def _lines_of_wait(wait: Wait, frames: dict[int, FrameType]) -> list[Line]:
    lines = stacks.of_thread(frames.get(wait.ident)) if wait.task is None else stacks.of_task(wait.task)
    if not lines:  # a task or thread of asyncio's own, as under gather: what awaits that one
        job = _job_of(wait)
        lines = [] if job is None else lines_of_job(job, frames)
    return lines


def _innermost(lines: list[Line]) -> Line:
    return lines[-1] if lines else ("", 0, "")


# --- for people


@functools.cache
def _host() -> str:
    return socket.gethostname()


def display(instance: Instance | None) -> str:
    """The actor's name in reports."""
    if instance is None or instance.behaviour is None:
        return "<root>" if instance is not None else "<a thread of no actor>"
    return getattr(instance.behaviour, "display", instance.name)


def edge_of(proc: Proc, wait: Wait, frames: dict[int, FrameType]) -> WaitEdge:
    """A wait as people see it."""
    running, target = wait.running, wait.entry.target
    assert target is not None
    instance = root_of(proc) if running is None else running.instance
    job = _job_of(wait)
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
        *_innermost(_lines_of_wait(wait, frames)),
    )


def handler_of(job: Job, frames: dict[int, FrameType]) -> RunningHandler:
    """A message that is handled, as people see it."""
    instance, proc = job.instance, job.instance.proc
    return RunningHandler(
        display(instance),
        instance.rank,
        _host(),
        proc.pid,
        proc.address,
        job.delivery.call.method,
        max(0.0, proc.loop.now() - job.delivery.started),
        *_innermost(lines_of_job(job, frames)),
    )


# --- who cannot go on


def is_bound(wait: Wait) -> bool:
    """Whether nothing but its answer ends this wait, and the message it belongs to does not end before it does.

    Cautious: False where it cannot be seen. A thread of an actor that blocks does nothing else. A task may be cancelled: it
    counts when it is the one that handles the message, the endpoint awaits the answer itself, and neither a timer nor another
    task was made on behalf of that message (as timeouts, gather, wait and task groups do).
    """
    running, target = wait.running, wait.entry.target
    if running is None or target is None or not target.key or wait.limited or not wait.stands:
        return False
    if wait.source is not wait.entry and len(wait.entry.unanswered()) != 1:
        return False  # the next of several answers: any of them will do
    instance = running.instance
    if wait.task is None:
        return wait.ident == instance.thread_ident
    job = _job_of(wait)
    return job is not None and job.task is wait.task and not instance.stopping and not _has_helpers(job, running)


def _has_helpers(job: Job, running: Current) -> bool:
    """Whether the loop of an actor has timers or further tasks that were made on behalf of a message."""
    loop = job.task.get_loop()
    for handle in list(loop._scheduled):  # asyncio's own list: who set a timer is nowhere else to be had
        if not handle._cancelled and handle._context.get(current) is running:
            return True
    tasks = sys.modules["asyncio"].all_tasks(loop)
    if len(tasks) > _TASKS:
        return True
    own = (job.task, job.instance.task)
    return any(task not in own and running in _messages_of(task) for task in tasks)


def _messages_of(task: Any) -> list[Current | None]:
    """On behalf of which message a task was made. Before Python 3.12 its context can only be had from the garbage collector,
    with those of its callbacks."""
    if sys.version_info >= (3, 12):
        return [task.get_context().get(current)]
    return [found.get(current) for found in gc.get_referents(task) if type(found) is contextvars.Context]


def blockers(proc: Proc, key: str, port: int, back: str) -> list[Wait]:
    """The waits that keep actor `key` from answering the message whose answer goes to `port` of `back`; [] when there is
    none, it was answered, or that cannot be seen."""
    instance = proc.actors.get(key)
    if instance is None:
        return []
    waits = [(wait, wait.running) for wait in proc.waits.standing() if wait.running is not None]
    waits = [(wait, running) for wait, running in waits if running.instance is instance and wait.stands]
    if not waits:
        return []
    jobs = jobs_of(instance)
    serial = instance.current
    job = next((job for job in jobs if _is_meant(job.delivery, port, back)), None)
    if job is None and not _is_queued(instance, port, back):
        return []
    if job is not None and job.explicit:
        return []
    blocking = [wait for wait, _ in waits if wait.task is None and wait.ident == instance.thread_ident]
    if not blocking:  # the thread is free: it is held up by waits of its own, or of the message before it
        handled = serial if job is None else job.delivery
        blocking = [wait for wait, running in waits if handled is not None and running.call is handled.call]
    return [wait for wait in blocking if is_bound(wait)]  # asked last: what stands now stood all the while


def _is_meant(delivery: Delivery, port: int, back: str) -> bool:
    return delivery.call.port == port and delivery.back == back


def _is_queued(instance: Instance, port: int, back: str) -> bool:
    waiting: Iterable[Delivery] = list(itertools.islice(instance.mailbox.messages, _QUEUED))
    return any(_is_meant(delivery, port, back) for delivery in waiting)
