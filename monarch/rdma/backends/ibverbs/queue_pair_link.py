"""A queue pair that is connected to one of an owner's, and the thread that hears of completions.

Whoever begins a transfer posts its requests himself. One thread of the process waits for the completions of all links and
for the deadlines; it ends after IDLE seconds without work.

A device finds out only after half a minute or more that its peer is gone (see `binding`). So a link with work on which
nothing has completed for QUIET seconds says so to one of its jobs, which asks the other process; again after twice as
long, and so on up to QUIET_MOST. The thread looks when it wakes up anyway, so the first time is after QUIET to QUIET + IDLE.

A link that fails, or that has requests of a job whose time is over, is closed at once: that is the one way to be sure that
nothing of it moves any more. Jobs of others on it hear TransferFault.FLUSHED; they have to go another link.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Hashable
from time import monotonic
from typing import Protocol

from monarch._linux.locks import Lock
from monarch.actor.lowlevel import start_thread
from monarch.rdma.backends.ibverbs.binding import QueuePair
from monarch.rdma.backends.ibverbs.send_queue import (
    QueuePairFailure,
    QueuePairState,
    SendQueue,
    TransferFault,
    WorkRequest,
)

IDLE = 5.0
QUIET = 1.0
QUIET_MOST = 8.0
LONGEST = 60.0  # seconds that the thread waits at a time: deadlines may lie farther off than the kernel counts


class LinkGoneError(Exception):
    """The error of work for a link that was closed meanwhile."""


class LinkJob(Protocol):
    """The work of a link: requests with the keys of both sides' memory."""

    requests: list[WorkRequest]
    write: bool
    key: int
    remote_key: int
    deadline: float

    def ended(self, fault: TransferFault | None) -> None:
        """Nothing of it moves any more; None: all is done. Called once, on any thread, without locks. Does not raise."""
        ...

    def quiet(self) -> None:
        """Nothing has moved for a while. On the thread that waits for completions, without locks. Does not raise."""
        ...


_Ended = list[tuple[LinkJob, "TransferFault | None"]]


