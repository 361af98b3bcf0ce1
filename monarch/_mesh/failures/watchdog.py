"""Looks from time to time at what the actors of a process do: logs endpoints that run long, and breaks circles of waits.

One timer a process; what it does runs on the I/O thread. In a process with actors it looks twice in `deadlock_after` while
answers are still to come, else four times in `slow_handler_after`; in others never. Calls pay for it with the note that a
blocked thread leaves (see `_runtime.waiting`).

What is not seen as part of a circle, because it may end by itself or cannot be seen from outside: waits with a time limit
(`get(timeout)`, `with_timeout`), of a message for which the event loop has a timer or another task (timeouts, `gather`,
`wait` and task groups of asyncio, background tasks that the endpoint itself began), for the next of several answers of a
`stream`, in threads and event loops that an endpoint started (`returns_future` and `accumulate` among them), and for
endpoints that answer through a port. They are in the wait graph all the same. Waits for anything but endpoints (messages of a
channel, the stop of a mesh, room in a full mailbox) are in neither.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from monarch._errors import DeadlockError
from monarch._linux.locks import Lock
from monarch._linux.thread_frames import thread_frames
from monarch._mesh.failures import stacks
from monarch._mesh.failures.activity import (
    Helpers,
    Job,
    Jobs,
    behind,
    blockers,
    display,
    edge_of,
    handler_of,
    is_bound,
    lines_of_job,
)
from monarch._mesh.failures.deadlock import Blocked, Detector, EndWait, SendProbe
from monarch._runtime.instance import Delivery
from monarch._runtime.log_thread import aside
from monarch._runtime.loop import TimerHandle
from monarch._runtime.proc import Proc
from monarch._runtime.waiting import Wait
from monarch._wire.frame import Frame
from monarch._wire.message import DeadlockProbe
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection
from monarch.config import settings

_IDLE = 60.0  # seconds until the settings are read again when both are off
_SHARE = 100  # the time between two sweeps is at least so many times that of one: they take no more than a hundredth
_SHOWN = 10  # waits named in what is logged of one endpoint
_REPORTED = 100  # endpoints logged in one sweep; the rest in the next

logger = logging.getLogger("monarch")


class Watchdog:
    """The watchdog of one Proc. `on_slow` is called with the stacks of endpoints that were logged, by the thread that
    logs."""

    def __init__(
        self, proc: Proc, on_slow: Callable[[Sequence[list[stacks.Line]]], None] = lambda stacks: None
    ) -> None:
        self._proc = proc
        self._on_slow = on_slow
        self._detector = Detector(proc.address, self._describe)
        self._timer: TimerHandle | None = None
        self._lock = Lock()  # of the timer
        self._logged: set[Delivery] = set()  # messages that run still and were logged
        proc.ports.watch = self._watch
        proc.waits.actor_started = self._on_actor_started
        proc.receivers[DeadlockProbe] = self._on_probe

    # --- the timer

    def _on_actor_started(self) -> None:
        """Any thread: from now on there is something to look at."""
        self._arm(_period(False))
        self._proc.ports.watched = False
        if self._proc.waits.pending():
            self._watch()

    def _watch(self) -> None:
        """Any thread: somebody may wait now, and nobody has looked for a while."""
        self._proc.ports.watched = True
        self._arm(_period(True))

    def _arm(self, delay: float) -> None:
        """Looks in `delay` seconds at the latest."""
        loop = self._proc.loop
        with self._lock:
            if self._timer is not None:
                if self._timer.when <= loop.now() + delay:
                    return
                self._timer.cancel()
            self._timer = loop.call_rarely(delay, self._sweep)

    def _sweep(self) -> None:
        proc, ports = self._proc, self._proc.ports
        with self._lock:
            self._timer = None
        if proc.closed is not None:
            return
        began = time.perf_counter()
        try:
            self._look_for_slow()
            self._look_for_circles()
        finally:
            ports.watched = not proc.actors or proc.waits.pending()
            if proc.actors:
                self._arm(max(_period(ports.watched), _SHARE * (time.perf_counter() - began)))
                if not ports.watched and proc.waits.pending():  # begun meanwhile
                    self._watch()

    # --- circles

    def _look_for_circles(self) -> None:
        after = settings.deadlock_after()
        if not after:
            return
        now = self._proc.loop.now()
        found: dict[int, Wait] = {}
        for wait in self._proc.waits.standing():
            if wait.running is not None and now - wait.since >= after and not wait.limited:
                found[wait.number] = wait
        due = sorted((number, wait.since) for number, wait in found.items())
        helpers = Helpers()

        def look(number: int) -> Blocked | None:
            wait = found[number]
            return _blocked(wait) if is_bound(wait, helpers) else None

        self._send(self._detector.sweep(due, look, now, after))

    def _on_probe(self, connection: Connection, probe: DeadlockProbe, frame: Frame) -> None:
        proc = self._proc
        waits = {wait.number: wait for wait in blockers(proc, probe.key, probe.port, probe.back)}
        after = settings.deadlock_after() or math.inf
        effects = self._detector.probed(probe, map(_blocked, waits.values()), proc.loop.now(), after)
        for effect in effects:
            if isinstance(effect, EndWait):
                _break(waits[effect.number], effect.path)
            else:
                self._send([effect])

    def _send(self, effects: Sequence[SendProbe]) -> None:
        proc = self._proc
        for effect in effects:
            if effect.address == proc.address:  # in a turn of its own: chains within a process may be long
                probe = effect.probe
                proc.loop.call_soon(lambda probe=probe: proc.post(proc.address, probe))  # type: ignore[misc]
                continue
            try:
                proc.post(effect.address, effect.probe)
            except PeerEnded:  # then the wait ends as well
                continue

    def _describe(self, blocked: Blocked) -> str:
        for wait in self._proc.waits.standing():
            if wait.number == blocked.number:
                return str(edge_of(self._proc, wait, Jobs(self._proc), thread_frames()))
        return f"{blocked.who} (its wait has just ended)"

    # --- endpoints that run long

    def _look_for_slow(self) -> None:
        after = settings.slow_handler_after()
        if not after:
            return
        limit = self._proc.loop.now() - after
        jobs = Jobs(self._proc)
        slow = [job for job in jobs.all if job.delivery.started <= limit and not job.is_debugged]
        self._logged.intersection_update(job.delivery for job in slow)
        fresh = [job for job in slow if job.delivery not in self._logged][:_REPORTED]
        if fresh:
            self._logged.update(job.delivery for job in fresh)
            frames, waits = thread_frames(), self._proc.waits.standing()
            reports = [(self._report(job, jobs, waits, frames), lines_of_job(job, frames)) for job in fresh]
            aside(partial(_log, reports))  # files are read as well
            aside(partial(self._on_slow, [lines for _, lines in reports]))

    def _report(self, job: Job, jobs: Jobs, waits: Sequence[Wait], frames: dict[int, FrameType]) -> str:
        proc, call = self._proc, job.delivery.call
        ran = proc.loop.now() - job.delivery.started
        text = (
            f"endpoint {call.method}() of {display(job.instance)} (rank {job.instance.rank}) has been running for "
            f"{ran:.1f} s (setting slow_handler_after); this is logged once for each message"
            f"{behind(handler_of(job, frames))}"
        )
        own = [wait for wait in waits if wait.running is not None and wait.running.call is call]
        text += "".join(f"\n{edge_of(proc, wait, jobs, frames)}" for wait in own[:_SHOWN])
        return text + (f"\n(and {len(own) - _SHOWN} waits more)" if len(own) > _SHOWN else "")


def _log(reports: Sequence[tuple[str, list[stacks.Line]]]) -> None:
    for text, lines in reports:
        stack = stacks.formatted(lines)
        logger.warning("%s%s", text, f"\nStack (most recent call last):\n{stack}" if stack else "")


def _blocked(wait: Wait) -> Blocked:
    """A wait for actors, made by one, as the detector takes it."""
    running, entry = wait.running, wait.entry
    assert running is not None and entry.target is not None
    addresses = entry.target.addresses
    targets = [addresses[rank] for rank in entry.unanswered()]
    return Blocked(wait.number, running.instance.unique, wait.since, entry.target.key, entry.number, targets)


def _period(waiting: bool) -> float:
    """Returns the seconds between two sweeps."""
    deadlock = settings.deadlock_after() / 2 if waiting else 0.0
    slow = settings.slow_handler_after() / 4
    return min((seconds for seconds in (deadlock, slow) if seconds), default=_IDLE)


def _break(wait: Wait, path: Sequence[str]) -> None:
    """Ends a wait with DeadlockError, unless it has just ended."""
    if not wait.stands:
        return
    count = len(path)
    what = "an actor waits for itself" if count == 1 else f"{count} actors wait for each other in a circle"
    circle = "".join(f"\n  {line}" for line in path)
    text = (
        f"{what}, and no wait of it has a time limit:{circle}\n"
        f"The youngest wait, the first of these, was given up. To call an actor that may be waiting for this one, make the "
        f"endpoint a concurrent_endpoint or give the call a limit (with_timeout); an actor calls its own methods on self."
    )
    wait.entry.give_up(DeadlockError(text, list(path)))