class QueuePairLink:
    """Any thread. `pair` is ready to send; the link closes it."""

    def __init__(self, pair: QueuePair, window: int, watch: CompletionWatcher, peer: int, made: int) -> None:
        """`peer`: the number of the owner's queue pair; `made`: when, by its user's own clock."""
        self.peer = peer
        self.made = made
        self._pair = pair
        self._watch = watch
        self._lock = Lock()
        self._queue = SendQueue(window)
        for state in (QueuePairState.INIT, QueuePairState.RTR, QueuePairState.RTS):
            self._queue.advance(state)
        self._jobs: dict[Hashable, LinkJob] = {}
        self._moved = 0.0  # when the last completion came, or work to a link that had none
        self._patience = QUIET
        self._file = pair.fileno()
        watch.add(self._file, self)

    @property
    def closed(self) -> bool:
        return self._queue.state is QueuePairState.ERROR

    @property
    def busy(self) -> bool:
        return self._queue.busy

    def begin(self, job: LinkJob) -> None:
        """Posts what there is room for; the rest follows. LinkGoneError: nothing was begun, and the job hears nothing."""
        with self._lock:
            if self.closed:
                raise LinkGoneError
            if not self._jobs:
                self._stir()
            self._jobs[id(job)] = job
            self._queue.submit(id(job), job.requests)
            ended = self._pump()
        _tell(ended)
        try:
            self._watch.expect(job.deadline)
        except RuntimeError:  # the process has no room for a thread: nobody would hear of the end
            self.close()

    def _stir(self) -> None:
        self._moved, self._patience = monotonic(), QUIET

    def look(self) -> None:
        """Takes the completions that have come."""
        with self._lock:
            ended = self._collect()
        _tell(ended)

    def woken(self) -> None:
        """Takes what has come; the descriptor is readable."""
        with self._lock:
            if self.closed:
                return
            try:
                self._pair.acknowledge()
                ended = self._collect()
            except OSError:
                ended = self._end(None, TransferFault.DEVICE)
        _tell(ended)

    def late(self, now: float) -> float:
        """Ends jobs whose time is over, and says when nothing moves. When to look again: infinity when there is no work."""
        ended: _Ended = []
        quiet: LinkJob | None = None
        with self._lock:
            for name, job in list(self._jobs.items()):
                if job.deadline <= now and name in self._jobs:
                    if self._queue.withdraw(name):
                        del self._jobs[name]
                        ended.append((job, TransferFault.LATE))
                    else:
                        ended += self._end(name, TransferFault.LATE)
            if self._jobs and now >= self._moved + self._patience:
                quiet = next(iter(self._jobs.values()))
                self._moved, self._patience = now, min(2 * self._patience, QUIET_MOST)
            earliest = min((job.deadline for job in self._jobs.values()), default=float("inf"))
            if self._jobs:
                earliest = min(earliest, self._moved + self._patience)
        _tell(ended)
        if quiet is not None:
            quiet.quiet()
        return earliest

    def close(self) -> None:
        """Jobs that are under way hear TransferFault.FLUSHED."""
        with self._lock:
            ended = [] if self.closed else self._end(None, TransferFault.FLUSHED)
        _tell(ended)

    def _pump(self) -> _Ended:
        posts = self._queue.post()
        at = 0
        try:
            while at < len(posts):
                job = self._jobs[posts[at].job]
                end = at
                while end < len(posts) and posts[end].job == posts[at].job:
                    end += 1
                work = [(post.number, post.request) for post in posts[at:end]]
                self._pair.post(work, job.write, job.key, job.remote_key)
                at = end
        except OSError:
            return self._end(posts[at].job, TransferFault.DEVICE)
        return []

    def _collect(self) -> _Ended:
        ended: _Ended = []
        while not self.closed:
            try:
                completions = self._pair.poll()
            except OSError:
                return ended + self._end(None, TransferFault.DEVICE)
            if not completions:
                break
            self._stir()
            for number, status in completions:
                outcome = self._queue.complete(number, status)
                if isinstance(outcome, QueuePairFailure):
                    return ended + self._end(outcome.job, outcome.fault)
                if outcome is not None:
                    ended.append((self._jobs.pop(outcome), None))
            ended += self._pump()
        return ended

    def _end(self, guilty: Hashable | None, fault: TransferFault) -> _Ended:
        """Closes the pair. `guilty` hears the fault, or everybody when it is None."""
        self._queue.fail()
        self._watch.forget(self._file)
        try:
            self._pair.close()
        except OSError:  # the device is gone, and with it whatever it did
            pass
        jobs, self._jobs = self._jobs, {}
        return [(job, fault if guilty in (None, name) else TransferFault.FLUSHED) for name, job in jobs.items()]


def _tell(ended: _Ended) -> None:
    for job, fault in ended:
        job.ended(fault)


class CompletionWatcher:
    """The thread, and the descriptors it waits at."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._files.register(self._wake, select.EPOLLIN)
        self._links: dict[int, QueuePairLink] = {}
        self._thread: threading.Thread | None = None
        self._until = 0.0  # when the thread looks again by itself
        self._closed = False

    def add(self, file: int, link: QueuePairLink) -> None:
        with self._lock:
            self._links[file] = link
            self._files.register(file, select.EPOLLIN)

    def forget(self, file: int) -> None:
        with self._lock:
            if self._links.pop(file, None) is not None:
                self._files.unregister(file)

    def expect(self, deadline: float) -> None:
        """There is work, which ends by then. RuntimeError when the process has no room for the thread."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._until = 0.0
                self._thread = start_thread(self._run, "monarch-rdma-ibverbs")
            elif deadline < self._until:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Closes all links, and waits for the thread. For tests."""
        for link in list(self._links.values()):
            link.close()
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()
        self._files.close()
        os.close(self._wake)

    def _run(self) -> None:
        idle_since = monotonic()
        while True:
            links = list(self._links.values())
            earliest = min((link.late(monotonic()) for link in links), default=float("inf"))
            now = monotonic()
            if earliest < float("inf"):
                idle_since = now
            with self._lock:
                if self._closed:
                    return
                if now - idle_since >= IDLE and not any(link.busy for link in self._links.values()):
                    self._thread = None
                    return
                self._until = min(earliest, now + LONGEST if earliest < float("inf") else idle_since + IDLE)
                wait = max(0.0, self._until - now)
            for file, _ in self._files.poll(wait):
                if file == self._wake:
                    _drain(file)
                    continue
                link = self._links.get(file)
                if link is not None:
                    link.woken()


def _drain(file: int) -> None:
    try:
        os.eventfd_read(file)
    except BlockingIOError:
        pass
